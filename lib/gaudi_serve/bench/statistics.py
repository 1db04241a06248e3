"""Compares two sets of repetitions: the ratio of their medians, its interval, and the machine's noise."""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RESAMPLES = 10_000
LEVEL = 0.95
LEAST = 3  # repetitions of each side; an interval needs at least these
BETTER, SAME, WORSE, UNKNOWN = "better", "same", "worse", "not known"


@dataclass(frozen=True)
class Figure:
    """A compared figure: its name, whether more is better (``more``), and its minimum noise.

    gate: whether a worse figure makes the run worse.
    """

    name: str
    which: str = ""
    more: bool = False
    noise: float = 0.05
    gate: bool = False

    def of(self, record: Mapping[str, Any]) -> float | None:
        """Return the figure of a saved line; None if it is missing."""
        found = record["figures"].get(self.name)
        return (found or {}).get(self.which) if self.which else found

    @property
    def text(self) -> str:
        """Return its name for the user."""
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
    """One figure of two sets: their medians, the ratio of new to old, its interval, and the verdict."""

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
    """Return the ratio of the medians of two sets, and its bootstrap interval; the result is reproducible."""
    draw = random.Random(0)  # noqa: S311 - reproducible, not secret
    ratios = sorted(
        statistics.median(draw.choices(new, k=len(new))) / statistics.median(draw.choices(old, k=len(old)))
        for _ in range(resamples)
    )
    edge = int((1 - level) / 2 * resamples)
    return statistics.median(new) / statistics.median(old), ratios[edge], ratios[-1 - edge]


def noise_floors(records: Iterable[Mapping[str, Any]]) -> dict[Figure, float]:
    """Return the relative noise of each figure between repetitions, from this machine's saved runs.

    It is twice the spread of a run's repetitions around their median: the median of all runs, and at least the noise
    of a quiet machine.
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
            # The factor 1.4826 converts the median deviation to a standard deviation, for normal noise.
            spreads.append(1.4826 * statistics.median(abs(value - middle) for value in values) / middle)
    return 2 * statistics.median(spreads) if spreads else 0.0


def values_of(figure: Figure, records: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return a figure's values from the lines that have it."""
    return [value for one in records if (value := figure.of(one))]


def compared(
    old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]], floors: Mapping[Figure, float]
) -> list[Compared]:
    """Return the comparison of each figure that both sets have."""
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
    """Return the joint verdict of the gating figures: worse if any is worse."""
    said = {one.verdict for one in found if one.figure.gate}
    return next((one for one in (WORSE, UNKNOWN, BETTER) if one in said), SAME if said else UNKNOWN)


__all__ = ["FIGURES", "Compared", "Figure", "compared", "noise_floors", "ratio_interval", "values_of", "verdict"]
