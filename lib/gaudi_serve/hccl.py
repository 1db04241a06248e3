"""What hccl_demo prints about its measurements."""

from __future__ import annotations

import re
from typing import Any

from .errors import InputError
from .hl_smi import ANSI

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
        ``collective`` (``all_reduce``), ``dtype``, ``iterations``, ``results`` (one a size, smallest
        first: ``size_bytes``, ``count`` and what was measured: ``nw_gb_s`` and ``algo_gb_s`` in
        GB/s, ``host_latency_ms``, ``device_latency_ms``, ``time_ms``), and the figures of the largest
        size at the top.

    Raises:
        InputError: with the line that is not of the format, or with the last line where no figure is.
    """
    lines = [line.strip() for line in ANSI.sub("", text).splitlines() if line.strip()]
    found: Result = {"collective": None, "dtype": None, "iterations": None}
    results: list[Result] = []
    columns: list[str] = []
    for line in lines:
        if line.startswith("[BENCHMARK]"):
            _benchmark_line(line, found, results)
        elif REPORT.match(line):
            columns = []
        elif line.startswith("(src") and "collective=" in line:
            _details(line.strip("()"), found)
        elif HEADER.match(line):
            columns = _columns(line)
        elif columns and re.match(r"\d", line):
            results.append(_row(line, columns, found))
    results = sorted((result for result in results if len(result) > 2), key=lambda result: int(result["size_bytes"]))
    if not results:
        raise InputError(f"hccl_demo: no figure in its output, which ends with: {(lines or [''])[-1]!r}")
    largest = {key: value for key, value in results[-1].items() if key in NAMES.values()}
    return {**found, "results": results, **largest}


def _benchmark_line(line: str, found: Result, results: list[Result]) -> None:
    title = TITLE.match(line)
    if title:
        details = _details(title[2], found)
        # AllReduce -> all_reduce, as the command line has it.
        found["collective"] = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", title[1]).lower()
        count = int(details.get("count", 0))
        size = details.get("dataSize") or details.get("data_size") or count * BYTES.get(str(found["dtype"]), 4)
        results.append({"size_bytes": int(size), "count": count})
        return
    figure = FIGURE.match(line)
    name = NAMES.get(f"{figure[1]} {figure[2]}".lower()) if figure else None
    if not figure or not name or not results or figure[4].upper() not in UNITS:
        raise InputError(f"hccl_demo: not a line of a figure: {line!r}")
    results[-1][name] = _number(figure[3], line) * UNITS[figure[4].upper()]


def _details(text: str, found: Result) -> dict[str, str]:
    details = dict(re.findall(r"(\w+)=([\w.]+)", text))
    found["collective"] = details.get("collective", found["collective"])
    found["dtype"] = details.get("dtype", details.get("data_type", found["dtype"]))
    if "iterations" in details:
        found["iterations"] = int(details["iterations"])
    return details


def _columns(line: str) -> list[str]:
    names = [name.strip().lower() for name in re.split(r"\s{2,}", line)]
    unknown = [name for name in names[4:] if name not in NAMES]
    if unknown:
        raise InputError(f"hccl_demo: unknown columns {unknown} in {line!r}")
    return [NAMES[name] for name in names[4:]]


def _row(line: str, columns: list[str], found: Result) -> Result:
    cells = line.split(maxsplit=4)
    values = VALUE.findall(cells[4]) if len(cells) == 5 else []
    if len(values) != len(columns) or not (cells[0].isdigit() and cells[1].isdigit()):
        raise InputError(f"hccl_demo: not a row of size, count, type, redop and {len(columns)} figures: {line!r}")
    found["dtype"] = cells[2]
    figures = {}
    for name, (number, unit) in zip(columns, values, strict=True):
        if unit and unit.upper() not in UNITS:
            raise InputError(f"hccl_demo: unknown unit {unit!r} in {line!r}")
        figures[name] = _number(number, line) * (UNITS[unit.upper()] if unit else 1.0)
    return {"size_bytes": int(cells[0]), "count": int(cells[1]), **figures}


def _number(text: str, line: str) -> float:
    try:
        return float(text)
    except ValueError as problem:
        raise InputError(f"hccl_demo: {text!r} is no number in {line!r}") from problem
