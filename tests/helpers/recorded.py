"""Recorded /metrics pages of servers, a file for each engine or release of vLLM.

``fork.prom`` comes from the metrics class of the fork's branches aice/v1.21.0 and aice/v1.22.0, which show the same
page. The others have the names, labels and limits of vLLM's packages; the page of 0.33.0 was compared with the source
of 0.32.0. They lack help texts, and the times of creation that nothing reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "unit/golden/metrics"
NAMES = ("fork", "0.10.1", "0.11.2", "0.26.0", "0.33.0")
LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Sample:
    """One series of a page: its name, its labels, its value, and whether it rises over time."""

    name: str
    labels: dict[str, str]
    value: float
    rises: bool


def release(name: str) -> tuple[int, ...] | None:
    """Return the release of vLLM of a page; None for the fork."""
    return None if name == "fork" else tuple(map(int, name.split(".")))


@cache
def page(name: str) -> tuple[Sample, ...]:
    """Return the series of a page."""
    return tuple(_samples((FOLDER / f"{name}.prom").read_text(encoding="utf-8")))


def _samples(text: str) -> Iterator[Sample]:
    kinds: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            kinds.update([line.split()[2:4]])
        elif not line.startswith("#"):
            found = LINE.fullmatch(line)
            assert found, line
            kind = kinds.get(found[1]) or kinds[re.sub(r"_(bucket|count|sum)$", "", found[1])]
            yield Sample(found[1], dict(LABEL.findall(found[2] or "")), float(found[3]), kind != "gauge")


def shown(name: str) -> dict[str, set[str]]:
    """Return the metrics of a page with their labels."""
    found: dict[str, set[str]] = {}
    for sample in page(name):
        found.setdefault(sample.name, set()).update(sample.labels)
    return found
