"""Templates and files of roles. The controller renders them, because hosts have no roles and no Jinja."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .errors import InputError

ROLES = Path(__file__).resolve().parents[3] / "roles"


def rendered(role: str, name: str, **values: Any) -> str:
    """Return a role's template, rendered.

    Args:
        role: The role.
        name: The file in the role's folder ``templates``.
        values: The variables of the template.

    Raises:
        InputError: The template cannot be rendered, for example because a variable is missing.
    """
    return rendered_text(template_of(role, name), f"template {role}/templates/{name}", **values)


def rendered_text(text: str, where: str, **values: Any) -> str:
    """Return a Jinja text, rendered. ``where`` begins the message of an error.

    Raises:
        InputError: The text cannot be rendered, for example because a variable is missing.
    """
    # Only the controller renders. Modules that share this package have no jinja2.
    import jinja2

    # The output is plain text, not HTML.
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
    """Return the text of a file that a role installs on hosts."""
    return (ROLES / role / "files" / name).read_text(encoding="utf-8")
