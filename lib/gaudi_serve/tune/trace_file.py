"""Requests of a trace file: CSV or JSON, with this project's column names, those of the Azure traces, or others."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..buckets.plugin_input import LARGEST
from ..buckets.traffic import Request
from ..core.errors import InputError, near, one_line, shown
from ..core.words import counted

# Each number with its column names, ours first.
NAMES = {
    "arrival_s": ("arrival_s", "TIMESTAMP"),
    "input_tokens": ("input_tokens", "ContextTokens"),
    "output_tokens": ("output_tokens", "GeneratedTokens"),
}
# Seconds per unit of a column of arrivals. Times of day have no unit.
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
LARGEST_FILE = 64 * 2**20  # bytes
MOST_REQUESTS = 200_000  # More would take too many minutes to plan.
FORMS = "a CSV file with a head, a JSON list of mappings, or a JSON mapping a line"
FRACTION = re.compile(r"(\.\d{6})\d+")
Row = tuple[str, Mapping[str, Any]]  # The place in the file, and the values by column.


@dataclass(frozen=True)
class Columns:
    """The column names of a trace, and the seconds per unit of its arrivals."""

    names: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NAMES)
    second: float = 1.0

    @classmethod
    def of(cls, columns: Any, unit: Any) -> Columns:
        """Return the columns from the user's values. Empty values are not set.

        Args:
            columns: ``{arrival_s: NAME, input_tokens: NAME, output_tokens: NAME}``, or some of these keys.
            unit: The unit of the arrivals: s, ms, us or ns.

        Raises:
            InputError: The message names the variable, the value and what is allowed.
        """
        allowed = f"must be a mapping of {', '.join(NAMES)} to names of columns"
        if columns and not isinstance(columns, Mapping):
            raise InputError(f"trace_columns: {shown(columns)}: {allowed}")
        for key, name in (columns or {}).items():
            if key not in NAMES:
                raise InputError(f"trace_columns: {shown(key)}: {allowed}{near(str(key), NAMES, 1)}")
            if not isinstance(name, str) or not name.strip():
                raise InputError(f"trace_columns: {key}: {shown(name)} is not a name of a column; {allowed}")
        if unit and unit not in UNITS:
            raise InputError(f"trace_time_unit: {shown(unit)}: must be one of {', '.join(UNITS)}")
        named = {key: (name.strip(),) for key, name in (columns or {}).items()}
        return cls({**NAMES, **named}, UNITS[unit or "s"])


def read_trace_file(path: str, columns: Columns | None = None) -> list[Request]:
    """Return the requests of a trace file in its order. Arrivals are in seconds since the first one.

    Args:
        path: The file.
        columns: Its column names; None: those of this project and of the Azure traces.

    Raises:
        InputError: The file is missing, empty, too large or of an unknown form, a column is missing, or a value is
            invalid. The message names the file and the line.
    """
    text, columns = _text(path), columns or Columns()
    path = one_line(path)
    rows = _json(path, text, columns) if text.lstrip()[:1] in "[{" else _csv(path, text, columns)
    found = []
    for where, row in rows:
        found.append(Request(*(_value(f"trace: {path}: {where}", kind, row, columns) for kind in NAMES)))
        if len(found) > MOST_REQUESTS:
            raise InputError(f"trace: {path}: {where}: is one request more than {MOST_REQUESTS:,}; use a part of them")
    if not found:
        raise InputError(f"trace: {path}: has no request; it must have at least one, as {FORMS}")
    begin = min(one.arrival_s for one in found)
    return [Request(one.arrival_s - begin, one.input_tokens, one.output_tokens) for one in found]


def _text(path: str) -> str:
    file, path = Path(path), one_line(path)
    try:
        if file.is_file() and file.stat().st_size > LARGEST_FILE:
            raise InputError(f"trace: {path}: is larger than {LARGEST_FILE // 2**20} MiB; use a part of it")
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"trace: {path}: no such file; it must be {FORMS}") from None
    except UnicodeDecodeError:
        raise InputError(f"trace: {path}: is not a UTF-8 text; it must be {FORMS}") from None
    except OSError as problem:
        raise InputError(f"trace: {path}: cannot be read: {problem.strerror}") from None
    if not text.strip():
        raise InputError(f"trace: {path}: is empty; it must be {FORMS}")
    return text


def _csv(path: str, text: str, columns: Columns) -> Iterator[Row]:
    reader = csv.reader(text.splitlines(), strict=True)
    try:
        head = [name.strip() for name in next(reader)]
        _require_columns(f"trace: {path}: line 1", head, columns)
        for cells in reader:
            where = f"line {reader.line_num}"
            if not cells:
                continue
            if len(cells) != len(head):
                raise InputError(f"trace: {path}: {where}: has {counted(len(cells), 'value')}, of {len(head)} columns")
            yield where, dict(zip(head, cells, strict=True))
    except csv.Error as problem:
        raise InputError(f"trace: {path}: line {reader.line_num}: not CSV: {problem}") from None


def _json(path: str, text: str, columns: Columns) -> Iterator[Row]:
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as problem:
            line = getattr(problem, "lineno", 1)
            raise InputError(f"trace: {path}: line {line}: not JSON: {getattr(problem, 'msg', 'too deep')}") from None
        yield from _mappings(path, ((f"request {number}", one) for number, one in enumerate(found, 1)), columns)
    else:
        yield from _mappings(path, _json_lines(path, text), columns)


def _json_lines(path: str, text: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except (ValueError, RecursionError) as problem:
                what = getattr(problem, "msg", "too deep")
                raise InputError(f"trace: {path}: line {number}: not a JSON mapping: {what}") from None


def _mappings(path: str, found: Iterable[tuple[str, Any]], columns: Columns) -> Iterator[Row]:
    for where, one in found:
        if not isinstance(one, Mapping):
            raise InputError(f"trace: {path}: {where}: {shown(one)} is not a mapping with {', '.join(NAMES)}")
        _require_columns(f"trace: {path}: {where}", [str(name) for name in one], columns)
        yield where, one


def _require_columns(where: str, there: list[str], columns: Columns) -> None:
    for key, names in columns.names.items():
        if set(names).isdisjoint(there):
            hint = next((found for name in names if (found := near(name, there, 1))), "")
            others = f" (or {', '.join(names[1:])})" if names[1:] else f" ({key})" * (names[0] != key)
            remedy = "; name them with trace_columns" if names == NAMES[key] and not hint else ""
            raise InputError(f"{where}: {names[0]}{others} is missing among {shown(', '.join(there))}{hint}{remedy}")


def _value(where: str, kind: str, row: Mapping[str, Any], columns: Columns) -> Any:
    name = next(name for name in columns.names[kind] if name in row)
    value = row[name]
    if kind == "arrival_s":
        seconds = _seconds(value)
        if seconds is None or not abs(seconds) <= LARGEST:
            raise InputError(
                f"{where}: {name} {shown(value)} is neither a number of seconds nor a time such as "
                "2023-11-16 18:15:46.68"
            )
        return seconds * columns.second if _is_number(value) else seconds
    least = 1 if kind == "input_tokens" else 0
    text = value.strip() if isinstance(value, str) else value
    number = int(text) if isinstance(text, str) and re.fullmatch("[0-9]{1,13}", text) else text
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= LARGEST:
        raise InputError(f"{where}: {name} {shown(value)} is not an integer from {least} to {LARGEST}")
    return number


def _is_number(value: Any) -> bool:
    """Return whether an arrival is a number, which has a unit, and not a time of day."""
    try:
        return bool(math.isfinite(float(value)))
    except (TypeError, ValueError):
        return False


def _seconds(value: Any) -> float | None:
    """Return the seconds of a number, or of a time of day since any start. A time without a zone is UTC."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if abs(value) <= LARGEST else None
    if not isinstance(value, str):
        return None
    text = value.strip()
    try:
        number = float(text)
        return number if math.isfinite(number) else None
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(FRACTION.sub(r"\1", text).replace("Z", "+00:00"))
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()


__all__ = ["Columns", "read_trace_file"]
