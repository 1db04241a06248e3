"""The best ranges for servers that take nothing else: minimum, step and maximum of each dimension (the fork of 1.21).

Every step and minimum that a dimension may have is counted over the steps of a trace; what another one beats in both
graphs and padding is dropped, and the best of the rest are combined. Everything that can be asked for is covered: the
largest prompt is within max_num_batched_tokens, and no padded batch has more sequences than its padded blocks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from .linear import BucketRanges, Range, bucket_values
from .plan_limits import Padding, PlanLimits
from .traffic import Shapes

MOST_VALUES = 512  # of a dimension; more take hours to warm up
MOST_STEPS = 64
SLACK = 1e-9  # of a share, for sums of floating-point numbers
LOST = 50  # the fork rounds its blocks down to a multiple of the step: at most this part of them may be lost


@dataclass(frozen=True)
class _Choice:
    """A range of one dimension: its values and its padding."""

    range: Range
    values: tuple[int, ...]
    padding: float


def best_ranges(limits: PlanLimits, shapes: Shapes, graphs: int | None, most: Padding | None) -> BucketRanges | None:
    """Return the ranges of the least padding in all with so many graphs, or of the fewest graphs within a padding.

    None where no ranges are: within a padding, or with so few graphs.
    """
    prompts = _prompts(limits, shapes)
    decodes = _decodes(limits, shapes)
    if most is not None:
        fit = [one for one in prompts if one.padding <= most.prompt_tokens + SLACK]
        both = [(count, pair) for count, pair in decodes if _within(pair, most)]
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


def _within(pair: tuple[_Choice, _Choice], most: Padding) -> bool:
    batch, block = pair
    return batch.padding <= most.decode_batch + SLACK and block.padding <= most.decode_blocks + SLACK


def _ranges(limits: PlanLimits, prompt: _Choice, pair: tuple[_Choice, _Choice]) -> BucketRanges:
    return BucketRanges((1, 1, max(1, limits.max_num_prefill_seqs)), prompt.range, pair[0].range, pair[1].range)


def _prompts(limits: PlanLimits, shapes: Shapes) -> list[_Choice]:
    weights: Counter[int] = Counter()
    for (query, _), count in shapes.prompt.items():
        weights[query] += count
    most, unit = limits.most_tokens, limits.block_size
    ranges = [one for one in _candidates(most, unit) if one[2] <= limits.max_num_batched_tokens]
    return _front(ranges or [(most, most, most)], weights)


def _decodes(limits: PlanLimits, shapes: Shapes) -> list[tuple[int, tuple[_Choice, _Choice]]]:
    """Return the pairs of ranges of sequences and of blocks that go together, and their graphs."""
    by_batch: Counter[int] = Counter()
    by_blocks: Counter[int] = Counter()
    for (batch, blocks), count in shapes.decode.items():
        by_batch[batch] += count
        by_blocks[blocks] += count
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
    """Tell whether no padded batch has more sequences than its padded blocks: such buckets are not warmed up."""
    smallest = (1, *(value + 1 for value in batches[:-1]))
    return all(
        at < len(blocks) and blocks[at] >= batch
        for batch, at in ((batch, bisect_left(blocks, least)) for batch, least in zip(batches, smallest, strict=True))
    )


def _candidates(most: int, unit: int) -> Iterable[Range]:
    """Yield the ranges up to ``most`` whose step is a multiple of the unit."""
    multiples = range(1, -(-most // unit) + 1)
    if len(multiples) > MOST_STEPS:
        # By a factor, and every divisor of a power of two: small steps matter more, and round ones fit together.
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


def _front(ranges: Iterable[Range], weights: Counter[int]) -> list[_Choice]:
    """Return the ranges that no other one beats in both values and padding."""
    keys = sorted(weights)
    sums = [0, *accumulate(weights[key] for key in keys)]
    real = sum(key * weights[key] for key in keys)
    best: dict[int, _Choice] = {}
    for one in ranges:
        values = bucket_values(*one)
        padded = held = 0
        for value in values:
            upto = sums[bisect_right(keys, value)]
            padded += value * (upto - held)
            held = upto
        padding = padded / real - 1 if real else 0.0
        if len(values) not in best or padding < best[len(values)].padding:
            best[len(values)] = _Choice(one, tuple(values), padding)
    front: list[_Choice] = []
    for count in sorted(best):
        if not front or best[count].padding < front[-1].padding:
            front.append(best[count])
    return front
