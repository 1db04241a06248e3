"""Launches that a model's architecture forbids, and its numbers by the names of the vendor's memory model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import Problem
from ..core.words import counted
from ..engines import ENGINES
from ..model.architecture import Architecture
from ..model.distributed import HOSTS
from ..model.spec import size_key
from .vllm_figures import PARTITION

MOST_CARDS = 16
VOCABULARY_STEP = 64  # vLLM pads the vocabulary to a multiple of this.


def memory_names(model: Architecture) -> dict[str, Any] | None:
    """Return an architecture by the names of hpu_memory, or None if a number is missing."""
    found = {
        "NUM_HIDDEN_LAYERS": model.layers,
        "HIDDEN_SIZE": model.hidden_size,
        "NUM_ATTENTION_HEADS": model.heads,
        "NUM_KEY_VALUE_HEADS": model.kv_heads or model.heads,
    }
    if None in found.values():
        return None
    latent = {"KV_LORA_RANK": model.kv_lora_rank, "QK_ROPE_HEAD_DIM": model.qk_rope_head_dim}
    return {**found, "HEAD_DIM": model.head_dim, **latent}


def shape_problems(spec: Mapping[str, Any], model: Architecture, *, even_heads: bool) -> list[Problem]:
    """Return the problems of a requested model with its architecture: (key, value, what is allowed).

    Without this check they appear only when vLLM starts: heads that tensor_parallel_size does not divide, KV heads that
    cannot be shared or copied evenly (on Gaudi the manual's engines copy none), quantised weights that do not split
    evenly, and a context that is longer than the model's.
    """
    cards = int(spec.get("tensor_parallel_size") or 1)
    heads, kv_heads = model.heads, model.kv_heads
    problems: list[Problem] = []
    key, value = size_key(spec)
    number_of = "their number " if key == "module_ids" else ""
    good = [number for number in range(1, MOST_CARDS + 1) if splits(model, spec, number, even_heads=even_heads)]
    if heads and heads % cards:
        allowed = f"{number_of}does not divide the {heads} attention heads; possible: {good}"
        problems.append((key, value, allowed))
    elif kv_heads and not _shared(kv_heads, cards, copies=_copies(spec, even_heads)):
        above = f"{number_of}is above the model's {kv_heads} key-value heads"
        uneven = f"cards do not share the model's {kv_heads} key-value heads evenly; possible: {good}"
        copies = _copies(spec, even_heads) or cards < kv_heads
        problems.append((key, value, uneven if copies else above))
    elif not _vocabulary_splits(model, cards):
        rows = f"{_padded(model)} rows to which vLLM pads a vocabulary of {model.vocab_size}"
        problems.append((key, value, f"{number_of}does not divide the {rows}; possible: {good}"))
    elif part := uneven_part(model, spec, cards):
        allowed = f"{number_of}does not split the quantised weights evenly: {part}; possible: {good}"
        problems.append((key, value, allowed))
    problems += _partition_problems(spec, model.layers)
    longest = model.context
    if longest and (spec.get("max_model_len") or 0) > longest:
        allowed = f"is above {longest}, the model's longest context (max_position_embeddings)"
        problems.append(("max_model_len", spec["max_model_len"], allowed))
    return problems


def _partition_problems(spec: Mapping[str, Any], layers: int | None) -> list[Problem]:
    """Return the problem with layers by stage that vLLM refuses at its start."""
    said, stages = (spec.get("env") or {}).get(PARTITION), int(spec.get("pipeline_parallel_size") or 1)
    sizes = [int(size) for size in str(said).split(",") if size.strip().isdigit()]
    if said is None or layers is None or (len(sizes) == stages and sum(sizes) == layers):
        return []
    return [
        (f"env: {PARTITION}", said, f"must be {counted(stages, 'number')} with the sum {layers}, a stage's layers each")
    ]


def splits(model: Architecture, spec: Mapping[str, Any], cards: int, *, even_heads: bool = True) -> bool:
    """Return whether a number of cards can share a model's heads and its quantised weights."""
    kv_heads = model.kv_heads
    shared = not kv_heads or _shared(kv_heads, cards, copies=_copies(spec, even_heads))
    even = not (model.heads and model.heads % cards) and _vocabulary_splits(model, cards)
    return shared and even and not uneven_part(model, spec, cards)


def _padded(model: Architecture) -> int:
    """Return the rows of vLLM's embedding: the vocabulary, padded to a multiple of 64."""
    return -(-(model.vocab_size or 0) // VOCABULARY_STEP) * VOCABULARY_STEP


def _vocabulary_splits(model: Architecture, cards: int) -> bool:
    """Return whether a number of cards can share the embedding evenly."""
    return _padded(model) % cards == 0


def _copies(spec: Mapping[str, Any], even_heads: bool) -> bool:
    """Return whether more cards than KV heads get copies of the heads, as in vLLM itself.

    The manual's rule that every card has heads of its own is for one host. Over hosts, the vendor's example has copies.
    """
    return not even_heads or ENGINES[spec["launch_profile"]].copies_heads or bool(spec.get(HOSTS))


def _shared(kv_heads: int, cards: int, *, copies: bool) -> bool:
    """Return whether a number of cards can share KV heads evenly: by several heads each, or by copies of one head."""
    return kv_heads % cards == 0 if cards <= kv_heads else copies and cards % kv_heads == 0


def uneven_part(model: Architecture, spec: Mapping[str, Any], cards: int) -> str | None:
    """Return the first weight of a quantised model that a number of cards cannot split into complete groups.

    The vendor's servers split down_proj and o_proj along their input, the others along their output. Every part must
    have complete quantisation groups (AWQ, GPTQ) or blocks (FP8). Experts are not split with expert parallelism,
    which some engines always use.
    """
    group = model.group_size
    if cards == 1 or group is None:
        return None
    expert_parallel = ENGINES[spec["launch_profile"]].expert_parallel or spec.get("enable_expert_parallel")
    widths = {"moe_intermediate_size": None if expert_parallel else model.expert_size}
    # If all of a model's layers have experts, their width is the only one, under the other name.
    if not (expert_parallel and model.local_experts and not model.expert_size):
        widths["intermediate_size"] = model.intermediate_size
    head = model.v_head_dim or model.head_dim
    if head and model.heads:
        widths["num_attention_heads * head_dim"] = head * model.heads
    for name, width in widths.items():
        if width and width % (cards * group):
            return f"{name} {width} over {counted(cards, 'card')} gives no complete groups of {group}"
    return None
