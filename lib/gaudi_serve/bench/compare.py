"""Compares a run with the earlier runs of the same host and case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.table import table
from ..core.words import counted
from .results import moment, read_results
from .statistics import LEAST, LEAST_RUNS, MOST_RUNS, UNKNOWN, Compared, compared, verdict

Known = Mapping[str, Any]
# Values that may differ between compared runs; differences are shown, because they are often the subject.
SAID = ("host", "launch", "image", "driver", "release", "toolkit")


@dataclass(frozen=True)
class Comparison:
    """The comparison of one model's new results with earlier ones.

    verdict: of all figures together. lines: for the user.
    """

    verdict: str
    lines: list[str]
    figures: list[Compared] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as data."""
        rows = [
            {
                **{"figure": one.figure.text, "old": one.old, "new": one.new, "ratio": _rounded(one.ratio)},
                **{"same": [_rounded(one.low), _rounded(one.high)], "spread": _rounded(one.spread)},
                **{"verdict": one.verdict, "why": one.why},
            }
            for one in self.figures
        ]
        return {"verdict": self.verdict, "figures": rows}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def compare(new: Sequence[Known], kept: Sequence[Known], with_what: str) -> Comparison:
    """Return the comparison of a run's lines for one model with earlier ones.

    Args:
        new: the lines of the run.
        kept: all saved lines, including those of this run.
        with_what: last, the path of a file, or the beginning of a launch's digest.
    """
    first = new[0]
    old, problems = _earlier(first, kept, with_what)
    same = [one for one in old if one["case"] == first["case"]]
    if not same:
        return Comparison(UNKNOWN, [*problems, *_nothing(first, old, with_what)])
    newest = max(same, key=moment)
    # The spread between runs is that of one host.
    stored = [one for one in same if one["host"] == newest["host"]]
    runs = _runs(stored)
    earlier = [sound for run in runs if len(sound := _sound(run)) >= LEAST][-MOST_RUNS:]
    own = _sound(new)
    lines = [*problems, _head(newest, first), *_left_out(stored, "earlier runs"), *_left_out(new, "the new run")]
    if problem := _too_few(earlier, len(runs), own):
        return Comparison(UNKNOWN, [*lines, f"verdict: {UNKNOWN}: {problem}"])
    # An answer of one token has no gap between tokens.
    without = ("itl_ms",) if (first.get("load") or {}).get("output_tokens") == 1 else ()
    found = compared(earlier, own, without)
    said = verdict(found)
    return Comparison(said, [*lines, *_rows(found), *_reasons(found), _summary(said, earlier)], found)


def _sound(run: Sequence[Known]) -> list[Known]:
    """Return the repetitions that nothing disturbed."""
    return [one for one in run if not one.get("not_comparable")]


def _left_out(records: Sequence[Known], what: str) -> list[str]:
    """Return a line on the disturbed repetitions, with the reason of one."""
    reasons = [one["not_comparable"][0] for one in records if one.get("not_comparable")]
    return [f"{counted(len(reasons), 'repetition')} of {what} left out, such as: {reasons[-1]}"] if reasons else []


def _runs(records: Sequence[Known]) -> list[list[Known]]:
    """Return the repetitions of each run, the oldest run first."""
    found: dict[str, list[Known]] = {}
    for one in sorted(records, key=moment):
        found.setdefault(str(one.get("run") or one["date"]), []).append(one)
    return list(found.values())


def _too_few(earlier: Sequence[Sequence[Known]], stored: int, own: Sequence[Known]) -> str:
    """Return why runs cannot be compared; empty if they can."""
    if len(own) < LEAST:
        return f"the new run has {counted(len(own), 'comparable repetition')}, and {LEAST} are needed"
    if len(earlier) < LEAST_RUNS:
        return (
            f"{len(earlier)} of {counted(stored, 'stored run')} of this case on this host can be compared (three "
            f"repetitions each), and {LEAST_RUNS} are needed to know how much its runs differ"
        )
    return ""


def _earlier(first: Known, kept: Sequence[Known], with_what: str) -> tuple[list[Known], list[str]]:
    """Return the earlier lines that a run may be compared with, and problems of their file."""
    if Path(with_what).is_file():
        found = read_results(with_what)
        # The file may already contain this run, and may contain other hosts only.
        others = _like(found.records, first)
        return [one for one in others if one["host"] == first["host"]] or others, found.problems
    others = [one for one in _like(kept, first) if one["host"] == first["host"]]
    if with_what == "last":
        return others, []
    return [one for one in others if str(one.get("launch")).startswith(with_what)], []


def _like(records: Sequence[Known], first: Known) -> list[Known]:
    """Return the lines of other runs of the same model, by its served name."""
    served = _served(first)
    return [one for one in records if one.get("run") != first.get("run") and _served(one) == served]


def _served(record: Known) -> tuple[str, str]:
    return str(record["model"]), str(record.get("served") or record["model"])


def _nothing(first: Known, old: Sequence[Known], with_what: str) -> list[str]:
    """Return why nothing can be compared: how the newest line's case differs."""
    if not old:
        return [f"compare {with_what}: no result of model {first['model']} is stored there yet"]
    newest = max(old, key=moment)
    mine, other = first.get("load") or {}, newest.get("load") or {}
    keys = sorted(key for key in {*mine, *other} if mine.get(key) != other.get(key))
    said = ", ".join(f"{key} {other.get(key)} then and {mine.get(key)} now" for key in keys)
    return [
        f"compare {with_what}: the newest run there ({newest['date']}, {newest['profile']}) has another load: {said}"
    ]


def _head(old: Known, first: Known) -> str:
    differs = [
        f"{key} {_short(old.get(key))} -> {_short(first.get(key))}" for key in SAID if old.get(key) != first.get(key)
    ]
    tools = [(one.get("tool") or {}).get("version") for one in (old, first)]
    differs += [f"benchmark tool {tools[0]} -> {tools[1]}"] if tools[0] != tools[1] else []
    cards = [one.get("cards") for one in (old, first)]
    differs += [f"cards {_cards(old)} -> {_cards(first)}"] if cards[0] != cards[1] else []
    return f"since the newest earlier run ({old['date']}): {', '.join(differs) or 'nothing differs'}"


def _short(value: Any) -> str:
    text = str(value or "-")
    return text if len(text) <= 80 else f"{text[:12]}…"


def _cards(one: Known) -> str:
    cards = one.get("cards") or {}
    return f"{cards.get('number', 0)} x {cards.get('kind') or '-'}"


def _rows(found: Sequence[Compared]) -> list[str]:
    head = ["FIGURE", f"BEST {LEAST_RUNS}", "NOW", "CHANGE", "SAME WITHIN", "SPREAD", "VERDICT"]
    rows = [
        [
            *(one.figure.text, _cell(one.old), _cell(one.new), _part(one.ratio and one.ratio - 1)),
            f"{_part(one.low - 1)} to {_part(one.high - 1)}" if one.low and one.high else "-",
            *("-" if one.spread is None else f"{one.spread:.1%}", one.verdict or "-"),
        ]
        for one in found
    ]
    return table([head, *rows])


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _part(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"


def _reasons(found: Sequence[Compared]) -> list[str]:
    return [f"{one.figure.text} is not known: {one.why}" for one in found if one.verdict == UNKNOWN]


def _summary(said: str, earlier: Sequence[Sequence[Known]]) -> str:
    return (
        f"verdict: {said}, against the best {LEAST_RUNS} consecutive of {counted(len(earlier), 'earlier run')}; of "
        "equal runs at most 5 in 100 are called better or worse"
    )


__all__ = ["Comparison", "compare"]
