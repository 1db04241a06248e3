"""The time of a warm-up, and the requests that it does not cover."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from ..core.words import counted
from ..model.vllm_options import BLOCK
from .linear import BucketRanges, bucket_values, padded

# Measured: 72 graphs of an 8B model (32 layers, bfloat16, one card) in 49 s.
GRAPH_SECONDS, GRAPH_LAYERS = 49 / 72, 32
# Collectives: Qwen2-72B (80 layers) on 4 cards takes about 600 s for its 271 graphs with the manual's example, which is
# 1.3 times what its layers alone explain.
CARDS_SHARE = 0.15
# DeepSeek-R1 (61 layers, FP8) on 8 cards: about an hour for 2,560 linear buckets.
PRECISION = {"fp8": 0.75}
# The second of the two passes (graph capture) took 20 of the 49 s. With a filled recipe cache only that pass remains.
CACHED_SHARE = 0.4
# The plugin: by its pages, an 8B model warms up in 66 s (bfloat16; 23 s cached) or 504 s (FP8 by INC; 34 s cached).
# Llama 4 Maverick (48 layers, 128 experts, 8 cards) takes 14 s per graph (vllm-gaudi#1160), of which layers and cards
# explain only 1.5 s.
PLUGIN_CACHED, PLUGIN_FP8, PLUGIN_CACHED_FP8, EXPERTS = 23 / 66, 504 / 66, 34 / 66, 9.5
# Since 0.16.0 the plugin keeps its results for experts (vllm-gaudi#1068): Qwen3-VL-30B-A3B (48 layers) takes 500 s
# instead of 3000, and Qwen3.5's mixture (40 layers) 948 and 988 s (#1602). This factor is between the two ratios.
KEPT_EXPERTS, KEEPS_EXPERTS_SINCE = 2.55, "0.16.0"
# Images: Qwen3-VL-32B spends 362 s of its warm-up on 35 graphs of 27 layers (#1182).
VISION_LAYER_SECONDS = 362 / (35 * 27)

SKIPPED = "skip_warmup: every shape compiles at its first request, unless the recipe cache has it"


def seconds_per_graph(layers: float, cards: int, precision: str = "bfloat16") -> float:
    """Return the seconds to compile and capture one graph.

    0.68 s for 32 layers on one card, in proportion to the layers (the nodes of a graph), plus 15 % per doubling of the
    cards (collectives), times 0.75 for FP8. docs/explanation/parameters.md has the sources of these numbers and their
    error (half to double).
    """
    collectives = 1 + CARDS_SHARE * math.log2(max(1, cards))
    return GRAPH_SECONDS * layers / GRAPH_LAYERS * collectives * PRECISION.get(precision, 1.0)


def likely_layers(parameters: float) -> float:
    """Return the likely number of layers of a model with this many parameters: 32 at 8 billion, 80 at 72 billion."""
    return float(GRAPH_LAYERS * (max(parameters, 1e8) / 8e9) ** 0.417)


def plugin_warmup_seconds(
    graphs: int,
    layers: float,
    cards: int,
    precision: str,
    *,
    experts: bool = False,
    keeps_experts: bool = False,
    vision_layers: int = 0,
) -> tuple[int, int]:
    """Return the estimated warm-up in seconds for a server of the plugin, without and with a filled recipe cache.

    The numbers are from the plugin's own pages and issues. A dense model in bfloat16 takes as long as on the fork. A
    model with experts takes 9.5 times as long, or 2.55 times if the server keeps its results for them. INC's FP8 takes
    7.6 times. A filled recipe cache leaves a third of the plain time in bfloat16, and half in FP8, whatever else is
    compiled. ``vision_layers``, of all graphs for images, are added.
    """
    plain = graphs * seconds_per_graph(layers, cards)
    factor = (KEPT_EXPERTS if keeps_experts else EXPERTS) if experts else 1
    full = plain * factor * (PLUGIN_FP8 if precision == "fp8" else 1)
    pictures = vision_layers * VISION_LAYER_SECONDS if graphs else 0
    cached = plain * (PLUGIN_CACHED_FP8 if precision == "fp8" else PLUGIN_CACHED)
    return round(full + pictures), round(cached + pictures * PLUGIN_CACHED)


def warmup_seconds(graphs: int, layers: float, cards: int, precision: str, **_: object) -> tuple[int, int]:
    """Return the estimated warm-up in seconds, without and with a filled recipe cache. Other arguments are ignored."""
    full = graphs * seconds_per_graph(layers, cards, precision)
    return round(full), round(full * CACHED_SHARE)


def coverage_warnings(spec: Mapping[str, Any], ranges: BucketRanges) -> list[str]:
    """Return the requests that have no warmed-up bucket and compile while serving, one sentence each.

    Args:
        spec: The model, with ``input_range``, ``output_range``, ``max_model_len``, ``max_num_seqs``,
            ``max_num_batched_tokens``.
        ranges: The ranges of the launch.
    """
    if spec.get("skip_warmup"):
        return [SKIPPED]
    return [*_prompt_warnings(spec, ranges), *_decode_warnings(spec, ranges)]


def longest_warm_prompt(ranges: BucketRanges, max_num_batched_tokens: int) -> int:
    """Return the tokens of the longest prompt with a warmed-up bucket."""
    values = bucket_values(*ranges.prompt_seq)
    least = ranges.prompt_bs[0]
    # If no bucket is within the token limit, the server keeps all of them.
    return max([value for value in values if value * least <= max_num_batched_tokens] or values)


def _prompt_warnings(spec: Mapping[str, Any], ranges: BucketRanges) -> list[str]:
    longest = longest_warm_prompt(ranges, int(spec["max_num_batched_tokens"]))
    top, context = int(spec["input_range"][1]), int(spec["max_model_len"])
    if top > longest:
        return [f"prompts of {longest + 1} to {top} tokens, within input_range, compile while serving"]
    if context - 1 > longest:
        return [
            f"max_model_len {context} allows prompts beyond input_range: those above {longest} tokens "
            "compile while serving"
        ]
    return []


def _decode_warnings(spec: Mapping[str, Any], ranges: BucketRanges) -> list[str]:
    warnings = []
    count = int(spec["max_num_seqs"])
    batches = bucket_values(*ranges.decode_bs)
    blocks = bucket_values(*ranges.decode_block)
    if count > batches[-1]:
        warnings.append(
            f"more than {counted(batches[-1], 'request')} at a time, of max_num_seqs {count}, compile while serving"
        )
    top = int(spec["input_range"][1]) + int(spec["output_range"][1])
    need = min(count, batches[-1]) * -(-min(top, int(spec["max_model_len"])) // BLOCK)
    if need > blocks[-1]:
        warnings.append(
            f"decode steps above {counted(blocks[-1], 'block')} of {BLOCK} tokens, of {need}, compile while serving"
        )
    skipped = _skipped_batches(spec, ranges, min(count, batches[-1]))
    if skipped:
        warnings.append(
            f"{skipped[0]} to {skipped[-1]} short requests at a time have more padded sequences than KV blocks: "
            "such buckets are not warmed and compile while serving"
        )
    return warnings


def _skipped_batches(spec: Mapping[str, Any], ranges: BucketRanges, count: int) -> tuple[int, ...]:
    """Return the batch sizes whose shortest requests pad to a bucket with more sequences than blocks."""
    least = -(-(int(spec["input_range"][0]) + 1) // BLOCK)
    return _more_sequences_than_blocks(ranges.decode_bs, ranges.decode_block, count, least)


@cache
def _more_sequences_than_blocks(
    batches: tuple[int, int, int], blocks: tuple[int, int, int], count: int, least: int
) -> tuple[int, ...]:
    return tuple(
        batch
        for batch in range(1, count + 1)
        if padded(batch, *batches) > min(padded(batch * least, *blocks), max(blocks[2], blocks[0]))
    )
