"""What planning needs of a model's architecture, and what in it forbids a launch.

Read from the config.json of the weights (Hugging Face's names), or from a catalog entry that says the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import Problem, is_number, shown
from ..core.words import counted
from ..engines import ENGINES
from ..model.config_json import Config, layers, text_config, whole

# Rope scalings that stretch max_position_embeddings itself; the others say the stretched length there.
STRETCHING = ("linear", "dynamic", "yarn")
MOST_CARDS = 16
MOST_FACTOR = 10_000  # of a rope scaling; infinity is a number too
# Numbers of a config.json that planning counts with.
FIGURES = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "v_head_dim", "kv_lora_rank", "qk_rope_head_dim", "moe_intermediate_size"),
    "max_position_embeddings",
)
EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
MAY_BE_ZERO = ("moe_intermediate_size", "kv_lora_rank", "qk_rope_head_dim", "v_head_dim", "head_dim")


def config_problems(config: Config) -> list[str]:
    """Return what of a config.json's figures cannot be, one sentence each."""
    text = text_config(config)
    found = []
    for key in FIGURES:
        value = text.get(key)
        # Some architectures list a value a layer; those are not known, rather than wrong.
        if value is None or isinstance(value, (list, Mapping)) or (key in MAY_BE_ZERO and value == 0):
            continue
        if whole(text, key) is None:
            found.append(f"{key} {shown(value)} must be a whole number above 0")
    rope = text.get("rope_scaling")
    if rope is not None and not isinstance(rope, Mapping):
        found.append(f"rope_scaling {shown(rope)} must be a mapping")
    factor = rope.get("factor") if isinstance(rope, Mapping) else None
    if factor is not None and not (is_number(factor, 0, MOST_FACTOR) and factor):
        found.append(f"rope_scaling.factor {shown(factor)} must be a number above 0")
    return found


def stored_precision(config: Config) -> str | None:
    """Return in what the weights themselves are quantised, such as fp8, awq or int4; None where they are not."""
    said = text_config(config).get("quantization_config") or config.get("quantization_config")
    if not isinstance(said, Mapping):
        return None
    groups = said.get("config_groups")
    group = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if isinstance(weights, Mapping):  # as compressed-tensors and ModelOpt write it
        return f"{'fp' if weights.get('type') == 'float' else 'int'}{weights.get('num_bits')}"
    method = said.get("quant_method") or said.get("quant_algo")
    method = method.lower() if isinstance(method, str) else ""
    return "fp8" if "fp8" in method else method or None


def has_experts(config: Config) -> bool:
    """Tell whether a model is a mixture of experts."""
    text = text_config(config)
    # ERNIE lists how many it has for words and for pictures.
    return any(whole(text, key) for key in EXPERTS) or isinstance(text.get("moe_num_experts"), list)


def widened_bytes(config: Config, size: int) -> int:
    """Return how many bytes more the experts of MXFP4 weights are as BF16: 16 bits a parameter for 4 1/4.

    A block of 32 parameters of four bits has one scale of eight; gpt-oss stores nothing but its experts so. Where they
    cannot be counted, all of the ``size`` bytes are taken for such blocks, which is more than they are.
    """
    text = text_config(config)
    count, width, inner = (whole(text, key) for key in ("num_local_experts", "hidden_size", "intermediate_size"))
    stored = 3 * (layers(config) or 0) * (count or 0) * (width or 0) * (inner or 0) * 17 // 32
    return (stored if 0 < stored <= size else size) * 47 // 17


def memory_names(config: Config) -> dict[str, Any] | None:
    """Return the names that hpu_memory wants of an architecture, or None where one is missing."""
    text = text_config(config)
    heads = whole(text, "num_attention_heads")
    found = {
        "NUM_HIDDEN_LAYERS": whole(text, "num_hidden_layers"),
        "HIDDEN_SIZE": whole(text, "hidden_size"),
        "NUM_ATTENTION_HEADS": heads,
        "NUM_KEY_VALUE_HEADS": whole(text, "num_key_value_heads") or heads,
    }
    if None in found.values():
        return None
    return {
        **found,
        "HEAD_DIM": whole(text, "head_dim"),
        # DeepSeek keeps one latent vector a token instead of keys and values a head.
        "KV_LORA_RANK": whole(text, "kv_lora_rank"),
        "QK_ROPE_HEAD_DIM": whole(text, "qk_rope_head_dim"),
    }


