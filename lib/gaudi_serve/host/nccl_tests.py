"""all_reduce_perf of nccl-tests and rccl-tests: its arguments and its table."""

from __future__ import annotations

import re
from typing import Any

from ..core.errors import InputError, shown
from .all_reduce import ITERATIONS, SIZE, WARM_UP

RANK = re.compile(r"#\s+Rank\s+\d+\b")
# No nan or inf, which no threshold would refuse.
NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")
WRONG = "#wrong"
# The sums are compared. Of the two variants, vLLM and torch use the in-place one.
COLUMNS = ("size", "count", "type", "redop", "root", *(("time", "algbw", "busbw", WRONG) * 2))


def perf_arguments(ranks: int) -> list[str]:
    """Return the arguments that measure one size over the devices of one host, in one process."""
    given = {"-b": SIZE, "-e": SIZE, "-g": ranks, "-w": WARM_UP, "-n": ITERATIONS, "-c": 1}
    return [word for name, value in given.items() for word in (name, str(value))]


def perf_figures(output: str, ranks: int) -> dict[str, Any]:
    """Return the figures of an in-place measurement, in the form of all_reduce.py.

    Args:
        output: output of all_reduce_perf, which may contain lines of its libraries.
        ranks: number of devices.

    Raises:
        InputError: if other devices took part, sums are wrong, or the table has another format.
    """
    lines = output.splitlines()
    if (found := sum(bool(RANK.match(line)) for line in lines)) != ranks:
        raise InputError(f"all_reduce_perf shows {found} ranks instead of {ranks}")
    head = next((line for line in lines if line.lstrip("# ").split()[:1] == ["size"]), "")
    if tuple(head.lstrip("# ").split()) != COLUMNS:
        raise InputError(f"all_reduce_perf has another table: {shown(head)}")
    rows = [cells for line in lines if (cells := line.split())[:1] == [str(SIZE)]]
    if len(rows) != 1 or len(rows[0]) != len(COLUMNS):
        raise InputError(f"all_reduce_perf has no figure, and ends with: {shown((lines or [''])[-1])}")
    *numbers, wrong = rows[0][-4:]
    if {wrong, rows[0][-5]} != {"0"}:
        raise InputError(f"a sum over {ranks} ranks is wrong ({wrong}): a link or a device corrupts data")
    if not all(NUMBER.fullmatch(one) for one in numbers):
        raise InputError(f"all_reduce_perf has no figure: {shown(' '.join(rows[0]))}")
    time, algorithm, bus = map(float, numbers)
    figures = {"nw_gb_s": bus, "algo_gb_s": algorithm, "time_ms": time / 1e3}
    return {"collective": "all_reduce", "dtype": rows[0][2], "iterations": ITERATIONS, "size_bytes": SIZE, **figures}
