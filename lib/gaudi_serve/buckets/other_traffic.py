"""The bound of a plan for requests that its trace does not have. It applies to each possible step.

A plan has a bucket of the size of every row of ``exp``: as many tokens or sequences, and as much context or blocks. So
no step is padded to more tokens or sequences than with ``exp``, whatever the lengths and the rate of the requests. For
prompt work and blocks, a step's bucket is at most a few times as large as the larger one of ``exp`` and ``pad``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ..core.errors import InputError
from .bucket_grid import BucketGrid
from .compared import Strategy
from .coverage import uncovered
from .plan_limits import PADDINGS, PlanLimits
from .shape_field import Phase, Shape
from .traffic import Shapes, Traffic

WORK = 2.0  # The most times of prompt work, which is none of the three shares.
BLOCKS = (1.5, 1.25)  # The most times of blocks: the first with which held-out requests keep the bound.
SLACK = 1e-9  # Of a share, for sums of floating-point numbers.


@dataclass(frozen=True)
class OtherTraffic:
    """The strategies that bound the padding of other requests: ``exp``, and ``pad`` if it is possible."""

    limits: PlanLimits
    strategies: Mapping[str, Strategy]

    @classmethod
    def of(cls, limits: PlanLimits) -> OtherTraffic:
        """Return the bound for a server.

        Raises:
            InputError: ``exp`` is impossible.
        """
        found = {"exp": Strategy.of("exp", limits)}
        with suppress(InputError):
            found["pad"] = Strategy.of("pad", limits)
        return cls(limits, found)

    def corners(self) -> Shapes:
        """Return the largest step of each row of ``exp``. If these have no padding, no step has more than with it."""
        limits, buckets = self.limits, self.strategies["exp"].buckets
        prompt: dict[Shape, int] = {}
        for _, query, blocks in (row for row in buckets.prompt.rows if row[0] == 1):
            tokens = max(2, min(query, limits.most_tokens))
            prompt[tokens, min(blocks[-1], limits.most_context(tokens))] = 1
        decode: dict[Shape, int] = {}
        for batch, _, blocks in buckets.decode.rows:
            sequences = min(batch, limits.most_sequences)
            decode[sequences, min(blocks[-1], limits.most_blocks(sequences))] = 1
        return Shapes(prompt, decode)

    def kept(self, plan: Strategy, traffic: Traffic) -> bool:
        """Return whether, at every speed, no share of padding is above the worse of the strategies."""
        for steps in traffic.shapes:
            padding, *others = (one.compared(steps).padding for one in (plan, *self.strategies.values()))
            for share in PADDINGS:
                if getattr(padding, share) > max(getattr(one, share) for one in others) + SLACK:
                    return False
        return True

    def completed(self, name: str, found: Sequence[Sequence[Shape]]) -> tuple[BucketGrid, BucketGrid] | None:
        """Return the buckets of a strategy, and of a plan's what the rows of the strategy lack.

        None if the strategy bounds no other requests, or if even these do not cover every step.
        """
        if name not in self.strategies:
            return None
        same = self.strategies[name].buckets
        (prompts, decodes), rows = (dict(sorted(one)) for one in found), {row[1] for row in same.prompt.rows}
        widths = {row[0] for row in same.decode.rows}
        prompt = BucketGrid.of([*same.prompt, *((1, x, y) for x, y in prompts.items() if x in rows)])
        decode = BucketGrid.of([*same.decode, *((x, 1, y) for x, y in decodes.items() if x in widths)])
        complete = uncovered(replace(same, prompt=prompt, decode=decode), self.limits) is None
        return (prompt, decode) if complete else None

    def guarded(self, buckets: Sequence[Shape], phase: Phase, times: float) -> list[Shape]:
        """Return buckets with more in their rows, so that no step has more than ``times`` the second measure.

        A bucket below the last one of its row takes no step from another row, so it pads no step more.
        """
        vendors = [
            BucketGrid.of((query, 0, y) for batch, query, y in one.buckets.prompt if batch == 1)
            if phase.falling
            else BucketGrid.of((batch, 0, y) for batch, _, y in one.buckets.decode)
            for one in self.strategies.values()
        ]
        found, missing = set(buckets), set(buckets)
        while missing:
            missing = _missing(found, phase, vendors, times) - found
            found |= missing
        return sorted(found)


def _missing(buckets: set[Shape], phase: Phase, vendors: Sequence[BucketGrid], times: float) -> set[Shape]:
    """Return for each row the lowest bucket that it lacks."""
    grid, second = BucketGrid.of((x, 0, y) for x, y in buckets), phase.measures[1]
    added: dict[int, int] = {}
    # The buckets of a step change only after these places.
    places = {(x, y) for of in (grid, *vendors) for x, _, y in of}
    xs, ys = ({0, *(place[at] for place in places)} for at in (0, 1))
    for x in sorted(x + 1 for x in xs if phase.least_x <= x + 1 <= phase.most_x):
        for y in {phase.least_y(x), *(y + 1 for y in ys if phase.least_y(x) <= y + 1 <= phase.top(x))}:
            row, _, high = grid.first(x, 0, y) or (0, 0, 0)
            worse = [second(one[0], one[2]) for one in (vendor.first(x, 0, y) for vendor in vendors) if one]
            if row and worse and second(row, high) > times * max(worse):
                low = _largest(phase, row, max(y, phase.least_y(row)), times * max(worse))
                if low < high:
                    added[row] = min(added.get(row, low), low)
    return set(added.items())


def _largest(phase: Phase, x: int, low: int, most: float) -> int:
    """Return the largest y whose second measure is within ``most``, at least low."""
    high = max(low, phase.top(1), phase.top(phase.most_x)) + 1
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if phase.measures[1](x, middle) <= most else (low, middle)
    return low