def longest_context(config: Config) -> int | None:
    """Return the longest context in tokens that a model is made for, rope scaling included."""
    text = text_config(config)
    longest = whole(text, "max_position_embeddings")
    rope = text.get("rope_scaling")
    if longest is None or not isinstance(rope, Mapping):
        return longest
    kind = rope.get("rope_type", rope.get("type"))
    if kind in STRETCHING and isinstance(rope.get("factor"), (int, float)):
        base = (whole(rope, "original_max_position_embeddings") or longest) if kind == "yarn" else longest
        return max(longest, int(base * rope["factor"]))
    return longest


def shape_problems(spec: Mapping[str, Any], config: Config, *, even_heads: bool) -> list[Problem]:
    """Return what of a model's wish its architecture forbids: (key, value, what is allowed).

    These are pitfalls that otherwise show only when vLLM starts: heads that tensor_parallel_size does
    not divide, KV heads that cannot be shared or copied evenly (on Gaudi the manual's engines copy none),
    quantised weights whose shapes do not split evenly, a context that is longer than the model's.
    """
    text = text_config(config)
    cards = int(spec.get("tensor_parallel_size") or 1)
    heads, kv_heads = whole(text, "num_attention_heads"), whole(text, "num_key_value_heads")
    problems: list[Problem] = []
    good = [number for number in range(1, MOST_CARDS + 1) if splits(text, spec, number, even_heads=even_heads)]
    if heads and heads % cards:
        allowed = f"does not divide the {heads} attention heads; possible: {good}"
        problems.append(("tensor_parallel_size", cards, allowed))
    elif kv_heads and not _shared(kv_heads, cards, copies=_copies(spec, even_heads)):
        above = f"is above the model's {kv_heads} key-value heads"
        uneven = f"cards do not share the model's {kv_heads} key-value heads evenly; possible: {good}"
        copies = _copies(spec, even_heads) or cards < kv_heads
        problems.append(("tensor_parallel_size", cards, uneven if copies else above))
    elif part := uneven_part(text, spec, cards):
        allowed = f"does not split the quantised weights evenly: {part}; possible: {good}"
        problems.append(("tensor_parallel_size", cards, allowed))
    longest = longest_context(config)
    if longest and (spec.get("max_model_len") or 0) > longest:
        allowed = f"is above {longest}, the model's longest context (max_position_embeddings)"
        problems.append(("max_model_len", spec["max_model_len"], allowed))
    return problems


def splits(config: Config, spec: Mapping[str, Any], cards: int, *, even_heads: bool = True) -> bool:
    """Tell whether so many cards can share a model's heads and its quantised weights."""
    text = text_config(config)
    heads, kv_heads = whole(text, "num_attention_heads"), whole(text, "num_key_value_heads")
    shared = not kv_heads or _shared(kv_heads, cards, copies=_copies(spec, even_heads))
    return shared and not ((heads and heads % cards) or uneven_part(text, spec, cards))


def _copies(spec: Mapping[str, Any], even_heads: bool) -> bool:
    """Tell whether more cards than there are KV heads get copies of them, as vLLM itself does it."""
    return not even_heads or ENGINES[spec["launch_profile"]].copies_heads


def _shared(kv_heads: int, cards: int, *, copies: bool) -> bool:
    """Tell whether so many cards share KV heads: each has as many of its own, or one that as many others have too."""
    return kv_heads % cards == 0 if cards <= kv_heads else copies and cards % kv_heads == 0


def uneven_part(text: Config, spec: Mapping[str, Any], cards: int) -> str | None:
    """Return the first weight of a quantised model that so many cards do not split into whole groups.

    The vendor's servers split down_proj and o_proj along their input, the others along their output;
    every part must hold whole quantisation groups (AWQ, GPTQ) or blocks (FP8). Experts are not split
    under expert parallelism, which some engines always ask for.
    """
    quantization = text.get("quantization_config")
    if cards == 1 or not isinstance(quantization, Mapping):
        return None
    block = quantization.get("weight_block_size")
    group = block[0] if isinstance(block, list) and block else quantization.get("group_size")
    if not isinstance(group, int) or group <= 1:
        return None
    expert_parallel = ENGINES[spec["launch_profile"]].expert_parallel or spec.get("enable_expert_parallel")
    experts = whole(text, "moe_intermediate_size")
    widths = {"moe_intermediate_size": None if expert_parallel else experts}
    # Where all of a model's layers have experts, theirs is the only width, under the other name.
    if not (expert_parallel and whole(text, "num_local_experts") and not experts):
        widths["intermediate_size"] = whole(text, "intermediate_size")
    head, heads = whole(text, "v_head_dim") or whole(text, "head_dim"), whole(text, "num_attention_heads")
    if head and heads:
        widths["num_attention_heads * head_dim"] = head * heads
    for name, width in widths.items():
        if width and width % (cards * group):
            return f"{name} {width} over {counted(cards, 'card')} gives no whole groups of {group}"
    return None
