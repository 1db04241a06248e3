"""Two sets of repetitions compared: the ratio of their medians, with an interval, against the noise of the machine."""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RESAMPLES = 10_000
LEVEL = 0.95
LEAST = 3  # repetitions of a side, below which an interval says nothing
BETTER, SAME, WORSE, UNKNOWN = "better", "same", "worse", "not known"


@dataclass(frozen=True)
class Figure:
    """A figure that is compared: where it stands, whether more of it is better, and the least noise that it has.

    gate: a run is worse where this one is.
    """

    name: str
    which: str = ""
    more: bool = False
    noise: float = 0.05
    gate: bool = False

    def of(self, record: Mapping[str, Any]) -> float | None:
        """Return it of a kept line; None where it has none."""
        found = record["figures"].get(self.name)
        return (found or {}).get(self.which) if self.which else found

    @property
    def text(self) -> str:
        """Return its name for a reader."""
        return " ".join(part for part in (self.which, TITLES[self.name]) if part)


TITLES = {
    "output_tokens_s": "output tokens/s",
    "total_tokens_s": "all tokens/s",
    "requests_s": "requests/s",
    "ttft_ms": "TTFT ms",
    "tpot_ms": "TPOT ms",
    "itl_ms": "ITL ms",
    "e2el_ms": "E2EL ms",
}
FIGURES = (
    Figure("output_tokens_s", more=True, noise=0.03, gate=True),
    Figure("requests_s", more=True, noise=0.03),
    Figure("ttft_ms", "median", noise=0.10, gate=True),
    Figure("ttft_ms", "p99", noise=0.15),
    Figure("tpot_ms", "median", noise=0.05),
    Figure("itl_ms", "p99", noise=0.15, gate=True),
    Figure("e2el_ms", "median", noise=0.05),
)


@dataclass(frozen=True)
class Compared:
    """One figure of two sets: their medians, the ratio of the new to the old one, its interval, and what it means."""

    figure: Figure
    old: float
    new: float
    ratio: float
    low: float
    high: float
    floor: float
    verdict: str


def ratio_interval(
    old: Sequence[float], new: Sequence[float], resamples: int = RESAMPLES, level: float = LEVEL
) -> tuple[float, float, float]:
    """Return the ratio of the medians of two sets, and its bootstrap interval; the same for the same sets always."""
    draw = random.Random(0)  # noqa: S311 - reproducible, not secret
    ratios = sorted(
        statistics.median(draw.choices(new, k=len(new))) / statistics.median(draw.choices(old, k=len(old)))
        for _ in range(resamples)
    )
    edge = int((1 - level) / 2 * resamples)
    return statistics.median(new) / statistics.median(old), ratios[edge], ratios[-1 - edge]


def noise_floors(records: Iterable[Mapping[str, Any]]) -> dict[Figure, float]:
    """Return the part by which each figure differs between repetitions of this machine's own kept runs.

    It is twice the spread of a run's repetitions about their median, the middle one of all runs, and never below what a
    quiet machine has.
    """
    runs: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for one in records:
        runs[(one.get("run"), one["host"], one["model"], one.get("served"), one["case"])].append(one)
    return {figure: max(figure.noise, _floor(figure, runs.values())) for figure in FIGURES}


def _floor(figure: Figure, runs: Iterable[Sequence[Mapping[str, Any]]]) -> float:
    spreads = []
    for run in runs:
        values = values_of(figure, run)
        middle = statistics.median(values) if len(values) >= LEAST else 0.0
        if middle:
            # 1.4826 makes a standard deviation of it, were the noise normal.
            spreads.append(1.4826 * statistics.median(abs(value - middle) for value in values) / middle)
    return 2 * statistics.median(spreads) if spreads else 0.0


def values_of(figure: Figure, records: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return a figure of those lines that have it."""
    return [value for one in records if (value := figure.of(one))]


def compared(
    old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]], floors: Mapping[Figure, float]
) -> list[Compared]:
    """Return how each figure that both sets have compares."""
    found = []
    for figure in FIGURES:
        before, after = values_of(figure, old), values_of(figure, new)
        if before and after:
            found.append(_compared(figure, before, after, floors.get(figure, figure.noise)))
    return found


def _compared(figure: Figure, old: Sequence[float], new: Sequence[float], floor: float) -> Compared:
    ratio, low, high = ratio_interval(old, new)
    verdict = SAME
    if min(len(old), len(new)) < LEAST:
        verdict = UNKNOWN
    elif (low > 1 or high < 1) and abs(ratio - 1) > floor:
        verdict = BETTER if (ratio > 1) == figure.more else WORSE
    return Compared(figure, statistics.median(old), statistics.median(new), ratio, low, high, floor, verdict)


def verdict(found: Iterable[Compared]) -> str:
    """Return what the figures that a change is judged by say together: worse where one of them is."""
    said = {one.verdict for one in found if one.figure.gate}
    return next((one for one in (WORSE, UNKNOWN, BETTER) if one in said), SAME if said else UNKNOWN)


__all__ = ["FIGURES", "Compared", "Figure", "compared", "noise_floors", "ratio_interval", "values_of", "verdict"]
