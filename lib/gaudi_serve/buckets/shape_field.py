"""Steps of one phase on a grid of possible buckets, and the padding with these buckets.

A shape is (x, y): (tokens, blocks of context) of a prompt step, (sequences, blocks) of a decode step. A server uses the
first bucket in sorted order that is large enough in both parts. It searches the rows of buckets with equal x by their
x, and in the first row that reaches high enough, the first y. So each row gets the shapes that no row before it covers.

The steps of several speeds of the server are counted at once. A count is one integer with a lane for each speed, wide
enough for all its padded work. So one sum or product counts for all of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

Shape = tuple[int, int]
Places = tuple[Shape, ...]  # Buckets as indices into xs and ys, sorted.
Weights = Sequence[float]  # Weights of the steps of each speed.
NOT_HELD = float("inf")
FINE = 60  # Bits of the largest weight.


@dataclass(frozen=True)
class Phase:
    """The requirements for the buckets of a phase.

    Attributes:
        shapes: by speed of the server, the number of steps of each shape.
        most_x: the largest possible x.
        top: returns the largest possible y for an x.
        falling: top falls as x grows; otherwise it rises or stays the same.
        least_y: returns the smallest y of a bucket of this x in the server.
        least_x: the smallest x of a bucket.
        measures: two kinds of padded work of a bucket. A step's padding is the bucket's minus the shape's. The first
            depends only on x, and the second does not fall as y grows.
        worth: the weight of each share of padding in the sum to minimise.
        fixed: places that every grid has.
    """

    shapes: Sequence[Mapping[Shape, int]]
    most_x: int
    top: Callable[[int], int]
    falling: bool
    least_y: Callable[[int], int]
    least_x: int
    measures: tuple[Callable[[int, int], int], Callable[[int, int], int]]
    worth: tuple[float, float]
    fixed: Sequence[Shape] = ()

    def real(self) -> list[tuple[int, int]]:
        """Return, by speed, the real work of all steps in both measures."""
        first, second = self.measures
        return [
            (
                sum(first(*shape) * count for shape, count in shapes.items()),
                sum(second(*shape) * count for shape, count in shapes.items()),
            )
            for shapes in self.shapes
        ]


@dataclass(frozen=True)
class _Held:
    """Weighted steps within the first i values of x and the first j of y: ``sums[i][j]``, in units."""

    sums: list[list[int]]
    unit: float


class ShapeField:
    """A phase over the places of a grid. ``xs`` and ``ys`` have the values that all possible shapes need."""

    def __init__(self, phase: Phase, xs: Sequence[int], ys: Sequence[int]) -> None:
        """Store the places. The last x is phase.most_x, and the last y is the largest of all tops."""
        self.phase, self.xs, self.ys = phase, list(xs), list(ys)
        first, second = phase.measures
        self.first = [[first(x, y) for y in ys] for x in xs]
        self.second = [[second(x, y) for y in ys] for x in xs]
        steps = max((sum(shapes.values()) for shapes in phase.shapes), default=0)
        work = max(*map(max, self.first), *map(max, self.second))
        lane = (steps * work).bit_length() + 1
        self._shifts = [lane * number for number in range(len(phase.shapes))]
        self._mask = (1 << lane) - 1
        counts = [[0] * len(ys) for _ in xs]
        for shift, shapes in zip(self._shifts, phase.shapes, strict=True):
            for (x, y), count in shapes.items():
                counts[bisect_left(xs, x)][bisect_left(ys, y)] += count << shift
        self._counts = counts
        # held[i][j] counts steps within the first i values of x and the first j of y.
        self.held = _summed(counts)
        self._weighted: dict[tuple[float, ...], _Held] = {}
        self.real = phase.real()
        self.x_at = {x: i for i, x in enumerate(xs)}
        self.y_at = {y: j for j, y in enumerate(ys)}
        self.lowest = [bisect_left(ys, phase.least_y(x)) for x in xs]
        tops = [phase.top(x) for x in xs]
        starts = [phase.top(1), *(phase.top(min(x + 1, phase.most_x)) for x in xs[:-1])]
        # The heights that a row must reach to cover everything from its first place, and everything up to its own.
        self._from = [bisect_left(ys, top) for top in starts]
        self._upto = [bisect_left(ys, top) for top in tops]

    def need(self, low: int, high: int) -> int:
        """Return the place of the largest possible y for x from the places low to high."""
        return self._from[low] if self.phase.falling else self._upto[high]

    def allows(self, place: Shape) -> bool:
        """Return whether the server would keep a bucket at a place."""
        i, j = place
        return 0 <= i < len(self.xs) and self.lowest[i] <= j < len(self.ys)

    def lanes(self, number: int) -> list[int]:
        """Return, by speed, the parts of a sum over all of them."""
        mask = self._mask
        return [(number >> shift) & mask for shift in self._shifts]

    def padded(self, places: Places) -> tuple[int, int] | None:
        """Return the padded work of all steps in both measures, each as ``lanes`` takes it.

        None if a shape has no bucket.
        """
        one = two = 0
        held, left = self.held, -1
        # Ranges of x places up to the last row: first place, last place, and the y place up to which they are covered.
        stretches: list[tuple[int, int, int]] = []
        at, count = 0, len(places)
        while at < count:
            i = places[at][0]
            end = at + 1
            while end < count and places[end][0] == i:
                end += 1
            top = places[end - 1][1]
            lower_than = [(left + 1, i, -1)]
            while stretches and stretches[-1][2] < top:
                lower_than.append(stretches.pop())
            first, second = self.first[i], self.second[i]
            for begin, last, height in lower_than:
                upper, lower = held[last + 1], held[begin]
                before = upper[height + 1] - lower[height + 1]
                for _, j in places[at:end]:
                    if j > height:
                        upto = upper[j + 1] - lower[j + 1]
                        if upto != before:
                            one += (upto - before) * first[j]
                            two += (upto - before) * second[j]
                            before = upto
            stretches.append((lower_than[-1][0], i, top))
            left, at = i, end
        return (one, two) if left == len(self.xs) - 1 and self._covers(stretches) else None

    def _covers(self, stretches: list[tuple[int, int, int]]) -> bool:
        return all(height >= self.need(begin, last) for begin, last, height in stretches)

    def _weigh(self, weights: Weights) -> _Held:
        """Return the sums of ``held`` with the steps of each speed multiplied by its weight."""
        key = tuple(weights)
        if key not in self._weighted:
            unit = max(key) / 2**FINE or 1.0
            # Integers, so that places without a step between them have exactly the same sum.
            parts = [round(weight / unit) for weight in key]
            rows = [[sum(map(mul, self.lanes(count), parts)) if count else 0 for count in row] for row in self._counts]
            self._weighted[key] = _Held(_summed(rows), unit)
        return self._weighted[key]

    def best_rows(self, weights: tuple[Weights, Weights], price: float, part: float = 1) -> Places:
        """Return the cheapest buckets whose rows each cover all their shapes.

        Args:
            weights: By speed, for each of the two measures in the cost.
            price: The price of a bucket.
            part: Rows except the last cover this part of their steps, and only observed shapes. The last row takes the
                rest, which the cost leaves out. With 1 the rows cover everything possible.
        """
        one, two = (self._weigh(part) for part in weights)
        best: list[tuple[float, int, tuple[int, ...]]] = []
        for high in range(len(self.xs)):
            found: tuple[float, int, tuple[int, ...]] = (NOT_HELD, -1, ())
            for low in range(high, -1, -1):
                before = best[low - 1][0] if low else 0.0
                cost, ys = self._best_row(low, high, (one, two), price, part)
                if cost >= found[0]:
                    break  # A row with more places costs more.
                if before + cost < found[0]:
                    found = (before + cost, low, ys)
            best.append(found)
        places: list[Shape] = []
        at = len(self.xs) - 1
        while at >= 0:
            _, low, ys = best[at]
            places += [(at, y) for y in ys]
            at = low - 1
        return tuple(sorted(places))

    def _best_row(
        self, low: int, high: int, held: tuple[_Held, _Held], price: float, part: float
    ) -> tuple[float, tuple[int, ...]]:
        """Return the cheapest y places of one row for the x places low to high, with the lower hull of lines.

        cost(j) = price + min over k below j of cost(k) + work(j) * (steps up to j - steps up to k). The work of a
        bucket only grows with j, so each k is a line, evaluated at work(j). The first measure is constant along a row,
        so only the steps decide its cost.
        """
        top, start = self.need(low, high), self.lowest[high]
        if start > top:
            return NOT_HELD, ()
        upper, lower, unit = held[1].sums[high + 1], held[1].sums[low], held[1].unit
        if part < 1:
            enough = (upper[-1] - lower[-1]) * part
            height = bisect_left(range(len(self.ys) - 1), True, key=lambda j: upper[j + 1] - lower[j + 1] >= enough)
            top = self.need(0, high) if high == len(self.xs) - 1 else max(start, height)
        second = self.second[high]
        slopes, offsets, owners, head = [0.0], [0.0], [-1], 0
        came: dict[int, int] = {}
        cost = 0.0
        for j in range(start, top + 1):
            count, work = (upper[j + 1] - lower[j + 1]) * unit, second[j]
            before = offsets[head] + slopes[head] * work
            while head + 1 < len(slopes) and (following := offsets[head + 1] + slopes[head + 1] * work) <= before:
                head, before = head + 1, following
            cost = before + count * work + price
            came[j] = owners[head]
            if -count == slopes[-1]:
                continue  # Without a step between them, the lower place is as good and not more expensive.
            while len(slopes) - head >= 2 and (cost - offsets[-2]) * (slopes[-2] - slopes[-1]) <= (
                offsets[-1] - offsets[-2]
            ) * (slopes[-2] + count):
                del slopes[-1], offsets[-1], owners[-1]
            slopes.append(-count)
            offsets.append(cost)
            owners.append(j)
        sums = held[0].sums
        alike = (sums[high + 1][top + 1] - sums[low][top + 1]) * held[0].unit
        return cost + self.first[high][0] * alike, _way(came, top)


def _summed(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the sums of a table: result[i][j] is that of the first i rows and the first j columns."""
    found = [[0] * (len(rows[0]) + 1)]
    for row in rows:
        found.append([above + sums for above, sums in zip(found[-1], [0, *accumulate(row)], strict=True)])
    return found


