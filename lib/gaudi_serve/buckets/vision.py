"""How many graphs the plugin warms up for pictures, before those of text: one for each size that it guesses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.versions import comparable
from ..model.architecture import Architecture

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


def vision_layers(spec: Mapping[str, Any], model: Architecture, version: str) -> int:
    """Return the layers of all graphs for pictures together; 0 if nothing is warmed up for any.

    Args:
        spec: the model; where its ``smoke`` has an image, it takes pictures, whether its config.json says so or not.
        model: its architecture.
        version: of vLLM.
    """
    limit = spec.get("limit_mm_per_prompt")
    if isinstance(limit, Mapping) and limit.get("image") == 0:
        return 0
    if not model.sees and "image" not in (spec.get("smoke") or []):
        return 0
    return _graphs(model.kind, version, spec.get("env") or {}) * (model.vision_layers or LAYERS)


def _graphs(kind: str, version: str, env: Mapping[str, Any]) -> int:
    guessed, shapes = env.get("VLLM_MULTIMODAL_BUCKETS"), SHAPES if _since(version, SHAPES_SINCE) else 1
    if guessed == "None" or (kind.startswith(AS_THEY_ARE) and _since(version, AS_THEY_ARE_SINCE) and not guessed):
        return 0
    sizes = next((count for name, count in SIZES.items() if name in kind), None) if kind else USUAL
    count = len(str(guessed).split(",")) if guessed else sizes or COUNTS
    return count * shapes if sizes else count


def _since(version: str, first: str) -> bool:
    return comparable(version) >= comparable(first)
