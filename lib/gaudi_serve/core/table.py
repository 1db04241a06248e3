"""Tables of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def model_cell(model: Mapping[str, Any]) -> str:
    """Return a model's name for a table, with the other models and the adapters of the same server."""
    others = [str(one["served_model_name"]) for one in model.get("served") or ()][1:]
    return ", ".join([str(model["name"]), *others, *model.get("adapters", ())])


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as aligned lines. The first row is the head, with a line below it."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]
