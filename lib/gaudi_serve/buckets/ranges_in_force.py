"""Common parts of the plugin's linear and padding-aware bucketing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .plugin_input import PluginInput, PluginRange, PluginRanges
from .plugin_values import PluginValues

Maker = Callable[[PluginInput, str, PluginRange], "tuple[int, ...]"]


def merged(given: PluginInput, ranges: PluginRanges, context: int) -> PluginRanges:
    """Return the ranges with the changes of merged prefill, or unchanged without it.

    Args:
        given: The server.
        ranges: The effective ranges without it.
        context: The most blocks of context of one prompt.
    """
    if not given.settings.merged_prefill:
        return ranges
    query, said = ranges.prompt_query, given.settings.ranges.prompt_ctx
    default = replace(ranges.prompt_ctx, min=0, step=4, max=context * given.max_num_prefill_seqs)
    return replace(
        ranges,
        prompt_bs=replace(ranges.prompt_bs, min=1, step=1, max=1),
        prompt_query=replace(query, step=(query.step or 0) * 4, max=given.max_num_batched_tokens),
        prompt_ctx=said.over(default),
    )


def blocks_in_reach(given: PluginInput, ranges: PluginRanges, of_device: bool = False) -> PluginRanges:
    """Return the ranges with decode blocks limited to the device.

    Args:
        given: The server.
        ranges: The effective ranges.
        of_device: Compare the minimum with the blocks of the device, not with the maximum.
    """
    blocks, on_device = ranges.decode_block, given.num_hpu_blocks
    before, always = blocks.max or 0, given.rules.always_on_device
    if given.settings.use_contiguous_pa or always:
        blocks = replace(blocks, max=min(before, on_device))
    bound = on_device if of_device else blocks.max or 0
    # Versions that always end at the device do not change a minimum if the maximum was below.
    if (blocks.min or 0) > bound and not (always and before <= on_device):
        blocks = replace(blocks, min=max(1, bound - (blocks.step or 0)))
    return replace(ranges, decode_block=blocks)


def values_of(given: PluginInput, ranges: PluginRanges, maker: Maker) -> PluginValues:
    """Return the values of all dimensions, by one strategy's rule.

    Raises:
        InputError: See the maker.
    """
    return PluginValues(
        prompt_bs=maker(given, "PROMPT_BS", ranges.prompt_bs),
        prompt_query=maker(given, "PROMPT_QUERY", ranges.prompt_query),
        prompt_ctx=maker(given, "PROMPT_CTX", ranges.prompt_ctx),
        decode_bs=maker(given, "DECODE_BS", ranges.decode_bs),
        decode_block=maker(given, "DECODE_BLOCK", ranges.decode_block),
    )
