"""Decides whether a run is as fast as the earlier runs of the same host and case.

A run is one number for each figure: the logarithm of the median of its repetitions, because runs differ by more than
the repetitions of one run. The spread of the runs is the root of half their mean square successive difference (von
Neumann and others, Annals of Mathematical Statistics 12, 1941), as in a control chart for individual
values (NIST/SEMATECH e-Handbook of Statistical Methods, 6.3.2.2): neither a creep nor a step between two runs inflates
it much. The reference is the best mean of five consecutive runs, so that a creep is found and one lucky run is not
enough. The limits are quantiles of the same statistic for simulated equal runs, a Monte Carlo test (Dwass, Annals of
Mathematical Statistics 28, 1957); they are independent of level and spread.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

LEAST = 3  # repetitions of a run that counts
LEAST_RUNS, MOST_RUNS = 5, 20  # earlier runs; the newest ones count
# The part of normally distributed equal runs that are called better or worse. At most 5 % are promised; the rest is for
# boxes whose runs are distributed otherwise.
FALSE_ALARMS = 0.03
DRAWS = 20_000
BETTER, SAME, WORSE, UNKNOWN = "better", "same", "worse", "not known"


@dataclass(frozen=True)
class Figure:
    """A compared figure: its name, and whether more is better (``more``).

    least: the smallest relative change that counts, however small the spread is. gate: whether it decides the verdict.
    """

    name: str
    which: str = ""
    more: bool = False
    least: float = 0.05
    gate: bool = False

    def of(self, record: Mapping[str, Any]) -> float | None:
        """Return the figure of a saved line; None if it is missing, or 0 because nothing was measured."""
        found = record["figures"].get(self.name)
        return ((found or {}).get(self.which) if self.which else found) or None

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
    Figure("output_tokens_s", more=True, least=0.03, gate=True),
    Figure("requests_s", more=True, least=0.03),
    Figure("ttft_ms", "median", least=0.10, gate=True),
    Figure("ttft_ms", "p99", least=0.15),
    Figure("tpot_ms", "median"),
    Figure("itl_ms", "p99", least=0.15, gate=True),
    Figure("e2el_ms", "median"),
)
GATES = sum(figure.gate for figure in FIGURES)


@dataclass(frozen=True)
class Compared:
    """One figure of a run beside the reference; values are None where they are not known.

    old: the reference. ratio: new to old. low, high: the ratios that equal runs have. spread: of the earlier runs,
    relative. verdict: empty if the figure does not decide. why: what is missing.
    """

    figure: Figure
    old: float | None = None
    new: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    spread: float | None = None
    verdict: str = ""
    why: str = ""


def reference(levels: Sequence[float]) -> tuple[float, float]:
    """Return the best mean of five consecutive runs, and the spread of the runs; more is better."""
    sums = list(accumulate(levels, initial=0.0))
    best = max(end - begin for begin, end in zip(sums, sums[LEAST_RUNS:], strict=False)) / LEAST_RUNS
    return best, math.sqrt(statistics.fmean((new - old) ** 2 for old, new in pairwise(levels)) / 2)


@lru_cache
def limits(runs: int) -> tuple[float, float]:
    """Return the differences to the reference, in spreads, between which equal runs are, after this many runs.

    The false alarms are shared between the deciding figures and the two directions (Bonferroni).
    """
    draw = random.Random(runs)  # noqa: S311 - reproducible, not secret
    found = []
    for _ in range(DRAWS):
        *levels, new = [draw.gauss(0, 1) for _ in range(runs + 1)]
        best, spread = reference(levels)
        found.append((new - best) / spread)
    found.sort()
    edge = int(FALSE_ALARMS / 2 / GATES * DRAWS)
    return found[edge], found[-1 - edge]


def compared(
    earlier: Sequence[Sequence[Mapping[str, Any]]], new: Sequence[Mapping[str, Any]], without: Sequence[str] = ()
) -> list[Compared]:
    """Return the comparison of each figure that is known, and of each that decides.

    Args:
        earlier: the repetitions of each earlier run, the oldest run first.
        new: the repetitions of the run.
        without: names of figures that the load cannot have.
    """
    figures = [figure for figure in FIGURES if figure.name not in without]
    found = [_compared(figure, [_level(figure, run) for run in earlier], _level(figure, new)) for figure in figures]
    return [one for one in found if one.verdict or one.ratio is not None]


def _level(figure: Figure, run: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the median of a figure over the repetitions of a run; None if fewer than three have it."""
    values = [value for one in run if (value := figure.of(one))]
    return statistics.median(values) if len(values) >= LEAST else None


def _compared(figure: Figure, earlier: Sequence[float | None], new: float | None) -> Compared:
    known = [value for value in earlier if value is not None][-MOST_RUNS:]
    unknown = UNKNOWN if figure.gate else ""
    if new is None:
        return Compared(figure, verdict=unknown, why="fewer than three repetitions of the new run have it")
    if len(known) < LEAST_RUNS:
        why = f"{len(known)} of {len(earlier)} earlier runs have it, and {LEAST_RUNS} are needed"
        return Compared(figure, new=new, verdict=unknown, why=why)
    sign = 1 if figure.more else -1
    best, spread = reference([sign * math.log(value) for value in known])
    worst, top = (limit * spread for limit in limits(len(known)))
    least = math.log1p(figure.least)
    worst, top = min(worst, -least), max(top, least)
    change = sign * math.log(new) - best
    verdict = WORSE if change < worst else BETTER if change > top else SAME
    low, high = sorted((math.exp(sign * worst), math.exp(sign * top)))
    values = math.exp(sign * best), new, math.exp(sign * change), low, high, math.expm1(spread)
    return Compared(figure, *values, verdict if figure.gate else "")


def verdict(found: Iterable[Compared]) -> str:
    """Return the one verdict of the deciding figures, whose limits share the false alarms."""
    said = {one.verdict for one in found if one.figure.gate}
    return next((one for one in (WORSE, UNKNOWN, BETTER) if one in said), SAME if said else UNKNOWN)


__all__ = ["FIGURES", "LEAST", "LEAST_RUNS", "MOST_RUNS", "Compared", "Figure", "compared", "limits", "verdict"]
