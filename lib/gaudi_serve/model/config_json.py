"""The numbers of a model's config.json in the format of Hugging Face, or of a catalog entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import is_whole

Config = Mapping[str, Any]

# Keys under which multimodal models have the part that generates text.
NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
# A file that is nested deeper or has larger numbers is not a config.json.
DEEPEST, LARGEST, LARGEST_FLOAT = 20, 10**15, 1e40
# The files that describe weights: Hugging Face's format and Mistral's own.
CONFIGS = ("config.json", "params.json")
# The file that describes a LoRA adapter.
ADAPTER = "adapter_config.json"
# Keys of Mistral's params.json and their names in config.json. vLLM translates them in the same way
# (--config-format mistral).
OF_MISTRAL = {
    "n_layers": "num_hidden_layers",
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "max_seq_len": "max_position_embeddings",
}


def sound(value: Any, depth: int = 0) -> bool:
    """Return whether planning can calculate with a part of a config.json."""
    if isinstance(value, Mapping):
        return depth < DEEPEST and all(sound(part, depth + 1) for part in value.values())
    if isinstance(value, list):
        return depth < DEEPEST and all(sound(part, depth + 1) for part in value)
    # NaN is not within any range.
    most = LARGEST if isinstance(value, int) else LARGEST_FLOAT
    return not isinstance(value, (int, float)) or -most <= value <= most


def of_params(params: Config) -> dict[str, Any]:
    """Return the config.json that corresponds to Mistral's params.json."""
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
    """Return a number of a config.json, or None if it is missing or not an integer above 0."""
    value = config.get(key)
    return value if is_whole(value, 1, LARGEST) else None
