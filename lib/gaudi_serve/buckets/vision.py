"""The number of graphs that the plugin warms up for images, before those of text: one per predicted size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.versions import comparable
from ..model.architecture import Architecture

# Sizes by model type in the config.json. Other types are warmed up by the number of images. A model without a type is
# warmed up like most models.
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
COUNTS = 4  # Images at a time: 1, 2, 4, 8.
# Square, 4:3, 3:4, 16:9 and 9:16, since this version. Before, only squares.
SHAPES, SHAPES_SINCE = 5, "0.14.1"
# These use images unchanged. Since this version, no sizes are predicted for them.
AS_THEY_ARE, AS_THEY_ARE_SINCE = ("qwen3_5", "kimi_k25", "gemma4"), "0.26.0"
LAYERS = 27  # The default number of layers of the vision part.


def vision_layers(spec: Mapping[str, Any], model: Architecture, version: str) -> int:
    """Return the layers of all graphs for images together; 0 if none are warmed up.

    Args:
        spec: The model. If its ``smoke`` has an image, it accepts images, even if its config.json does not show it.
        model: Its architecture.
        version: The version of vLLM.
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
