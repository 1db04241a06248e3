"""The buckets that a server of the vendor's plugin (vllm-gaudi) warms up.

Every bucket is one graph. The golden vectors (tests/unit/golden/buckets_plugin.jsonl.gz, and per version
buckets_plugin_releases.jsonl.gz) are authoritative.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..core.errors import InputError, refusal
from .bucket_grid import Bucket, BucketGrid, Row, up_to
from .exponential import LONG, exponential
from .from_file import file_buckets
from .padded import padding_aware
from .plugin_first import first_buckets
from .plugin_input import MOST_BUCKETS, PluginInput
from .plugin_linear import linear
from .plugin_values import PluginValues

VALUES: dict[str, Callable[[PluginInput], PluginValues]] = {
    "exp": exponential,
    "lin": linear,
    "pad": padding_aware,
}


@dataclass(frozen=True)
class PluginBuckets:
    """The buckets of a server, each (sequences, tokens, KV cache blocks), in the vendor's order.

    Attributes:
        use_contiguous_pa: contiguous paged attention, which turns prefix caching off.
        prompt: the blocks are those of the context before the tokens.
        decode: tokens are 1, and the blocks are those of all sequences.
        seeds: the decode buckets before those of speculative decoding; all of them without it.
    """

    use_contiguous_pa: bool
    prompt: BucketGrid
    decode: BucketGrid
    seeds: BucketGrid


@lru_cache(maxsize=4)
def plugin_buckets(given: PluginInput) -> PluginBuckets:
    """Return the buckets that a server warms up, by the rules of its version. The last few results are cached.

    Raises:
        InputError: The vendor's server would stop at start; the message names the variable or field, its value and a
            remedy. Or there are more than 1,000,000 values in a dimension or 5,000,000 buckets in a phase, which is
            checked before they are computed.
    """
    settings, chunk, rules = given.settings, given.mamba_chunk_size, given.rules
    if rules.checks_chunk and settings.enabled and chunk and given.max_num_batched_tokens % chunk:
        nearest = max(1, given.max_num_batched_tokens // chunk) * chunk
        stops = f"is not a multiple of mamba_chunk_size {chunk}: the server stops at start; {nearest} is one"
        raise refusal("", "max_num_batched_tokens", given.max_num_batched_tokens, stops)
    if not settings.enabled:
        nothing = BucketGrid(())
        return PluginBuckets(settings.use_contiguous_pa, nothing, nothing, nothing)
    if settings.merged_prefill and given.max_num_prefill_seqs == 0:
        raise refusal("", "max_num_prefill_seqs", 0, "is not above 0: with merged prefill it is max_num_seqs")
    if rules.first_form:
        return PluginBuckets(settings.use_contiguous_pa, *first_buckets(given))
    prompt, seeds = _of_file(given) if settings.strategy == "file" else _of_values(given)
    for phase, rows in (("prompt", prompt), ("decode", seeds)):
        if not any(blocks for _, _, blocks in rows):
            raise _nothing_left(given, phase)
    first = BucketGrid(seeds)
    decode = _speculative(given, first) if rules.seeds and given.num_speculative_tokens else first
    return PluginBuckets(settings.use_contiguous_pa, BucketGrid(_sliced(given, prompt)), decode, first)


def hpu_plugin_buckets(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the buckets that a server of the vendor's plugin warms up.

    Args:
        given: By the vendor's names, max_num_seqs, max_num_prefill_seqs, block_size (tokens), max_num_batched_tokens,
            max_model_len (tokens), num_hpu_blocks, and ``env``, the server's environment. Optional are
            num_speculative_tokens, mamba_chunk_size, mamba_chunk_size_is_explicit, skip_decode_block_clamp, ``file``
            (the text of the file in VLLM_BUCKETING_FROM_FILE), ``strategy`` (exp, lin, pad, file), which must be the
            one that ``env`` chooses, and ``vllm_version``, whose rules apply (default: the newest).

    Returns:
        ``use_contiguous_pa``; ``prompt``: [sequences, tokens, blocks of context]; ``decode``: [sequences, 1, blocks];
        complete lists in the vendor's order.

    Raises:
        InputError: See PluginInput.read and plugin_buckets.
    """
    found = plugin_buckets(PluginInput.read(given))
    return {
        "use_contiguous_pa": found.use_contiguous_pa,
        "prompt": [list(bucket) for bucket in found.prompt],
        "decode": [list(bucket) for bucket in found.decode],
    }


