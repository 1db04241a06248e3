"""The refusals, announcements and results of playbooks/benchmark.yml."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.table import table
from ..core.words import counted
from .ask import Ask, read_ask
from .compare import compare
from .loads import SHORT
from .plan import Target, busy_refusal, targets_of
from .published import published_lines
from .results import FILE, Kept, client_limit, read_results
from .statistics import WORSE
from .sweep import Point, answer, broken

Known = Mapping[str, Any]


def benchmark_ask(asked: Known) -> dict[str, Any]:
    """Return the mistakes in a benchmark's options (``errors``), and whether it has a profile's ``load``.

    Args:
        asked: the user's values by variable name; empty values count as not set.
    """
    ask, wrong = read_ask(asked)
    return {"errors": wrong, "load": bool(ask and ask.load)}


def benchmark_plan(
    hostvars: Mapping[str, Known], asked: Known, probes: Mapping[str, Any], folder: str = "", commands: bool = False
) -> dict[str, Any]:
    """Return the plan of a benchmark on all hosts.

    Args:
        hostvars: variables by host.
        asked: as for ``benchmark_ask``.
        probes: results of module vllm_bench by host: ``probed``, or the reason in ``absent`` or ``refusal``.
        folder: folder of the saved results, used to estimate the time.
        commands: whether to show the tool's command lines.

    Returns:
        ``hosts`` to measure, ``errors`` (messages), and ``lines`` to show before the run.
    """
    ask, wrong = read_ask(asked)
    if ask is None:
        return {"hosts": [], "errors": wrong, "lines": []}
    failed, absent = ({host: one[key] for host, one in probes.items() if one.get(key)} for key in ("refusal", "absent"))
    here = {host: one["probed"] for host, one in probes.items() if one.get("probed")}
    # A gateway reaches all servers of a model, so the load is sent from one host only.
    some = dict(list(here.items())[:1]) if ask.through != "direct" else here
    kept = read_results(Path(folder) / FILE) if folder else Kept([], [])
    errors = [f"{host}: {text}" for host, text in failed.items()]
    # A gateway also sends requests to the servers of the other hosts, so these must be idle too.
    errors += [
        text for host in list(here)[1:] if ask.through != "direct" for text in busy_refusal(host, ask, here[host])
    ]
    skipped = [f"{host}: {text}" for host, text in absent.items()]
    lines = [*kept.problems, *(f"skipped: {text}" for text in skipped)]
    for host, probed in some.items():
        targets, refused = targets_of(host, ask, probed, hostvars)
        errors += refused
        for target in targets:
            lines += target.lines([one for one in kept.records if one["host"] == host and one["model"] == ask.model])
            lines += [f"  {' '.join(target.argv(target.load, 0))}"] if commands else []
    if not here and not errors:
        errors += skipped or [f"model {ask.model}: serves on no host of this run"]
    return {"hosts": [] if errors else list(some), "errors": errors, "lines": lines}


def benchmark_report(asked: Known, folder: str, records: Sequence[Known]) -> dict[str, Any]:
    """Return the results of a benchmark.

    Args:
        asked: as for ``benchmark_ask``.
        folder: folder of the saved results.
        records: the new lines.

    Returns:
        ``lines`` to show, ``data``: by host and model the medians, the comparison and the answer of a sweep, and
        ``worse``: the models that are slower than before.
    """
    ask, _ = read_ask(asked)
    if ask is None or not records:
        return {"lines": ["nothing was measured"] if ask else [], "data": {}, "worse": []}
    kept = read_results(Path(folder) / FILE)
    lines, worse = [*_figures(records), *kept.problems], []
    data: dict[str, Any] = {}
    for (host, served), own in _by_model(records).items():
        where, found = f"{host}: model {served}", dict[str, Any](results=[dict(one) for one in own])
        lines += [f"{where}: {text}" for one in own[:1] if (text := client_limit(one))]
        if ask.sweep:
            found["sweep"] = _sweep(own)
            lines += [f"{where}: {found['sweep']['answer']}"]
        else:
            found["figures"] = _medians(own)
            value = found["figures"].get("output_tokens_s")
            lines += [f"{where}: {text}" for text in (published_lines(own[0], value) if value else [])]
        if ask.compare and not ask.sweep:
            comparison = compare(own, kept.records, ask.compare)
            found["comparison"] = comparison.as_dict()
            lines += ["", f"{where}:", *comparison.lines]
            worse += [where] if comparison.verdict == WORSE else []
        data.setdefault(host, {})[served] = found
    return {
        "lines": [*lines, f"stored in {Path(folder) / FILE}"],
        "data": data,
        "worse": worse if ask.compare_fails else [],
    }


def _by_model(records: Sequence[Known]) -> dict[tuple[str, str], list[Known]]:
    found: dict[tuple[str, str], list[Known]] = {}
    for one in records:
        found.setdefault((str(one["host"]), str(one.get("served") or one["model"])), []).append(one)
    return found


def _medians(records: Sequence[Known]) -> dict[str, Any]:
    """Return the median of each figure over the repetitions."""
    found: dict[str, Any] = {}
    for name, value in records[0]["figures"].items():
        if isinstance(value, Mapping):
            found[name] = {which: _median([one["figures"][name].get(which) for one in records]) for which in value}
        else:
            found[name] = _median([one["figures"][name] for one in records])
    return found


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _figures(records: Sequence[Known]) -> list[str]:
    """Return a table with a row for each repetition."""
    head = ["HOST", "MODEL", "PROFILE", "LOAD", "OUT TOK/S", "REQ/S", "TTFT MS (P99)", "ITL MS (P99)", "FAILED", "NOTE"]
    rows = []
    for one in records:
        given = one["figures"]
        at = f"{one['request_rate']:g} a second" if one["request_rate"] else "at the trace's times"
        load = f"{one['concurrency']} at a time" if one["concurrency"] else at
        note = "; ".join([*(one.get("breaks") or []), *(one.get("not_comparable") or [])])
        rows.append(
            [
                *(str(one["host"]), str(one.get("served") or one["model"]), str(one["profile"]), load),
                *(_cell(given["output_tokens_s"]), _cell(given["requests_s"])),
                *(_times(given["ttft_ms"]), _times(given["itl_ms"]), str(one["failed"]), note),
            ]
        )
    count = records[0]["requests"]
    few = f"P99 is of {counted(count, 'request')}: below 1,000 it is little more than the slowest"
    return [*table([head, *rows]), *([few] if count < 1000 and records[0]["profile"] != SHORT else [])]


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _times(value: Known | None) -> str:
    given = value or {}
    return f"{_cell(given.get('median'))} ({_cell(given.get('p99'))})"


def _sweep(records: Sequence[Known]) -> dict[str, Any]:
    """Return the answer of a sweep, and its curve."""
    kind = str(records[0]["sweep"])
    points = [Point(float(one[kind]), not one.get("breaks")) for one in records]
    curve = [{"load": float(one[kind]), "holds": not one.get("breaks"), "figures": one["figures"]} for one in records]
    good = max((one.value for one in points if one.holds), default=None)
    return {
        "answer": answer(kind, points, records[0].get("sweep_most")),
        "highest": good,
        "curve": sorted(curve, key=lambda one: one["load"]),
    }


__all__ = ["Ask", "Target", "benchmark_ask", "benchmark_plan", "benchmark_report", "broken"]
