"""The plugin's padding-aware bucketing: the linear grid without values that a little more padding can replace."""

from __future__ import annotations

from .plugin_input import PluginInput, PluginRange, PluginRanges, refuse_above, refuse_many, refuse_range
from .plugin_values import PluginValues
from .ranges_in_force import blocks_in_reach, merged, values_of

PERCENT = 25
MOST_PERCENT = 50


def padded_values(given: PluginInput, dimension: str, wanted: PluginRange) -> tuple[int, ...]:
    """Return a dimension's values: doubled up to the step, then those of the grid that limit the padding.

    Raises:
        InputError: A minimum is above the maximum or below 0, a step is below 1, a share of padding is not from 0 to
            50 percent, or there are too many values.
    """
    low, step, high = wanted.min or 0, wanted.step or 0, wanted.max or 0
    most, percent = wanted.pad_max or high, wanted.pad_percent or 0
    refuse_above(given, dimension, low, high)
    if step < 1:
        raise refuse_range(given, dimension, "STEP", step, "is below 1: the server stops at start; write 1 or more")
    if not 0 <= percent <= MOST_PERCENT:
        stops = f"is not from 0 to {MOST_PERCENT} percent: the server stops at start; write {PERCENT}, or leave it out"
        raise refuse_range(given, dimension, "PAD_PERCENT", percent, stops)
    refuse_many(given, dimension, (high - low) // step, high)
    values, value = [low], low
    while value <= high:
        last = values[-1]
        if value <= step:
            following = 2 * last or 1
            if following <= high:
                values.append(following)
        else:
            following = value + step
            padding = following - last - 1
            needed = padding / following > percent / 100 or padding > most or value % most == 0
            if needed and value != last:
                values.append(value)
        value = following
    return tuple(values if values[-1] == high else [*values, high])


def padded_ranges(given: PluginInput) -> PluginRanges:
    """Return the effective ranges: the variables, and the strategy's defaults for the others."""
    said, block, tokens = given.settings.ranges, given.block_size, given.max_num_batched_tokens
    batches, sequences = given.max_num_prefill_seqs, given.max_num_seqs
    query = said.of("PROMPT_QUERY").over(PluginRange(block, block, tokens, _up(tokens, 4), PERCENT))
    context = _up(given.max_model_len - (query.min or 0), block)
    most = max(_up(given.max_model_len * sequences, block), block)
    most = given.num_hpu_blocks if given.settings.use_contiguous_pa else most
    return blocks_in_reach(
        given,
        merged(
            given,
            PluginRanges(
                prompt_bs=said.prompt_bs.over(PluginRange(1, 1, batches, _up(batches, 4), PERCENT)),
                prompt_query=query,
                prompt_ctx=said.prompt_ctx.over(PluginRange(0, 2, context, _up(tokens, block), PERCENT)),
                decode_bs=said.decode_bs.over(PluginRange(1, 2, sequences, _up(sequences, 4), PERCENT)),
                decode_block=said.decode_block.over(PluginRange(block, block, most, _up(most, 4), PERCENT)),
            ),
            context,
        ),
        of_device=True,
    )


def padding_aware(given: PluginInput) -> PluginValues:
    """Return the values of all dimensions.

    Raises:
        InputError: See padded_values.
    """
    return values_of(given, padded_ranges(given), padded_values)


def _up(value: int, parts: int) -> int:
    return -(-value // parts)