def _way(came: Mapping[int, int], end: int) -> tuple[int, ...]:
    """Return the places that lead to an end, from the place before each; -1 is before the first."""
    found = []
    while end >= 0:
        found.append(end)
        end = came[end]
    return tuple(reversed(found))


def places_of(weights: Mapping[int, float], most: int, count: int, least: int, always: Sequence[int]) -> list[int]:
    """Return about ``count`` values: by weight, and by doubling where no step was observed.

    Args:
        weights: The number of observed steps by value.
        most: The largest value, which is always included.
        count: The approximate number; all values if there are no more of them.
        least: The smallest value.
        always: Values that are always included.
    """
    if most - least < count:
        return list(range(least, most + 1))
    values = sorted({max(least, value) for value in weights})
    if len(values) > count:
        # Three quarters are chosen by weight, and a quarter by number.
        share, stride = sum(weights.values()) / (count * 0.75), max(1, round(len(values) / (count * 0.25)))
        kept, total, enough = [], 0.0, share
        for index, value in enumerate(values):
            total += weights.get(value, 0)
            if total >= enough or index % stride == 0:
                kept.append(value)
                enough = total + share
        values = kept
    doubled = [least, *(2**power for power in range(most.bit_length()) if least <= 2**power < most)]
    return sorted({*values, *doubled, *always, most})
