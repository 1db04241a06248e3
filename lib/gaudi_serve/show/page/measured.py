"""Measurements for the page: benchmarks over time and load, links between cards, and the speeds of a rollout."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

Known = Mapping[str, Any]
MOST_SERIES = 6  # lines of a chart that a reader can distinguish
MOST_POINTS = 2000
FIGURES = (
    ("output_tokens_s", "", "Output", "tokens/s"),
    ("ttft_ms", "median", "Time to first token, median", "ms"),
)
MORE = {"ttft_p99_ms": ("ttft_ms", "p99"), "tpot_ms": ("tpot_ms", "median")}
VALUES = (*(name for name, *_ in FIGURES), *MORE)
AXES = {"concurrency": "requests at once", "request_rate": "requests a second"}
LEAST_LOADS = 3  # loads of one run that are needed for a curve


# The keys that all repetitions of one load of a run share.
LOAD = ("run", "host", "model", "profile", "through", "concurrency", "request_rate")


def runs(records: Iterable[Known]) -> list[dict[str, Any]]:
    """Return a row for each load of the saved benchmark runs, the oldest first.

    Figures are medians of the repetitions. Repetitions that are ``not_comparable`` are left out.
    """
    rows = [_row(one) for one in records if not one.get("not_comparable")]
    groups = _grouped(rows, LOAD).values()
    found = [{**group[-1], **{name: _median(group, name) for name in VALUES}} for group in groups]
    return sorted(found, key=lambda one: float(one["time"]))


def _row(record: Known) -> dict[str, Any]:
    parts = {**{name: (name, part) for name, part, _, _ in FIGURES}, **MORE}
    return {
        **{key: record.get(key) for key in (*LOAD, "date", "image", "failed", "launch")},
        # Models that share a server differ by their served name.
        "model": record.get("served") or record["model"],
        "run": record.get("run") or record["date"],
        "time": datetime.fromisoformat(record["date"]).timestamp(),
        **{name: _figure(record["figures"], *place) for name, place in parts.items()},
    }


def _median(group: Sequence[Known], name: str) -> float | None:
    values = [one[name] for one in group if one[name] is not None]
    return statistics.median(values) if values else None


def _figure(figures: Known, name: str, part: str) -> float | None:
    value = figures.get(name)
    value = value.get(part) if part and isinstance(value, Mapping) else value
    return round(float(value), 3) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def charts(rows: Sequence[Known]) -> list[dict[str, Any]]:
    """Return the charts: one over time for each model, profile and figure, and one over the load for each sweep.

    Each has ``title``, ``caption``, ``unit``, ``time`` (whether ``x`` is in seconds since 1970), ``axis`` (the meaning
    of ``x`` otherwise), ``x``, and ``series``: ``{label, values}``, with None if a series has no value at an ``x``.
    """
    found: list[dict[str, Any]] = []
    for (model, profile, through), group in _grouped(rows, ("model", "profile", "through")).items():
        by = f", through {through}" if through not in (None, "", "direct") else ""
        for name, _, title, unit in FIGURES:
            what = {"title": f"{model}: {title}", "unit": unit, "time": True, "axis": ""}
            note = f"{title} in {unit}, by day of the measurement; profile {profile or 'not named'}{by}."
            series = _grouped(group, ("host", "concurrency", "request_rate"))
            found += _chart(what, note, {_at(*key): one for key, one in series.items()}, "time", name)
        for axis, title in AXES.items():
            series = _grouped(group, ("host", "launch"))
            curves = {_of(*key): one for key, one in series.items() if _loads(one, axis) >= LEAST_LOADS}
            what = {"title": f"{model}: output over load", "unit": "tokens/s", "time": False, "axis": title}
            found += _chart(what, f"Output in tokens/s, by {title}{by}.", curves, axis, "output_tokens_s")
    return found


def _at(host: str, concurrency: int | None, rate: float | None) -> str:
    return f"{host}, {concurrency} at once" if concurrency else f"{host}, {rate:g} a second" if rate else host


def _of(host: str, launch: str | None) -> str:
    return f"{host}, launch {launch[:8]}" if launch else host


def _loads(group: Sequence[Known], axis: str) -> int:
    return len({one[axis] for one in group if one[axis] is not None})


def _grouped(records: Iterable[Known], keys: Sequence[str]) -> dict[tuple[Any, ...], list[Known]]:
    groups: dict[tuple[Any, ...], list[Known]] = {}
    for one in records:
        groups.setdefault(tuple(one[key] for key in keys), []).append(one)
    return groups


def _chart(what: Known, note: str, groups: Mapping[Any, Sequence[Known]], x: str, y: str) -> Iterator[dict[str, Any]]:
    """Return the chart of the series, those with most points first; no chart if it would have fewer than two points."""
    lines = {
        key: {one[x]: one[y] for one in group if one[x] is not None and one[y] is not None}
        for key, group in sorted(groups.items(), key=lambda item: -len(item[1]))
    }
    # A single point is not a line; the table shows it.
    lines = {key: points for key, points in lines.items() if len(points) > 1}
    shown = dict(list(lines.items())[:MOST_SERIES])
    places = sorted({place for points in shown.values() for place in points})[-MOST_POINTS:]
    if len(places) < 2:
        return
    rest = f" {len(lines) - len(shown)} more series are in the table." if len(lines) > len(shown) else ""
    series = [{"label": label, "values": [points.get(place) for place in places]} for label, points in shown.items()]
    yield {**what, "caption": note + rest, "x": places, "series": series}


def newest(rows: Sequence[Known]) -> list[dict[str, Any]]:
    """Return the newest run of each host, model, profile and load, with the change since the previous run."""
    found = []
    for group in _grouped(rows, LOAD[1:]).values():
        last, before = group[-1], group[-2] if len(group) > 1 else {}
        old, new = before.get("output_tokens_s"), last["output_tokens_s"]
        found.append({**last, "runs": len(group), "change": round(100 * (new / old - 1), 1) if old and new else None})
    keys = ("concurrency", "request_rate")
    return sorted(found, key=lambda one: (one["model"], one["host"], one["profile"], *(one[key] or 0 for key in keys)))


def measured(benchmark: Known) -> list[dict[str, Any]]:
    """Return the measurements of a run, a row for each model: ``first_token_s``, ``tokens_s``, ``verdict``, ``answer``.

    Args:
        benchmark: by host and model: ``first_token_s`` and ``tokens_s`` of a short measurement, or the data of
            benchmark_report.
    """
    rows = ((host, model, one) for host, models in benchmark.items() for model, one in sorted(models.items()))
    return [{"host": host, "model": model, **_measured(one)} for host, model, one in rows]


def _measured(one: Known) -> dict[str, Any]:
    if "first_token_s" in one:
        return {"first_token_s": one["first_token_s"], "tokens_s": one["tokens_s"], "verdict": "", "answer": ""}
    figures = one.get("figures") or {}
    first = (figures.get("ttft_ms") or {}).get("median")
    return {
        "first_token_s": None if first is None else first / 1000,
        "tokens_s": figures.get("output_tokens_s"),
        "verdict": (one.get("comparison") or {}).get("verdict", ""),
        "answer": (one.get("sweep") or {}).get("answer", ""),
    }


def links(hosts: Iterable[Known]) -> list[dict[str, Any]]:
    """Return the last measurement of the links of every host: a row for each run."""
    return [
        {
            "host": host["name"],
            "time": host["links"]["time"],
            **run,
            "good": run["last_good"] or host["links"]["last_good"].get(run["name"]),
        }
        for host in hosts
        if host["links"]
        for run in host["links"]["runs"]
    ]


def compared(rollout: Known) -> list[dict[str, Any]]:
    """Return the speed of the models of a rollout's hosts before and after the change."""
    return [
        {"host": name, "model": model, "before": (host.get("before") or {}).get(model) or {}, "after": after}
        for name, host in (rollout.get("hosts") or {}).items()
        for model, after in (host.get("after") or {}).items()
    ]
