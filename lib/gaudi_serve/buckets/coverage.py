"""Possible steps of a server of the plugin that its buckets do not cover, and which compile while serving."""

from __future__ import annotations

from collections.abc import Iterator

from .bucket_grid import Bucket
from .plan_limits import PlanLimits
from .plugin import PluginBuckets


def uncovered(buckets: PluginBuckets, server: PlanLimits, *, context: bool = True) -> Bucket | None:
    """Return the worst step of its kind that no bucket covers; None if all are covered.

    It checks only the worst steps. Between two sizes with buckets, the same buckets are candidates. Of prompts in such
    a range, the shortest has the most context; of decode steps, the widest has the most blocks.

    Args:
        buckets: The buckets that the server has warmed up.
        server: Its limits.
        context: Prompts may have context: they are cut into chunks, or begin in the prefix cache.

    Returns:
        (sequences, tokens, blocks). A decode step has one token.
    """
    for wanted in (*_prompts(buckets, server, context), *_decodes(buckets, server)):
        grid = buckets.decode if wanted[1] == 1 else buckets.prompt
        if grid.first(*wanted) is None:
            return wanted
    return None


def _prompts(buckets: PluginBuckets, server: PlanLimits, context: bool) -> Iterator[Bucket]:
    rows, tokens = buckets.prompt.rows, server.max_num_batched_tokens
    most = max(1, min(server.max_num_prefill_seqs, tokens // 2))
    starts = (1, *sorted({query + 1 for _, query, _ in rows}))
    for batch in (1, *sorted({batch + 1 for batch, _, _ in rows if batch < most})):
        for query in starts:
            if query <= min(tokens // batch, server.max_model_len):
                # A bucket file reads a query of 1 as a decode step, so prompts of one token need a bucket of two or
                # more.
                yield batch, max(2, query), server.most_context(query) if context else 0


def _decodes(buckets: PluginBuckets, server: PlanLimits) -> Iterator[Bucket]:
    most = server.most_sequences
    for batch in sorted({min(batch, most) for batch, _, _ in buckets.decode.rows} | {most}):
        yield batch, 1, server.most_blocks(batch)
