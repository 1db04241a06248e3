"""The downtimes of models as bars on an axis of minutes; the waves of a rollout follow one another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Known = Mapping[str, Any]
MOST_ROWS = 40  # rows of the picture; the table has all rows
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 240, 480, 1440)
MOST_TICKS = 8


def timeline(plan: Known, rollout: Known) -> dict[str, Any]:
    """Return the downtimes of a plan.

    Returns:
        ``rows``: for each host and model ``start`` and ``minutes`` (None: permanent), ``stage``, ``reason``, ``wave``
        (0 without a rollout); ``drawn``: number of rows in the picture; ``minutes``: end of the last row; ``ticks``;
        ``longest``: downtime of one model; ``total``; ``waves``: ``{number, start, minutes, hosts}``.
    """
    hosts = plan.get("hosts") or {}
    waves = list(_waves(rollout.get("waves") or [], hosts))
    begins = {name: (wave["start"], wave["number"]) for wave in waves for name in wave["hosts"]}
    rows = [
        {
            "host": name,
            "start": start,
            "wave": wave,
            **{key: one[key] for key in ("model", "stage", "reason", "minutes")},
        }
        for name, host in hosts.items()
        for one in host.get("down") or ()
        for start, wave in [begins.get(name, (0, 0))]
    ]
    rows.sort(key=lambda row: (row["start"], row["minutes"] is None, -(row["minutes"] or 0)))
    end = max((row["start"] + (row["minutes"] or 0) for row in rows), default=0)
    end = max([end, *(wave["start"] + wave["minutes"] for wave in waves)])
    return {
        "rows": rows,
        "drawn": min(len(rows), MOST_ROWS),
        "minutes": end,
        "ticks": ticks(end),
        "longest": max((row["minutes"] or 0 for row in rows), default=0),
        "total": sum(row["minutes"] or 0 for row in rows),
        "waves": waves,
    }


def _waves(waves: Sequence[Sequence[str]], hosts: Known) -> Iterator[dict[str, Any]]:
    start = 0
    for number, names in enumerate(waves, 1):
        down = [one["minutes"] or 0 for name in names for one in (hosts.get(name) or {}).get("down") or ()]
        minutes = max(down, default=0)
        yield {"number": number, "start": start, "minutes": minutes, "hosts": list(names)}
        start += minutes


def ticks(end: int) -> list[int]:
    """Return the labelled minutes of an axis, from 0 up to at most its end."""
    step = next((step for step in STEPS if end / step <= MOST_TICKS), STEPS[-1])
    return list(range(0, end + 1, step))
