"""The device memory of a model: the vendor's estimate, and whether the model really fits.

The estimate follows the rules of the vendor's current vLLM plugin, measured from its results. The golden vectors in
tests/unit/golden are authoritative. All sizes are GiB per card unless a name has another unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..core.errors import known, mapping, number, refusal, whole

Numbers = dict[str, Any]

GIB = 2**30
DEVICE_GIB = {"GAUDI2": 96, "GAUDI3": 128}
BANDWIDTH = {"GAUDI2": 2.45e12, "GAUDI3": 3.67e12}  # Memory bandwidth of a device, bytes per second.
MOST_CARDS = 8  # The vendor's rules are for one host.
# The most sequences of a card for a multimodal Llama, whatever memory it has.
VISION_MODELS = ("meta-llama/Llama-3.2-11B-Vision-Instruct", "meta-llama/Llama-3.2-90B-Vision-Instruct")
VISION_SEQUENCES = 128
# Defaults of the vendor's table of models, for missing values (docs/explanation/parameters.md).
DEFAULTS: Numbers = {
    "MODEL": "",
    "DEVICE_NAME": "GAUDI2",
    "TENSOR_PARALLEL_SIZE": 1,
    "UNAVAILABLE_MEM_ABS": 2,
    "PROFILER_MEM_OVERHEAD": 0,
    "GPU_FREE_MEM_TARGET": 5,
    "APPROX_MEM_PER_GRAPH_MB": 10,
    "MODEL_DTYPE": 2,
    "QUANT_DTYPE": 2,
    "CACHE_DTYPE_BYTES": 2,
    "BLOCK_SIZE": 128,
    "HEAD_DIM": None,
    "MAX_NUM_BATCHED_TOKENS": 2048,
    "ENABLE_PREFIX_CACHING": False,
    "PT_HPU_LAZY_MODE": 1,
    "VLLM_EXPONENTIAL_BUCKETING": True,
    "VLLM_PROMPT_BS_BUCKET_MIN": 1,
    "VLLM_PROMPT_BS_BUCKET_STEP": 32,
    "VLLM_PROMPT_BS_BUCKET_MAX": 1,
    "VLLM_PROMPT_QUERY_BUCKET_MIN": 128,
    "VLLM_PROMPT_QUERY_BUCKET_STEP": 256,
    "VLLM_PROMPT_CTX_BUCKET_STEP": 4,
    "VLLM_DECODE_BS_BUCKET_MIN": 1,
    "VLLM_DECODE_BS_BUCKET_STEP": 32,
    "VLLM_DECODE_BLOCK_BUCKET_MIN": 128,
    "VLLM_DECODE_BLOCK_BUCKET_STEP": 256,
}
REQUIRED = (
    *("MAX_MODEL_LEN", "MODEL_MEM_FROM_CONFIG", "NUM_HIDDEN_LAYERS", "HIDDEN_SIZE"),
    *("NUM_KEY_VALUE_HEADS", "NUM_ATTENTION_HEADS"),
)
_BUCKETS = tuple(
    f"VLLM_{name}_BUCKET" for name in ("PROMPT_BS", "PROMPT_QUERY", "PROMPT_CTX", "DECODE_BS", "DECODE_BLOCK")
)
# The limits of each number. Limits with a decimal point allow fractions.
LIMITS: dict[str, tuple[float, float]] = {
    "TENSOR_PARALLEL_SIZE": (1, MOST_CARDS),
    **dict.fromkeys(("MAX_MODEL_LEN", "MAX_NUM_BATCHED_TOKENS", "MAX_NUM_SEQS"), (1, 10**9)),
    **dict.fromkeys(("NUM_HIDDEN_LAYERS", "NUM_KEY_VALUE_HEADS", "NUM_ATTENTION_HEADS"), (1, 100_000)),
    **dict.fromkeys(("HIDDEN_SIZE", "HEAD_DIM", "BLOCK_SIZE"), (1, 10**6)),
    **dict.fromkeys(("KV_LORA_RANK", "QK_ROPE_HEAD_DIM"), (0, 10**6)),
    **{f"{name}_{part}": (1, 10**9) for name in _BUCKETS for part in ("MIN", "STEP", "MAX")},
    "MODEL_MEM_FROM_CONFIG": (1.0, 1e15),
    **dict.fromkeys(("UNAVAILABLE_MEM_ABS", "PROFILER_MEM_OVERHEAD", "GPU_FREE_MEM_TARGET"), (0.0, 1024)),
    "APPROX_MEM_PER_GRAPH_MB": (0.001, 10**6),
    **dict.fromkeys(("MODEL_DTYPE", "QUANT_DTYPE", "CACHE_DTYPE_BYTES"), (0.125, 16)),
    **dict.fromkeys(("GPU_MEM_UTILIZATION", "VLLM_GRAPH_RESERVED_MEM"), (0.0, 1)),
}
HELD = ("TENSOR_PARALLEL_SIZE", "MAX_MODEL_LEN", "MAX_NUM_BATCHED_TOKENS", "VLLM_PROMPT_BS_BUCKET_MAX")
FLAGS = ("ENABLE_PREFIX_CACHING", "VLLM_EXPONENTIAL_BUCKETING", "PT_HPU_LAZY_MODE")
# Further names in the vendor's table of models. They have no effect here.
UNUSED = (
    *("TOTAL_GPU_MEM", "MODEL_MEM", "LIMIT_MODEL_LEN", "VLLM_SKIP_WARMUP", "VLLM_CONTIGUOUS_PA", "VLLM_DEFRAG"),
    *("ASYNC_SCHEDULING", "VLLM_WEIGHT_LOAD_FORCE_SYNC"),
)


def hpu_memory(given: Mapping[str, Any]) -> Numbers:
    """Estimate the device memory of a model, and whether it fits.

    Args:
        given: Values by the vendor's names. Required are MAX_MODEL_LEN (tokens), MODEL_MEM_FROM_CONFIG (bytes),
            NUM_HIDDEN_LAYERS, HIDDEN_SIZE, NUM_KEY_VALUE_HEADS and NUM_ATTENTION_HEADS; the others have defaults.
            GPU_MEM_UTILIZATION, MAX_NUM_SEQS and VLLM_GRAPH_RESERVED_MEM are used if they are set. KV_LORA_RANK and
            QK_ROPE_HEAD_DIM describe multi-head latent attention, whose cache is one vector per token and layer. Every
            card stores the complete vector.

    Returns:
        The vendor's names with the vendor's values (as far as they can be computed), and ``fit``: ``fits``,
        ``short_by_gib`` (GiB per card), ``sequences`` of MAX_MODEL_LEN in the KV cache, and ``suggestions``, each a
        change with which it fits, such as ``{tensor_parallel_size: 4}``; with two keys if one alone is not enough.

    Raises:
        InputError: A name is missing or unknown, or a value is outside its limits (LIMITS). Its ``finding`` names it.
    """
    numbers = _checked(given)
    out = _estimate(numbers)
    sequences, short = _truth(numbers, out)
    wanted = max(1, int(given.get("MAX_NUM_SEQS") or 1))
    fits = sequences >= wanted
    out["fit"] = {
        "fits": fits,
        "short_by_gib": 0.0 if fits else math.ceil(short * 100) / 100,
        "sequences": sequences,
        "suggestions": [] if fits else _suggestions(numbers, wanted),
    }
    return out


def _checked(given: Mapping[str, Any]) -> Numbers:
    names = mapping("hpu_memory", "input", given, "a mapping of the vendor's names, such as MAX_MODEL_LEN")
    label = names.get("MODEL") or "the model"
    if not isinstance(label, str):
        raise refusal("the model", "MODEL", label, "is not a text")
    known(label, names, {*DEFAULTS, *LIMITS, *UNUSED})
    numbers = {**DEFAULTS, **{key: value for key, value in names.items() if value is not None}}
    if numbers["DEVICE_NAME"] not in tuple(DEVICE_GIB):
        raise refusal(label, "DEVICE_NAME", numbers["DEVICE_NAME"], f"is not one of {', '.join(DEVICE_GIB)}")
    for key in FLAGS:
        if numbers[key] not in (0, 1):
            raise refusal(label, key, numbers[key], "is not true or false")
    for key, (low, high) in LIMITS.items():
        value = numbers.get(key)
        if value is not None or key in REQUIRED:
            check = number if isinstance(low, float) else _integer
            numbers[key] = check(label, key, _held(key, value), low, high)
    numbers["VLLM_CONTIGUOUS_PA"] = not numbers["ENABLE_PREFIX_CACHING"]
    return numbers


def _held(key: str, value: Any) -> Any:
    """Return a number clamped to its limits if the vendor's rules clamp it too."""
    if not isinstance(value, int) or isinstance(value, bool) or key not in HELD:
        return value
    return max(1, min(MOST_CARDS, value)) if key == "TENSOR_PARALLEL_SIZE" else max(1, value)


