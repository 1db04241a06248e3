"""Templates and files of roles: what the controller renders for a host. Hosts have neither roles nor Jinja."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .errors import InputError

ROLES = Path(__file__).resolve().parents[3] / "roles"


def rendered(role: str, name: str, **values: Any) -> str:
    """Return the text of a template of a role.

    Args:
        role: the role.
        name: of the file in its folder ``templates``.
        values: what the template reads.

    Raises:
        InputError: where it cannot be rendered; a name that is not given is such a case.
    """
    return rendered_text(template_of(role, name), f"template {role}/templates/{name}", **values)


def rendered_text(text: str, where: str, **values: Any) -> str:
    """Return a text of Jinja with its values; ``where`` begins the message of an error.

    Raises:
        InputError: where it cannot be rendered; a name that is not given is such a case.
    """
    # Only the controller renders; modules that share this package have no jinja2.
    import jinja2

    # Plain text, no HTML.
    environment = jinja2.Environment(  # noqa: S701
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True
    )
    try:
        return environment.from_string(text).render(**values)
    except jinja2.TemplateError as problem:
        raise InputError(f"{where}: {problem}") from problem


def template_of(role: str, name: str) -> str:
    """Return the text of a template of a role."""
    return (ROLES / role / "templates" / name).read_text(encoding="utf-8")


def file_of(role: str, name: str) -> str:
    """Return the text of a file that a role brings to hosts."""
    return (ROLES / role / "files" / name).read_text(encoding="utf-8")
