"""One variable or key of the reference: what it means, what it may be, and who reads it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FIRST = "1.0.0"
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Entry:
    """A row of the reference.

    kind: the type, such as ``list of int``. allowed: completes "must be". example: as YAML. read_by: what reads it.
    """

    name: str
    kind: str
    default: str
    help: str
    allowed: str
    example: str
    read_by: str
    since: str = FIRST
    choices: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, data: Mapping[str, Any], allowed: str, read_by: str) -> Entry:
        """Return an entry of a file of data."""
        choices = tuple(map(str, data.get("choices") or ()))
        return cls(
            name,
            data["type"],
            str(data.get("default", "")),
            data["help"],
            sentence(allowed, choices),
            str(data.get("example", "")),
            read_by,
            str(data.get("since", FIRST)),
            choices,
        )

    def markdown(self) -> str:
        """Return the entry as a section."""
        rows = [
            ("type", self.kind),
            ("default", self.default),
            ("allowed", self.allowed),
            ("example", f"`{self.name}: {self.example}`" if self.example else ""),
            ("read by", self.read_by),
            ("since", self.since),
        ]
        table = "".join(f"| {key} | {cell(value)} |\n" for key, value in rows if value)
        return f"### {self.name}\n\n{self.help}\n\n| | |\n|---|---|\n{table}"


def cell(text: str) -> str:
    """Return a text as a cell of a table."""
    return text.replace("|", "&#124;").replace("\n", " ")


def sentence(allowed: str, choices: Iterable[str] = ()) -> str:
    """Return what is allowed, as a phrase: without "must be" or "is not"."""
    if choices:
        return "one of " + ", ".join(f"`{choice}`" for choice in choices)
    for beginning in ("must be ", "must ", "is not "):
        allowed = allowed.removeprefix(beginning)
    return allowed


@functools.cache
def data_of(name: str) -> dict[str, dict[str, Any]]:
    """Return a file of data of this folder."""
    return dict(yaml.safe_load((HERE / f"{name}.yml").read_text(encoding="utf-8")))
