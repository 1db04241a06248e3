"""How vLLM divides the KV cache into blocks: bytes per token by kind of attention, and groups of layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..model.architecture import Architecture
from ..model.draft import Speculation
from ..model.layers import FULL, OTHER, STATE, WINDOW
from ..model.spec import Spec
from .vllm_figures import (
    ALIGNED_STATES,
    ASYNC_SINCE,
    BLOCK,
    CACHE_BYTES,
    CACHING_SINCE,
    CHECKPOINT_SAYS_SINCE,
    GROUPS_SINCE,
    PADDED_BELOW,
    SPARSE_LATENT_BYTES,
    at_least,
)


@dataclass(frozen=True)
class Group:
    """Layers that share a table of blocks: what they store, and the tokens per block."""

    kind: str
    tokens: int


@dataclass(frozen=True)
class Layout:
    """The blocks of a server's cache.

    tokens: per block of its main attention. bytes: per block of one group on one card. groups: each needs its own
    blocks for a request. window: tokens that windowed layers look back. in_flight: tokens that may be computed but not
    yet settled. states: blocks per request in a group of states.
    """

    tokens: int
    bytes: float
    groups: tuple[Group, ...]
    window: int
    in_flight: int
    states: int

    def needed(self, length: int) -> int:
        """Return the most blocks that a request of ``length`` tokens needs."""
        return sum(self._of(group, length) for group in self.groups)

    def _of(self, group: Group, length: int) -> int:
        if group.kind == STATE:
            return self.states
        if group.kind == WINDOW:
            return -(-min(self.window - 1 + self.in_flight, length) // group.tokens) + 1
        return -(-length // group.tokens)

    def longest(self, blocks: int, most: int) -> int:
        """Return the longest request, up to ``most`` tokens, that fits into the blocks; 0 if none fits."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.needed(middle) <= blocks else (low, middle - 1)
        return low


def layout_of(
    spec: Spec, model: Architecture, guesses: Speculation, release: str, kinds: tuple[str, ...], in_flight: int
) -> Layout | None:
    """Return how the cache of one stage's layers is divided; None if they store nothing, or something unknown.

    Args:
        spec: The model.
        model: Its architecture.
        guesses: Its speculative decoding.
        release: The version of vLLM.
        kinds: Of the layers of the stage that needs most.
        in_flight: Tokens of a batch.
    """
    counts = _counts(spec, (*kinds, *_of_draft(guesses, model, kinds)), release)
    size = cache_bytes(spec, model, release)
    token = {kind: _token_bytes(spec, model, kind, size) for kind in counts if kind != STATE}
    state = _state_bytes(spec, model, guesses) if STATE in counts else 0.0
    if not counts or OTHER in kinds or not all(token.values()) or (STATE in counts and not state):
        return None
    block, main = int(spec.get("block_size") or BLOCK), FULL if FULL in counts else WINDOW
    if state and main in token:
        # Blocks of attention grow until the state of a layer fits into one.
        block = max(block, BLOCK * -(-int(state) // int(BLOCK * token[main])))
    pages = {kind: block * each for kind, each in token.items()} | ({STATE: state} if state else {})
    page, size_of_group = max(pages.values()), _group_size(list(counts.values()))
    groups = [
        Group(kind, _tokens(kind, block, pages[kind], page))
        for kind, count in counts.items()
        for _ in range(-(-count // size_of_group))
    ]
    caching = spec.get("enable_prefix_caching", at_least(release, CACHING_SINCE))
    batches = 2 if at_least(release, ASYNC_SINCE) and spec.get("async_scheduling") is not False else 1
    return Layout(
        tokens=block,
        bytes=page * size_of_group,
        groups=tuple(groups),
        window=model.window or 1,
        in_flight=in_flight * max(batches, spec.stages),
        states=(ALIGNED_STATES if caching else 1) + max(0, guesses.tokens),
    )


def _counts(spec: Spec, kinds: tuple[str, ...], release: str) -> dict[str, int]:
    """Return the number of layers per kind. Windowed layers count as full if vLLM makes no groups of several kinds."""
    if FULL in kinds and (not at_least(release, GROUPS_SINCE) or spec.get("disable_hybrid_kv_cache_manager")):
        kinds = tuple(FULL if kind == WINDOW else kind for kind in kinds)
    return {kind: kinds.count(kind) for kind in (FULL, WINDOW, STATE) if kind in kinds}


def _tokens(kind: str, block: int, own: float, page: float) -> int:
    """Return the tokens per block of a kind of layers: as many as fit into a page if that is a multiple."""
    return block * int(page // own) if kind != STATE and page % own == 0 else block


def _group_size(counts: list[int]) -> int:
    """Return the layers per group: the number of the rarest kind, or of the commonest if these are close."""
    return max(counts) if max(counts) < PADDED_BELOW * min(counts) else min(counts)


def _of_draft(guesses: Speculation, model: Architecture, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Return the layers that predict tokens, if they are the model's own or a head on it."""
    if guesses.by_head:
        return (FULL,) * max(1, model.guessing_layers)
    return (FULL,) if guesses.method.startswith("eagle") and kinds else ()


def cache_bytes(spec: Spec, model: Architecture, release: str) -> float:
    """Return the bytes of a number in the cache. Without its own type it has the model's type."""
    said = str(spec.get("kv_cache_dtype") or "auto")
    if said == "auto" and at_least(release, CHECKPOINT_SAYS_SINCE) and _in_checkpoint(model.quantisation):
        said = "fp8"
    named = next((size for name, size in CACHE_BYTES if said.startswith(name)), None)
    return named or (4.0 if spec.get("dtype") in ("float32", "float") else 2.0)


def _in_checkpoint(stored: Mapping[str, Any]) -> bool:
    """Return whether the weights contain a scale for an eight-bit cache."""
    scheme = stored.get("kv_cache_scheme")
    bits = scheme.get("num_bits") if isinstance(scheme, Mapping) else None
    return bits == 8 or str(stored.get("kv_cache_quant_algo")).upper() == "FP8"


def _token_bytes(spec: Spec, model: Architecture, kind: str, size: float) -> float:
    """Return the bytes of a token in one layer of one card; 0 if unknown."""
    if model.is_latent:
        if model.indexed and size == 1:
            return SPARSE_LATENT_BYTES + model.indexed + 4
        return ((model.kv_lora_rank or 0) + (model.qk_rope_head_dim or 0)) * size + (
            model.indexed + 4 if model.indexed else 0
        )
    heads, width = model.kv_heads or model.heads, model.head_dim
    if width is None and model.hidden_size and model.heads:
        width = model.hidden_size // model.heads
    if kind == FULL and WINDOW in model.layer_kinds:
        heads, width = model.full_heads or heads, model.full_head_dim or width
    if not heads or not width:
        return 0.0
    return max(1, heads // spec.tensors) * (width + (model.v_head_dim or width)) * size


def _state_bytes(spec: Spec, model: Architecture, guesses: Speculation) -> float:
    """Return the bytes of the state that one layer stores per request on one card; 0 if unknown."""
    one, cards = model.mamba, spec.tensors
    if one is None:
        return 0.0
    wide = one.wide or spec.get("mamba_ssm_cache_dtype") == "float32"
    groups = one.groups if one.groups % cards == 0 else cards
    width = one.heads * one.head_dim
    taps = one.taps + max(0, guesses.tokens)
    return (width + 2 * groups * one.states) // cards * taps * 2 + width * one.states // cards * (4 if wide else 2)
