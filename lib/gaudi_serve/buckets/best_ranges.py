"""The best ranges for servers that accept only ranges: minimum, step and maximum per dimension (the fork of 1.21).

Every possible step and minimum of a dimension is counted over the steps of a trace. Ranges that another one beats in
both graphs and padding are dropped, and the best of the others are combined. All possible steps are covered: the
largest prompt is within max_num_batched_tokens, and no padded batch has more sequences than its padded blocks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from .linear import BucketRanges, Range, bucket_values
from .plan_limits import Padding, PlanLimits
from .traffic import Shapes

MOST_VALUES = 512  # Per dimension. More values take hours to warm up.
MOST_STEPS = 64
SLACK = 1e-9  # Of a share, for sums of floating-point numbers.
LOST = 50  # The fork rounds its blocks down to a multiple of the step. At most one part in this many may be lost.


@dataclass(frozen=True)
class _Choice:
    """A range of one dimension, its values, and its padding or the excess over its bound."""

    range: Range
    values: tuple[int, ...]
    padding: float


def best_ranges(
    limits: PlanLimits, shapes: Sequence[Shapes], graphs: int | None, most: Sequence[Padding] | None
) -> BucketRanges | None:
    """Return the ranges with the least padding for a number of graphs, or with the fewest graphs within a padding.

    None if no ranges reach the goal.

    Args:
        limits: The limits of the server.
        shapes: The steps, by speed of the server. The padding is the mean of the shares of all speeds.
        graphs: The most graphs.
        most: By speed, the most padding; None if the graphs are limited instead.
    """
    prompts = _prompts(limits, shapes, most)
    decodes = _decodes(limits, shapes, most)
    if most is not None:
        fit = [one for one in prompts if one.padding <= SLACK]
        both = [(count, pair) for count, pair in decodes if max(one.padding for one in pair) <= SLACK]
        if not fit or not both:
            return None
        prompt = min(fit, key=lambda one: (len(one.values), one.padding))
        _, pair = min(both, key=lambda one: (one[0], one[1][0].padding + one[1][1].padding))
        return _ranges(limits, prompt, pair)
    found = [
        (prompt.padding + batch.padding + block.padding, count + len(prompt.values), prompt, (batch, block))
        for prompt in prompts
        for count, (batch, block) in decodes
        if graphs is None or count + len(prompt.values) <= graphs
    ]
    if not found:
        return None
    _, _, prompt, pair = min(found, key=lambda one: one[:2])
    return _ranges(limits, prompt, pair)


def _ranges(limits: PlanLimits, prompt: _Choice, pair: tuple[_Choice, _Choice]) -> BucketRanges:
    return BucketRanges((1, 1, max(1, limits.max_num_prefill_seqs)), prompt.range, pair[0].range, pair[1].range)


def _prompts(limits: PlanLimits, shapes: Sequence[Shapes], most: Sequence[Padding] | None) -> list[_Choice]:
    score = _Score.of([_sums(steps.prompt, 0) for steps in shapes], _bound(most, "prompt_tokens"))
    tokens, unit = limits.most_tokens, limits.block_size
    ranges = [one for one in _candidates(tokens, unit) if one[2] <= limits.max_num_batched_tokens]
    return _front(ranges or [(tokens, tokens, tokens)], score)


def _decodes(
    limits: PlanLimits, shapes: Sequence[Shapes], bounds: Sequence[Padding] | None
) -> list[tuple[int, tuple[_Choice, _Choice]]]:
    """Return the compatible pairs of ranges of sequences and of blocks, with the number of their graphs."""
    by_batch = _Score.of([_sums(steps.decode, 0) for steps in shapes], _bound(bounds, "decode_batch"))
    by_blocks = _Score.of([_sums(steps.decode, 1) for steps in shapes], _bound(bounds, "decode_blocks"))
    held = limits.num_hpu_blocks
    most = min(held, limits.max_num_seqs * limits.blocks_a_sequence)
    whole = [one for one in _candidates(most, 1) if (held % one[1]) * LOST <= held]
    sequences = _front(_candidates(min(limits.max_num_seqs, most), 1), by_batch)
    found = []
    for block in _front(whole, by_blocks):
        kept = [*dict.fromkeys(min(held, value) for value in block.values)]
        for one in sequences:
            if _together(one.values, block.values):
                graphs = sum(len(kept) - bisect_left(kept, value) for value in one.values)
                found.append((graphs, (one, block)))
    return found


def _together(batches: tuple[int, ...], blocks: tuple[int, ...]) -> bool:
    """Return whether no padded batch has more sequences than its padded blocks. Such buckets are not warmed up."""
    smallest = (1, *(value + 1 for value in batches[:-1]))
    return all(
        at < len(blocks) and blocks[at] >= batch
        for batch, at in ((batch, bisect_left(blocks, least)) for batch, least in zip(batches, smallest, strict=True))
    )


def _candidates(most: int, unit: int) -> Iterable[Range]:
    """Yield the ranges up to ``most`` whose step is a multiple of the unit."""
    multiples = range(1, -(-most // unit) + 1)
    if len(multiples) > MOST_STEPS:
        # Steps by a factor, and all powers of two: small steps matter more, and round ones match each other.
        grown = {max(1, round(len(multiples) ** (index / MOST_STEPS))) for index in range(MOST_STEPS + 1)}
        steps = sorted(grown | {2**power for power in range(len(multiples).bit_length())})
    else:
        steps = list(multiples)
    for step in (unit * multiple for multiple in steps):
        end = -(-most // step) * step
        lows = {unit * 2**power for power in range(step.bit_length()) if unit * 2**power <= step} | {step}
        lows |= {step * times for times in (2, 3, 4, 6, 8, 12, 16) if step * times < end}
        for low in sorted(lows):
            if (end - low) // step < MOST_VALUES:
                yield low, step, end


def _bound(most: Sequence[Padding] | None, key: str) -> list[float] | None:
    return None if most is None else [getattr(one, key) for one in most]


def _sums(shapes: Mapping[tuple[int, int], int], part: int) -> Counter[int]:
    found: Counter[int] = Counter()
    for shape, count in shapes.items():
        found[shape[part]] += count
    return found


@dataclass(frozen=True)
class _Score:
    """The padding of a range, which should be small.

    steps: by speed, the observed values in rising order, the number of steps up to each, and their sum. most: by speed,
    the most padding; None if there is no bound.
    """

    steps: Sequence[tuple[list[int], list[int], int]]
    most: Sequence[float] | None

    @classmethod
    def of(cls, weights: Sequence[Counter[int]], most: Sequence[float] | None) -> _Score:
        steps = []
        for one in weights:
            keys = sorted(one)
            sums = [0, *accumulate(one[key] for key in keys)]
            steps.append((keys, sums, sum(key * one[key] for key in keys)))
        return cls(steps, most)

    def padding(self, values: Sequence[int]) -> float:
        """Return the mean padding of all speeds or, with a bound, the largest excess over it."""
        shares = []
        for keys, sums, real in self.steps:
            padded = held = 0
            for value in values:
                upto = sums[bisect_right(keys, value)]
                padded += value * (upto - held)
                held = upto
            shares.append(padded / real - 1 if real else 0.0)
        if self.most is None:
            return sum(shares) / len(shares)
        return max(share - limit for share, limit in zip(shares, self.most, strict=True))


def _front(ranges: Iterable[Range], score: _Score) -> list[_Choice]:
    """Return the ranges that no other one beats in both values and padding."""
    best: dict[int, _Choice] = {}
    for one in ranges:
        values = bucket_values(*one)
        padding = score.padding(values)
        if len(values) not in best or padding < best[len(values)].padding:
            best[len(values)] = _Choice(one, tuple(values), padding)
    front: list[_Choice] = []
    for count in sorted(best):
        if not front or best[count].padding < front[-1].padding:
            front.append(best[count])
    return front
