"""Reads package names and versions from the tasks and files of roles."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..core.checks import is_true
from ..core.errors import InputError
from ..core.templates import ROLES
from ..core.yaml_text import load

ROOT: Path = ROLES.parent
APT = "ansible.builtin.apt"
PIN = re.compile(r"(?P<name>[\w.-]+)(?:\[[\w,.-]*\])?\s*(?:==\s*(?P<version>[^\s;]+))?")


def tasks_of(role: str, file: str) -> Iterator[Mapping[str, Any]]:
    """Yield the tasks of a role's file, including those inside blocks."""
    yield from _flat(_loaded(role, file))


@cache
def _loaded(role: str, file: str) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = load((ROLES / role / "tasks" / file).read_text(encoding="utf-8"), quick=True)
    return found


def _flat(tasks: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for task in tasks or ():
        yield task
        for part in ("block", "rescue", "always"):
            yield from _flat(task.get(part) or ())


def apt_names(role: str, file: str, name: str, **values: Any) -> list[str]:
    """Return the packages that a task of a role installs, from its own expression.

    Args:
        role, file, name: of the task.
        values: the variables of the expression.

    Raises:
        InputError: if there is no such task, or its expression cannot be rendered.
    """
    where = f"roles/{role}/tasks/{file}: {name}"
    task = next((one for one in tasks_of(role, file) if one.get("name") == name and APT in one), None)
    if task is None:
        raise InputError(f"{where}: no such task installs packages")
    said = task[APT]["name"]
    found = _rendered(said, where, values) if isinstance(said, str) else said
    return [found] if isinstance(found, str) else [str(one) for one in found]


def _rendered(text: str, where: str, values: Mapping[str, Any]) -> Any:
    # Only the controller renders; this package is never copied to hosts.
    import jinja2
    from jinja2.nativetypes import NativeEnvironment

    environment = NativeEnvironment(undefined=jinja2.StrictUndefined)
    environment.filters["bool"] = is_true
    try:
        return environment.from_string(text).render(**values)
    except jinja2.TemplateError as problem:
        raise InputError(f"{where}: {problem}") from problem


def pins(path: str) -> list[tuple[str, str]]:
    """Return name and version of each line of a requirements file; the version is empty if it is not pinned.

    Args:
        path: of the file, in this repository.
    """
    lines = (line.partition("#")[0].strip() for line in (ROOT / path).read_text(encoding="utf-8").splitlines())
    found = (PIN.match(line) for line in lines if line and not line.startswith("-"))
    return [(one["name"], one["version"] or "") for one in found if one]
