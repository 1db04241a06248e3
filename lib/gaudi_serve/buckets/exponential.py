"""The plugin's exponential bucketing, its default: about log2 of the maximum values a dimension, ever further apart.

No variable sets these ranges; they follow from the server's own limits.
"""

from __future__ import annotations

import math

from ..core.errors import refusal
from .plugin_input import PluginInput
from .plugin_values import PluginValues

LONG = 8192  # tokens; from this context on the plugin counts blocks of context another way


def exponential_values(low: int, step: int, high: int, count: int, *, to_the_end: bool) -> list[int]:
    """Return up to ``count`` values that grow by a constant factor, each a multiple of step.

    Args:
        low: the first value; 0 and 1 stand beside a row that begins with step.
        step: what values are made up to a multiple of.
        high: the last value.
        count: how many are computed, before those that come twice are dropped.
        to_the_end: the last one is ``high`` itself, a multiple or not.
    """
    if count <= 1:
        return [high]
    first = low if low > 1 else step
    # The vendor's own order of operations: another one rounds to other multiples.
    powers = [first * (high / first) ** ((1 / (count - 1)) * index) for index in range(count)]
    found = {math.ceil(power / step) * step for power in powers[: -1 if to_the_end else None]}
    found |= ({high} if to_the_end else set()) | ({low} if low <= 1 else set())
    *values, last = sorted(found)
    return sorted({*values, min(last, high)})


def exponential(given: PluginInput) -> PluginValues:
    """Return the values of all dimensions.

    Raises:
        InputError: for max_num_prefill_seqs 0 and max_num_batched_tokens 1, which stop the server.
    """
    if given.max_num_prefill_seqs == 0:
        stops = "is not above 0: the server stops at start; set VLLM_PROMPT_BS_BUCKET_MAX to 1 or more, or leave it out"
        raise refusal("", "max_num_prefill_seqs", 0, stops)
    if given.max_num_batched_tokens == 1:
        raise refusal("", "max_num_batched_tokens", 1, "is not above 1: with strategy exp the server stops at start")
    batches = given.max_num_prefill_seqs
    tokens, length, block = given.max_num_batched_tokens, given.max_model_len, given.block_size
    least = 1 if given.settings.ranges.prompt_query.min == 1 else block
    context = max(1, (length - (tokens if length >= LONG else least)) // block)
    contexts = 2 if context == 1 else _doublings(context) + 1
    exact = given.settings.use_contiguous_pa
    # Merged prefill takes four steps for one, and the blocks of all prompts together.
    factor, times = (4, batches) if given.settings.merged_prefill else (1, 1)
    prompts = [1] if given.settings.merged_prefill else _batches(batches, exact)
    blocks, count = _decode_blocks(given)
    return PluginValues(
        prompt_bs=tuple(prompts),
        prompt_query=tuple(exponential_values(least, block * factor, tokens, _doublings(tokens), to_the_end=exact)),
        prompt_ctx=tuple(exponential_values(0, factor, context * times, contexts, to_the_end=exact)),
        decode_bs=tuple(_batches(given.max_num_seqs, exact)),
        decode_block=tuple(exponential_values(1, given.max_num_seqs, blocks, count, to_the_end=exact)),
    )


def _doublings(value: float) -> int:
    return math.ceil(math.log2(value))


def _batches(most: int, exact: bool) -> list[int]:
    return exponential_values(1, 2, most, _doublings(most) + 1, to_the_end=exact)


def _decode_blocks(given: PluginInput) -> tuple[int, int]:
    """Return the most blocks of a decode step, and how many values lead to them."""
    on_device = given.num_hpu_blocks
    worst = -(-given.max_model_len // given.block_size) * given.max_num_seqs
    if given.settings.use_contiguous_pa:
        most = min(on_device, worst)
        return most, _doublings(most) + 1
    # Blocks that sequences share count for each of them, so there may be more than the device has.
    bound = 3 * on_device
    most = worst if given.skip_decode_block_clamp else min(worst, bound)
    more = _doublings(most / bound) + 1 if most > bound else 0
    return most, _doublings(most) + 1 + more
