"""The memory of a planned model on its cards, as the vendor's fork (1.21) divides it at start."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..buckets.base import Rounding
from ..engines import engine_of
from ..model.architecture import Architecture
from ..model.host import Host
from ..model.spec import Spec
from ..model.vllm_options import BLOCK
from ..platforms import platform_of
from .autocalc import GIB, MOST_CARDS, hpu_memory, kv_bytes_per_token
from .shape import memory_names, splits

CARDS = (2, 4, 8)  # Numbers of cards for suggestions.
# Driver and firmware use 1.4 to 2 GiB of a card. The profile run of an 8B model took 0.5 GiB.
UNAVAILABLE_GIB, PROFILE_GIB = 2.0, 0.5
# The fork's defaults, if neither the profile nor the user sets the values.
UTILIZATION, GRAPH_SHARE = 0.9, 0.1
FLOAT32_BYTES = 4
WHOLE = Rounding()
LARGE_GIB, LARGE_GRAPH_MB, GRAPH_MB = 120, 20, 10


def plan_memory(
    spec: Spec,
    env: Mapping[str, str],
    args: Sequence[str],
    host: Host,
    model: Architecture,
    weight_bytes: int,
    cards_left: int,
    rounding: Rounding = WHOLE,
    taken_gib: float = 0.0,
) -> dict[str, Any] | None:
    """Return how a model's cards are divided, or None if its architecture or size is unknown.

    Usable is the free memory after weights and profile run, times the utilisation. The graph share of it is reserved
    for graphs (none with enforce_eager). The rest is KV cache in blocks of 128 tokens, reduced by ``rounding``. Other
    models already use ``taken_gib`` of the card.

    Returns:
        GiB of one card: ``device_gib``, ``reserved_gib`` (driver and profile run), ``weights_gib``, ``graphs_gib``,
        ``kv_cache_gib``, ``left_gib``; ``num_hpu_blocks``, ``kv_tokens``, ``sequences`` (of max_model_len); ``fits``,
        ``short_by_gib`` and ``suggestions`` as in hpu_memory.
    """
    names, cards = memory_names(model), spec.tensors
    if not names or not weight_bytes or not spec.get("max_model_len") or cards > MOST_CARDS:
        return None
    if not platform_of(host.accelerator).generation(host):
        return None
    given = _given(spec, env, args, host, weight_bytes) | names
    given["UNAVAILABLE_MEM_ABS"] += taken_gib
    given["QUANT_DTYPE"] = _weight_bytes(spec, model)
    found = hpu_memory(given)
    divided = _divided(given, found, rounding)
    # Other models keep their cards.
    most = min(platform_of(host.accelerator).group(host) or MOST_CARDS, cards + cards_left)
    possible = [number for number in CARDS if cards < number <= most and splits(model, spec, number)]
    remedies = (
        [] if divided["fits"] else _remedies(_within(given, model), found["fit"]["suggestions"], rounding, possible)
    )
    return {**divided, "suggestions": remedies}


def _given(spec: Spec, env: Mapping[str, str], args: Sequence[str], host: Host, weight_bytes: int) -> dict[str, Any]:
    """Return the input of hpu_memory without the architecture."""
    return {
        "MODEL": str(spec.get("name") or spec.weights),
        "DEVICE_NAME": platform_of(host.accelerator).generation(host),
        "TENSOR_PARALLEL_SIZE": spec.tensors,
        "MAX_MODEL_LEN": int(spec["max_model_len"]),
        # The layers of a stage would need a part of the cache, but each of as many virtual engines has its own cache.
        "MODEL_MEM_FROM_CONFIG": weight_bytes // spec.stages,
        "CACHE_DTYPE_BYTES": _cache_bytes(spec, args),
        "UNAVAILABLE_MEM_ABS": UNAVAILABLE_GIB,
        "PROFILER_MEM_OVERHEAD": PROFILE_GIB,
        "APPROX_MEM_PER_GRAPH_MB": LARGE_GRAPH_MB if weight_bytes > LARGE_GIB * GIB else GRAPH_MB,
        "GPU_MEM_UTILIZATION": _share(spec.get("gpu_memory_utilization"), env, "VLLM_GPU_MEMORY_UTILIZATION"),
        "VLLM_GRAPH_RESERVED_MEM": 0.0
        if spec.get("enforce_eager")
        else _share(None, env, "VLLM_GRAPH_RESERVED_MEM", GRAPH_SHARE),
    }


def _divided(given: Mapping[str, Any], found: Mapping[str, Any], rounding: Rounding) -> dict[str, Any]:
    cards, heads = given["TENSOR_PARALLEL_SIZE"], given["NUM_KEY_VALUE_HEADS"]
    usable = found["USABLE_MEM"] * found["GPU_MEM_UTILIZATION"] if found["USABLE_MEM"] > 0 else 0.0
    graphs = usable * given["VLLM_GRAPH_RESERVED_MEM"]
    weights = found["MODEL_MEM_IN_GB"] / cards
    share = 1 if given.get("KV_LORA_RANK") else min(cards, heads)
    per_block = kv_bytes_per_token({"HEAD_DIM": None, **given}) * BLOCK / share
    blocks = rounding.held(math.floor((usable - graphs) * GIB / per_block))
    fit = found["fit"]
    sequences = blocks * BLOCK // given["MAX_MODEL_LEN"]
    # Rounding alone can prevent a sequence from fitting.
    lacking = rounding.room(-(-given["MAX_MODEL_LEN"] // BLOCK)) * per_block / GIB - (usable - graphs)
    return {
        "device_gib": found["DEVICE_HPU_MEM"],
        "reserved_gib": UNAVAILABLE_GIB + PROFILE_GIB,
        "weights_gib": round(weights, 1),
        "graphs_gib": round(graphs, 1),
        "kv_cache_gib": round(usable - graphs, 1),
        "left_gib": round(found["USABLE_MEM"] - usable, 1),
        "num_hpu_blocks": blocks,
        "kv_tokens": blocks * BLOCK,
        "sequences": sequences,
        "fits": sequences > 0,
        "short_by_gib": 0.0 if sequences else max(fit["short_by_gib"], math.ceil(lacking * 100) / 100),
    }


def _within(given: Mapping[str, Any], model: Architecture) -> dict[str, Any]:
    """Return the input with at most the model's own context. A longer one is refused elsewhere."""
    longest = model.context or given["MAX_MODEL_LEN"]
    return {**given, "MAX_MODEL_LEN": min(given["MAX_MODEL_LEN"], longest)}


