"""A sweep: finds the highest load at which a model's objectives hold, by doubling and then bisecting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import InputError, is_number, mapping, refusal, shown
from ..model.objectives import Objectives

KINDS = ("concurrency", "request_rate")
SWEEPS = ("concurrency", "rate")  # as a user names them
MOST_POINTS = 16
NEAR = 1.25  # precision: the lowest load that breaks is at most this factor above the highest that holds
LEAST_RATE = 0.25
MOST_RATE = 4096.0
NAMES = ("ttft_s", "itl_s", "errors", "share")


def read_limits(given: Any) -> Objectives:
    """Return the objectives that a user sets for a sweep; unlike a model's, their times may have any value.

    Raises:
        InputError: for an invalid mapping.
    """
    known = mapping("", "objectives", given, "a mapping of objectives, such as {ttft_s: 2.5, itl_s: 0.1}")
    for name, value in known.items():
        if name not in NAMES:
            raise refusal("", "objectives", name, f"is not an objective; known are {', '.join(NAMES)}")
        if name in ("ttft_s", "itl_s") and not (is_number(value, 0, 10**5) and value > 0):
            raise refusal("", f"objectives.{name}", value, "is not a number of seconds above 0")
        if name in ("errors", "share") and not (is_number(value, 0, 1) and (name == "errors" or 0 < value < 1)):
            raise refusal("", f"objectives.{name}", value, "is not a part from 0 to 1")
    found = Objectives(**{name: float(value) for name, value in known.items()})
    if not found.any:
        raise InputError(f"objectives {shown(dict(known))}: sets no objective; give ttft_s, itl_s or errors")
    return found


def percentile(objectives: Objectives) -> float:
    """Return the percentile that shows whether the share of good requests is reached."""
    return round(objectives.share * 100, 4)


def broken(record: Mapping[str, Any], objectives: Objectives) -> list[str]:
    """Return the objectives that a measured load breaks, as short texts; empty if all hold."""
    which = f"p{percentile(objectives):g}"
    found = []
    for name, limit in (("ttft", objectives.ttft_s), ("itl", objectives.itl_s)):
        value = (record["figures"].get(f"{name}_ms") or {}).get(which)
        if limit is not None and (value is None or value > limit * 1000):
            said = "is not known" if value is None else f"is {value:.4g} ms"
            found.append(f"{which} {name.upper()} {said}, above {limit * 1000:g} ms")
    part = record["failed"] / max(1, record["requests"])
    # Without an objective for errors, a load with failed requests still does not hold.
    allowed = objectives.errors if objectives.errors is not None else 0.0
    if part > allowed:
        found.append(f"{part:.1%} of the requests failed")
    return found


@dataclass(frozen=True)
class Point:
    """One load of a sweep, and whether the objectives held."""

    value: float
    holds: bool


def next_value(kind: str, points: Sequence[Point], most: float | None) -> float | None:
    """Return the next load to try; None if the answer is known.

    Args:
        kind: concurrency or request_rate.
        points: the measured loads.
        most: the server's highest concurrency; None without a limit.
    """
    if len(points) >= MOST_POINTS:
        return None
    good = max((one.value for one in points if one.holds), default=0.0)
    bad = min((one.value for one in points if not one.holds and one.value > good), default=None)
    whole = kind == "concurrency"
    limit = (float(int(most)) if whole else most) if most is not None else MOST_RATE
    if not points:
        return 1.0 if whole else min(LEAST_RATE, limit)
    if bad is None:
        return min(good * 2, limit) if good < limit else None
    if not good:
        return None
    if bad / good <= NEAR:
        return None
    middle = (good + bad) / 2
    between = float(int(middle)) if whole else round(middle, 3)
    return between if good < between < bad else None


def answer(kind: str, points: Sequence[Point], most: float | None) -> str:
    """Return the highest load at which the objectives hold, as text."""
    unit = "requests at a time" if kind == "concurrency" else "requests a second"
    good = max((one.value for one in points if one.holds), default=0.0)
    if not good:
        lowest = min((one.value for one in points), default=0.0)
        return f"the objectives do not hold even at {lowest:g} {unit}"
    if all(one.holds for one in points):
        end = ", where the sweep ends" if most is not None and good >= int(most) else ""
        return f"the objectives hold up to {good:g} {unit}, the most that was tried{end}"
    return f"the objectives hold up to {good:g} {unit}"


__all__ = ["KINDS", "Point", "answer", "broken", "next_value", "percentile", "read_limits"]
