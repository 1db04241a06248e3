"""Buckets of three parts as sorted rows, with a fast search for the first that a shape fits into."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, groupby

Bucket = tuple[int, int, int]  # Sequences, tokens, blocks of context.
Row = tuple[int, int, tuple[int, ...]]  # Sequences, tokens, and their blocks of context in rising order.


class BucketGrid:
    """Distinct buckets in sorted order. Rows can share their blocks, so a million buckets need little memory.

    Iteration yields (sequences, tokens, blocks). ``len``, ``in`` and ``==`` work as for a tuple of them.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        """Store rows sorted by sequences and tokens, each pair only once. Rows without blocks are dropped."""
        self.rows: tuple[Row, ...] = tuple(row for row in rows if row[2])
        self._count = sum(len(blocks) for _, _, blocks in self.rows)
        self._batches: list[_Batch] | None = None
        self._sizes: list[int] = []
        self._queries: list[int] = []
        self._peaks: dict[int, _Peaks] = {}

    @classmethod
    def of(cls, buckets: Iterable[Bucket]) -> BucketGrid:
        """Return the grid of buckets in any order."""
        pairs = groupby(sorted(set(buckets)), key=lambda bucket: bucket[:2])
        return cls((batch, query, tuple(ctx for _, _, ctx in same)) for (batch, query), same in pairs)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Bucket]:
        return ((batch, query, ctx) for batch, query, blocks in self.rows for ctx in blocks)

    def __contains__(self, bucket: object) -> bool:
        return isinstance(bucket, tuple) and len(bucket) == 3 and self.first(*bucket) == bucket

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BucketGrid) and self.rows == other.rows

    def __hash__(self) -> int:
        return hash(self.rows)

    def most_blocks(self) -> int:
        """Return the most blocks of any bucket; 0 if there is none."""
        return max((blocks[-1] for _, _, blocks in self.rows), default=0)

    def first(self, batch: int, query: int, ctx: int) -> Bucket | None:
        """Return the first bucket in sorted order that is at least as large in every part, or None."""
        if self._batches is None:
            self._batches = self._index()
        column = bisect_left(self._queries, query)
        peaks = self._peaks.get(column)
        if peaks is None:
            peaks = self._peaks[column] = _Peaks([one.most_from(query) for one in self._batches])
        found = peaks.first(bisect_left(self._sizes, batch), ctx)
        return None if found is None else self._batches[found].first(query, ctx)

    def _index(self) -> list[_Batch]:
        batches = [_Batch(batch, list(rows)) for batch, rows in groupby(self.rows, key=lambda row: row[0])]
        self._sizes = [one.size for one in batches]
        self._queries = sorted({query for _, query, _ in self.rows})
        return batches


class _Batch:
    """The rows with one number of sequences."""

    def __init__(self, size: int, rows: list[Row]) -> None:
        self.size = size
        self._queries = [query for _, query, _ in rows]
        self._blocks = [blocks for _, _, blocks in rows]
        most = [blocks[-1] for blocks in self._blocks]
        self._peaks = _Peaks(most)
        self._most_from = [*accumulate(reversed(most), max)][::-1]

    def most_from(self, query: int) -> int:
        """Return the most blocks of rows with at least ``query`` tokens; -1 if there are none."""
        at = bisect_left(self._queries, query)
        return self._most_from[at] if at < len(self._most_from) else -1

    def first(self, query: int, ctx: int) -> Bucket | None:
        """Return its first bucket that is large enough, or None."""
        at = self._peaks.first(bisect_left(self._queries, query), ctx)
        return None if at is None else (self.size, self._queries[at], _next(self._blocks[at], ctx))


class _Peaks:
    """Numbers in any order, with a search for the first one from a place that is large enough.

    ``_levels[k][i]`` is the largest of the 2^k numbers from place i. The search skips small numbers in halving steps.
    """

    def __init__(self, numbers: list[int]) -> None:
        self._levels = [numbers]
        width = 1
        while 2 * width <= len(numbers):
            below = self._levels[-1]
            self._levels.append([max(one, two) for one, two in zip(below, below[width:], strict=False)])
            width *= 2

    def first(self, start: int, least: int) -> int | None:
        """Return the first place from ``start`` whose number is at least ``least``, or None."""
        at = start
        for level in range(len(self._levels) - 1, -1, -1):
            largest = self._levels[level]
            if at < len(largest) and largest[at] < least:
                at += 1 << level
        return at if at < len(self._levels[0]) and self._levels[0][at] >= least else None


def _next(values: tuple[int, ...], least: int) -> int:
    return values[bisect_left(values, least)]


def up_to(values: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Return the sorted values that are not above ``most``; the same object if all are."""
    end = bisect_right(values, most)
    return values if end == len(values) else values[:end]
