"""The values of each dimension, from which a strategy of the plugin combines its buckets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PluginValues:
    """Sorted values: sequences (bs), tokens (query), KV cache blocks (ctx, block)."""

    prompt_bs: tuple[int, ...]
    prompt_query: tuple[int, ...]
    prompt_ctx: tuple[int, ...]
    decode_bs: tuple[int, ...]
    decode_block: tuple[int, ...]
