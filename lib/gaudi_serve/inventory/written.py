"""Numbers in an inventory that YAML reads differently from what the user wrote. It runs on the controller."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

OCTAL = re.compile(r"-?0[0-7_]+")


def octals(value: Any, key: str = "") -> Iterator[tuple[str, int, str]]:
    """Yield (key, number, text in the file) of all numbers in a value that YAML read as octal."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from octals(part, f"{key}: {name}" if key else str(name))
    elif isinstance(value, list):
        for part in value:
            name = part.get("name") if isinstance(part, Mapping) else None
            kind = "model " if key == "vllm_models" else ""
            yield from octals(part, f"{key}: {kind}{name}" if name else key)
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > 0:
        text = _source(value)
        if text:
            yield key, int(value), text


def _source(value: int) -> str | None:
    """Return the text of an octal number in its file; None if it is not octal or its place is unknown."""
    try:
        # This is private to ansible-core. Its public functions for tags only deprecate values, and its errors print a
        # value's origin without returning it. Reading the inventory's files instead would miss numbers that a model
        # takes from another variable (port: "{{ base_port }}"), files that only a vars or inventory plugin reads, and
        # which of two files counts: a decimal number would be refused because of an equal octal one elsewhere. Without
        # the import, octal numbers are not refused, and nothing else changes.
        from ansible._internal._datatag._tags import Origin

        origin = Origin.get_tag(value)
        if origin is None or not origin.path or not origin.line_num or not origin.col_num:
            return None
        text = _lines(str(origin.path))[origin.line_num - 1][origin.col_num - 1 :]
    except (ImportError, AttributeError, OSError, ValueError, IndexError):
        return None
    found = re.match(r"[^\s,}\]#]+", text)
    return found[0] if found and OCTAL.fullmatch(found[0]) else None


@cache
def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()