def _remedies(
    given: Mapping[str, Any], suggestions: Sequence[Mapping[str, int]], rounding: Rounding, possible: Sequence[int]
) -> list[dict[str, int]]:
    """Return the smallest changes that fit on this host, each verified; more cards alone come first."""
    alone = [{"tensor_parallel_size": cards} for cards in possible if _changed(given, rounding, cards)["fits"]][:1]
    shorter = [change for change in suggestions if set(change) == {"max_model_len"}]
    length = _longest(given, rounding, given["TENSOR_PARALLEL_SIZE"]) if shorter else 0
    found = alone + ([{"max_model_len": length}] if length else [])
    if found:
        return found
    for cards in possible:
        length = _longest(given, rounding, cards)
        if length:
            return [{"tensor_parallel_size": cards, "max_model_len": length}]
    return []


def _changed(given: Mapping[str, Any], rounding: Rounding, cards: int, length: int | None = None) -> dict[str, Any]:
    other = {**given, "TENSOR_PARALLEL_SIZE": cards, "MAX_MODEL_LEN": length or given["MAX_MODEL_LEN"]}
    return _divided(other, hpu_memory(other), rounding)


def _longest(given: Mapping[str, Any], rounding: Rounding, cards: int) -> int:
    """Return the longest context, in complete blocks, for one sequence; 0 if none fits."""
    length = int(min(given["MAX_MODEL_LEN"], _changed(given, rounding, cards, BLOCK)["kv_tokens"])) // BLOCK * BLOCK
    return length if length and _changed(given, rounding, cards, length)["fits"] else 0


def quantised_at_load(spec: Spec, model: Architecture) -> bool:
    """Return whether a server halves a model's weights at load."""
    # INC converts bfloat16 weights to FP8 at load. Weights that are already quantised keep their size.
    by_file = spec.get("quant_config") is not None and "quant_config" not in engine_of(spec).ignored
    halved = spec.get("dtype") == "fp8" or spec.get("quantization") == "inc" or by_file
    return halved and not model.quantisation


def _weight_bytes(spec: Spec, model: Architecture) -> int:
    """Return the bytes of a number in the loaded weights."""
    return 1 if quantised_at_load(spec, model) else FLOAT32_BYTES if _upcast_to_float32(spec, model) else 2


def _upcast_to_float32(spec: Spec, model: Architecture) -> bool:
    """Return whether a server converts a model's weights from two to four bytes. Weights stored so keep their size."""
    return spec.get("dtype") == "float32" and model.dtype != "float32" and not model.quantisation


def _cache_bytes(spec: Spec, args: Sequence[str]) -> int:
    """Return the bytes of a number in the KV cache. Without its own type it has the model's dtype."""
    values = [args[index + 1] for index, argument in enumerate(args[:-1]) if argument == "--kv-cache-dtype"]
    own = values[-1] if values else "auto"
    if own.startswith("fp8"):
        return 1
    return FLOAT32_BYTES if own == "auto" and spec.get("dtype") == "float32" else 2


def _share(given: Any, env: Mapping[str, str], name: str, default: float = UTILIZATION) -> float:
    try:
        share = float(given if given is not None else env.get(name, default))
    except (TypeError, ValueError):
        return default
    return min(1.0, max(0.01, share))
