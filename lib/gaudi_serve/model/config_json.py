"""The figures of a model's config.json, as Hugging Face's models write them, or of a catalog entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import is_whole

Config = Mapping[str, Any]

# Where multimodal models keep the part that generates text.
NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
# Deeper, or with larger numbers, is no config.json.
DEEPEST, LARGEST, LARGEST_FLOAT = 20, 10**15, 1e40
# Where a folder of weights describes them: as Hugging Face does, or in Mistral's own format.
# Kinds of models that have layers with a window and layers without one, whether their config.json lists them or not.
INTERLEAVED = ("gemma2", "gemma3", "gemma4", "gpt_oss", "cohere2")
GRANITE_HYBRID = "granitemoehybrid"
CONFIGS = ("config.json", "params.json")
# What Mistral's own format calls the same in params.json; vLLM translates it likewise (--config-format mistral).
OF_MISTRAL = {
    "n_layers": "num_hidden_layers",
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "max_seq_len": "max_position_embeddings",
}


def sound(value: Any, depth: int = 0) -> bool:
    """Tell whether a part of a config.json can be counted with."""
    if isinstance(value, Mapping):
        return depth < DEEPEST and all(sound(part, depth + 1) for part in value.values())
    if isinstance(value, list):
        return depth < DEEPEST and all(sound(part, depth + 1) for part in value)
    # What is no number, as NaN, is in no range.
    most = LARGEST if isinstance(value, int) else LARGEST_FLOAT
    return not isinstance(value, (int, float)) or -most <= value <= most


def of_params(params: Config) -> dict[str, Any]:
    """Return a params.json of Mistral's own format as a config.json says it."""
    found = {OF_MISTRAL.get(key, key): value for key, value in params.items() if key not in ("moe", "quantization")}
    experts, stored = params.get("moe"), params.get("quantization")
    if isinstance(experts, Mapping):
        found |= {"num_experts": experts.get("num_experts"), "moe_intermediate_size": experts.get("expert_hidden_dim")}
    if isinstance(stored, Mapping):
        found["quantization_config"] = {"quant_method": str(stored.get("qformat_weight")).partition("_")[0]}
    return found


def text_config(config: Config) -> Config:
    """Return the part of a config.json that describes the text model."""
    if "num_hidden_layers" in config:
        return config
    for key in NESTED:
        inner = config.get(key)
        if isinstance(inner, Mapping):
            found = text_config(inner)
            if "num_hidden_layers" in found:
                return {"quantization_config": config.get("quantization_config"), **found}
    return config


def whole(config: Config, key: str) -> int | None:
    """Return a number of a config.json, or None where it is missing or no whole number above 0."""
    value = config.get(key)
    return value if is_whole(value, 1, LARGEST) else None


def layers(config: Config) -> int | None:
    """Return how many layers the text model has, or None where it is not known."""
    return whole(text_config(config), "num_hidden_layers")


def layers_without_cache(config: Config) -> int:
    """Return how many layers keep a state of one size instead of a KV cache: those of mamba and of linear attention.

    Told by ``layer_types`` (``layers_block_type``), or ``full_attention_interval``, as Hugging Face's models write it.
    """
    text, count = text_config(config), layers(config) or 0
    kinds = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(kinds, list):
        return sum(str(kind).startswith(("linear", "mamba", "recurrent")) for kind in kinds[:count])
    interval = whole(text, "full_attention_interval")
    return count - count // interval if interval else 0


def is_granite_hybrid(config: Config) -> bool:
    """Tell whether a model is of Granite 4's hybrids, whose blocks of KV cache are as large as their state."""
    return GRANITE_HYBRID in (config.get("model_type"), text_config(config).get("model_type"))


def granite_block(config: Config, cards: int, *, caching: bool) -> int | None:
    """Return the tokens of a block of Granite 4's hybrids, as the plugin chooses it; None for other models.

    Args:
        config: of the model; where it lacks the figures, blocks are those of granite-4.0-h-small.
        cards: over which it is split.
        caching: prefix caching, with which blocks are whole chunks of 256 tokens, otherwise multiples of 16.
    """
    if not is_granite_hybrid(config):
        return None
    text = text_config(config)
    names = ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "num_key_value_heads", "num_attention_heads")
    heads, width, states, pairs, queries = (whole(text, name) for name in names)
    size = whole(text, "hidden_size")
    if not (heads and width and states and pairs and queries and size):
        return 768 if caching else 528
    groups = max(whole(text, "mamba_n_groups") or 1, cards)
    taps = (whole(text, "mamba_d_conv") or 4) - 1
    state = heads * width * states // cards + taps * (heads * width + 2 * groups * states) // cards
    token = 2 * max(1, pairs // cards) * (whole(text, "head_dim") or size // queries)
    step = 256 if caching else 16
    return step * -(-state // (step * token))


def windows_interleaved(config: Config) -> bool:
    """Tell whether some layers look at a sliding window of tokens, and others at all of them."""
    text = text_config(config)
    kinds = text.get("layer_types")
    if isinstance(kinds, list):
        return len({str(kind) for kind in kinds}) > 1 and "sliding_attention" in kinds
    known = str(config.get("model_type")).startswith(INTERLEAVED) or whole(text, "sliding_window_pattern")
    return bool(known and whole(text, "sliding_window"))


def mamba_chunk(config: Config) -> int:
    """Return of how many tokens a hybrid's configuration says that its chunks are; 0 where it says nothing."""
    text = text_config(config)
    return whole(text, "mamba_chunk_size") or whole(text, "chunk_size") or 0
