"""The memory of a planned model on CUDA and ROCm devices and on NUMA nodes, as vLLM itself divides it at start.

vLLM uses a share of each device (``gpu_memory_utilization``). It subtracts the weights, the memory of the largest batch
(a pass measures it), libraries, and CUDA graphs. The rest is KV cache, in blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core.errors import is_number, is_whole
from ..core.tiers import rank
from ..core.versions import comparable
from ..model.adapters import DEFAULT_SLOTS, SLOTS, number
from ..model.architecture import Architecture
from ..model.draft import Speculation
from ..model.host import Card
from ..model.layers import NONE
from ..model.spec import Spec
from ..model.vllm_options import AUTO_LENGTH
from .adapters import adapters_gib
from .kv_cache import Layout, layout_of
from .shape import splits
from .vllm_figures import (
    AT_LOAD,
    BATCH_DEFAULTS,
    CACHE_STEP,
    CHUNKS_ABOVE,
    CHUNKS_LARGER_SINCE,
    CHUNKS_SINCE,
    CONTEXT_GIB,
    CUDA_KEEPS_GIB,
    CUDA_KEEPS_SHARE,
    FULL_GRAPH_SIZES,
    GIB,
    GRAPH_MIB,
    GRAPH_SIZES,
    GRAPHS_COUNT_SINCE,
    GRAPHS_MIB,
    INNER_BYTES,
    KV_SPACE,
    LIBRARIES_GIB,
    LINKED_GIB,
    MOST_EXPERT_TOKENS,
    MOST_UTILIZATION,
    MXFP4_OLD_STEP,
    MXFP4_STEP,
    NEWEST,
    NODE,
    NODE_BATCH,
    NODE_BLOCK,
    NODE_CACHE_GIB,
    NODE_HALF_SINCE,
    NODE_PROCESS_GIB,
    NODE_SHARE_SINCE,
    OF_ITEMS,
    OWN_WORKSPACE,
    PARTITION,
    REQUESTS_BYTES,
    SEEING,
    SHARE,
    SMALL_CHUNK,
    UNIFIED,
    UNIFIED_GFX,
    UNIFIED_HOST_GIB,
    UNIFIED_HOST_SINCE,
    UNIFIED_PROCESS_GIB,
    UTILIZATION,
    UTILIZATION_BEFORE,
    UTILIZATION_SINCE,
    VISION_BYTES,
    VISION_SIZE,
    VISION_WHOLE_BYTES,
    WHOLE_CHECKED_BEFORE,
    WHOLE_CHECKED_SINCE,
    WORKSPACE_SINCE,
    at_least,
)

POWERS = (1, 2, 4, 8, 16)
# The compute capabilities since which cards calculate with eight bits. Latent caches need the second.
ADA, HOPPER = "8.9", "9.0"
# Keys with which a user fixes the size of the cache, whatever else a card stores. The first one applies.
FIXED = ("num_gpu_blocks_override", "kv_cache_memory_bytes")
# Contexts to try for vision models: a video as long as the context may leave no memory, but a shorter one may.
LENGTHS = (65536, 32768, 16384, 8192, 4096, 2048)


@dataclass(frozen=True)
class Planned:
    """The inputs of a memory plan.

    spec: the model. env: of its container. cards: of its placement; the smallest counts. model: its architecture.
    weights, draft: bytes of its weights and of a draft model's. release: of vLLM. cards_left: number of further cards
    that it could have. most_gib: what it may use of each card, if that is a NUMA node; None for a device.
    """

    spec: Spec
    env: Mapping[str, str]
    cards: Sequence[Card]
    model: Architecture
    weights: int
    draft: int
    release: str
    cards_left: int = 0
    most_gib: float | None = None

    @property
    def on_node(self) -> bool:
        """Return whether its cards are NUMA nodes of a host."""
        return self.most_gib is not None

    @property
    def space(self) -> str:
        """Return the GiB of cache that a user sets by a variable, which only processors read; empty if unset."""
        return str((self.spec.get("env") or {}).get(KV_SPACE) or "") if self.on_node else ""

    @property
    def guesses(self) -> Speculation:
        """Return the speculative decoding of the model."""
        return Speculation.of(self.spec)

    def stage(self, stage: int) -> tuple[int, int]:
        """Return the layers of a stage as (first, end)."""
        return stage_layers(self.model.layers or 1, self.spec.stages, str(self.env.get(PARTITION, "")))[stage]

    def cards_of(self, stage: int) -> Sequence[Card]:
        """Return the cards of a stage, in vLLM's order: each stage has the next ones; all if that is not known."""
        one, stages = self.spec.tensors, self.spec.stages
        known = self.spec.nodes == 1 and not self.on_node
        mine = [card for place, card in enumerate(self.cards) if place // one % stages == stage]
        return mine if known and mine else self.cards

    def but(self, **changed: Any) -> Planned:
        """Return the plan for a spec with other values."""
        return replace(self, spec=self.spec.but(**changed))


@dataclass(frozen=True)
class Divided:
    """The division of one card of one stage in GiB, and the layout of its cache or None.

    most: what the model may use of it.
    """

    total: float
    most: float
    requested: float
    weights: float
    reserved: float
    graphs: float
    cache: float
    layout: Layout | None

    @property
    def over(self) -> float:
        """Return the GiB that it needs beyond what it may use of the card, or 0."""
        return max(0.0, self.weights + self.reserved + self.graphs + self.cache - self.most)

    @property
    def blocks(self) -> int:
        """Return the number of blocks of its cache."""
        return max(0, math.floor(self.cache * GIB / self.layout.bytes)) if self.layout else 0


def plan_vllm(planned: Planned) -> dict[str, Any] | None:
    """Return how a model's cards are divided, or None if its architecture, its size or a card's size is unknown.

    Returns:
        GiB of one card, of the stage with the least memory left: ``device_gib``, ``reserved_gib`` (the largest batch
        and libraries), ``weights_gib``, ``graphs_gib``, ``kv_cache_gib``, ``left_gib`` (not used by vLLM);
        ``num_hpu_blocks`` (blocks of the server's own size), ``kv_tokens`` and ``sequences`` of ``max_model_len``,
        which is the model's own context by default; ``longest_model_len``, the longest one up to it that fits;
        ``fits``, ``short_by_gib``, and ``suggestions``: changes with which it fits.
    """
    planned = _as_computed(planned)
    found = _judged(planned)
    if found is None:
        return None
    return {**found, "suggestions": [] if found["fits"] else _suggestions(planned, found)}


def _as_computed(planned: Planned) -> Planned:
    """Return a plan in float32 if vLLM falls back to it: on cards without bfloat16, for a model without float16."""
    said = planned.spec.get("dtype") in (None, "auto") and not planned.model.takes_float16
    old = [card for card in planned.cards if card.capability[:1].isdigit() and not at_least(card.capability, "8.0")]
    return planned.but(dtype="float32") if said and old else planned


def _judged(planned: Planned) -> dict[str, Any] | None:
    spec, divided = planned.spec, _stages(planned)
    if not divided:
        return None
    context = _context(spec, planned.model)
    worst = min(divided, key=lambda one: (one.blocks if one.layout else math.inf, one.cache))
    layout, blocks = worst.layout, _overridden(spec, worst.blocks)
    length = context
    if layout:
        accepted, beyond = _checked_whole(planned, divided, context)
        longest = min(layout.longest(blocks, context), accepted)
        length = max(1, longest) if spec.get("max_model_len") == AUTO_LENGTH else context
        needed = layout.needed(length)
        sequences, tokens = blocks // needed if length <= accepted else 0, blocks * length // needed
        lacking = max(needed * layout.bytes / GIB - max(0.0, worst.cache), beyond)
    else:  # A text that is encoded at once needs no cache.
        longest, sequences, tokens, lacking = context, 1, 0, 0.0
    fixed, over = _over(planned, divided)
    free = _free_gib(planned)
    fits = worst.cache > 0 and bool(sequences) and not over
    short = over or max(0.0, lacking) - min(0.0, worst.cache)
    return {
        **({"over": fixed} if over else {}),
        **({"requested_gib": round(worst.requested, 1), "most_gib": round(worst.most, 1)} if planned.on_node else {}),
        **({"free_gib": round(free[1], 1)} if free else {}),
        "device_gib": round(worst.total, 1),
        "reserved_gib": round(worst.reserved, 1),
        "weights_gib": round(worst.weights, 1),
        "graphs_gib": round(worst.graphs, 1),
        "kv_cache_gib": round(worst.cache, 2),
        "left_gib": round(worst.total - worst.requested, 1),
        "num_hpu_blocks": blocks,
        "kv_tokens": tokens,
        "sequences": sequences,
        "max_model_len": length,
        "longest_model_len": longest,
        "fits": fits,
        "short_by_gib": 0.0 if fits else math.ceil(short * 100) / 100,
    }


def _checked_whole(planned: Planned, divided: Sequence[Divided], context: int) -> tuple[int, float]:
    """Return the longest context of a pipeline that some releases accept, and the GiB that ``context`` lacks there."""
    release, model = planned.release, planned.model
    if not at_least(release, WHOLE_CHECKED_SINCE) or at_least(release, WHOLE_CHECKED_BEFORE):
        return context, 0.0
    batch = batches_of(planned)[0]
    whole = layout_of(planned.spec, model, planned.guesses, release, model.layer_kinds, batch)
    least = max(0.0, min(one.cache for one in divided))
    if whole is None or planned.spec.stages == 1:
        return context, 0.0
    longest = whole.longest(math.floor(least * GIB / whole.bytes), context)
    return longest, whole.needed(context) * whole.bytes / GIB - least


def _over(planned: Planned, divided: Sequence[Divided]) -> tuple[str, float]:
    """Return the key that sets what a server uses of a card, and the GiB by which that is too much."""
    free = _free_gib(planned)
    if free is not None and _share(planned) > free[0]:
        return SHARE, max(one.total for one in divided) * (_share(planned) - free[0])
    fixed = next((key for key in FIXED if planned.spec.get(key)), "")
    fixed = _key_on_node(planned, fixed) if planned.on_node else fixed
    return fixed, max(one.over for one in divided) if fixed else 0.0


def _stages(planned: Planned) -> list[Divided]:
    """Return how a card of each stage is divided; empty if a number of the model or a card is unknown."""
    model, sizes = planned.model, [card.memory_mib for card in planned.cards]
    known = model.layers and model.hidden_size and planned.weights and sizes and min(sizes)
    if not (known and _context(planned.spec, model)):
        return []
    stages = [_stage(planned, stage) for stage in range(planned.spec.stages)]
    divided = [stage for stage in stages if stage is not None]
    return divided if len(divided) == len(stages) else []


def _context(spec: Spec, model: Architecture) -> int:
    """Return the context for which memory is planned: max_model_len, or the model's own if that is automatic."""
    said = spec.get("max_model_len")
    return int(said) if is_whole(said, 1, 10**9) else model.context or 0


def _overridden(spec: Spec, blocks: int) -> int:
    return int(spec["num_gpu_blocks_override"]) if spec.get("num_gpu_blocks_override") else blocks


def _stage(planned: Planned, stage: int) -> Divided | None:
    """Return how a card of one pipeline stage is divided; None if the model's cache is unknown."""
    spec, model, release = planned.spec, planned.model, planned.release
    spec = spec.but(block_size=spec.get("block_size") or NODE_BLOCK) if planned.on_node else spec
    first, end = planned.stage(stage)
    kinds = model.layer_kinds[first:end]
    batch, requests = batches_of(planned)
    total = device_gib(planned.cards_of(stage))
    share = _share(planned)
    weights = _weights(planned, stage) + adapters_gib(spec, model, release, first, end)
    graphs = 0.0 if not _counts_graphs(planned) else _graphs(planned, end - first)
    seeing, kept = _vision(planned, batch) if stage == 0 else (0.0, 0.0)
    reserved = max(seeing, _batch(planned, stage, batch, requests) + kept) + _libraries(planned)
    layout = layout_of(spec, model, planned.guesses, release, kinds, batch)
    if layout is None and any(kind != NONE for kind in kinds):
        return None
    cache = total * share - weights - reserved - graphs
    requested = total * share
    fixed = _fixed_gib(planned, total)
    if layout and spec.get("num_gpu_blocks_override"):
        fixed = int(spec["num_gpu_blocks_override"]) * layout.bytes / GIB
    if fixed is not None:
        cache = fixed
        requested = weights + reserved + graphs + cache
        requested = requested if planned.on_node else min(total, requested)
    most = total if planned.most_gib is None else planned.most_gib
    return Divided(total, most, requested, weights, reserved, graphs, cache, layout)


def _key_on_node(planned: Planned, fixed: str) -> str:
    """Return the key that decides the memory on a NUMA node; ``fixed`` is the key that fixes its cache, or empty."""
    shares = at_least(planned.release, NODE_SHARE_SINCE)
    return "env" if planned.space or not (shares or fixed == FIXED[0]) else fixed or SHARE


def _fixed_gib(planned: Planned, total: float) -> float | None:
    """Return the GiB of a cache whose size does not follow from a share of the card's ``total``; None if it does."""
    said = planned.spec.get("kv_cache_memory_bytes")
    if not planned.on_node:
        return float(said) / GIB if said else None
    if planned.space.isdigit():
        return float(planned.space)
    if at_least(planned.release, NODE_SHARE_SINCE):
        return float(said) / GIB if said else None
    return total / 2 if at_least(planned.release, NODE_HALF_SINCE) else NODE_CACHE_GIB


def device_gib(cards: Sequence[Card]) -> float:
    """Return the GiB that CUDA or HIP report for the smallest card, from the report of its vendor's tool."""
    card = min(cards, key=lambda one: one.memory_mib)
    said = card.memory_mib / 1024
    whole = card.capability.startswith("gfx") or card.capability == NODE or _unified(card)
    return said if whole else said - CUDA_KEEPS_GIB - CUDA_KEEPS_SHARE * said


def _unified(card: Card) -> bool:
    """Return whether a card uses the host's memory."""
    return UNIFIED in (card.name or "") or card.capability.startswith(UNIFIED_GFX)


def _share(planned: Planned) -> float:
    """Return the share of its cards that a server uses."""
    return float(planned.spec.get(SHARE) or utilization(planned.release))


def _free_gib(planned: Planned) -> tuple[float, float] | None:
    """Return the largest share of its cards with which a server starts, and the GiB that are free on that card.

    None if the memory that other programs use is unknown. Without its share vLLM does not start, whatever it needs.
    """
    found = []
    for card in planned.cards:
        if card.others_mib is None or planned.on_node or not card.memory_mib:
            return None
        total = device_gib([card])
        free = max(0.0, total - card.others_mib / 1024 - (UNIFIED_PROCESS_GIB if _unified(card) else CONTEXT_GIB))
        found.append((free / total, free))
    return min(found, default=None)


def utilization(release: str) -> float:
    """Return a release's default share of a card."""
    return UTILIZATION if at_least(release, UTILIZATION_SINCE) else UTILIZATION_BEFORE


def batches_of(planned: Planned) -> tuple[int, int]:
    """Return the most tokens of a batch, and the most requests at once, from the user's keys or vLLM's defaults."""
    spec, release = planned.spec, planned.release
    card = min(planned.cards, key=lambda one: one.memory_mib)
    size = 0.0 if _unified(card) else device_gib(planned.cards)
    tokens, requests = next(
        (row.tokens, row.requests)
        for row in BATCH_DEFAULTS
        if at_least(release, row.since) and size >= row.gib and not (row.but and row.but in (card.name or ""))
    )
    if planned.on_node:
        tokens, requests = (each * spec.tensors * spec.stages for each in NODE_BATCH)
    said_tokens, said_requests = spec.get("max_num_batched_tokens"), spec.get("max_num_seqs")
    context = _context(spec, planned.model)
    requests = int(said_requests or requests)
    if said_tokens:
        return int(said_tokens), min(requests, int(said_tokens))
    if not _splits_prompts(planned, context):
        tokens = max(tokens, context)
    elif comparable(release) < comparable(CHUNKS_LARGER_SINCE):
        tokens = SMALL_CHUNK
    tokens = min(tokens, requests * context)
    return tokens, min(requests, tokens)


def _splits_prompts(planned: Planned, context: int) -> bool:
    """Return whether vLLM splits long prompts over several steps."""
    said, model = planned.spec.get("enable_chunked_prefill"), planned.model
    if said is not None or at_least(planned.release, CHUNKS_SINCE):
        return said is not False
    return context > CHUNKS_ABOVE and not (model.sees or model.kind.startswith(SEEING))


def stage_layers(count: int, stages: int, partition: str = "") -> list[tuple[int, int]]:
    """Return the layers of each stage as (first, end). Remaining layers go to the stages before the last.

    ``partition`` is the value of PARTITION; one that vLLM refuses counts as empty.
    """
    sizes = [count // stages] * stages
    for place in range(2, count % stages + 2):
        sizes[-min(place, stages)] += 1
    said = [int(size) for size in partition.split(",") if size.strip().isdigit()]
    sizes = said if len(said) == stages and sum(said) == count else sizes
    ends = [sum(sizes[: place + 1]) for place in range(stages)]
    return [(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _weights(planned: Planned, stage: int) -> float:
    """Return the GiB of weights on one card of a stage."""
    spec, model = planned.spec, planned.model
    embedding = (model.vocab_size or 0) * (model.hidden_size or 0) * 2.0
    outer = min(planned.weights / 4, embedding)  # Of one end of the model.
    inner = planned.weights - outer * (1 if model.tied else 2)
    inner -= 0.0 if planned.guesses.config else _guessing(model, inner)
    inner *= _at_load(spec, model)
    if not model.quantisation:
        number = _number_bytes(spec) / (4 if model.dtype == "float32" else 2)
        inner, outer = inner * number, outer * number
    if model.precision == "mxfp4" and model.intermediate_size:
        inner += min(inner, model.mxfp4_bytes) * (_padded(planned) - 1)
    first, end = planned.stage(stage)
    ends = 1 if model.tied and spec.stages == 1 else (stage == 0) + (stage == spec.stages - 1)
    size = inner * (end - first) / (model.layers or 1) + outer * ends
    if spec.get("enable_expert_parallel") and spec.copies > 1 and model.experts:
        experts = min(0.95, _experts_share(model)) * size
        size = size - experts + experts / spec.copies
    size = size / spec.tensors + planned.draft / spec.tensors
    offloaded = float(spec.get("cpu_offload_gb") or 0) * GIB
    # The cache of a server on processors follows from this, and must stay as it is.
    angles = 0.0 if planned.on_node else _angles(model)
    return (max(0.0, size - offloaded) + angles) / GIB


def _padded(planned: Planned) -> float:
    """Return the factor by which MXFP4 experts grow: their kernels take only multiples of a width on each card."""
    spec, model = planned.spec, planned.model
    old = all(card.capability.startswith("8.") for card in planned.cards)
    whole = planned.on_node or spec.get("enable_expert_parallel")
    width = (model.intermediate_size or 1) / (1 if whole else spec.tensors)
    steps = [(width, MXFP4_OLD_STEP if old else MXFP4_STEP), (model.hidden_size or 1, MXFP4_STEP if old else 1)]
    return math.prod(math.ceil(size / step) * step / size for size, step in steps)


def _guessing(model: Architecture, inner: float) -> float:
    """Return the bytes of layers that only predict future tokens, of ``inner`` bytes of all layers."""
    if not model.guessing_layers:
        return 0.0
    if not model.guesses_unquantised:
        return inner * model.guessing_layers / ((model.layers or 1) + model.guessing_layers)
    size = model.hidden_size or 0
    width = (model.experts_a_layer or 1) * (model.expert_size or model.intermediate_size or 0)
    return min(inner, model.guessing_layers * 2.0 * (3 * size * width + 4 * size * size))


def _angles(model: Architecture) -> float:
    """Return the bytes of the tables of rotary angles, which every card has for the model's whole context."""
    head = model.qk_rope_head_dim or model.head_dim or (model.hidden_size or 0) // (model.heads or 1)
    return 2.0 * (model.context or 0) * (head + (model.full_head_dim or 0))


def _number_bytes(spec: Spec) -> int:
    """Return the bytes of a number with which a model computes."""
    return 4 if spec.get("dtype") in ("float32", "float") else 2


def _at_load(spec: Spec, model: Architecture) -> float:
    """Return the factor that remains of the layers' weights if a server quantises them at load."""
    said = str(spec.get("quantization") or "")
    if model.quantisation or not said:
        return 1.0
    row = next((one for one in AT_LOAD if said.startswith(one.method)), None)
    if row is None:
        return 1.0
    share = _experts_share(model) if row.experts else 1.0
    return 1 - share + share * row.part


def _experts_share(model: Architecture) -> float:
    """Return the part of the layers' weights that belongs to experts."""
    size, count = model.hidden_size or 0, model.experts_a_layer or 0
    experts = 3 * count * size * (model.expert_size or model.intermediate_size or 0)
    attention = 4 * size * size
    return experts / (experts + attention) if experts else 0.0


def _batch(planned: Planned, stage: int, tokens: int, requests: int) -> float:
    """Return the peak GiB of the largest batch on one card: in the layers, or while tokens are chosen."""
    model, spec, release = planned.model, planned.spec, planned.release
    wide = _number_bytes(spec) / 2
    hidden = tokens * (model.hidden_size or 0) * 2 * wide
    experts, width = 0.0, (model.intermediate_size or 0) / spec.tensors
    if model.experts and model.experts_a_token:
        width = (model.expert_size or model.intermediate_size or 0) / spec.tensors
        rows = min(tokens, MOST_EXPERT_TOKENS) * model.experts_a_token
        size = model.hidden_size or 0
        experts = 0.0 if model.precision in OWN_WORKSPACE else rows * 2 * (max(2 * width, size) + max(width, size))
        width = 0.0
    inner = next(size for since, size in INNER_BYTES if at_least(release, since))
    layers = 2 * hidden + tokens * width * inner * wide
    each = next(size for since, size in REQUESTS_BYTES if at_least(release, since))
    chosen = hidden + requests * (model.vocab_size or 0) * each if stage == spec.stages - 1 else 0
    stays = at_least(release, WORKSPACE_SINCE)
    return (max(layers, chosen) + experts if stays else max(layers + experts, chosen)) / GIB


def _vision(planned: Planned, batch: int) -> tuple[float, float]:
    """Return the peak GiB of encoding the largest image or video, and the GiB of its result."""
    spec, model = planned.spec, planned.model
    limits = spec.get("limit_mm_per_prompt")
    allowed = [kind for kind in ("image", "video") if _limit(limits, kind)]
    unseen = spec.get("language_model_only") or spec.get("skip_mm_profiling")
    items: Mapping[str, int] = next((row for name, row in OF_ITEMS if model.kind.startswith(name)), {})
    # A catalog entry may have the type of a vision model without its vision config.
    sees = model.sees or model.kind.startswith(SEEING)
    if not sees or unseen or not allowed:
        return 0.0, 0.0
    largest = max(items.get(kind, 0) for kind in allowed)
    tokens = max(batch, min(largest, _context(spec, model)))
    parts = 1 if planned.on_node or spec.get("mm_encoder_tp_mode") == "data" else spec.tensors
    each = VISION_WHOLE_BYTES + VISION_BYTES / parts
    return tokens * (model.vision_size or VISION_SIZE) * each / GIB, tokens * (model.hidden_size or 0) * 2 / GIB


def _limit(limits: Any, kind: str) -> int:
    said = limits.get(kind) if isinstance(limits, Mapping) else None
    said = said.get("count") if isinstance(said, Mapping) else said
    return int(said) if is_number(said, 0, 10**6) else 1


def _libraries(planned: Planned) -> float:
    """Return the GiB of libraries other than PyTorch: workspaces, and communication between cards."""
    spec, card = planned.spec, min(planned.cards, key=lambda one: one.memory_mib)
    if planned.on_node:
        return NODE_PROCESS_GIB
    alone, linked = (
        next(gib for since, gib in row if at_least(planned.release, since)) for row in (LIBRARIES_GIB, LINKED_GIB)
    )
    many = spec.tensors > 1
    fast = card.capability.startswith(("9.", "10.", "gfx9"))
    host = UNIFIED in (card.name or "") and at_least(planned.release, UNIFIED_HOST_SINCE)
    return alone + (linked if many and fast else linked / 4 if many else 0.0) + (UNIFIED_HOST_GIB if host else 0.0)


def _counts_graphs(planned: Planned) -> bool:
    """Return whether vLLM subtracts the graphs from the memory for the cache."""
    off = str(planned.env.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "1")).lower() in ("0", "false")
    counted = at_least(planned.release, GRAPHS_COUNT_SINCE) and not planned.on_node
    return counted and not off and not planned.spec.get("enforce_eager")


def _graphs(planned: Planned, layers: int) -> float:
    """Return the GiB that vLLM expects for its CUDA graphs on one card."""
    batch, requests = batches_of(planned)
    most = min(requests * 2, batch, GRAPH_SIZES[-1])
    sizes = sum(size <= most for size in GRAPH_SIZES)
    whole = sum(size <= min(requests, FULL_GRAPH_SIZES) for size in GRAPH_SIZES)
    each = next(size for since, size in GRAPH_MIB if at_least(planned.release, since))
    # With adapters, vLLM captures each graph twice: with one, and without.
    twice = 2 if planned.spec.get("enable_lora") else 1
    return float(GRAPHS_MIB + (sizes + whole) * layers * each * twice) / 1024


def _suggestions(planned: Planned, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the smallest changes with which a model fits, each verified; two together if none fits alone.

    Changes of everyday keys come first.
    """
    if "free_gib" in found and found.get("over") == SHARE:
        return _that_start(planned)
    changes = _smaller_on_node(planned, found) if planned.on_node else _on_cards(planned, found)
    changes = [*changes, *_fewer_adapters(planned)]
    tried = [change for change in changes if _fits(planned.but(**change))]
    nearest: list[dict[str, Any]] = []
    for change in tried:
        if not any(set(change) == set(other) for other in nearest):
            nearest.append(change)
    length = _rounded(found["longest_model_len"]) if found["kv_cache_gib"] > 0 else 0
    if planned.model.sees and found["kv_cache_gib"] <= 0:
        shorter = [one for one in LENGTHS if one < found["max_model_len"]]
        length = next((one for one in shorter if _fits(planned.but(max_model_len=one))), 0)
    if length and _fits(planned.but(max_model_len=length)):
        nearest.append({"max_model_len": length})
    if nearest:
        return sorted(nearest, key=lambda change: max(map(rank, change)))
    for change in changes:
        other = planned.but(**change)
        judged = _judged(other)
        length = _rounded(judged["longest_model_len"]) if judged and judged["kv_cache_gib"] > 0 else 0
        if length and _fits(other.but(max_model_len=length)):
            return [{**change, "max_model_len": length}]
    return []


def _that_start(planned: Planned) -> list[dict[str, Any]]:
    """Return the largest share with which a server starts beside other programs, and what the model then needs."""
    share = math.floor((_free_gib(planned) or (0.0, 0.0))[0] * 100) / 100
    less = planned.but(**{SHARE: share})
    judged = _judged(less) if share > 0 else None
    if judged is None:
        return []
    return [{SHARE: share, **change} for change in ([{}] if judged["fits"] else _suggestions(less, judged))]


def _less_fixed(planned: Planned, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a smaller cache as a change, if the user fixes one that is too large for a card."""
    key = found.get("over")
    if not key:
        return []
    less = 1 - found["short_by_gib"] / found["kv_cache_gib"] if found["kv_cache_gib"] else 0.0
    size, step = int(planned.spec[key]) * less, 2**28 if key == FIXED[1] else 1
    return [{key: int(size) // step * step}] if size >= step else []


def _on_cards(planned: Planned, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [*_less_fixed(planned, found), *_more_cards(planned), *_eight_bits(planned), *_larger_share(planned)]


def _smaller_on_node(planned: Planned, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the largest share and the largest cache with which a model fits on its NUMA nodes, as changes."""
    most = planned.most_gib or 0.0
    share = math.floor(most / found["device_gib"] * 100) / 100
    cache, key = cache_on_node(planned, most), _key_on_node(planned, "")
    if key == "env":
        return [{"env": {KV_SPACE: cache // GIB}}] if cache >= GIB else []
    fixes = [{"kv_cache_memory_bytes": cache}] if cache else []
    share = min(share, MOST_UTILIZATION)
    return [*fixes, *([{SHARE: share}] if share > 0 and not planned.spec.get("kv_cache_memory_bytes") else [])]


def cache_on_node(planned: Planned, most_gib: float) -> int:
    """Return the bytes that weights and process leave for the cache, of ``most_gib`` of a NUMA node; 0 if none."""
    left = min((most_gib - one.weights - one.reserved for one in _stages(planned)), default=0.0)
    return max(0, math.floor(left * GIB / CACHE_STEP) * CACHE_STEP)


def _fits(planned: Planned) -> bool:
    found = _judged(planned)
    return bool(found and found["fits"])


def _rounded(length: int) -> int:
    """Return a length rounded down to usual steps, or the length itself if it is below one step."""
    step = 1024 if length >= 8192 else 16
    return length // step * step or length


def _more_cards(planned: Planned) -> list[dict[str, Any]]:
    spec = planned.spec
    most = (spec.cards + planned.cards_left) // (spec.stages * spec.copies)
    possible = [number for number in POWERS if spec.tensors < number <= most]
    return [
        {"tensor_parallel_size": number} for number in possible if splits(planned.model, spec, number, even_heads=False)
    ]


def _fewer_adapters(planned: Planned) -> list[dict[str, Any]]:
    """Return smaller numbers of adapters at once as changes. Further adapters wait in the memory of the host."""
    most = number(planned.spec, SLOTS, DEFAULT_SLOTS) if planned.spec.get("enable_lora") else 0
    return [{SLOTS: slots} for slots in range(most - 1, 0, -1)]


def _eight_bits(planned: Planned) -> list[dict[str, Any]]:
    """Return an eight-bit cache as a change, if the cards support it."""
    said = str(planned.spec.get("kv_cache_dtype") or "auto")
    able = all(_able(card.capability, planned.model.is_latent) for card in planned.cards)
    return [{"kv_cache_dtype": "fp8"}] if able and said in ("auto", "bfloat16", "float16") else []


def _able(capability: str, latent: bool) -> bool:
    if capability.startswith("gfx"):
        return capability >= "gfx942" or capability.startswith("gfx12")
    return bool(capability) and (at_least(capability, HOPPER) or (at_least(capability, ADA) and not latent))


def _larger_share(planned: Planned) -> list[dict[str, Any]]:
    now = _share(planned)
    steps = [step / 100 for step in range(math.floor(now * 100) + 1, round(MOST_UTILIZATION * 100) + 1)]
    fixed = planned.spec.get("kv_cache_memory_bytes")
    return [] if fixed else [{"gpu_memory_utilization": step} for step in steps]


def release_of(version: str | None) -> str:
    """Return the release of vLLM for the plan: the newest if an image's name has none."""
    return version or NEWEST
