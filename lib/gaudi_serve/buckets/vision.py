"""How many graphs the plugin warms up for pictures, before those of text: one for each size that it guesses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.versions import comparable

# Sizes by the kind of model, as its config.json names it; other kinds are warmed up by how many pictures they get, and
# one that nobody names as most are.
SIZES = {
    "ovis": 4,
    "qwen2_5_vl": 7,
    "qwen3_vl": 7,
    "qwen3_5": 7,
    "ernie4_5_moe_vl": 7,
    "pixtral": 14,
    "mistral3": 14,
    "deepseek_ocr": 6,
}
USUAL = 7
COUNTS = 4  # pictures at a time: 1, 2, 4, 8
# Square, 4:3, 3:4, 16:9 and 9:16, since this version; before, squares alone.
SHAPES, SHAPES_SINCE = 5, "0.14.1"
# These take pictures as they are: nothing is guessed for them since this version.
AS_THEY_ARE, AS_THEY_ARE_SINCE = ("qwen3_5", "kimi_k25", "gemma4"), "0.26.0"
LAYERS = 27  # of what looks at pictures, where nobody says how many


def vision_layers(spec: Mapping[str, Any], config: Mapping[str, Any], version: str) -> int:
    """Return the layers of all graphs for pictures together; 0 where nothing is warmed up for any.

    Args:
        spec: the model; where its ``smoke`` has an image, it takes pictures, whether its config.json says so or not.
        config: of the model.
        version: of vLLM.
    """
    vision, limit = _vision(config), spec.get("limit_mm_per_prompt")
    if isinstance(limit, Mapping) and limit.get("image") == 0:
        return 0
    if vision is None:
        if "image" not in (spec.get("smoke") or []):
            return 0
        vision = {}
    depth = next(
        (vision[key] for key in ("depth", "num_hidden_layers", "layers") if _is_count(vision.get(key))), LAYERS
    )
    return _graphs(str(config.get("model_type") or ""), version, spec.get("env") or {}) * int(depth)


def _vision(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the part of a config.json that describes what looks at pictures."""
    parts = (config, config.get("thinker_config"))
    found = [part["vision_config"] for part in parts if isinstance(part, Mapping) and part.get("vision_config")]
    return next((part for part in found if isinstance(part, Mapping)), None)


def _graphs(kind: str, version: str, env: Mapping[str, Any]) -> int:
    guessed, shapes = env.get("VLLM_MULTIMODAL_BUCKETS"), SHAPES if _since(version, SHAPES_SINCE) else 1
    if guessed == "None" or (kind.startswith(AS_THEY_ARE) and _since(version, AS_THEY_ARE_SINCE) and not guessed):
        return 0
    sizes = next((count for name, count in SIZES.items() if name in kind), None) if kind else USUAL
    count = len(str(guessed).split(",")) if guessed else sizes or COUNTS
    return count * shapes if sizes else count


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1000


def _since(version: str, first: str) -> bool:
    return comparable(version) >= comparable(first)
