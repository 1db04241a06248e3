"""What the sliced attention of strategy pad asks of a server: since vLLM 0.21 a model is not built without it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..core.errors import refusal
from .plugin_input import TRUE, PluginInput, integer

ENABLED, FROM, CHUNK = (f"VLLM_HPU_FSDPA_SLICE_{name}" for name in ("ENABLED", "SEQ_LEN_THLD", "CHUNK_SIZE"))
OLD = "VLLM_EXPONENTIAL_BUCKETING"
# Tokens: the attention's kernel takes chunks of so many, and slices prompts from the default start on.
STEP, DEFAULT_FROM = 1024, 8192


def slices(given: PluginInput, env: Mapping[str, str]) -> bool:
    """Return whether a server cuts the attention of long prompts into slices: with pad, unless told otherwise."""
    chosen = env.get("VLLM_BUCKETING_STRATEGY") == "pad" and given.rules.names_strategy
    usual = given.settings.enabled and not given.settings.merged_prefill
    return chosen and usual and env.get(ENABLED, "true").lower() in TRUE


def refuse_slicing(given: PluginInput, env: Mapping[str, str]) -> None:
    """Refuse what a server with strategy pad would not be built with.

    Args:
        given: the server.
        env: its whole environment, whose numbers have been read.

    Raises:
        InputError: naming the variable or the field, with a remedy.
    """
    if not slices(given, env):
        return
    block, tokens, off = given.block_size, given.max_num_batched_tokens, f"or set {ENABLED} to false"
    stops = "strategy pad slices attention, and the server stops when the model is built"
    if OLD in env:
        raise refusal("", OLD, env[OLD], f"takes the place of strategy pad: {stops}; leave it out")
    least = max(STEP, block + 1)
    said, chunk = integer(env, FROM), integer(env, CHUNK)
    start = min(tokens, DEFAULT_FROM) if said is None else said
    if start < least:
        key, value = (FROM, env[FROM]) if FROM in env else ("max_num_batched_tokens", tokens)
        raise refusal("", key, value, f"is below {least}: {stops}; raise it, {off}")
    chunk = math.ceil((start // 2 if chunk is None else chunk) / STEP) * STEP
    if not block < chunk <= start:
        raise refusal("", CHUNK, env.get(CHUNK), f"is not above 0 and up to {start}: {stops}; leave it out, {off}")
    most = given.settings.ranges.prompt_query.pad_max
    if (math.ceil(tokens / 4) if most is None else most) < block:
        if most is not None:
            name = "VLLM_PROMPT_QUERY_BUCKET_PAD_MAX"
            raise refusal("", name, most, f"is below the block size, which is {block}: {stops}; raise it, {off}")
        short = f"is below four blocks of {block} tokens: {stops}; raise it, {off}"
        raise refusal("", "max_num_batched_tokens", tokens, short)
