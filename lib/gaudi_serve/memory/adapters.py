"""The memory that vLLM reserves for LoRA adapters: matrices for ``max_loras`` adapters of ``max_lora_rank``."""

from __future__ import annotations

from ..core.versions import comparable
from ..model.adapters import DEFAULT_RANK, DEFAULT_SLOTS, RANK, SLOTS, TARGETS, number
from ..model.architecture import Architecture
from ..model.layers import OTHER, STATE
from ..model.spec import Spec
from .vllm_figures import GIB

EXPERTS_SINCE = "0.11.1"  # Experts have adapters since this release.
# Model types whose embeddings have adapters, by the first release. vLLM splits these matrices over no cards.
EMBEDDED = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "granite", "phi3", "exaone", "solar"), "0"),
    **dict.fromkeys(("qwen3", "qwen3_moe"), "0.13.0"),
}
# Linear layers that vLLM joins: an adapter of one of them reserves the matrices of all.
QKV, GATED = ("q_proj", "k_proj", "v_proj", "qkv_proj"), ("gate_proj", "up_proj", "gate_up_proj")


def is_counted(spec: Spec, model: Architecture) -> bool:
    """Return whether a server has no adapters, or the shapes of the layers that they change are known."""
    known = model.layers and model.hidden_size and model.heads and (model.intermediate_size or model.expert_size)
    return not spec.get("enable_lora") or (
        bool(known) and not model.is_latent and not {STATE, OTHER} & {*model.layer_kinds}
    )


def adapters_gib(spec: Spec, model: Architecture, release: str, first: int, end: int) -> float:
    """Return the GiB on one card that a server reserves for adapters in its layers from ``first`` to before ``end``.

    0 without adapters, and if the shapes of its layers are unknown. Each change of a layer is the product of two
    matrices, of its inputs by the rank and of the rank by its outputs. vLLM splits only one of them over the cards,
    unless ``fully_sharded_loras`` is set.
    """
    if not spec.get("enable_lora") or not is_counted(spec, model):
        return 0.0
    only = spec.get(TARGETS)

    def changed(*names: str) -> bool:
        return not isinstance(only, list) or bool({*names} & {str(one) for one in only})

    parts = _layer(spec, model, experts=comparable(release) >= comparable(EXPERTS_SINCE))
    width = (end - first) * sum(size for names, size in parts if changed(*names))
    since = EMBEDDED.get(model.kind)
    if since and comparable(release) >= comparable(since):
        table = (model.hidden_size or 0) + (model.vocab_size or 0)
        width += table * (first == 0 and changed("embed_tokens")) + table * (end == model.layers and changed("lm_head"))
    size = 4 if spec.get("dtype") in ("float32", "float") and spec.get("lora_dtype") in (None, "auto") else 2
    return number(spec, SLOTS, DEFAULT_SLOTS) * number(spec, RANK, DEFAULT_RANK) * width * size / GIB


def _layer(spec: Spec, model: Architecture, *, experts: bool) -> list[tuple[tuple[str, ...], float]]:
    """Return the numbers on one card for each rank of an adapter in one layer, by the names of the linear layers."""
    cards, hidden, heads = spec.tensors, model.hidden_size or 0, model.heads or 1
    head = model.head_dim or hidden // heads
    queries, values = heads * head / cards, max(1, (model.kv_heads or heads) // cards) * head
    shared = hidden / (cards if spec.get("fully_sharded_loras") else 1)
    found = [(QKV, 3 * shared + queries + 2 * values), (("o_proj",), queries + shared)]
    count, inner = 1.0, model.intermediate_size or 0
    if model.experts:
        found.append((("gate",), hidden + (model.experts_a_layer or 0)))
        count, inner = (model.experts_a_layer or 0) * experts, model.expert_size or inner
        # Each card then has some experts as a whole.
        split = bool(spec.get("enable_expert_parallel"))
        count, cards = count / cards if split else count, 1 if split else cards
    gated, down = count * 2 * (shared + inner / cards), count * (inner / cards + shared)
    if model.experts:
        return [*found, (("experts",), gated + down)]
    return [*found, (GATED, gated), (("down_proj",), down)]
