"""hccl_demo: the arguments of a measurement, and its output."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import InputError, shown
from ..platforms.hl_smi import LONGEST_LINE, text_lines

Result = dict[str, Any]

TITLE = re.compile(r"^\[BENCHMARK\]\s*hccl(\w+)\s*\((.*)\)$")
FIGURE = re.compile(
    r"^\[BENCHMARK\]\s*(\w+)\s+(Bandwidth|Latency)\s*:\s*([\d.]+(?:e[+-]?\d+)?)\s*(\S+)$", re.IGNORECASE
)
REPORT = re.compile(r"^\[(?:BANDWIDTH |LATENCY )?SUMMARY REPORT\]$")
HEADER = re.compile(r"^size\s+count\s+type\s+redop\s+", re.IGNORECASE)
VALUE = re.compile(r"([\d.]+(?:e[+-]?\d+)?)\s*([a-z]+(?:/s)?)?(?=\s|$)", re.IGNORECASE)
UNITS = {"GB/S": 1.0, "MB/S": 1e-3, "KB/S": 1e-6, "B/S": 1e-9, "S": 1e3, "MS": 1.0, "US": 1e-3, "NS": 1e-6}
# Names of figures and of table columns -> our names, with their unit.
NAMES = {
    "nw bandwidth": "nw_gb_s",
    "algo bandwidth": "algo_gb_s",
    "host latency": "host_latency_ms",
    "device latency": "device_latency_ms",
    "nw_bw": "nw_gb_s",
    "nwbw": "nw_gb_s",
    "algobw": "algo_gb_s",
    "time": "time_ms",
}
BYTES = {"float": 4, "bfloat16": 2, "float16": 2}


def hccl_benchmark(text: str) -> Result:
    """Parse the output of ``run_hccl_demo.py``: one size or a range of sizes, bandwidth or latency.

    Returns:
        ``collective`` (``all_reduce``), ``dtype``, ``iterations``, ``results`` (one a size, smallest first:
        ``size_bytes``, ``count`` and the figures: ``nw_gb_s`` and ``algo_gb_s`` in GB/s, ``host_latency_ms``,
        ``device_latency_ms``, ``time_ms``), and the figures of the largest size at the top.

    Raises:
        InputError: with the invalid line, with the title of a measurement without a figure, or with the last line if
            there is no figure.
    """
    lines = [(place, line.strip()) for place, line in text_lines("hccl_demo", text)]
    found: Result = {"collective": None, "dtype": None, "iterations": None}
    results: list[Result] = []
    columns: list[str] = []
    for place, line in lines:
        if len(line) > LONGEST_LINE and line.startswith(("[", "(src")):
            raise InputError(f"{place}: longer than {LONGEST_LINE} characters: {shown(line)}")
        if line.startswith("[BENCHMARK]"):
            _benchmark_line(place, line, found, results)
        elif REPORT.match(line):
            columns = []
        elif line.startswith("(src") and "collective=" in line:
            _details(place, line, line.strip("()"), found)
        elif HEADER.match(line):
            columns = _columns(place, line)
        elif columns and re.match(r"[-+]?[0-9]", line):
            results.append(_row(place, line, columns, found))
    if not results:
        place, last = lines[-1] if lines else ("hccl_demo", "")
        raise InputError(f"{place}: no figure in the output, which ends with: {shown(last)}")
    _complete(results)
    results.sort(key=lambda result: int(result["size_bytes"]))
    largest = {key: value for key, value in results[-1].items() if key in NAMES.values()}
    return {**found, "results": results, **largest}


def _complete(results: list[Result]) -> None:
    """Refuse a measurement that has a title but no figure: an interrupted run is not a result."""
    for result in results:
        title = result.pop("title", "")
        if len(result) == 2:
            raise InputError(f"{title} is followed by no figure")


def _benchmark_line(place: str, line: str, found: Result, results: list[Result]) -> None:
    title = TITLE.match(line)
    if title:
        details = _details(place, line, title[2], found)
        # AllReduce -> all_reduce, as on the command line.
        found["collective"] = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", title[1]).lower()
        count = _whole(details.get("count", "0"), place, line)
        size = details.get("dataSize") or details.get("data_size")
        size_bytes = _whole(size, place, line) if size else count * BYTES.get(str(found["dtype"]), 4)
        results.append({"size_bytes": size_bytes, "count": count, "title": f"{place}: {shown(line)}"})
        return
    figure = FIGURE.match(line)
    name = NAMES.get(f"{figure[1]} {figure[2]}".lower()) if figure else None
    if not figure or not name or not results or figure[4].upper() not in UNITS:
        raise InputError(f"{place}: not a line of a figure: {shown(line)}")
    results[-1][name] = _number(figure[3], place, line) * UNITS[figure[4].upper()]


def _details(place: str, line: str, text: str, found: Result) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(","))
    details = {key.strip(): value.strip() for key, _, value in pairs}
    found["collective"] = details.get("collective", found["collective"])
    found["dtype"] = details.get("dtype", details.get("data_type", found["dtype"]))
    if "iterations" in details:
        found["iterations"] = _whole(details["iterations"], place, line)
    return details


def _columns(place: str, line: str) -> list[str]:
    names = [name.strip().lower() for name in re.split(r"\s{2,}", line)]
    unknown = [name for name in names[4:] if name not in NAMES]
    if unknown:
        raise InputError(f"{place}: unknown columns {shown(unknown)} in {shown(line)}")
    return [NAMES[name] for name in names[4:]]


def _row(place: str, line: str, columns: list[str], found: Result) -> Result:
    cells = line[: LONGEST_LINE + 1].split(maxsplit=4)
    rest = cells[4] if len(cells) == 5 and len(line) <= LONGEST_LINE else ""
    values = VALUE.findall(rest)
    if len(values) != len(columns) or VALUE.sub("", rest).strip():
        raise InputError(f"{place}: not a row of size, count, type, redop and {len(columns)} figures: {shown(line)}")
    found["dtype"] = cells[2]
    figures = {}
    for name, (number, unit) in zip(columns, values, strict=True):
        if unit and unit.upper() not in UNITS:
            raise InputError(f"{place}: unknown unit {shown(unit)} in {shown(line)}")
        figures[name] = _number(number, place, line) * (UNITS[unit.upper()] if unit else 1.0)
    return {"size_bytes": _whole(cells[0], place, line), "count": _whole(cells[1], place, line), **figures}


def _whole(text: str, place: str, line: str) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", text):
        raise InputError(f"{place}: {shown(text)} is not an integer in {shown(line)}")
    return int(text)


def _number(text: str, place: str, line: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.inf
    if not math.isfinite(value):
        raise InputError(f"{place}: {shown(text)} is not a number in {shown(line)}")
    return value


def hccl_arguments(run: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
    """Return the arguments of run_hccl_demo.py for one measurement, according to the manual.

    Args:
        run: one of link_runs.
        options: ``size`` or ``size_range`` (two), ``loop``, ``test``, ``measure`` (bandwidth or latency), ``node_id``,
            ``nodes``, ``cards`` (of this host).
    """
    cards, nodes = int(options["cards"]), int(options.get("nodes", 1))
    words: list[Any] = ["--nranks", cards * nodes, "--node_id", options.get("node_id", 0)]
    sizes: Sequence[Any] = options.get("size_range") or []
    words += ["--size_range", *sizes] if sizes else ["--size", options.get("size", "32m")]
    words += ["--test", options.get("test", "all_reduce"), "--loop", options.get("loop", 10000)]
    words += ["--ranks_per_node", cards, "-no_color"]
    if run["custom_comm"]:
        words += ["--custom_comm", ",".join(map(str, run["custom_comm"]))]
    if options.get("measure") == "latency":
        words += ["--measure", "latency"]
    return [str(word) for word in words]
