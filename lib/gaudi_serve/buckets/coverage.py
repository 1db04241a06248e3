"""Which steps a server of the plugin can be asked for that its buckets do not hold, and would compile while serving."""

from __future__ import annotations

from collections.abc import Iterator

from .bucket_grid import Bucket
from .plan_limits import PlanLimits
from .plugin import PluginBuckets


def uncovered(buckets: PluginBuckets, server: PlanLimits, *, context: bool = True) -> Bucket | None:
    """Return a step that no bucket holds, the worst of its kind; None if all are held.

    Only the worst steps are looked up. Between two tokens or sequences for which there are buckets, the same buckets
    come into question: of prompts then the shortest has the most context, of decode steps the widest the most blocks.

    Args:
        buckets: what the server has warmed up.
        server: its limits.
        context: prompts may have some: they are cut into chunks, or begin in the prefix cache.

    Returns:
        (sequences, tokens, blocks); of a decode step tokens are 1.
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
                # To a bucket file, a query of 1 is a decode step: prompts of one token take a bucket of two or more.
                yield batch, max(2, query), server.most_context(query) if context else 0


def _decodes(buckets: PluginBuckets, server: PlanLimits) -> Iterator[Bucket]:
    most = server.most_sequences
    for batch in sorted({min(batch, most) for batch, _, _ in buckets.decode.rows} | {most}):
        yield batch, 1, server.most_blocks(batch)
