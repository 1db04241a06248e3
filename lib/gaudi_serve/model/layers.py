"""What each layer of a model stores for its tokens: all tokens, a window of them, or a state of fixed size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..core.errors import is_whole
from .config_json import Config, whole

# A layer stores keys and values of all tokens, of a window, a state instead, nothing, or something unknown.
FULL, WINDOW, STATE, NONE, OTHER = "full", "window", "state", "none", "other"
STATEFUL = ("linear", "mamba", "recurrent", "conv", "kda", "gated_delta")
WINDOWED = ("sliding", "chunked", "local")
# For model types whose config.json lists no layers: each n-th layer sees all tokens, the others see a window.
EACH_FULL = {"gemma2": 2, "gemma3": 6, "gpt_oss": 2, "cohere2": 4, "llama4": 4}
# Letters of hybrid_override_pattern of Nemotron-H, one per layer. Other letters have no attention.
NEMOTRON = {"M": STATE, "*": FULL}
# Models of these types encode a text at once and store nothing.
ENCODERS = ("bert", "roberta", "xlm-roberta", "modernbert", "nomic_bert", "distilbert", "electra", "deberta", "mpnet")
MOST_LAYERS = 1024


@dataclass(frozen=True)
class Mamba:
    """The state of a layer of Mamba or of linear attention, in Mamba's terms.

    heads, head_dim, states: the size of the state is their product. groups: of the additional inputs of the
    convolution. taps: tokens that the convolution looks back. wide: the state is float32.
    """

    heads: int
    head_dim: int
    states: int
    groups: int
    taps: int
    wide: bool = False


def layer_kinds(config: Config, text: Config) -> tuple[str, ...]:
    """Return what each layer of the text model stores; empty if the number of layers is unknown."""
    count = min(whole(text, "num_hidden_layers") or 0, MOST_LAYERS)
    if str(config.get("model_type")).startswith(ENCODERS):
        return (NONE,) * count
    if text.get("compress_ratios"):  # DeepSeek V4 joins tokens, at another ratio in each layer.
        return (OTHER,) * count
    found = _listed(text, count) or _hybrid(text, count) or _windowed(config, text, count)
    # The last layers of some models use the cache of earlier layers.
    shared = min(whole(text, "num_kv_shared_layers") or 0, count)
    return (*found[: count - shared], *(NONE,) * shared)


def _listed(text: Config, count: int) -> tuple[str, ...]:
    kinds = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(kinds, list) and kinds:
        return tuple(_kind(str(kind)) for kind in kinds[:count])
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        return tuple(NEMOTRON.get(letter, NONE) for letter in pattern[:count])
    return ()


def _kind(name: str) -> str:
    if name.startswith(STATEFUL):
        return STATE
    if name.startswith(WINDOWED):
        return WINDOW
    return NONE if name in ("mlp", "moe") else FULL


def _hybrid(text: Config, count: int) -> tuple[str, ...]:
    """Return the layer kinds of a model whose config.json gives its attention layers as a number or a list."""
    if interval := whole(text, "full_attention_interval"):
        return tuple(FULL if (place + 1) % interval == 0 else STATE for place in range(count))
    if period := whole(text, "attn_layer_period"):  # Jamba
        offset = text.get("attn_layer_offset")
        first = offset if is_whole(offset, 0, MOST_LAYERS) else 0
        return tuple(FULL if place % period == first % period else STATE for place in range(count))
    linear, listed = text.get("linear_attn_config"), text.get("attn_type_list")
    if isinstance(linear, Mapping) and isinstance(linear.get("kda_layers"), list):  # Kimi Linear counts from 1.
        return tuple(STATE if place + 1 in linear["kda_layers"] else FULL for place in range(count))
    if isinstance(listed, list) and listed:  # MiniMax
        return tuple(FULL if kind == 1 else STATE for kind in listed[:count])
    return ()


def _windowed(config: Config, text: Config, count: int) -> tuple[str, ...]:
    if not window_of(text):
        return (FULL,) * count
    kind = str(text.get("model_type") or config.get("model_type"))
    each = whole(text, "sliding_window_pattern")
    each = each or next((number for name, number in EACH_FULL.items() if kind.startswith(name)), None)
    return tuple(FULL if each and (place + 1) % each == 0 else WINDOW for place in range(count))


def window_of(text: Config) -> int | None:
    """Return the tokens of the window or chunk that some layers see, or None."""
    if text.get("use_sliding_window") is False:
        return None
    return whole(text, "sliding_window") or whole(text, "attention_chunk_size")


def state_of(text: Config) -> Mamba | None:
    """Return the state that each stateful layer stores; None if the config.json describes none."""
    wide = "float32" in (text.get("mamba_ssm_dtype"), text.get("mamba_ssm_cache_dtype"))
    linear = [whole(text, f"linear_{name}") for name in ("num_value_heads", "value_head_dim", "key_head_dim")]
    if all(linear):
        values, width, keys = (int(number or 0) for number in linear)
        groups = whole(text, "linear_num_key_heads") or values
        return Mamba(values, width, keys, groups, (whole(text, "linear_conv_kernel_dim") or 4) - 1, wide)
    kimi = text.get("linear_attn_config")
    if isinstance(kimi, Mapping) and (count := whole(kimi, "num_heads")) and (size := whole(kimi, "head_dim")):
        return Mamba(count, size, size, count, (whole(kimi, "short_conv_kernel_size") or 4) - 1, wide=True)
    return _mamba(text, wide) or _first_mamba(text) or _lfm(text)


def _mamba(text: Config, wide: bool) -> Mamba | None:
    """Return the state of Mamba 2, from the keys of Granite 4, Falcon-H1 or Nemotron-H."""
    for names in (
        ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv"),
        ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel"),
    ):
        heads, width, states, groups, taps = (whole(text, name) for name in names)
        if heads and width and states:
            # Nemotron-H uses float32 unless its config.json sets another type.
            unsaid = "n_groups" in names and text.get("mamba_ssm_cache_dtype") is None
            return Mamba(heads, width, states, groups or 1, (taps or 4) - 1, wide or unsaid)
    return None


def _first_mamba(text: Config) -> Mamba | None:
    """Return the state of the first Mamba, from Jamba's keys: no groups, and one head as wide as all."""
    states, size = whole(text, "mamba_d_state"), whole(text, "hidden_size")
    if not (states and size):
        return None
    return Mamba(size * (whole(text, "mamba_expand") or 2), 1, states, 0, (whole(text, "mamba_d_conv") or 4) - 1)


def _lfm(text: Config) -> Mamba | None:
    """Return the state of a convolution only, from LFM2's keys."""
    taps, size = whole(text, "conv_L_cache"), whole(text, "hidden_size")
    return Mamba(size, 1, 0, 0, taps - 1) if taps and size else None
