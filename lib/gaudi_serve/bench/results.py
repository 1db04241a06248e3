"""Saved results: an append-only file with a line of JSON for each repetition, and the raw files next to it."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ..core.errors import InputError, is_number, is_whole, one_line, shown

FILE, RAW = "results.jsonl", "raw"
SCHEMA = 1
TIMES = ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms")
RATES = ("output_tokens_s", "total_tokens_s", "requests_s")
TEXTS = ("date", "host", "model", "profile", "case")
OPTIONAL = ("run", "served", "launch", "through", "image", "driver", "release", "toolkit")
# vLLM's names for the rates.
OWN = dict(zip(RATES, ("output_throughput", "total_token_throughput", "request_throughput"), strict=True))
LARGEST = 256 * 2**20  # bytes of a results file
# Lines in the text output of older tools, which print some results only there.
LINES = {
    "completed": r"Successful requests:\s+(\d+)",
    "failed": r"Failed requests:\s+(\d+)",
    "duration": r"Benchmark duration \(s\):\s+([\d.]+)",
    "request_throughput": r"Request throughput \(req/s\):\s+([\d.]+)",
    "output_throughput": r"Output token throughput \(tok/s\):\s+([\d.]+)",
    "total_token_throughput": r"Total token throughput \(tok/s\):\s+([\d.]+)",
    **{
        f"{ours}_{name}_ms": rf"{theirs} {name.upper()} \(ms\):\s+([\d.]+)"
        for name in ("ttft", "tpot", "itl", "e2el")
        for ours, theirs in (("mean", "Mean"), ("median", "Median"), ("p99", "P99"))
    },
}

Known = Mapping[str, Any]


def printed(text: str) -> dict[str, float]:
    """Return the figures in a tool's text output, by their names in its JSON."""
    found = {name: re.search(pattern, text, re.IGNORECASE) for name, pattern in LINES.items()}
    return {name: float(match[1]) for name, match in found.items() if match}


def figures(raw: Known) -> dict[str, Any]:
    """Return the figures of a tool's result for a saved line; missing ones are None."""
    rates = {ours: _number(raw, theirs) for ours, theirs in OWN.items()}
    return {**rates, **{name: _times(raw, name.removesuffix("_ms")) for name in TIMES}}


def _times(raw: Known, name: str) -> dict[str, float | None]:
    every = {f"p{match[1]}": key for key in raw if (match := re.fullmatch(rf"p([\d.]+)_{name}_ms", key))}
    return {
        **{which: _number(raw, f"{which}_{name}_ms") for which in ("mean", "median")},
        **{"p99": None, **{which: _number(raw, key) for which, key in every.items()}},
    }


def _number(raw: Known, key: str) -> float | None:
    value = raw.get(key)
    return round(float(value), 4) if is_number(value, 0, 1e15) else None


def failed(raw: Known, requests: int) -> int:
    """Return the number of failed requests; results before about vLLM 0.11 do not contain it."""
    said = raw.get("failed")
    return int(said) if is_number(said, 0, 1e9) else max(0, requests - int(raw.get("completed") or 0))


def mean_concurrency(record: Known) -> float | None:
    """Return the mean number of concurrent requests by Little's law; None if figures are missing."""
    rate, mean = record["figures"].get("requests_s"), (record["figures"].get("e2el_ms") or {}).get("mean")
    return rate * mean / 1000 if rate and mean else None


def client_limit(record: Known) -> str:
    """Return a message if the client, not the server, limited a closed loop; otherwise empty.

    With fewer than ten requests for each slot, ramp-up and drain explain a low concurrency.
    """
    slots, mean = record.get("concurrency"), mean_concurrency(record)
    if not slots or not mean or record.get("failed") or record["requests"] < 10 * slots or mean >= 0.9 * slots:
        return ""
    return (
        f"only {mean:.1f} of {slots} requests were under way at a time: the client may have been the limit; look at "
        "its processor, or send the load from another machine"
    )


@dataclass(frozen=True)
class Kept:
    """The content of a results file: its lines, and messages on invalid ones."""

    records: list[dict[str, Any]]
    problems: list[str]


def read_results(path: str | Path) -> Kept:
    """Return the saved lines of a file; empty if the file does not exist.

    Raises:
        InputError: if it cannot be read.
    """
    file = Path(path)
    try:
        if not file.exists():
            return Kept([], [])
        if file.stat().st_size > LARGEST:
            raise InputError(f"{one_line(str(file))}: is larger than {LARGEST // 2**20} MiB; move a part of it away")
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as problem:
        raise InputError(f"{one_line(str(file))}: cannot be read: {problem.strerror}") from None
    records, problems = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        wrong, record = _read_line(line)
        if wrong:
            problems.append(f"{one_line(str(file))}: line {number}: {wrong}; it is left out")
        else:
            records.append(record)
    return Kept(records, problems)


