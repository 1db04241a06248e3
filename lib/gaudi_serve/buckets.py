"""Bucket lists of the vendor's linear bucketing (vLLM extension, branch aice/v1.21.0).

Every bucket is one graph that a server compiles while it warms up.
"""

from __future__ import annotations

from collections.abc import Mapping

from .errors import InputError

Bucket = list[int]
DIMENSIONS = ("PROMPT_BS", "PROMPT_SEQ", "DECODE_BS", "DECODE_BLOCK")


def bucket_range(env: Mapping[str, str], dimension: str) -> tuple[int, int, int]:
    """Return (min, step, max) of a dimension such as ``PROMPT_SEQ``.

    Raises:
        InputError: when a variable is missing, no whole number, or the minimum is above the maximum.
    """
    values = []
    for part in ("MIN", "STEP", "MAX"):
        name = f"VLLM_{dimension}_BUCKET_{part}"
        try:
            values.append(int(env[name]))
        except (KeyError, ValueError) as problem:
            raise InputError(f"{name}: {env.get(name)!r} is not a whole number of at least 1") from problem
    low, step, high = values
    if low > high or min(low, step) < 1:
        raise InputError(
            f"VLLM_{dimension}_BUCKET: minimum {low} is above maximum {high}"
            if low > high
            else f"VLLM_{dimension}_BUCKET: minimum {low} and step {step} must be at least 1"
        )
    return low, step, high


def bucket_values(low: int, step: int, high: int) -> list[int]:
    """Return a dimension's values: min, 2 min, 4 min ... below step, then the multiples of step."""
    values = []
    value = low
    while value < step and value <= high:
        values.append(value)
        value *= 2
    values += [value for value in range(step, high + 1, step) if value >= low]
    return values


def hpu_buckets(
    env: Mapping[str, str], max_num_batched_tokens: int, num_hpu_blocks: int
) -> dict[str, list[Bucket] | int]:
    """Return the buckets that a server warms up.

    Args:
        env: the twelve ``VLLM_*_BUCKET_{MIN,STEP,MAX}`` variables.
        max_num_batched_tokens: tokens of one prompt step; larger prompt buckets are omitted.
        num_hpu_blocks: KV-cache blocks (128 tokens each) on the device; caps the decode rows.

    Returns:
        ``prompt``: [batch, tokens] pairs, ``decode``: [batch, blocks] pairs, both sorted by
        (batch * length, length, batch); ``omitted``: prompt pairs left out.
    """
    prompt = [
        [batch, tokens]
        for batch in bucket_values(*bucket_range(env, "PROMPT_BS"))
        for tokens in bucket_values(*bucket_range(env, "PROMPT_SEQ"))
    ]
    kept = [pair for pair in prompt if pair[0] * pair[1] <= max_num_batched_tokens]
    omitted = len(prompt) - len(kept) if kept else 0
    decode = []
    block_values = bucket_values(*bucket_range(env, "DECODE_BLOCK"))
    for batch in bucket_values(*bucket_range(env, "DECODE_BS")):
        for blocks in block_values:
            if batch > blocks:
                continue
            decode.append([batch, min(blocks, num_hpu_blocks)])
            if blocks >= num_hpu_blocks:
                break
    return {"prompt": _sorted(kept or prompt), "decode": _sorted(decode), "omitted": omitted}


def _sorted(buckets: list[Bucket]) -> list[Bucket]:
    return sorted(buckets, key=lambda pair: (pair[0] * pair[1], pair[1], pair[0]))


def hpu_padded_shape(env: Mapping[str, str], phase: str, batch: int, length: int, num_hpu_blocks: int) -> Bucket:
    """Return [batch, length] as a running batch is padded, warmed up or not.

    Args:
        phase: ``prompt`` (length in tokens) or ``decode`` (length in KV-cache blocks).
        batch: sequences that run.
        length: tokens of the longest prompt, or blocks of all sequences together.
        num_hpu_blocks: KV-cache blocks on the device; caps the decode length.

    Raises:
        InputError: for another phase.
    """
    if phase not in ("prompt", "decode"):
        raise InputError(f"phase: {phase!r} is not one of prompt, decode")
    second = "PROMPT_SEQ" if phase == "prompt" else "DECODE_BLOCK"
    padded_batch = padded(batch, *bucket_range(env, f"{phase.upper()}_BS"))
    padded_length = padded(length, *bucket_range(env, second))
    if phase == "decode":
        padded_length = min(padded_length, num_hpu_blocks)
    return [padded_batch, padded_length]


def padded(value: int, low: int, step: int, _high: int) -> int:
    """Return a running value as one dimension pads it.

    The maximum does not cap it: the server pads beyond it and compiles while serving.
    """
    if value <= low:
        return low
    power = low
    while power < value:
        power *= 2
    return power if power <= step else -(-value // step) * step
