"""The search for buckets of one phase: the fewest within a padding, or the best of a number.

It starts with the best plan of rows that each cover all, or nearly all, of their steps. Dynamic programming finds this
plan on a coarse grid for any price of a bucket (``ShapeField.best_rows``). It cannot find which rows should leave rare
high shapes to a later row, and places between those of the grid. A descent on the fine grid finds these: it moves,
removes and exchanges buckets, counted exactly by the lookup rule, as long as that helps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from .shape_field import NOT_HELD, Phase, Places, ShapeField, places_of

Shares = Sequence[tuple[float, float]]  # By speed of the server, in both measures.
Weights = tuple[Sequence[float], Sequence[float]]
Score = Callable[[Shares], float]
# Places of x and y on the coarse and the fine grid. The next pair is used if one cannot reach the padding.
GRIDS = (((20, 48), (128, 160)), ((64, 64), (320, 160)), ((120, 80), (480, 256)))
COARSE_ENOUGH = 50  # Up to this many graphs, the first grids are enough.
TRIED = 4  # Number of buckets whose removal is tried, cheapest first.
PARTS = (1, 0.98, 0.9)  # Parts of its steps that a row covers at the start.
STRIDES = (1, 2, 4, 8, 16, 32)
DEAREST = 1e15
LOWEST, HIGHEST, HALVINGS = 1e-6, 100.0, 9  # The price of a bucket: its bounds, and the number of halvings.
# Buckets that one descent, and a complete search, may count. They take a third of a second and two seconds.
DESCENT, SEARCH = 100_000, 600_000
SLACK = 1e-9  # Of a share, for sums of floating-point numbers.


@dataclass
class Effort:
    """The number of buckets that may still be counted. So a search ends after a bounded time, equal on all machines."""

    left: int = SEARCH


@dataclass(frozen=True)
class Search:
    """A phase on its two grids. The places of the coarse grid are also places of the fine one."""

    coarse: ShapeField
    fine: ShapeField
    effort: Effort = field(default_factory=Effort)

    @classmethod
    def of(cls, phase: Phase, level: int = 0) -> Search:
        """Return the search on one pair of GRIDS."""
        by_x: defaultdict[int, float] = defaultdict(float)
        by_y: defaultdict[int, float] = defaultdict(float)
        for shapes in phase.shapes:
            steps = sum(shapes.values())
            for (x, y), count in shapes.items():
                by_x[x] += count / steps
                by_y[y] += count / steps
        grids: list[ShapeField] = []
        for many in GRIDS[level]:
            xs, ys = (grids[0].xs, grids[0].ys) if grids else ([x for x, _ in phase.fixed], [y for _, y in phase.fixed])
            xs = places_of(by_x, phase.most_x, many[0], phase.least_x, xs)
            tops = {phase.top(min(x + more, phase.most_x)) for x in (0, *xs) for more in (0, 1) if x + more}
            ys = places_of(by_y, max(tops), many[1], 0 if phase.falling else 1, [*tops, *ys])
            grids.append(ShapeField(phase, xs, ys))
        coarse, fine = grids
        return cls(coarse, fine)

    def start(self, weights: Weights, price: float, part: float) -> Places:
        """Return the best plan of rows that each cover a part of their steps, on the fine grid."""
        places = self.coarse.best_rows(weights, price, part)
        return tuple((self.fine.x_at[self.coarse.xs[i]], self.fine.y_at[self.coarse.ys[j]]) for i, j in places)

    def shares(self, places: Places) -> Shares:
        """Return, by speed, the padding in both measures as parts of the real work; infinite for an uncovered shape."""
        padded = self.fine.padded(places)
        if padded is None:
            return [(NOT_HELD, NOT_HELD)] * len(self.fine.real)
        return [
            (one / first - 1 if first else float(one), two / second - 1 if second else float(two))
            for one, two, (first, second) in zip(*map(self.fine.lanes, padded), self.fine.real, strict=True)
        ]

    def loss(self, shares: Shares) -> float:
        """Return the value of the padding to minimise: the mean of all speeds."""
        one, two = self.fine.phase.worth
        return sum((one * first if one else 0.0) + (two * second if two else 0.0) for first, second in shares) / len(
            shares
        )

    def values(self, places: Places) -> list[tuple[int, int]]:
        """Return buckets as x and y."""
        return [(self.fine.xs[i], self.fine.ys[j]) for i, j in places]

    def price_of(self, weights: Weights, fits: Callable[[Places], bool], part: float) -> Places | None:
        """Return the plan with the fewest buckets: that of the highest price that still fits, or None."""
        low, high, found = LOWEST, HIGHEST, None
        for halving in range(HALVINGS + 1):
            price = low if halving == 0 else (low * high) ** 0.5
            places = self.start(weights, price, part)
            if fits(places):
                low, found = price, places
            elif halving == 0:
                return None
            else:
                high = price
        return found

    def descend(self, places: Places, score: Score) -> Places:
        """Return the best plan that single moves of buckets reach."""
        best, left = score(self.shares(places)), min(DESCENT, self.effort.left)
        better = True
        while better and left > 0:
            better = False
            for one in self._neighbours(places):
                if len(one) < len(places):
                    continue
                left -= len(one)
                self.effort.left -= len(one)
                found = score(self.shares(one))
                if found < best - SLACK:
                    best, places, better = found, one, True
                    break
                if left <= 0:
                    break
        return places

    def _neighbours(self, places: Places) -> Iterator[Places]:
        """Yield the plans with one bucket or row moved. If a bucket falls on another, they have fewer."""
        rows = sorted({i for i, _ in places})
        moves = [stride * sign for stride in STRIDES for sign in (1, -1)]
        for index, (i, j) in enumerate(places):
            others = {*places[:index], *places[index + 1 :]}
            at = rows.index(i)
            beside = [(row, j) for row in (*rows[max(0, at - 1) : at], *rows[at + 1 : at + 2])]
            for step in (*((i, j + move) for move in moves), *beside):
                if self.fine.allows(step):
                    yield tuple(sorted({*others, step}))
        for row in rows:
            for move in moves:
                moved = {(row + move if i == row else i, j) for i, j in places}
                if all(self.fine.allows(one) for one in moved if one[0] == row + move):
                    yield tuple(sorted(moved))

    def without_one(self, places: Places, score: Score) -> list[tuple[float, Places]]:
        """Return the plans with one bucket less, best first, without those that leave a shape uncovered."""
        found = []
        for index in range(len(places) if self.effort.left > 0 else 0):
            one = places[:index] + places[index + 1 :]
            self.effort.left -= len(one)
            value = score(self.shares(one)) if one else NOT_HELD
            if value < NOT_HELD:
                found.append((value, one))
        return sorted(found)

    def with_one(self, places: Places, score: Score) -> tuple[float, Places]:
        """Return the best plan with one bucket more, in an existing row or at a place of the coarse grid."""
        best: tuple[float, Places] = (NOT_HELD, places)
        rows = {i for i, _ in places} | {self.fine.x_at[x] for x in self.coarse.xs}
        for i in sorted(rows):
            for j in (self.fine.y_at[y] for y in self.coarse.ys):
                if not self.fine.allows((i, j)) or (i, j) in places:
                    continue
                one = tuple(sorted((*places, (i, j))))
                self.effort.left -= len(one)
                value = score(self.shares(one))
                if value < best[0]:
                    best = value, one
        return best

    def exchange(self, places: Places, score: Score) -> Places:
        """Return the plan after a descent, with buckets exchanged as long as that helps."""
        places = self.descend(places, score)
        best, better = score(self.shares(places)), True
        while better and self.effort.left > 0:
            better = False
            for _, fewer in self.without_one(places, score)[:3]:
                one = self.descend(self.with_one(fewer, score)[1], score)
                value = score(self.shares(one))
                if value < best - SLACK and len(one) == len(places):
                    best, places, better = value, one, True
                    break
        return places


def within(most: Shares) -> Score:
    """Return a score for padding that must be within two shares at every speed.

    The worst one decides. The others count a little, so that steps which only improve them count too.
    """
    limits = [(one, 1 / max(one, 0.01)) for pair in most for one in pair]
    light = 0.02 / len(limits)

    def score(shares: Shares) -> float:
        flat = [share for pair in shares for share in pair]
        parts = [(share - limit) * scale for share, (limit, scale) in zip(flat, limits, strict=True)]
        return max(parts) + light * sum(parts)

    return score


def fits(shares: Shares, most: Shares) -> bool:
    """Return whether padding is within two shares at every speed."""
    return all(
        one <= first + SLACK and two <= second + SLACK for (one, two), (first, second) in zip(shares, most, strict=True)
    )


def fewest(phase: Phase, most: Shares) -> tuple[Search, Places] | None:
    """Return the fewest buckets with padding within two shares of the real work, by speed; None if none are found.

    If there are many, or none, a finer grid is tried too.
    """
    kept: tuple[Search, Places] | None = None
    for level in range(len(GRIDS)):
        if kept is not None and (level > 1 or len(kept[1]) <= COARSE_ENOUGH // 2):
            break
        search = Search.of(phase, level)
        found = _fewest_rows(search, most, (0.5,) if phase.falling or level else (0.5, 0.2, 0.8))
        if found is not None:
            found = _fewer(search, found, most)
            kept = (search, found) if kept is None or len(found) < len(kept[1]) else kept
    return kept


def _fewest_rows(search: Search, most: Shares, mixes: tuple[float, ...]) -> Places | None:
    """Return the fewest buckets with complete rows, for several weights of the two measures."""
    found: Places | None = None
    for mix in mixes:
        pairs = list(zip(most, search.fine.real, strict=True))
        one, two = (
            [part / (max(limit[at], 1e-4) * (real[at] or 1.0)) / len(pairs) for limit, real in pairs]
            for at, part in enumerate((mix, 1 - mix))
        )
        for part in PARTS:
            places = search.price_of((one, two), lambda places: fits(search.shares(places), most), part)
            if places is not None and (found is None or len(places) < len(found)):
                found = places
    return found


def _fewer(search: Search, places: Places, most: Shares) -> Places:
    """Return the plan with buckets removed, first those that need no replacement."""
    score = within(most)
    while search.effort.left > 0:
        less = search.without_one(places, score)
        if less and fits(search.shares(less[0][1]), most):
            places = less[0][1]
            continue
        moved = (search.descend(one, score) for _, one in less[:TRIED])
        fewer = next((one for one in moved if fits(search.shares(one), most)), None)
        if fewer is None:
            better = search.exchange(places, score)
            if score(search.shares(better)) >= score(search.shares(places)) - SLACK:
                break
            fewer = better
        places = fewer
    return places


def best(phases: tuple[Phase, Phase], most: int) -> tuple[tuple[Search, Places], tuple[Search, Places]]:
    """Return the buckets of prompts and of decode steps with the least padding, for a total number of graphs.

    The padding is the weighted sum in each measure. One price of a bucket for both phases divides the graphs. The
    remaining graphs go where they help most.
    """
    level = 0 if most <= COARSE_ENOUGH else 1
    both = Both(Search.of(phases[0], level), Search.of(phases[1], level))
    plans = both.at_one_price(most)
    while sum(map(len, plans)) < most:
        more = both.with_one(plans)
        if more is None:
            break
        plans = more
    plans = (both.prompt.exchange(plans[0], both.prompt.loss), both.decode.exchange(plans[1], both.decode.loss))
    moved = both.moved_over(plans)
    while moved is not None:
        plans, moved = moved, both.moved_over(moved)
    return (both.prompt, plans[0]), (both.decode, plans[1])


@dataclass(frozen=True)
class Both:
    """The searches of the two phases, which share the graphs."""

    prompt: Search
    decode: Search

    @property
    def searches(self) -> tuple[Search, Search]:
        """Return both searches."""
        return self.prompt, self.decode

    def loss(self, plans: tuple[Places, Places]) -> float:
        """Return the padding to minimise."""
        return sum(search.loss(search.shares(places)) for search, places in zip(self.searches, plans, strict=True))

    def at_one_price(self, most: int) -> tuple[Places, Places]:
        """Return the plans of the lowest price of a bucket with which both have at most ``most`` graphs."""
        low, high = LOWEST, HIGHEST
        found = self._priced(high)
        # For a few short requests, padding can be thousands of times the work. A bucket must then cost more.
        while sum(map(len, found)) > most and high < DEAREST:
            low, high = high, 100 * high
            found = self._priced(high)
        for _ in range(HALVINGS):
            price = float((low * high) ** 0.5)
            plans = self._priced(price)
            if sum(map(len, plans)) <= most:
                high, found = price, plans
            else:
                low = price
        return found

    def _priced(self, price: float) -> tuple[Places, Places]:
        one, two = (self._cheapest(search, price) for search in self.searches)
        return one, two

    @staticmethod
    def _cheapest(search: Search, price: float) -> Places:
        one, two = (
            [part / (real[at] or 1.0) / len(search.fine.real) for real in search.fine.real]
            for at, part in enumerate(search.fine.phase.worth)
        )
        plans = (search.start((one, two), price, part) for part in PARTS)
        return min(plans, key=lambda places: search.loss(search.shares(places)) + price * len(places))

    def with_one(self, plans: tuple[Places, Places]) -> tuple[Places, Places] | None:
        """Return the plans with one bucket more where it helps most; None if none helps."""
        pairs = list(zip(self.searches, plans, strict=True))
        more = [search.with_one(places, search.loss) for search, places in pairs]
        gains = [search.loss(search.shares(places)) - more[at][0] for at, (search, places) in enumerate(pairs)]
        if max(gains) <= SLACK:
            return None
        return (more[0][1], plans[1]) if gains[0] >= gains[1] else (plans[0], more[1][1])

    def moved_over(self, plans: tuple[Places, Places]) -> tuple[Places, Places] | None:
        """Return the plans with one graph moved from one phase to the other if that helps, else None."""
        now = self.loss(plans)
        for donor, receiver in ((0, 1), (1, 0)):
            gives, takes = self.searches[donor], self.searches[receiver]
            less = gives.without_one(plans[donor], gives.loss)
            if not less or min(gives.effort.left, takes.effort.left) <= 0:
                continue
            fewer = gives.descend(less[0][1], gives.loss)
            more = takes.descend(takes.with_one(plans[receiver], takes.loss)[1], takes.loss)
            moved = (fewer, more) if donor == 0 else (more, fewer)
            if self.loss(moved) < now - SLACK:
                return moved
        return None