def _integer(label: str, key: str, value: Any, low: int, high: int) -> int:
    # Numbers in texts come from an environment. Here they would be texts that were never converted.
    if isinstance(value, str):
        raise refusal(label, key, value, f"is a text, not an integer from {low} to {high}")
    return whole(label, key, value, low, high)


def kv_bytes_per_token(numbers: Mapping[str, Any]) -> float:
    """Return the KV cache bytes of one token over all layers and all cards, or on each card for latent attention."""
    if numbers.get("KV_LORA_RANK"):
        width = numbers["KV_LORA_RANK"] + (numbers.get("QK_ROPE_HEAD_DIM") or 0)
    else:
        head = numbers.get("HEAD_DIM") or numbers["HIDDEN_SIZE"] / numbers["NUM_ATTENTION_HEADS"]
        width = 2 * head * numbers["NUM_KEY_VALUE_HEADS"]
    return float(numbers["NUM_HIDDEN_LAYERS"] * width * numbers["CACHE_DTYPE_BYTES"])


def _estimate(n: Numbers) -> Numbers:
    cards = n["TENSOR_PARALLEL_SIZE"]
    device = DEVICE_GIB[n["DEVICE_NAME"]]
    weights = n["MODEL_MEM_FROM_CONFIG"] * n["QUANT_DTYPE"] / n["MODEL_DTYPE"] / GIB
    usable = device * cards / cards - n["UNAVAILABLE_MEM_ABS"] - weights / cards - n["PROFILER_MEM_OVERHEAD"]
    out: Numbers = {
        **{key: n[key] for key in ("VLLM_PROMPT_BS_BUCKET_MAX", "MAX_NUM_BATCHED_TOKENS")},
        **{key: n[key] for key in ("TENSOR_PARALLEL_SIZE", "MAX_MODEL_LEN")},
        "PT_HPU_ENABLE_LAZY_COLLECTIVES": cards > 1,
        "VLLM_CONTIGUOUS_PA": n["VLLM_CONTIGUOUS_PA"],
        "VLLM_DEFRAG": n["VLLM_CONTIGUOUS_PA"],
        "MODEL_MEM_FROM_CONFIG": float(n["MODEL_MEM_FROM_CONFIG"]),
        "DEVICE_HPU_MEM": device,
        "TOTAL_GPU_MEM": device * cards,
        "MODEL_MEM_IN_GB": weights,
        "USABLE_MEM": usable,
    }
    if usable == 0:
        return out
    out["GPU_MEMORY_UTIL_TEMP"] = 1 - n["GPU_FREE_MEM_TARGET"] / usable
    # A share below a millionth counts as 0, because no number can be divided by it.
    given = n.get("GPU_MEM_UTILIZATION") or 0
    utilization = given if given > 1e-6 else math.floor(out["GPU_MEMORY_UTIL_TEMP"] * 100) / 100
    out["GPU_MEM_UTILIZATION"] = utilization
    if utilization == 0:
        return out
    per_sequence = n["MAX_MODEL_LEN"] * kv_bytes_per_token(n) / GIB
    out["KV_CACHE_PER_SEQ"] = per_sequence
    out["EST_MAX_NUM_SEQS"] = max(1, cards * usable * utilization / per_sequence)
    out["EST_HPU_BLOCKS"] = max(1, n["MAX_MODEL_LEN"] * out["EST_MAX_NUM_SEQS"] / n["BLOCK_SIZE"])
    out.update(_decode_graphs(n, out))
    out.update(_prompt_graphs(n))
    out.update(_reserve(n, out))
    out.update(_sequences(n, out))
    return out


