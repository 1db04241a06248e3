"""One variable or key of the reference: what it means, what it may be, and who reads it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from gaudi_serve.core.tiers import tier_of

FIRST = "1.0.0"
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Entry:
    """A row of the reference.

    path: the name, or for a key in a mapping its path. kind: the type, such as ``list of int``. allowed: completes
    "must be". example: as YAML. read_by: what reads it; empty if everything does.
    """

    path: str
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
    def of(cls, path: str, data: Mapping[str, Any], allowed: str, read_by: str) -> Entry:
        """Return an entry of a file of data."""
        choices = tuple(map(str, data.get("choices") or ()))
        return cls(
            path,
            path.rpartition(".")[2],
            data["type"],
            str(data.get("default", "")),
            data["help"],
            sentence(allowed, choices),
            str(data.get("example", "")),
            read_by,
            str(data.get("since", FIRST)),
            choices,
        )

    @property
    def tier(self) -> str:
        """Return who needs the variable or key."""
        return tier_of(self.path)

    def row(self, keys: str, *cells: str) -> str:
        """Return the entry as a row of a table. keys: a link to the keys of its mapping. cells: after the default."""
        parts = [
            self.help,
            f"Allowed: {self.allowed}." if self.allowed else "",
            f"Example: `{self.name}: {self.example}`." if self.example else "",
            f"Keys: {keys}." if keys else "",
            f"Read by {self.read_by}." if self.read_by else "",
            f"Since {self.since}." if self.since != FIRST else "",
        ]
        row = (f"`{self.name}`", self.kind, self.default, *cells, " ".join(filter(None, parts)))
        return f"| {' | '.join(map(cell, row))} |\n"


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
