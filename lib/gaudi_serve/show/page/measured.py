"""What was measured: kept benchmarks over time and load, the links between cards, and a rollout's figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

Known = Mapping[str, Any]
MOST_SERIES = 6  # lines of a chart that can be told apart
MOST_POINTS = 2000
FIGURES = (
    ("output_tokens_s", "", "Output", "tokens/s"),
    ("ttft_ms", "median", "Time to first token, median", "ms"),
)
LEAST_LOADS = 3  # of one run, to draw it as a curve


def dated(records: Iterable[Known]) -> list[dict[str, Any]]:
    """Return kept benchmarks as the page has them, the oldest first.

    Those are left out that say nothing beside others (``not_comparable``), and those whose date is none.
    """
    good = (one for one in records if not one.get("not_comparable"))
    return sorted((one for one in map(_record, good) if one), key=lambda one: float(one["time"]))


def _record(one: Known) -> dict[str, Any] | None:
    try:
        time = datetime.fromisoformat(one["date"]).timestamp()
    except ValueError:
        return None
    figures = {name: _figure(one["figures"], name, part) for name, part, _, _ in FIGURES}
    keys = (
        "date",
        "host",
        "model",
        "profile",
        "image",
        "failed",
        "concurrency",
        "request_rate",
        "repetition",
        "through",
        "launch",
    )
    tail = {
        "ttft_p99_ms": _figure(one["figures"], "ttft_ms", "p99"),
        "tpot_ms": _figure(one["figures"], "tpot_ms", "median"),
    }
    return {**{key: one.get(key) for key in keys}, "time": time, **figures, **tail}


def _figure(figures: Known, name: str, part: str) -> float | None:
    value = figures.get(name)
    value = value.get(part) if part and isinstance(value, Mapping) else value
    return round(float(value), 3) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def charts(records: Sequence[Known]) -> list[dict[str, Any]]:
    """Return what is drawn: a chart over time for each model, profile and figure, and one over the load of a sweep.

    Each has ``title``, ``caption``, ``unit``, ``time`` (whether ``x`` are seconds since 1970), ``x``, and ``series``:
    ``{label, values}``, None where a series has no value at that place.
    """
    found: list[dict[str, Any]] = []
    for (model, profile, through), group in _grouped(records, ("model", "profile", "through")).items():
        for name, _, title, unit in FIGURES:
            what = {"title": f"{model}: {title}", "unit": unit, "time": True}
            note = f"{title} in {unit}, by day of the measurement; profile {profile or 'not named'}{_by(through)}."
            found += _chart(what, note, _grouped(group, ("host", "concurrency")), "time", name)
        loads = {key: one for key, one in _grouped(group, ("host", "launch")).items() if _loads(one) >= LEAST_LOADS}
        what = {"title": f"{model}: output over load", "unit": "tokens/s", "time": False}
        found += _chart(
            what, f"Output in tokens/s, by requests at once{_by(through)}.", loads, "concurrency", "output_tokens_s"
        )
    return found


def _by(through: Any) -> str:
    return f", through {through}" if through not in (None, "", "direct") else ""


def _loads(group: Sequence[Known]) -> int:
    return len({one["concurrency"] for one in group if one["concurrency"] is not None})


def _grouped(records: Iterable[Known], keys: Sequence[str]) -> dict[tuple[Any, ...], list[Known]]:
    groups: dict[tuple[Any, ...], list[Known]] = {}
    for one in records:
        groups.setdefault(tuple(one[key] for key in keys), []).append(one)
    return groups


def _chart(what: Known, note: str, groups: Mapping[Any, Sequence[Known]], x: str, y: str) -> Iterator[dict[str, Any]]:
    """Return the chart of some series, those of most points first; none where nothing has two places."""
    lines = {
        key: {one[x]: one[y] for one in group if one[x] is not None and one[y] is not None}
        for key, group in sorted(groups.items(), key=lambda item: -len(item[1]))
    }
    # A single point is no line; the table has it.
    lines = {key: points for key, points in lines.items() if len(points) > 1}
    shown = dict(list(lines.items())[:MOST_SERIES])
    places = sorted({place for points in shown.values() for place in points})[-MOST_POINTS:]
    if len(places) < 2:
        return
    rest = f" {len(lines) - len(shown)} more series are in the table." if len(lines) > len(shown) else ""
    series = [
        {"label": _label(key, x), "values": [points.get(place) for place in places]} for key, points in shown.items()
    ]
    yield {**what, "caption": note + rest, "x": places, "series": series}


def _label(key: tuple[Any, Any], x: str) -> str:
    host, other = key
    if x == "time":
        return f"{host}, {other} at once" if other is not None else str(host)
    return f"{host}, launch {str(other)[:8]}" if other else str(host)


def newest(records: Sequence[Known]) -> list[dict[str, Any]]:
    """Return the newest benchmark of each host, model, profile and load, with that of the run before it."""
    found = []
    for group in _grouped(records, ("host", "model", "profile", "through", "concurrency", "request_rate")).values():
        last, before = group[-1], group[-2] if len(group) > 1 else {}
        old, new = before.get("output_tokens_s"), last["output_tokens_s"]
        found.append({**last, "runs": len(group), "change": round(100 * (new / old - 1), 1) if old and new else None})
    return sorted(found, key=lambda one: (one["model"], one["host"], one["profile"] or "", one["concurrency"] or 0))


def links(hosts: Iterable[Known]) -> list[dict[str, Any]]:
    """Return the last measurement of the links of every host: a row for each of its runs."""
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
    """Return how fast the models of a rollout's hosts are before and after their change."""
    return [
        {"host": name, "model": model, "before": (host.get("before") or {}).get(model) or {}, "after": after}
        for name, host in (rollout.get("hosts") or {}).items()
        for model, after in (host.get("after") or {}).items()
    ]
