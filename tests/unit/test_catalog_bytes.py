"""The figures of catalog entries of the plugin's list: their bytes are those of the architecture beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from gaudi_serve.model.architecture import Architecture
from helpers.catalogs import CATALOG, only_plugin

Config = Mapping[str, Any]
# Two matrices after the attention, as StarCoder has them; the others have three.
STARCODER = ("granite-20b-code-instruct-8k", "granite-34b-code-instruct-8k")
# Of these it is published what all their parameters are, and not each part of what sees and hears.
VAGUE = {
    "llama-4-scout-17b-16e-instruct": 0.015,
    "ernie-4.5-vl-28b-a3b-pt": 0.02,
    "gemma-4-e4b-it": 0.06,
}
# Parameters of what sees where the entry does not describe it: SAM-B and CLIP-L; AIMv2-L with 65,536 words of its own.
SEEING = {"deepseek-ocr": 0.4e9, "ovis2-1b": 0.636e9, "qwen2.5-vl-3b-instruct": 0.669e9}


@pytest.mark.parametrize("name", [*filter(only_plugin, CATALOG)])
def test_bytes_are_those_of_the_architecture(name: str) -> None:
    config = CATALOG[name]["config"]
    matrices = 2 if name in STARCODER else 3
    shared = 1 if name.startswith("llama-4") else shared_experts(config)
    layers, kept = config["num_hidden_layers"], Architecture.of(config).stateful_layers
    blocks = (layers - kept) * attention(config) + kept * state_layer(config) + global_layers(config)
    blocks += sum(after_attention(config, layer, matrices, shared) for layer in range(layers))
    ahead = config.get("mtp_num_hidden_layers", 0)
    blocks += ahead * (attention(config) + after_attention(config, layers, matrices, shared))
    words = config["vocab_size"] * config["hidden_size"] * (1 if config.get("tie_word_embeddings") else 2)
    words += config["vocab_size"] * layers * config.get("hidden_size_per_layer_input", 0)
    stored = config.get("quantization_config", {}).get("quant_method")
    counted = (1 if stored == "fp8" else 2) * blocks + 2 * (words + SEEING.get(name, vision(config)))
    size = CATALOG[name]["weight_bytes"]
    loaded = size + (Architecture.of(config).dequantised_bytes(size) if stored == "mxfp4" else 0)
    assert loaded == pytest.approx(counted, rel=VAGUE.get(name, 0.01))


def shared_experts(config: Config) -> int:
    """Return how many experts every token takes; some configurations report their width alone."""
    said = config.get("n_shared_experts") or config.get("num_shared_expert") or config.get("moe_num_shared_experts")
    width = config.get("shared_intermediate_size") or config.get("shared_expert_intermediate_size")
    each = config.get("moe_intermediate_size") or config["intermediate_size"]
    return int(said or (width // each if width else 0))


def attention(config: Config) -> int:
    """Return the parameters of a layer's attention: of four matrices, or of what DeepSeek's latent one has."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim") or width // heads
    if "q_lora_rank" in config:
        latent, rope, value = config["kv_lora_rank"], config["qk_rope_head_dim"], config["v_head_dim"]
        nope, query = config["qk_nope_head_dim"], config["q_lora_rank"]
        queries = query * (width + heads * (nope + rope))
        return int(queries + width * (latent + rope) + latent * heads * (nope + value) + heads * value * width)
    gate = 1 if config.get("attn_output_gate") else 0
    return int(width * head * ((2 + gate) * heads + 2 * config["num_key_value_heads"]))


def global_layers(config: Config) -> int:
    """Return what every sixth layer of Gemma has more: heads of its own, where keys may be the values too."""
    if "global_head_dim" not in config:
        return 0
    heads, width = config["num_attention_heads"], config["hidden_size"]
    kv_heads = config.get("num_global_key_value_heads", config["num_key_value_heads"])
    both = 1 if config.get("attention_k_eq_v") else 2
    wide = width * config["global_head_dim"] * (2 * heads + both * kv_heads)
    return int(config["num_hidden_layers"] // 6 * (wide - attention(config)))


def state_layer(config: Config) -> int:
    """Return the parameters of a layer of mamba, or of linear attention, before its experts."""
    width = config["hidden_size"]
    if "mamba_n_heads" in config:
        inner = config["mamba_n_heads"] * config["mamba_d_head"]
        states = 2 * config["mamba_n_groups"] * config["mamba_d_state"]
        return int(width * (3 * inner + states + config["mamba_n_heads"]))
    if "linear_num_key_heads" not in config:
        return 0
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    return int(width * (2 * keys + 3 * values + 2 * config["linear_num_value_heads"]))


def after_attention(config: Config, layer: int, matrices: int, shared: int) -> int:
    """Return the parameters of what follows the attention of a layer: its experts, a dense part, or both."""
    width, inner = config["hidden_size"], config.get("intermediate_size", 0)
    known = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    experts = next((config[key] for key in known if key in config), 0)
    dense_first = config.get("first_k_dense_replace") or config.get("moe_layer_start_index") or 0
    if not experts or layer < dense_first:
        return int(matrices * width * (config.get("dense_intermediate_size") or inner))
    beside = matrices * width * inner if "global_head_dim" in config else 0
    each = config.get("moe_intermediate_size") or inner
    if isinstance(experts, list):  # ERNIE's for words and for pictures
        widths = sum(count * size for count, size in zip(experts, each, strict=True)) + shared * each[0]
    else:
        widths = (experts + shared) * each
    return int(beside + matrices * width * widths)


def vision(config: Config) -> int:
    """Return the parameters of what sees: its blocks, and what passes its outputs to the text model."""
    seen = config.get("vision_config")
    if not seen:
        return 0
    width, inner = seen["hidden_size"], seen["intermediate_size"]
    # Gemma's, ERNIE's and Mistral's follow the newer pattern of three matrices.
    matrices = 2 if "depth" in seen or "projection_dim" in seen else 3
    blocks = (seen.get("depth") or seen["num_hidden_layers"]) * width * (4 * width + matrices * inner)
    merged = width * seen.get("spatial_merge_size", 1) ** 2
    outlets = 1 + len(seen.get("deepstack_visual_indexes", []))
    return int(blocks + outlets * merged * (merged + seen.get("out_hidden_size", 0)))
