"""The plugin's linear bucketing: powers of two of the minimum up to the step, then every multiple of it.

It differs from the fork's in linear.py: the plugin counts blocks of context too, and its defaults depend on the server.
"""

from __future__ import annotations

from .plugin_input import PluginInput, PluginRange, PluginRanges, refuse_above, refuse_many, refuse_range
from .plugin_values import PluginValues
from .ranges_in_force import blocks_in_reach, merged, values_of


def linear_values(given: PluginInput, dimension: str, wanted: PluginRange) -> tuple[int, ...]:
    """Return a dimension's values. The maximum is among them only if the steps reach it.

    Raises:
        InputError: A minimum is above the maximum or below 0, a step is 0, or there are too many values.
    """
    low, step, high = wanted.min or 0, wanted.step or 0, wanted.max or 0
    refuse_above(given, dimension, low, high)
    if low == high == 0:
        return (0,)
    if step == 0:
        raise refuse_range(given, dimension, "STEP", 0, "is not a step: the server stops at start; write 1 or more")
    refuse_many(given, dimension, high // step if step > 0 else 0, high)
    first = low or step
    values = [0] if low == 0 else []
    while first < step and first <= high:
        values.append(first)
        first *= 2
    return (*values, *(value for value in range(step, high + 1, step) if value >= (low or step)))


def linear_ranges(given: PluginInput) -> PluginRanges:
    """Return the effective ranges: the variables, and the strategy's defaults for the others."""
    said, block = given.settings.ranges, given.block_size
    query = said.of("PROMPT_QUERY").over(PluginRange(block, block, given.max_num_batched_tokens))
    context = (given.max_model_len - (query.min or 0)) // block
    most = max(given.max_model_len * given.max_num_seqs // block, block)
    return blocks_in_reach(
        given,
        merged(
            given,
            PluginRanges(
                prompt_bs=said.prompt_bs.over(PluginRange(1, 1, given.max_num_prefill_seqs)),
                prompt_query=query,
                prompt_ctx=said.prompt_ctx.over(PluginRange(0, 1, context)),
                decode_bs=said.decode_bs.over(PluginRange(1, 32, given.max_num_seqs)),
                decode_block=said.decode_block.over(
                    PluginRange(1, block, given.num_hpu_blocks if given.settings.use_contiguous_pa else most)
                ),
            ),
            context,
        ),
    )


def linear(given: PluginInput) -> PluginValues:
    """Return the values of all dimensions.

    Raises:
        InputError: See linear_values.
    """
    return values_of(given, linear_ranges(given), linear_values)
