"""The buckets of the plugin's first version, 0.10.1: prompts by all their tokens, decode steps by the device's blocks.

Later versions replaced this with ranges of context and other values (``plugin``).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import replace

from ..core.errors import InputError, refusal
from .bucket_grid import Bucket, BucketGrid, Row
from .plugin_input import MOST_BUCKETS, PluginInput, PluginRange, refuse_range
from .plugin_linear import linear_values


def first_buckets(given: PluginInput) -> tuple[BucketGrid, BucketGrid, BucketGrid]:
    """Return the prompt buckets, and the decode buckets twice, because there is no speculative decoding.

    Raises:
        InputError: The server would stop, or there are more than 5,000,000 buckets.
    """
    if given.settings.strategy == "lin":
        prompt, decode = _prompts(given, *_linear_prompts(given)), _linear_decodes(given)
    else:
        prompt, decode = _prompts(given, *_exponential_prompts(given)), _exponential_decodes(given)
    found = BucketGrid.of(decode)
    return BucketGrid(prompt), found, found


def _prompts(given: PluginInput, batches: list[int], queries: list[int], most: int) -> list[Row]:
    """Return the prompt buckets within the tokens of a step; all of them if none is.

    Args:
        given: The server.
        batches: Sequences of a step.
        queries: Tokens of a sequence in the step.
        most: The most tokens of a sequence, including its context.
    """
    contexts = {query: _contexts(given, (most - query) // given.block_size) for query in queries}
    if len(batches) * sum(map(len, contexts.values())) > MOST_BUCKETS:
        raise _too_many("max_model_len", given.max_model_len)
    found: list[Row] = [(batch, query, contexts[query]) for batch in batches for query in queries]
    longest = max(queries) if given.settings.strategy == "lin" else given.max_model_len
    kept = [
        (batch, query, blocks[: _within(given, batch, query, blocks)])
        for batch, query, blocks in found
        if query <= longest
    ]
    return kept if any(blocks for _, _, blocks in kept) else found


def _within(given: PluginInput, batch: int, query: int, blocks: tuple[int, ...]) -> int:
    """Return how many of these blocks of context fit into a step next to ``query`` tokens."""
    return bisect_right(blocks, (given.max_num_batched_tokens // batch - query) // given.block_size)


def _contexts(given: PluginInput, most: int) -> tuple[int, ...]:
    """Return the blocks of context up to ``most``; without prefix caching only 0.

    Some values are duplicates, as in the vendor's own list.
    """
    if not given.prefix_caching:
        return (0,)
    if given.settings.strategy == "lin":
        return tuple(range(most + 2))
    if most < 0:
        nearest = max(1, given.max_model_len // given.block_size) * given.block_size
        stops = (
            f"is not a multiple of block_size {given.block_size}: with prefix caching the server stops; {nearest} is"
        )
        raise refusal("", "max_model_len", given.max_model_len, f"{stops} one")
    count = _doublings(most) + 1 if most else 0
    return (0, *(math.ceil(most ** ((1 / count) * index)) for index in range(1, count + 1)))


def _exponential_prompts(given: PluginInput) -> tuple[list[int], list[int], int]:
    length, block = given.max_model_len, given.block_size
    batches = _spread(given, 1, 2, given.max_num_prefill_seqs)
    return batches, _spread(given, block, block, length, half_linear=True), length


def _exponential_decodes(given: PluginInput) -> list[Bucket]:
    blocks = _spread(given, given.block_size, given.block_size, given.num_hpu_blocks)
    return [(batch, 1, ctx) for batch in _spread(given, 1, 2, given.max_num_seqs) for ctx in blocks]


def _spread(given: PluginInput, low: int, step: int, high: int, *, half_linear: bool = False) -> list[int]:
    """Return about log2 of ``high`` values in growing steps. A duplicate is replaced with the nearest free value.

    half_linear: half of the values grow up to the first step of an even row, and the others are that row.
    """
    if high < 1:
        raise refusal("", "max_num_prefill_seqs", high, "is not above 0: the server stops at start")
    count = _doublings(high) + 1
    if count == 1:
        return [high]
    growing = count // 2 if half_linear else count
    if growing < 2:
        raise refusal("", "max_model_len", high, "is below 5: with strategy exp the server stops at start")
    start = high / count if half_linear else high
    exact = given.settings.use_contiguous_pa
    grid, found = set(range(low, high + 1, step)), set[int]()
    for index in range(growing):
        power = low * (start / low) ** ((1 / (growing - 1)) * index)
        value = high if exact and index == count - 1 else math.ceil(power / step) * step
        if value in found:
            free = grid.difference(found)
            if not free:
                break
            value = _nearest(free, power)
        found.add(value)
    if half_linear:
        between = (high - start) / (count - growing)
        found |= {math.ceil((start + index * between) / step) * step for index in range(1, count - growing + 1)}
    return sorted(found)


def _nearest(values: set[int], wanted: float) -> int:
    # With equal distances, the vendor's code takes the first value of its set, and this code does the same.
    return min(values, key=lambda value: abs(value - wanted))


def _linear_prompts(given: PluginInput) -> tuple[list[int], list[int], int]:
    said, block = given.settings.ranges, given.block_size
    batch = said.prompt_bs.over(PluginRange(1, 32, given.max_num_prefill_seqs))
    query = said.prompt_seq.over(PluginRange(block, block, given.max_model_len))
    batches = _linear(given, "PROMPT_BS", batch)
    if given.settings.merged_prefill:
        most = min((batch.max or 0) * (query.max or 0), given.max_num_batched_tokens)
        batches, query = [1], replace(query, max=most)
    return batches, _linear(given, "PROMPT_SEQ", query), query.max or 0


def _linear_decodes(given: PluginInput) -> list[Bucket]:
    ranges, block, held = given.settings.ranges, given.block_size, given.num_hpu_blocks
    blocks = _linear(given, "DECODE_BLOCK", ranges.decode_block.over(PluginRange(block, block, held)))
    if given.settings.use_contiguous_pa and ranges.decode_block.max is None and held not in blocks:
        blocks.append(held)
    batches = _linear(given, "DECODE_BS", ranges.decode_bs.over(PluginRange(1, 32, given.max_num_seqs)))
    if len(batches) * len(blocks) > MOST_BUCKETS:
        raise _too_many("VLLM_DECODE_BLOCK_BUCKET_MAX", blocks[-1])
    return [(batch, 1, min(ctx, held)) for batch in batches for ctx in blocks if batch <= ctx]


def _linear(given: PluginInput, dimension: str, wanted: PluginRange) -> list[int]:
    if wanted.min == 0:
        raise refuse_range(
            given, dimension, "MIN", 0, "is not above 0: the server would not stop counting; write 1 or more"
        )
    return list(linear_values(given, dimension, wanted))


def _doublings(value: int) -> int:
    return math.ceil(math.log2(value))


def _too_many(key: str, value: int) -> InputError:
    return refusal("", key, value, f"gives more than {MOST_BUCKETS:,} buckets; lower it, or use strategy exp")