def _of_values(given: PluginInput) -> tuple[list[Row], list[Row]]:
    values = VALUES[given.settings.strategy](given)
    for name, found in vars(values).items():
        if not found:
            # The default minimum is not the user's mistake. A step that leads past the maximum is.
            part = "STEP" if given.settings.ranges.of(name.upper()).min is None else "MIN"
            variable = given.settings.ranges.variable(name.upper(), part)
            raise refusal("", variable, None, "leaves no value up to its maximum: the server stops at start; lower it")
    return _prompt_rows(given, values), _decode_rows(given, values)


def _most_context(given: PluginInput, query: int) -> int:
    """Return the most blocks of context of a prompt bucket with ``query`` tokens."""
    length, block = given.max_model_len, given.block_size
    if given.settings.merged_prefill:
        batches = given.max_num_prefill_seqs
        return batches * ((length - query // batches) // block)
    if not given.rules.whole_context:
        return (length - query) // block
    return -(-(length - 1) // block) if query <= length else -1


def _prompt_rows(given: PluginInput, values: PluginValues) -> list[Row]:
    chunked = {"none": False, "all": True, "explicit": given.mamba_chunk_size_is_explicit}[given.rules.chunked]
    chunk = given.mamba_chunk_size if chunked else 0
    queries = sorted({-(-query // chunk) * chunk for query in values.prompt_query}) if chunk else values.prompt_query
    longest = [
        queries[-1] if given.settings.merged_prefill or batch == 0 else given.max_num_batched_tokens // batch
        for batch in values.prompt_bs
    ]
    contexts = _contexts(given, up_to(tuple(queries), max(longest)), values.prompt_ctx)
    lengths, sums = list(contexts), [0]
    for one in contexts.values():
        sums.append(sums[-1] + len(one))
    ends = [bisect_right(lengths, most) for most in longest]
    _refuse_many(given, sum(sums[end] for end in ends), "PROMPT_QUERY", queries[-1])
    return [
        (batch, query, contexts[query])
        for batch, end in zip(values.prompt_bs, ends, strict=True)
        for query in lengths[:end]
    ]


def _contexts(given: PluginInput, queries: tuple[int, ...], contexts: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    """Return the blocks of context with which each number of tokens is warmed up, if there are any.

    With a long context, the largest of them becomes the rest of the context next to the tokens, if that is within
    VLLM_PROMPT_CTX_BUCKET_MAX. Otherwise it stays the same as for the number of tokens before.
    """
    edge, bound = contexts[-1], given.settings.ranges.prompt_ctx.max if given.rules.bounded_edge else None
    long = given.rules.edge_context and given.max_model_len >= LONG
    others = contexts[:-1] if long else contexts
    found: dict[int, tuple[int, ...]] = {}
    kept: dict[tuple[int, int], tuple[int, ...]] = {}
    count = 0
    for query in queries:
        most = _most_context(given, query)
        end = bisect_right(others, most)
        if long:
            left = (given.max_model_len - query) // given.block_size
            edge = left if left >= 0 and (bound is None or left < bound) else edge
        more = edge if long and edge <= most else -1
        count += end
        _refuse_many(given, count, "PROMPT_CTX", contexts[-1])
        if (end, more) not in kept:
            kept[end, more] = _with(others[:end], more)
        if kept[end, more]:
            found[query] = kept[end, more]
    return found


def _with(values: tuple[int, ...], more: int) -> tuple[int, ...]:
    """Return sorted values with one more, which may already be among them. -1 adds nothing."""
    at = bisect_left(values, more)
    return values if more < 0 or more in values[at : at + 1] else (*values[:at], more, *values[at:])


def _of_a_sequence(given: PluginInput) -> int | None:
    """Return the blocks of one sequence, the limit per sequence of decode buckets; None if there is no limit."""
    if given.rules.chunked == "all" and given.mamba_chunk_size:
        return given.max_model_len // given.block_size
    return None if given.settings.use_contiguous_pa else -(-given.max_model_len // given.block_size)


def _decode_rows(given: PluginInput, values: PluginValues) -> list[Row]:
    blocks, a_sequence, exact = values.decode_block, _of_a_sequence(given), given.settings.use_contiguous_pa
    if exact and blocks[-1] < given.num_hpu_blocks:
        blocks = (*blocks, given.num_hpu_blocks)
    if a_sequence is None:
        _refuse_many(given, len(blocks) * len(values.decode_bs), "DECODE_BLOCK", blocks[-1])
        return [(batch, 1, blocks) for batch in values.decode_bs]
    ends = [bisect_left(blocks, batch * a_sequence) for batch in values.decode_bs]
    starts = [0 if exact else bisect_left(blocks, batch) for batch in values.decode_bs]
    count = sum(end - start + 1 for start, end in zip(starts, ends, strict=True))
    _refuse_many(given, count, "DECODE_BLOCK", blocks[-1])
    return [
        (batch, 1, blocks[start:end] + ((batch * a_sequence,) if end < len(blocks) else ()))
        for batch, start, end in zip(values.decode_bs, starts, ends, strict=True)
    ]


def _of_file(given: PluginInput) -> tuple[list[Row], list[Row]]:
    if given.file is None:
        path = given.settings.from_file
        missing = "names a missing file: the server stops at start; set its text as file, or unset it"
        raise refusal("", "VLLM_BUCKETING_FROM_FILE", path, missing)
    prompt, decode = file_buckets(given.file)
    merged = given.settings.merged_prefill
    kept = [
        bucket
        for bucket in prompt
        if bucket[2] <= _most_context(given, bucket[1])
        and (merged or bucket[0] * bucket[1] <= given.max_num_batched_tokens)
    ]
    if not given.settings.use_contiguous_pa:
        decode = [bucket for bucket in decode if bucket[0] <= bucket[2]]
    if (a_sequence := _of_a_sequence(given)) is not None:
        decode = [(batch, 1, min(ctx, batch * a_sequence)) for batch, _, ctx in decode]
    return list(BucketGrid.of(kept).rows), list(BucketGrid.of(decode).rows)


def _nothing_left(given: PluginInput, phase: str) -> InputError:
    stops = "the server stops at start"
    if phase == "prompt":
        limits = f"max_model_len {given.max_model_len} and max_num_batched_tokens {given.max_num_batched_tokens}"
        wanted = f"is within {limits}: {stops}; allow shorter queries and less context"
    else:
        wanted = f"has as many blocks as sequences: {stops}; allow fewer sequences or more blocks"
    where = "file" if given.settings.strategy == "file" else f"VLLM_{phase.upper()}_*_BUCKET_*"
    return refusal("", where, None, f"no {phase} bucket {wanted}")


def _sliced(given: PluginInput, rows: list[Row]) -> list[Row]:
    """Return the rows without long prompts that do not fill their slices. Prompts with context before them stay."""
    slice_tokens, start = given.settings.slice_tokens, given.settings.sliced_from
    return (
        [
            (batch, query, blocks[1:] if blocks[:1] == (0,) and query >= start and query % slice_tokens else blocks)
            for batch, query, blocks in rows
        ]
        if slice_tokens
        else rows
    )


def _speculative(given: PluginInput, seeds: BucketGrid) -> BucketGrid:
    """Return the seeds, and the buckets of steps that verify predicted tokens, which are sequences of their own."""
    times = given.num_speculative_tokens + 1
    _refuse_many(given, 3 * len(seeds), "DECODE_BLOCK", seeds.most_blocks())
    a_sequence = -(-given.max_model_len // given.block_size)
    found = set(seeds)
    for batch, query, ctx in seeds:
        many = batch * times
        most = ctx * times if given.settings.use_contiguous_pa else many * a_sequence
        found.add((many, query, min(ctx * times, most)))
        if many <= ctx:
            found.add((many, query, min(ctx, most)))
    return BucketGrid.of(found)


def _refuse_many(given: PluginInput, count: int, dimension: str, most: int) -> None:
    if count > MOST_BUCKETS:
        variable = given.settings.ranges.variable(dimension, "MAX")
        phase = dimension.partition("_")[0].lower()
        remedy = f"above {MOST_BUCKETS:,}; lower it, raise the step, or use strategy exp"
        raise refusal("", variable, most, f"raises the {phase} buckets to {count:,}, {remedy}")


__all__ = ["Bucket", "BucketGrid", "PluginBuckets", "hpu_plugin_buckets", "plugin_buckets"]
