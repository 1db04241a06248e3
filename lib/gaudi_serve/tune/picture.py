"""A picture of the steps and the buckets, as the text of an SVG. The same numbers give the same text.

It has two fields, for prompt steps and decode steps. A stronger place had more steps of that shape. Rings are today's
buckets, and dots are planned ones. A step is padded to the first bucket that is as far to the right and as high.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from xml.sax.saxutils import escape

from ..core.words import counted
from .proposal import Proposal

WIDTH, HEIGHT = 460, 340  # The size of a field.
LEFT, TOP, GAP, BELOW = 76, 96, 90, 60
CELLS = 46  # Cells along a field's longer side. Steps in one cell are counted together.
CELL = WIDTH / CELLS
# Marks at the ends of an axis need this margin to be complete within the frame.
MARGIN = 8
SHADES = 8
RADIUS = 4
TICKS_APART = 44  # Keeps the last two labels apart.
LONGEST_TITLE = 120  # characters
# Colours are written directly, because some viewers do not support variables.
STYLE = """
  svg { font: 13px sans-serif }
  .paper { fill: #ffffff } text { fill: #1f2328 } .small { font-size: 11px; fill: #59636e }
  .head { font-weight: bold } .line { stroke: #d0d7de; fill: none } .heat { fill: #57606a }
  .today { stroke: #bc4c00; stroke-width: 1.4; fill: none } .planned { fill: #0969da; stroke: #ffffff }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } text { fill: #e6edf3 } .small { fill: #9198a1 } .line { stroke: #30363d }
    .heat { fill: #c9d1d9 } .today { stroke: #f0883e } .planned { fill: #58a6ff; stroke: #0d1117 }
  }
""".strip("\n")
Steps = Mapping[tuple[int, int], int]
Points = Collection[tuple[int, int]]


@dataclass(frozen=True)
class _Axis:
    """A logarithmic axis from 0 or 1: its name, its largest value, and its length in the picture."""

    name: str
    most: int
    length: int
    zero: bool

    def place(self, value: float) -> float:
        shift = 1 if self.zero else 0
        most = max(2, self.most + shift)
        return MARGIN + (self.length - 2 * MARGIN) * math.log2(max(1.0, value + shift)) / math.log2(most)

    def cell(self, value: float) -> int:
        """Return the cell whose middle is nearest to a value."""
        return int((self.place(value) - MARGIN) / CELL + 0.5)

    def ticks(self) -> list[int]:
        powers = [2**power for power in range(self.most.bit_length())]
        every = max(1, -(-len(powers) // 9))
        found = [*([0] if self.zero else []), *powers[::every]]
        far = self.place(self.most) - self.place(found[-1]) >= TICKS_APART
        return [*found, self.most] if far else found


def picture(plan: Proposal) -> str:
    """Return the SVG of a proposal: the steps of its requests, and the buckets of today and of the plan."""
    width, height = LEFT + 2 * WIDTH + GAP + 30, TOP + HEIGHT + BELOW
    fields = [
        ("Prompt steps", ("tokens", False), ("blocks of context", True), plan.shapes.prompt, 0),
        ("Decode steps", ("sequences", False), ("blocks of all sequences", False), plan.shapes.decode, 1),
    ]
    found = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(_title(plan))}</title>",
        f"<style>\n{STYLE}\n</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        f'<text class="head" x="{LEFT}" y="26">{escape(_cut(_title(plan)))}</text>',
        *_legend(plan),
    ]
    for title, across, up, steps, number in fields:
        today = (plan.today.prompt, plan.today.decode)[number]
        planned = (plan.prompt, plan.decode)[number]
        left = LEFT + number * (WIDTH + GAP)
        found += _field(title, (across, up), steps, (today, planned), left)
    return "\n".join([*found, "</svg>"]) + "\n"


def _title(plan: Proposal) -> str:
    return f"Buckets of {plan.target.name}: {counted(plan.taken, 'request')}, {plan.source}"


def _cut(title: str) -> str:
    return title if len(title) <= LONGEST_TITLE else title[: LONGEST_TITLE - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _legend(plan: Proposal) -> list[str]:
    today = "" if isinstance(plan.today.compared, Exception) else f": {counted(plan.today.compared.graphs, 'graph')}"
    return [
        f'<rect class="heat" fill-opacity="0.6" x="{LEFT}" y="42" width="12" height="12"/>',
        f'<text x="{LEFT + 18}" y="53">steps that ran; stronger: more of them</text>',
        f'<circle class="today" cx="{LEFT + 296}" cy="48" r="{RADIUS}"/>',
        f'<text x="{LEFT + 308}" y="53">today, {escape(plan.today.strategy)}{today}</text>',
        f'<circle class="planned" cx="{LEFT + 566}" cy="48" r="{RADIUS + 1}"/>',
        f'<text x="{LEFT + 578}" y="53">planned: {counted(plan.planned.graphs, "graph")}</text>',
    ]


def _field(
    title: str,
    names: tuple[tuple[str, bool], tuple[str, bool]],
    steps: Steps,
    buckets: tuple[Points, Points],
    left: int,
) -> list[str]:
    every = [*steps, *buckets[0], *buckets[1]]
    across = _Axis(names[0][0], max((one[0] for one in every), default=1), WIDTH, names[0][1])
    up = _Axis(names[1][0], max((one[1] for one in every), default=1), HEIGHT, names[1][1])
    return [
        f'<g transform="translate({left} {TOP})">',
        f'<text class="head" x="0" y="-12">{title}</text>',
        *_grid(across, up),
        *_heat(across, up, steps),
        *_marks(across, up, buckets[0], "today", RADIUS),
        *_marks(across, up, buckets[1], "planned", RADIUS + 1),
        "</g>",
    ]


def _grid(across: _Axis, up: _Axis) -> list[str]:
    found = [f'<rect class="line" width="{WIDTH}" height="{HEIGHT}"/>']
    for value in across.ticks():
        x = across.place(value)
        found.append(f'<path class="line" d="M{x:.1f} 0V{HEIGHT}"/>')
        found.append(f'<text class="small" x="{x:.1f}" y="{HEIGHT + 16}" text-anchor="middle">{value}</text>')
    for value in up.ticks():
        y = HEIGHT - up.place(value)
        found.append(f'<path class="line" d="M0 {y:.1f}H{WIDTH}"/>')
        found.append(f'<text class="small" x="-6" y="{y + 4:.1f}" text-anchor="end">{value}</text>')
    middle = HEIGHT // 2
    found.append(f'<text x="{WIDTH // 2}" y="{HEIGHT + 38}" text-anchor="middle">{across.name}</text>')
    found.append(
        f'<text x="-52" y="{middle}" text-anchor="middle" transform="rotate(-90 -52 {middle})">{up.name}</text>'
    )
    return found


def _heat(across: _Axis, up: _Axis, steps: Steps) -> list[str]:
    """Return the steps as squares. Their shade grows with the logarithm of the number of steps."""
    cells: dict[tuple[int, int], int] = defaultdict(int)
    for (one, other), count in steps.items():
        cells[across.cell(one), up.cell(other)] += count
    most = math.log(1 + max(cells.values(), default=1))
    found = []
    for (column, row), count in sorted(cells.items()):
        shade = 0.1 + 0.8 * math.ceil(SHADES * math.log(1 + count) / most) / SHADES
        x, y = MARGIN + (column - 0.5) * CELL, HEIGHT - MARGIN - (row + 0.5) * CELL
        place = f'x="{x:.1f}" y="{y:.1f}" width="{CELL:g}" height="{CELL:g}"'
        found.append(f'<rect class="heat" fill-opacity="{shade:.2f}" {place}/>')
    return found


def _marks(across: _Axis, up: _Axis, points: Points, kind: str, radius: int) -> list[str]:
    """Return one mark per place in the picture that has a bucket."""
    places = {(round(across.place(x)), round(HEIGHT - up.place(y))) for x, y in points}
    return [f'<circle class="{kind}" cx="{x}" cy="{y}" r="{radius}"/>' for x, y in sorted(places)]


__all__ = ["picture"]