def _dimension(n: Numbers, name: str, count: float, minimum: float) -> tuple[int, int]:
    """Return the number of values of a bucket dimension while it doubles, and while it grows by steps."""
    if n["VLLM_EXPONENTIAL_BUCKETING"]:
        return 1 + math.ceil(math.log2(count)), 0
    step = n[f"VLLM_{name}_BUCKET_STEP"]
    first = min(count, step) if name == "PROMPT_BS" else step
    return 1 + int(math.log2(first / minimum)), int(1 + (count - step) / step)


def _decode_graphs(n: Numbers, out: Numbers) -> Numbers:
    batch, batch_steps = _dimension(n, "DECODE_BS", out["EST_MAX_NUM_SEQS"], n["VLLM_DECODE_BS_BUCKET_MIN"])
    block, block_steps = _dimension(n, "DECODE_BLOCK", out["EST_HPU_BLOCKS"], n["VLLM_DECODE_BLOCK_BUCKET_MIN"])
    batch_steps, block_steps = max(0, batch_steps), max(0, block_steps)
    graphs: float = (batch + batch_steps) * (block + block_steps)
    return {
        "DECODE_BS_RAMP_GRAPHS": batch,
        "DECODE_BS_STEP_GRAPHS": batch_steps,
        "DECODE_BLOCK_RAMP_GRAPHS": block,
        "DECODE_BLOCK_STEP_GRAPHS": block_steps,
        "NUM_DECODE_GRAPHS": max(1, graphs if n["VLLM_CONTIGUOUS_PA"] else graphs / 2),
    }


