"""A model's architecture, read once from the config.json of its weights, or from a catalog entry that says the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import is_number, shown
from .config_json import Config, text_config, whole
from .layers import STATE, Mamba, layer_kinds, state_of, window_of

# Rope scalings that stretch max_position_embeddings itself; the others give the stretched length there.
STRETCHING = ("linear", "dynamic", "yarn")
MOST_FACTOR = 10_000  # of a rope scaling; infinity is a number too
# Numbers of a config.json that planning counts with.
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
# Kinds of models that have layers with a window and layers without one, whether their config.json lists them or not.
INTERLEAVED = ("gemma2", "gemma3", "gemma4", "gpt_oss", "cohere2")
# Kinds of models that vLLM serves in bfloat16 or float32 alone: in float16 their numbers overflow.
NO_FLOAT16 = ("gemma2", "gemma3", "gemma3_text", "plamo2", "glm4")
GRANITE_HYBRID = "granitemoehybrid"


@dataclass(frozen=True)
class Architecture:
    """What a config.json says of a model; a number that it lacks is None.

    known: there is a config.json. kind: its model_type; inner_kind: that of its text model; classes: its
    architectures. problems: its figures that cannot be, one sentence each.

    layers, hidden_size, intermediate_size, heads, kv_heads, head_dim, v_head_dim: of the text model. kv_lora_rank,
    qk_rope_head_dim: of the one latent vector a token that DeepSeek's models keep in place of keys and values a head.
    experts: it is a mixture of experts; expert_size: their intermediate size; local_experts: how many a layer has.
    experts_a_layer: how many a layer has, by whatever name; experts_a_token: by how many of them a token goes.
    vocab_size: of the text model; tied: its first layer is its last one too.
    stateful_layers: how many layers keep a state of one size in place of a KV cache, as those of Mamba and of linear
    attention do. mamba: of these; mamba_chunk: tokens of a chunk of them, 0 where it is not said. interleaved: some
    layers look at a sliding window, others at all tokens. layer_kinds: what each layer keeps, by the names of
    layers.py; window: tokens of a window. full_heads, full_head_dim: of the layers that look at all tokens, where
    others have other ones. guessing_layers: how many layers of its weights only guess tokens ahead.

    context: the longest context in tokens, rope scaling included. dtype: in which type the weights are stored.
    quantisation: its quantization_config, empty where the weights are not quantised.
    indexed: numbers a token by which sparse attention finds what to look at. sees: it takes pictures; vision_layers:
    how many layers that part has; vision_size: how wide they are.
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
        """Tell whether vLLM serves it in float16."""
        return not {self.kind, self.inner_kind} & {*NO_FLOAT16}

    @property
    def is_granite_hybrid(self) -> bool:
        """Return whether it is one of Granite 4's hybrids, whose blocks of KV cache are as large as their state."""
        return GRANITE_HYBRID in (self.kind, self.inner_kind)

    @property
    def precision(self) -> str | None:
        """Return in what the weights are quantised, such as fp8, awq or int4; None where they are not."""
        weights = self._grouped
        if weights is not None:
            return f"{'fp' if weights.get('type') == 'float' else 'int'}{weights.get('num_bits')}"
        method = self.quantisation.get("quant_method") or self.quantisation.get("quant_algo")
        method = method.lower() if isinstance(method, str) else ""
        return "fp8" if "fp8" in method else method or None

    @property
    def _grouped(self) -> Mapping[str, Any] | None:
        """Return what compressed-tensors and ModelOpt write of the first group of weights; None where they do not."""
        groups = self.quantisation.get("config_groups")
        group = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
        weights = group.get("weights") if isinstance(group, Mapping) else None
        return weights if isinstance(weights, Mapping) else None

    @property
    def group_size(self) -> int | None:
        """Return how many weights share a scale (AWQ, GPTQ), or the edge of a block that does (FP8); None without."""
        weights = self._grouped
        if weights is not None and weights.get("strategy") == "group" and weights.get("type") == "int":
            # What is left as it is may be of a width that is not a multiple.
            left = str(self.quantisation.get("ignore"))
            whole_model = not any(part in left for part in ("attn", "down_proj", "o_proj", "experts"))
            group = weights.get("group_size") if whole_model else None
            return group if isinstance(group, int) and group > 1 else None
        block = self.quantisation.get("weight_block_size")
        group = block[0] if isinstance(block, list) and block else self.quantisation.get("group_size")
        return group if isinstance(group, int) and group > 1 else None

    def granite_block(self, cards: int, *, caching: bool) -> int | None:
        """Return the tokens of a block of Granite 4's hybrids, as the plugin chooses it; None for other models.

        Args:
            cards: over which the model is split.
            caching: prefix caching, with which blocks are whole chunks of 256 tokens, otherwise multiples of 16.
        """
        if not self.is_granite_hybrid:
            return None
        if not (self.mamba and self.kv_heads and self.heads and self.hidden_size):
            return 768 if caching else 528  # those of granite-4.0-h-small
        one, groups = self.mamba, max(self.mamba.groups, cards)
        inner = one.heads * one.head_dim
        state = inner * one.states // cards + one.taps * (inner + 2 * groups * one.states) // cards
        token = 2 * max(1, self.kv_heads // cards) * (self.head_dim or self.hidden_size // self.heads)
        step = 256 if caching else 16
        return step * -(-state // (step * token))

    def dequantised_bytes(self, size: int) -> int:
        """Return how many bytes more the experts of MXFP4 weights are as BF16: 16 bits a parameter for 4 1/4.

        A block of 32 parameters of four bits has one scale of eight; gpt-oss stores nothing but its experts so. Where
        they cannot be counted, all of the ``size`` bytes are taken for such blocks, which is more than they are.
        """
        stored = self.mxfp4_bytes
        return (stored if 0 < stored <= size else size) * 47 // 17

    @property
    def mxfp4_bytes(self) -> int:
        """Return the bytes of all experts as MXFP4: 4 1/4 bits a parameter; 0 where they cannot be counted."""
        count = (self.layers or 0) * (self.local_experts or 0)
        return 3 * count * (self.hidden_size or 0) * (self.intermediate_size or 0) * 17 // 32


def _experts(text: Config) -> dict[str, Any]:
    """Return what an architecture has of experts."""
    return {
        # ERNIE lists how many it has for words and for pictures.
        "experts": any(whole(text, key) for key in EXPERTS) or isinstance(text.get("moe_num_experts"), list),
        "expert_size": whole(text, "moe_intermediate_size"),
        "local_experts": whole(text, "num_local_experts"),
        "experts_a_layer": next((number for key in EXPERTS if (number := whole(text, key))), None),
        "experts_a_token": whole(text, "num_experts_per_tok") or whole(text, "moe_topk"),
    }


def _layers(config: Config, text: Config) -> dict[str, Any]:
    """Return what an architecture has of what its layers keep."""
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
        "indexed": whole(text, "index_head_dim") or 0,
    }


def _name(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _problems(text: Config) -> list[str]:
    found = []
    for key in FIGURES:
        value = text.get(key)
        # Some architectures list a value a layer; those are not known, rather than wrong.
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
    """Return the part of a config.json that describes what looks at pictures."""
    parts = (config, config.get("thinker_config"))
    found = [part["vision_config"] for part in parts if isinstance(part, Mapping) and part.get("vision_config")]
    return next((part for part in found if isinstance(part, Mapping)), None)


def _depth(vision: Config) -> int | None:
    depths = (whole(vision, key) for key in ("depth", "num_hidden_layers", "layers"))
    return next((depth for depth in depths if depth and depth < 1000), None)
