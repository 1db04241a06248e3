"""A model's architecture, read from the config.json of its weights or from a catalog entry with the same keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import is_number, shown
from .config_json import Config, text_config, whole
from .layers import STATE, Mamba, layer_kinds, state_of, window_of

# Rope scalings that stretch max_position_embeddings. With the others, that value is already the stretched length.
STRETCHING = ("linear", "dynamic", "yarn")
MOST_FACTOR = 10_000  # The largest factor of a rope scaling. Without it, infinity would pass.
# The numbers of a config.json with which planning calculates.
FIGURES = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "v_head_dim", "kv_lora_rank", "qk_rope_head_dim", "moe_intermediate_size"),
    *("max_position_embeddings", "vocab_size", "sliding_window", "attention_chunk_size", "num_experts_per_tok"),
    *("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_kv_shared_layers", "full_attention_interval"),
    *("global_head_dim", "num_global_key_value_heads", "index_head_dim"),
)
EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
MAY_BE_ZERO = (
    *("moe_intermediate_size", "kv_lora_rank", "qk_rope_head_dim", "v_head_dim", "head_dim", "sliding_window"),
    *("attention_chunk_size", "num_experts_per_tok", "num_nextn_predict_layers", "mtp_num_hidden_layers"),
    *("num_kv_shared_layers", "full_attention_interval", "global_head_dim", "num_global_key_value_heads"),
    "index_head_dim",
)
# Model types with sliding-window layers and full layers, also if their config.json does not list them.
INTERLEAVED = ("gemma2", "gemma3", "gemma4", "gpt_oss", "cohere2")
# Model types that vLLM serves only in bfloat16 or float32. Their numbers overflow in float16.
NO_FLOAT16 = ("gemma2", "gemma3", "gemma3_text", "plamo2", "glm4")
# Model types that store a latent vector per token. For others with its rank, vLLM stores keys and values per head.
LATENT = ("deepseek", "kimi", "glm", "longcat", "pangu", "bailing", "axk1", "mistral", "dots", "hy_v4")
GRANITE_HYBRID = "granitemoehybrid"
# Parts of the keys of a config.json that count its layers for speculative decoding, and model types that have such
# layers without a key (vLLM 0.33, config/speculative.py).
OWN_HEAD, WITH_HEAD = ("nextn", "mtp"), ("mimo_v2", "longcat_flash", "step3p", "minimax_m3", "dots3_note")


@dataclass(frozen=True)
class Architecture:
    """What a config.json states about a model. A number that it does not have is None.

    known: there is a config.json. kind: its model_type; inner_kind: that of its text model; classes: its
    architectures. problems: impossible values, one sentence each.
    layers, hidden_size, intermediate_size, heads, kv_heads, head_dim, v_head_dim: of the text model. kv_lora_rank,
    qk_rope_head_dim: of the latent vector per token that DeepSeek's models store instead of keys and values per head.
    experts: it is a mixture of experts; expert_size: their intermediate size; local_experts: num_local_experts.
    experts_a_layer: experts per layer, from any of their keys; experts_a_token: experts per token.
    vocab_size: of the text model; tied: its input and output embeddings are the same.
    stateful_layers: number of layers that store a state of fixed size instead of a KV cache (Mamba, linear
    attention). mamba: their shape; mamba_chunk: tokens of their chunks, 0 if unknown. interleaved: some layers see
    a sliding window, others see all tokens. layer_kinds: what each layer stores, by the names in layers.py; window:
    tokens of a window. full_heads, full_head_dim: of the layers that see all tokens, if they differ from the others.
    guessing_layers: number of layers of its weights that only predict future tokens; guesses: it has such layers.
    context: the longest context in tokens, rope scaling included. dtype: the type in which the weights are stored.
    quantisation: its quantization_config, empty if the weights are not quantised.
    indexed: numbers per token of the index of sparse attention. sees: it accepts images; vision_layers: number of
    layers of the vision part; vision_size: their width.
    """

    known: bool = False
    kind: str = ""
    inner_kind: str = ""
    classes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    layers: int | None = None
    hidden_size: int | None = None
    intermediate_size: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    v_head_dim: int | None = None
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    experts: bool = False
    expert_size: int | None = None
    local_experts: int | None = None
    stateful_layers: int = 0
    mamba: Mamba | None = None
    mamba_chunk: int = 0
    interleaved: bool = False
    experts_a_layer: int | None = None
    experts_a_token: int | None = None
    vocab_size: int | None = None
    tied: bool = False
    layer_kinds: tuple[str, ...] = ()
    window: int | None = None
    full_heads: int | None = None
    full_head_dim: int | None = None
    guessing_layers: int = 0
    guesses: bool = False
    context: int | None = None
    dtype: str | None = None
    quantisation: Mapping[str, Any] = field(default_factory=dict)
    indexed: int = 0
    sees: bool = False
    vision_layers: int | None = None
    vision_size: int | None = None

    @classmethod
    def of(cls, config: Config) -> Architecture:
        """Return the architecture of a config.json."""
        text = text_config(config)
        classes, vision = config.get("architectures"), _vision(config)
        stored = text.get("quantization_config") or config.get("quantization_config")
        dtype = next((part[key] for key in ("torch_dtype", "dtype") for part in (text, config) if part.get(key)), None)
        return cls(
            known=bool(config),
            kind=_name(config.get("model_type")),
            inner_kind=_name(text.get("model_type")),
            classes=tuple(one for one in classes if isinstance(one, str)) if isinstance(classes, list) else (),
            problems=tuple(_problems(text)),
            layers=whole(text, "num_hidden_layers"),
            hidden_size=whole(text, "hidden_size"),
            intermediate_size=whole(text, "intermediate_size"),
            heads=whole(text, "num_attention_heads"),
            kv_heads=whole(text, "num_key_value_heads"),
            head_dim=whole(text, "head_dim"),
            v_head_dim=whole(text, "v_head_dim"),
            kv_lora_rank=whole(text, "kv_lora_rank"),
            qk_rope_head_dim=whole(text, "qk_rope_head_dim"),
            vocab_size=whole(text, "vocab_size") or whole(config, "vocab_size"),
            tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
            **_experts(text),
            **_layers(config, text),
            context=_context(text),
            dtype=dtype if isinstance(dtype, str) else None,
            quantisation=stored if isinstance(stored, Mapping) else {},
            sees=vision is not None,
            vision_layers=_depth(vision or {}),
            vision_size=whole(vision or {}, "hidden_size") or whole(vision or {}, "embed_dim"),
        )

    @property
    def takes_float16(self) -> bool:
        """Return whether vLLM serves the model in float16."""
        return not {self.kind, self.inner_kind} & {*NO_FLOAT16}

    @property
    def guesses_unquantised(self) -> bool:
        """Return whether the weights of the layers that only predict future tokens are not quantised, as others are."""
        keys = ("ignore", "exclude_modules", "ignored_layers", "modules_to_not_convert")
        return any("mtp" in str(self.quantisation.get(key)) for key in keys)

    @property
    def is_granite_hybrid(self) -> bool:
        """Return whether it is a hybrid of Granite 4, whose blocks of KV cache are as large as their state."""
        return GRANITE_HYBRID in (self.kind, self.inner_kind)

    @property
    def is_latent(self) -> bool:
        """Return whether the model stores one latent vector per token, complete on every card.

        A catalog entry may have the vector's width without a model type.
        """
        kind = self.inner_kind or self.kind
        return bool(self.kv_lora_rank) and (not kind or kind.startswith(LATENT))

    @property
    def precision(self) -> str | None:
        """Return the quantisation of the weights, such as fp8, awq or int4; None if they are not quantised."""
        weights = self._grouped
        if weights is not None:
            return f"{'fp' if weights.get('type') == 'float' else 'int'}{weights.get('num_bits')}"
        method = self.quantisation.get("quant_method") or self.quantisation.get("quant_algo")
        method = method.lower() if isinstance(method, str) else ""
        return "fp8" if "fp8" in method else method or None

    @property
    def _grouped(self) -> Mapping[str, Any] | None:
        """Return the first group of weights as compressed-tensors and ModelOpt describe it, or None."""
        groups = self.quantisation.get("config_groups")
        group = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
        weights = group.get("weights") if isinstance(group, Mapping) else None
        return weights if isinstance(weights, Mapping) else None

    @property
    def group_size(self) -> int | None:
        """Return the weights per scale (AWQ, GPTQ) or the edge of a scaled block (FP8), or None."""
        weights = self._grouped
        if weights is not None and weights.get("strategy") == "group" and weights.get("type") == "int":
            # The width of weights that are not quantised need not be a multiple of the group.
            left = str(self.quantisation.get("ignore"))
            whole_model = not any(part in left for part in ("attn", "down_proj", "o_proj", "experts"))
            group = weights.get("group_size") if whole_model else None
            return group if isinstance(group, int) and group > 1 else None
        block = self.quantisation.get("weight_block_size")
        group = block[0] if isinstance(block, list) and block else self.quantisation.get("group_size")
        return group if isinstance(group, int) and group > 1 else None

    def granite_block(self, cards: int, *, caching: bool) -> int | None:
        """Return the tokens of a KV cache block that the plugin chooses for a hybrid of Granite 4, or None.

        Args:
            cards: Over how many cards the model is split.
            caching: Prefix caching is on. Blocks are then multiples of 256 tokens, otherwise of 16.
        """
        if not self.is_granite_hybrid:
            return None
        if not (self.mamba and self.kv_heads and self.heads and self.hidden_size):
            return 768 if caching else 528  # The values of granite-4.0-h-small.
        one, groups = self.mamba, max(self.mamba.groups, cards)
        inner = one.heads * one.head_dim
        state = inner * one.states // cards + one.taps * (inner + 2 * groups * one.states) // cards
        token = 2 * max(1, self.kv_heads // cards) * (self.head_dim or self.hidden_size // self.heads)
        step = 256 if caching else 16
        return step * -(-state // (step * token))

    def dequantised_bytes(self, size: int) -> int:
        """Return the additional bytes of MXFP4 experts in BF16: 16 bits per parameter instead of 4 1/4.

        A block of 32 parameters of four bits has one scale of eight bits. gpt-oss stores only its experts so. If the
        experts cannot be counted, all ``size`` bytes count as such blocks, which is an upper limit.
        """
        stored = self.mxfp4_bytes
        return (stored if 0 < stored <= size else size) * 47 // 17

    @property
    def mxfp4_bytes(self) -> int:
        """Return the bytes of all experts as MXFP4, 4 1/4 bits per parameter; 0 if they cannot be counted."""
        count = (self.layers or 0) * (self.local_experts or 0)
        return 3 * count * (self.hidden_size or 0) * (self.intermediate_size or 0) * 17 // 32


def _experts(text: Config) -> dict[str, Any]:
    """Return the fields of an architecture about experts."""
    return {
        # ERNIE lists its numbers of experts for words and for images.
        "experts": any(whole(text, key) for key in EXPERTS) or isinstance(text.get("moe_num_experts"), list),
        "expert_size": whole(text, "moe_intermediate_size"),
        "local_experts": whole(text, "num_local_experts"),
        "experts_a_layer": next((number for key in EXPERTS if (number := whole(text, key))), None),
        "experts_a_token": whole(text, "num_experts_per_tok") or whole(text, "moe_topk"),
    }


def _layers(config: Config, text: Config) -> dict[str, Any]:
    """Return the fields of an architecture about what its layers store."""
    kinds = layer_kinds(config, text)
    return {
        "stateful_layers": kinds.count(STATE),
        "mamba": state_of(text),
        "mamba_chunk": whole(text, "mamba_chunk_size") or whole(text, "chunk_size") or 0,
        "interleaved": _interleaved(config, text),
        "layer_kinds": kinds,
        "window": window_of(text),
        "full_heads": whole(text, "num_global_key_value_heads"),
        "full_head_dim": whole(text, "global_head_dim"),
        "guessing_layers": whole(text, "num_nextn_predict_layers") or whole(text, "mtp_num_hidden_layers") or 0,
        "guesses": _name(config.get("model_type")).startswith(WITH_HEAD)
        or any(value for part in (config, text) for key, value in part.items() if any(one in key for one in OWN_HEAD)),
        "indexed": whole(text, "index_head_dim") or 0,
    }


def _name(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _problems(text: Config) -> list[str]:
    found = []
    for key in FIGURES:
        value = text.get(key)
        # Some architectures list a value per layer. Those values are unknown, not wrong.
        if value is None or isinstance(value, (list, Mapping)) or (key in MAY_BE_ZERO and value == 0):
            continue
        if whole(text, key) is None:
            found.append(f"{key} {shown(value)} must be an integer above 0")
    rope = text.get("rope_scaling")
    if rope is not None and not isinstance(rope, Mapping):
        found.append(f"rope_scaling {shown(rope)} must be a mapping")
    factor = rope.get("factor") if isinstance(rope, Mapping) else None
    if factor is not None and not (is_number(factor, 0, MOST_FACTOR) and factor):
        found.append(f"rope_scaling.factor {shown(factor)} must be a number above 0")
    return found


def _interleaved(config: Config, text: Config) -> bool:
    kinds = text.get("layer_types")
    if isinstance(kinds, list):
        return len({str(kind) for kind in kinds}) > 1 and "sliding_attention" in kinds
    known = str(config.get("model_type")).startswith(INTERLEAVED) or whole(text, "sliding_window_pattern")
    return bool(known and whole(text, "sliding_window"))


def _context(text: Config) -> int | None:
    longest = whole(text, "max_position_embeddings")
    rope = text.get("rope_scaling")
    if longest is None or not isinstance(rope, Mapping):
        return longest
    kind = rope.get("rope_type", rope.get("type"))
    if kind in STRETCHING and is_number(rope.get("factor"), 0, MOST_FACTOR):
        base = (whole(rope, "original_max_position_embeddings") or longest) if kind == "yarn" else longest
        return max(longest, int(base * rope["factor"]))
    return longest


def _vision(config: Config) -> Config | None:
    """Return the part of a config.json that describes the vision model."""
    parts = (config, config.get("thinker_config"))
    found = [part["vision_config"] for part in parts if isinstance(part, Mapping) and part.get("vision_config")]
    return next((part for part in found if isinstance(part, Mapping)), None)


def _depth(vision: Config) -> int | None:
    depths = (whole(vision, key) for key in ("depth", "num_hidden_layers", "layers"))
    return next((depth for depth in depths if depth and depth < 1000), None)
