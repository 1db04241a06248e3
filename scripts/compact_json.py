"""JSON files with an entry a line, so that they are short and a difference of two versions shows the entries."""

from __future__ import annotations

import json
from typing import Any


def text_of(value: Any, width: int, encoder: type[json.JSONEncoder] = json.JSONEncoder) -> str:
    """Return the text of a file. A value that is wider than some characters has a line for each of its entries."""
    plain = json.loads(json.dumps(value, cls=encoder, sort_keys=True))
    return _written(plain, width, "") + "\n"


def _written(value: Any, width: int, margin: str) -> str:
    line = json.dumps(value)
    if len(line) <= width or not isinstance(value, (dict, list)):
        return line
    below = f"{margin} "
    if isinstance(value, list):
        return "[" + _lines([_written(entry, width, below) for entry in value], below) + f"\n{margin}]"
    entries = [f"{json.dumps(key)}: {_written(entry, width, below)}" for key, entry in value.items()]
    return "{" + _lines(entries, below) + f"\n{margin}}}"


def _lines(entries: list[str], margin: str) -> str:
    return ",".join(f"\n{margin}{entry}" for entry in entries)
