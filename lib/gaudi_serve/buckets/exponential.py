"""The plugin's exponential bucketing, its default: about log2 of the maximum values per dimension, in growing steps.

No variable sets these ranges. They depend on the server's own limits.
"""

from __future__ import annotations

import math
from functools import partial

from ..core.errors import refusal
from .plugin_input import PluginInput
from .plugin_rules import NEWEST, PluginRules
from .plugin_values import PluginValues

LONG = 8192  # Tokens. From this context on, the plugin counts blocks of context differently.


def exponential_values(
    low: int, step: int, high: int, count: int, *, to_the_end: bool, rules: PluginRules = NEWEST
) -> list[int]:
    """Return up to ``count`` values that grow by a constant factor, each a multiple of step.

    Args:
        low: The first value. 0 and 1 are added to a row that begins with step.
        step: Values are rounded up to a multiple of this.
        high: The last value.
        count: Number of computed values, before duplicates are dropped.
        to_the_end: The last value is ``high`` itself, even if it is not a multiple.
        rules: The rules of the plugin's version.
    """
    if count <= 1:
        return [high]
    beside = low == 0 or (low == 1 and rules.one_beside)
    first = step if beside else low
    # This is the vendor's order of operations. Another one would round to other multiples.
    powers = [first * (high / first) ** ((1 / (count - 1)) * index) for index in range(count)]
    found = {math.ceil(power / step) * step for power in powers[: -1 if to_the_end else None]}
    found |= ({high} if to_the_end else set()) | ({low} if beside else set())
    *values, last = sorted(found)
    return sorted({*values, min(last, high) if rules.ends_at_most else last})


def exponential(given: PluginInput) -> PluginValues:
    """Return the values of all dimensions.

    Raises:
        InputError: max_num_prefill_seqs is 0 or max_num_batched_tokens is 1, which stops the server.
    """
    if given.max_num_prefill_seqs == 0:
        stops = "is not above 0: the server stops at start; set VLLM_PROMPT_BS_BUCKET_MAX to 1 or more, or leave it out"
        raise refusal("", "max_num_prefill_seqs", 0, stops)
    if given.max_num_batched_tokens == 1:
        raise refusal("", "max_num_batched_tokens", 1, "is not above 1: with strategy exp the server stops at start")
    batches = given.max_num_prefill_seqs
    tokens, length, block = given.max_num_batched_tokens, given.max_model_len, given.block_size
    rules = given.rules
    least = 1 if rules.one_beside and given.settings.ranges.prompt_query.min == 1 else block
    context = max(1, (length - (tokens if rules.edge_context and length >= LONG else least)) // block)
    contexts = 2 if context == 1 else _doublings(context) + 1
    exact = given.settings.use_contiguous_pa
    # Merged prefill takes steps of four, and the blocks of all prompts together.
    factor, times = (4, batches) if given.settings.merged_prefill else (1, 1)
    values = partial(exponential_values, to_the_end=exact, rules=rules)
    prompts = [1] if given.settings.merged_prefill else values(1, 2, batches, _doublings(batches) + 1)
    blocks, count = decode_blocks(given)
    return PluginValues(
        prompt_bs=tuple(prompts),
        prompt_query=tuple(values(least, block * factor, tokens, _doublings(tokens))),
        prompt_ctx=tuple(values(0, factor, context * times, contexts)),
        decode_bs=tuple(values(1, 2, given.max_num_seqs, _doublings(given.max_num_seqs) + 1)),
        decode_block=tuple(values(1, given.max_num_seqs, blocks, count)),
    )


def decode_blocks(given: PluginInput) -> tuple[int, int]:
    """Return the most blocks of a decode step, and the number of values up to them.

    Without contiguous PA, shared blocks count for each sequence, so there may be more than the device has.
    """
    rule, held, sequences = given.rules.decode_blocks, given.num_hpu_blocks, given.max_num_seqs
    worst, bound = -(-given.max_model_len // given.block_size) * sequences, 3 * held
    if given.settings.use_contiguous_pa:
        most = min(held, worst) if rule in ("worst", "denser", "clamped") else held
        return most, _doublings(most) + 1
    # Versions that count complete blocks leave out the last, partly filled one.
    filled = given.max_model_len // given.block_size * sequences
    most = {
        "device": min(filled, held),
        "quarter": min(filled, held * sequences // 4),
        "triple": bound,
        "scaled": max(min(worst, held * sequences // 3), bound),
        "clamped": worst if given.skip_decode_block_clamp else min(worst, bound),
    }.get(rule, worst)
    reached = held if rule in ("device", "quarter") else most
    denser = rule in ("denser", "clamped") and most > bound
    return most, _doublings(reached) + 1 + (_doublings(most / bound) + 1 if denser else 0)


def _doublings(value: float) -> int:
    return math.ceil(math.log2(value))