def _prompt_graphs(n: Numbers) -> Numbers:
    most, length = n["VLLM_PROMPT_BS_BUCKET_MAX"], n["MAX_MODEL_LEN"]
    exponential = n["VLLM_EXPONENTIAL_BUCKETING"]
    batch, batch_steps = _dimension(n, "PROMPT_BS", most, n["VLLM_PROMPT_BS_BUCKET_MIN"])
    batch_steps = max(0, batch_steps)
    tokens = n["MAX_NUM_BATCHED_TOKENS"] if exponential else min(n["MAX_NUM_BATCHED_TOKENS"], length)
    # The vendor's rules let this number become negative.
    seq, seq_steps = _dimension(n, "PROMPT_QUERY", tokens, n["VLLM_PROMPT_QUERY_BUCKET_MIN"])
    graphs: float = (batch + batch_steps) * (seq + seq_steps)
    if most > 1:
        graphs /= 2
    context = 0.0
    for shortest in (n["VLLM_PROMPT_QUERY_BUCKET_MIN"], n["MAX_NUM_BATCHED_TOKENS"]):
        blocks = max(1, (length - shortest) / n["BLOCK_SIZE"])
        context += max(1, math.ceil(math.log2(blocks)) if exponential else blocks / n["VLLM_PROMPT_CTX_BUCKET_STEP"])
    return {
        "PROMPT_BS_RAMP_GRAPHS": batch,
        "PROMPT_BS_STEP_GRAPHS": batch_steps,
        "PROMPT_SEQ_RAMP_GRAPHS": seq,
        "PROMPT_SEQ_STEP_GRAPHS": seq_steps,
        "EST_NUM_PROMPT_GRAPHS": max(1, graphs * context / 2),
    }


def _reserve(n: Numbers, out: Numbers) -> Numbers:
    prompt_mb = out["EST_NUM_PROMPT_GRAPHS"] * n["APPROX_MEM_PER_GRAPH_MB"]
    if not n["VLLM_EXPONENTIAL_BUCKETING"]:
        # The vendor fitted this: longer prompts have larger graphs.
        prompt_mb *= max(1, n["MAX_MODEL_LEN"] / 4352) ** 0.8552
    decode_mb = out["NUM_DECODE_GRAPHS"] * n["APPROX_MEM_PER_GRAPH_MB"]
    ratio = prompt_mb / (prompt_mb + decode_mb)
    target = math.ceil(decode_mb / 1024 * 100) / 100
    # With very many prompt graphs, the share of the others would round to zero.
    rest = (1 - ratio) or decode_mb / (prompt_mb + decode_mb)
    reserve = target / (out["USABLE_MEM"] * out["GPU_MEM_UTILIZATION"] * rest)
    reserve = math.ceil(reserve * 100) / 100
    most = 0.5 if n["PT_HPU_LAZY_MODE"] else 0.1
    kept = n.get("VLLM_GRAPH_RESERVED_MEM")
    kept = min(max(reserve, 0.01), most) if kept is None else kept
    return {
        "EST_GRAPH_PROMPT_RATIO": ratio,
        "DECODE_GRAPH_TARGET_GB": target,
        "EST_GRAPH_RESERVE_MEM": reserve,
        "VLLM_GRAPH_RESERVED_MEM": kept,
        "KV_CACHE_MEM": out["USABLE_MEM"] * out["GPU_MEM_UTILIZATION"] * (1 - kept),
    }


