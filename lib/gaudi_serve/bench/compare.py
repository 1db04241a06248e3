"""Compares a run with earlier runs of the same case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.table import table
from ..core.words import counted
from .results import last_run, moment, read_results
from .statistics import UNKNOWN, Compared, compared, noise_floors, verdict

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
                **{"figure": one.figure.text, "old": one.old, "new": one.new, "ratio": round(one.ratio, 4)},
                **{"interval": [round(one.low, 4), round(one.high, 4)], "noise": round(one.floor, 4)},
                "verdict": one.verdict,
            }
            for one in self.figures
        ]
        return {"verdict": self.verdict, "figures": rows}


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
    before = last_run(same)
    sound = [[one for one in side if not one.get("not_comparable")] for side in (before, new)]
    lines = [*problems, _head(before, first)]
    for side, left, what in ((before, sound[0], "earlier"), (new, sound[1], "new")):
        if len(left) < len(side):
            why = next(text for one in side for text in one.get("not_comparable") or [])
            lines.append(f"{counted(len(side) - len(left), 'repetition')} of the {what} run left out, such as: {why}")
    if not all(sound):
        return Comparison(UNKNOWN, [*lines, "nothing is left to compare"])
    like = (one for one in _like(kept, first) if one["case"] == first["case"] and one["host"] == first["host"])
    # Disturbed repetitions and the run itself must not influence the noise.
    floors = noise_floors(one for one in like if not one.get("not_comparable"))
    found = compared(sound[0], sound[1], floors)
    said = verdict(found)
    return Comparison(said, [*lines, *_rows(found), _summary(said, sound)], found)


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


def _head(before: Sequence[Known], first: Known) -> str:
    old = before[0]
    differs = [
        f"{key} {_short(old.get(key))} -> {_short(first.get(key))}" for key in SAID if old.get(key) != first.get(key)
    ]
    tools = [(one.get("tool") or {}).get("version") for one in (old, first)]
    differs += [f"benchmark tool {tools[0]} -> {tools[1]}"] if tools[0] != tools[1] else []
    cards = [one.get("cards") for one in (old, first)]
    differs += [f"cards {_cards(old)} -> {_cards(first)}"] if cards[0] != cards[1] else []
    return f"compared with the run of {old['date']}: {', '.join(differs) or 'nothing else differs'}"


def _short(value: Any) -> str:
    text = str(value or "-")
    return text if len(text) <= 80 else f"{text[:12]}…"


def _cards(one: Known) -> str:
    cards = one.get("cards") or {}
    return f"{cards.get('number', 0)} x {cards.get('kind') or '-'}"


def _rows(found: Sequence[Compared]) -> list[str]:
    head = ["FIGURE", "EARLIER", "NOW", "CHANGE", "INTERVAL", "NOISE", "VERDICT"]
    rows = [
        [
            *(one.figure.text, f"{one.old:.4g}", f"{one.new:.4g}", f"{one.ratio - 1:+.1%}"),
            *(f"{one.low - 1:+.1%} to {one.high - 1:+.1%}", f"{one.floor:.1%}", one.verdict),
        ]
        for one in found
    ]
    return table([head, *rows])


def _summary(said: str, sound: Sequence[Sequence[Known]]) -> str:
    old, new = (len(side) for side in sound)
    few = "; three repetitions of each are needed" if said == UNKNOWN else ""
    return f"verdict: {said} ({old} against {counted(new, 'repetition')}, 95 % intervals{few})"


__all__ = ["Comparison", "compare"]
