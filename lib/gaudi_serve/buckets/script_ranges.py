"""The buckets that the vendor's launch script sets, from the keys of a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..model.spec import Spec
from ..model.vllm_options import BLOCK
from .base import ceil, up
from .linear import BucketRanges
from .plan_limits import PlanLimits
from .traffic import Request


def bucket_ranges(spec: Spec) -> BucketRanges:
    """Return the buckets of a complete spec, by the script's rule."""
    (low, high), (_, out) = spec["input_range"], spec["output_range"]
    batch = int(spec["max_num_seqs"])
    batch_step = min(ceil(batch, 16), 16)
    batch_max = up(batch, batch_step)
    blocks = up((ceil(high + out, BLOCK) + 1) * batch_max, BLOCK)
    ranges = BucketRanges(
        prompt_bs=(1, 1, min(int(spec["max_num_batched_tokens"]) // low, batch)),
        prompt_seq=(up(low, BLOCK), BLOCK, up(high, BLOCK) + BLOCK),
        decode_bs=(1, batch_step, batch_max),
        decode_block=(up(ceil(low, BLOCK), BLOCK), BLOCK, blocks),
    )
    if not spec.get("reduce_warmup"):
        return ranges
    hot_batch, hot_length = (int(spec["reduce_warmup"][key]) for key in ("max_num_seqs", "max_seq_len"))
    return replace(
        ranges,
        prompt_seq=(*ranges.prompt_seq[:2], hot_length),
        decode_bs=(*ranges.decode_bs[:2], hot_batch),
        decode_block=(*ranges.decode_block[:2], up((hot_length + out) * hot_batch // BLOCK, BLOCK)),
    )


def script_ranges(requests: Iterable[Request], limits: PlanLimits) -> BucketRanges:
    """Return the ranges that the launch script of release 1.21 sets for requests of these lengths."""
    lengths = [(one.input_tokens, one.output_tokens) for one in requests]
    inputs, outputs = [one for one, _ in lengths], [one for _, one in lengths]
    spec: dict[str, Any] = {
        "input_range": [min(inputs), max(inputs)],
        "output_range": [min(outputs), max(outputs)],
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
    }
    return bucket_ranges(Spec(spec))