def _sequences(n: Numbers, out: Numbers) -> Numbers:
    step = n["VLLM_DECODE_BS_BUCKET_STEP"]
    if n.get("MAX_NUM_SEQS") is not None:
        count = max(1, n["MAX_NUM_SEQS"])
    else:
        fitting = n["TENSOR_PARALLEL_SIZE"] * out["KV_CACHE_MEM"] / out["KV_CACHE_PER_SEQ"]
        if fitting < 1:
            # Here the vendor's code fails. ``fit`` has the missing memory.
            return {}
        count = 2 ** math.floor(math.log2(fitting)) if fitting < step else math.floor(fitting / step) * step
        if n["MODEL"] in VISION_MODELS:
            count = min(count, VISION_SEQUENCES)
    blocks = max(128, math.ceil(count * n["MAX_MODEL_LEN"] / 128))
    return {"MAX_NUM_SEQS": count, "VLLM_DECODE_BLOCK_BUCKET_MAX": blocks}


def _truth(n: Numbers, out: Numbers) -> tuple[int, float]:
    """Return the sequences of MAX_MODEL_LEN that really fit, and the missing GiB per card."""
    # KV heads cannot be split into more parts than their number, and a latent vector cannot be split.
    share = 1 if n.get("KV_LORA_RANK") else min(n["TENSOR_PARALLEL_SIZE"], n["NUM_KEY_VALUE_HEADS"])
    per_sequence = n["MAX_MODEL_LEN"] * kv_bytes_per_token(n) / GIB / share
    free = out["USABLE_MEM"]
    if free > 0 and out["GPU_MEM_UTILIZATION"] > 0:
        free = out["KV_CACHE_MEM"]
    elif not n.get("GPU_MEM_UTILIZATION"):
        # The memory that must stay free is missing too.
        free -= n["GPU_FREE_MEM_TARGET"]
    sequences = max(0, math.floor(free / per_sequence))
    wanted = max(1, int(n.get("MAX_NUM_SEQS") or 1))
    return sequences, wanted * per_sequence - free


def _suggestions(n: Numbers, wanted: int) -> list[dict[str, int]]:
    """Return the smallest changes with which the model fits. Each is verified."""
    more_cards = [
        cards
        for cards in (2, 4, 8)
        if cards > n["TENSOR_PARALLEL_SIZE"]
        and n["NUM_ATTENTION_HEADS"] % cards == 0
        and (n.get("KV_LORA_RANK") or cards <= n["NUM_KEY_VALUE_HEADS"])
    ]
    found = [{"tensor_parallel_size": cards} for cards in more_cards if _fits({**n, "TENSOR_PARALLEL_SIZE": cards})][:1]
    found += _smaller(n, wanted)
    if found:
        return found
    for cards in more_cards:
        both = [
            {"tensor_parallel_size": cards, **less} for less in _smaller({**n, "TENSOR_PARALLEL_SIZE": cards}, wanted)
        ]
        if both:
            return both
    return []


def _smaller(n: Numbers, wanted: int) -> list[dict[str, int]]:
    found = []
    length = _most(n, "MAX_MODEL_LEN", 128)
    if length:
        found.append({"max_model_len": length})
    count = _most(n, "MAX_NUM_SEQS", 1) if wanted > 1 else 0
    if count:
        found.append({"max_num_seqs": count})
    return found


def _most(n: Numbers, key: str, step: int) -> int:
    """Return the highest multiple of ``step`` below the present value that fits, or 0."""
    low, high = 0, -(-int(n[key]) // step) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _fits({**n, key: middle * step}) else (low, middle - 1)
    return low * step


def _fits(n: Numbers) -> bool:
    return _truth(n, _estimate(n))[0] >= max(1, int(n.get("MAX_NUM_SEQS") or 1))