def benchmark_kept(folder: str | Path) -> dict[str, Any]:
    """Return the saved results of a folder: ``records``, and ``problems`` with messages on invalid lines.

    An unreadable file also counts as a problem, because a page is useful without it.
    """
    try:
        kept = read_results(Path(folder) / FILE)
    except InputError as problem:
        return {"records": [], "problems": [str(problem)]}
    return {"records": kept.records, "problems": kept.problems}


def _read_line(line: str) -> tuple[str, dict[str, Any]]:
    try:
        found = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return "is not JSON", {}
    return (problem, {}) if (problem := record_problem(found)) else ("", found)


def _no_constant(name: str) -> float:
    """Refuse NaN and Infinity, which are not valid JSON and which browsers cannot read."""
    raise ValueError(name)


def record_problem(found: Any) -> str:
    """Return what is wrong with a saved line; empty if it is valid."""
    if not isinstance(found, dict):
        return "is not a mapping"
    return next(_problems(found), "")


def _problems(record: Known) -> Iterator[str]:
    for name in TEXTS:
        if not isinstance(record.get(name), str) or not record[name]:
            yield f"{name} {shown(record.get(name))} is not a text"
    try:
        moment(record)
    except (ValueError, KeyError):
        yield f"date {shown(record.get('date'))} is not a date of ISO 8601"
    for name in OPTIONAL:
        if not isinstance(record.get(name) or "", str):
            yield f"{name} {shown(record[name])} is not a text"
    for name in ("concurrency", "request_rate"):
        if record.get(name) is not None and not is_number(record[name], 0, 1e6):
            yield f"{name} {shown(record[name])} is not a number"
    for name in ("repetition", "requests", "failed"):
        if not is_whole(record.get(name), 0, 10**9):
            yield f"{name} {shown(record.get(name))} is not an integer"
    yield from _figure_problems(record.get("figures"))


def _figure_problems(figures: Any) -> Iterator[str]:
    if not isinstance(figures, dict):
        yield f"figures {shown(figures)} is not a mapping"
        return
    yield from (f"figures.{name} is not a number" for name in RATES if not _is_figure(figures.get(name)))
    for name in TIMES:
        times = figures.get(name) or {}
        if not isinstance(times, dict):
            yield f"figures.{name} is not a mapping"
            continue
        yield from (
            f"figures.{name}.{which} is not a number" for which, value in times.items() if not _is_figure(value)
        )


def _is_figure(value: Any) -> bool:
    return value is None or is_number(value, 0, 1e15)


def append(folder: str | Path, record: Known, raw: str = "") -> dict[str, Any]:
    """Append a line to the saved results, with its raw file; return the saved line.

    A lock keeps the lines of concurrent runs on this machine apart. Earlier lines stay unchanged; an incomplete last
    line first gets a line break.

    Raises:
        InputError: if the line is invalid or cannot be written.
    """
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        kept = {"schema": SCHEMA, **record, "raw": _keep_raw(place, record, raw) if raw else ""}
        if problem := record_problem(kept):
            raise InputError(f"a result cannot be stored: {problem}")
        line = json.dumps(kept, sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"
        handle = os.open(place / FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            size = os.fstat(handle).st_size
            broken = size and os.pread(handle, 1, size - 1) != b"\n"
            os.write(handle, (("\n" if broken else "") + line).encode())
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as problem:
        raise InputError(
            f"benchmark_dir: {one_line(str(place))}: cannot be written: {problem.strerror}; set benchmark_dir to a "
            "writable folder"
        ) from None
    return kept


def _keep_raw(place: Path, record: Known, raw: str) -> str:
    """Write a raw result under a unique name, and return the name."""
    (place / RAW).mkdir(exist_ok=True)
    stem = re.sub(r"[^\w.-]+", "_", f"{record['run']}-{record['host']}-{record['model']}-{record['repetition']}")
    for number in range(1000):
        name = f"{stem}{f'-{number}' if number else ''}.json"
        try:
            with (place / RAW / name).open("x", encoding="utf-8") as file:
                file.write(raw)
        except FileExistsError:
            continue
        return f"{RAW}/{name}"
    raise InputError(f"benchmark_dir: {one_line(str(place))}: has a thousand raw files of {stem} already")


def moment(record: Known) -> float:
    """Return the time of a saved line in seconds since 1970, independent of its time zone."""
    return datetime.fromisoformat(str(record["date"])).timestamp()


__all__ = ["Kept", "append", "client_limit", "failed", "figures", "moment", "printed", "read_results"]
