"""The requirements of strategy pad's sliced attention. Since vLLM 0.21 the server does not start without them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..core.errors import refusal
from .plugin_input import TRUE, PluginInput, integer

ENABLED, FROM, CHUNK = (f"VLLM_HPU_FSDPA_SLICE_{name}" for name in ("ENABLED", "SEQ_LEN_THLD", "CHUNK_SIZE"))
OLD = "VLLM_EXPONENTIAL_BUCKETING"
# Tokens: the attention's kernel needs chunks of STEP, and slices prompts from DEFAULT_FROM on.
STEP, DEFAULT_FROM = 1024, 8192


def slices(given: PluginInput, env: Mapping[str, str]) -> bool:
    """Return whether a server cuts the attention of long prompts into slices. Strategy pad does by default."""
    chosen = env.get("VLLM_BUCKETING_STRATEGY") == "pad" and given.rules.names_strategy
    usual = given.settings.enabled and not given.settings.merged_prefill
    return chosen and usual and env.get(ENABLED, "true").lower() in TRUE


def refuse_slicing(given: PluginInput, env: Mapping[str, str]) -> None:
    """Refuse settings with which a server with strategy pad would not start.

    Args:
        given: The server.
        env: Its complete environment, whose numbers have been read.

    Raises:
        InputError: The message names the variable or the field, with a remedy.
    """
    if not slices(given, env):
        return
    block, tokens, off = given.block_size, given.max_num_batched_tokens, f"or set {ENABLED} to false"
    stops = "strategy pad slices attention, and the server stops when the model is built"
    if OLD in env:
        raise refusal("", OLD, env[OLD], f"replaces strategy pad: {stops}; leave it out")
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
