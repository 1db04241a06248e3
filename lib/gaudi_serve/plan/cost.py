"""The estimated cost of a model: memory, graphs, warm-up and start, and the problems with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ..buckets.base import BucketCounts, Rounding
from ..buckets.plugin_plan import PluginBucketing
from ..buckets.plugin_rules import NEWEST
from ..buckets.vision import vision_layers
from ..buckets.warmup import KEEPS_EXPERTS_SINCE, likely_layers
from ..core.errors import Problem, shown
from ..core.versions import comparable
from ..core.words import counted
from ..engines import engine_of
from ..memory.adapters import adapters_gib, is_counted
from ..memory.autocalc import DEVICE_GIB, GIB, MOST_CARDS
from ..memory.fit import PROFILE_GIB, plan_memory, quantised_at_load
from ..memory.nodes import binding_problems, default_cache, nodes_of, plan_nodes, steady
from ..memory.shape import memory_names
from ..memory.vllm import Planned, plan_vllm, release_of, utilization
from ..memory.vllm_figures import KV_SPACE, SHARE
from ..model.architecture import Architecture
from ..model.draft import draft_model
from ..model.host import Card, Host, LiveModel
from ..model.shared import key_of
from ..model.spec import Spec
from ..model.vllm_options import AUTO_LENGTH, BLOCK
from ..model.weights import WeightsFacts
from ..platforms import Platform, platform_of
from ..platforms.base import OF_NODES, OF_VLLM
from ..platforms.releases import Release, vllm_of
from .model import Container, Cost, Placement
from .sharing import named

WIDER = 1.1  # Weights count as wider in memory than in their files from this factor on. Less can be rounding.
# Bytes per second when weights are read from one NVMe disk. A network share is slower.
LOAD_BYTES_S = 1.5e9
# The most memory per card of a graph of a model with states: 300 graphs took 20 to 30 GiB (vllm-gaudi#1736).
STATEFUL_GRAPH_GIB = 0.1
OF_FORK = "0.9.0"  # The vLLM of the vendor's fork.
HANG_TIMEOUT_S = 600  # Under full load, /health may not answer for minutes.


@dataclass(frozen=True)
class Weighed:
    """One of the models of a server, with the facts about its weights.

    preserved_by: the variable that keeps weights as they are stored; None if not all images of the host's release
    read it. dequantises: the engine converts the stored precision to BF16. halved: INC converts them to FP8 at load.
    """

    spec: Spec
    weights: WeightsFacts
    preserved_by: str | None
    dequantises: bool
    halved: bool


@dataclass(frozen=True)
class Costed:
    """The cost of a model, its precision, and the warnings and problems.

    precision: None if unknown.
    """

    cost: Cost
    precision: str | None
    warnings: list[str]
    problems: list[Problem]


def _weighed(spec: Spec, weights: WeightsFacts, row: Release | None) -> Weighed:
    wide = engine_of(spec).dequantised_at_load.get(weights.architecture.precision or "")
    preserved_by = wide.preserved_by if wide and row and row.has(wide.preserved_since, all_of_it=True) else None
    kept = preserved_by is not None and str((spec.get("env") or {}).get(preserved_by)) == "1"
    halved = quantised_at_load(spec, weights.architecture)
    return Weighed(spec, weights, preserved_by, wide is not None and not kept, halved)


def cost_of(
    spec: Spec,
    weights: Sequence[WeightsFacts],
    row: Release | None,
    host: Host,
    placement: Placement,
    container: Container,
    left: Sequence[Card],
) -> Costed:
    """Return the estimated cost of a model.

    Args:
        spec: The model, with the version of vLLM that serves it.
        weights: Those of each model that its server serves.
        row: The software of its host.
        host: Its host.
        placement: Its cards there.
        container: The launch of its server.
        left: The free cards of the host.
    """
    weighed = [_weighed(one, found, row) for one, found in zip(spec.served, weights, strict=True)]
    cost = _cost(spec, weighed, host, placement, container, _besides(placement, host, left))
    unbound: list[Problem] = []
    if platform_of(host.accelerator).memory == OF_NODES and host.cpu:
        if not serves(spec, host, placement, container):
            unbound = binding_problems(_to_plan(spec, weights[0], {}), host.cpu.nodes)
        elif cost.memory:
            cost = replace(cost, memory={**cost.memory, "fits": True, "short_by_gib": 0.0})
    warnings = _cost_warnings(spec, weighed, host, placement, cost)
    return Costed(cost, _precision(weighed[0]), warnings, unbound or _cost_problems(spec, cost))


def serves(spec: Spec, host: Host, placement: Placement, container: Container) -> bool:
    """Return whether a model serves now with exactly this launch."""
    live = host.services.get(spec.name, LiveModel())
    return live.active and container.of_digest(spec, placement) == live.digest


def cache_of(spec: Spec, weights: WeightsFacts, host: Host) -> int | None:
    """Return the bytes of KV cache that a model gets on processors if its user sets no size; None for vLLM's own."""
    if platform_of(host.accelerator).memory != OF_NODES or host.cpu is None:
        return None
    size = default_cache(_to_plan(spec, weights, {}), nodes_of(spec, host.cpu.nodes))
    command = host.services.get(spec.name, LiveModel()).command
    present = dict(pairwise(command)).get("--kv-cache-memory-bytes")
    return size and steady(size, present)


def _to_plan(spec: Spec, weights: WeightsFacts, env: Mapping[str, str]) -> Planned:
    """Return the inputs of a memory plan by vLLM's own rules, for the release in the name of the model's image."""
    release = release_of(spec.get("vllm_version") or vllm_of(str(spec.get("image"))))
    return Planned(spec, env, (), weights.architecture, weights.size, weights.draft, release)


def _besides(placement: Placement, host: Host, left: Sequence[Card]) -> int:
    """Return the number of free cards of the same kind that a model could have in addition."""
    mine = [card for card in host.cards if card.module_id in placement.module_ids]
    if any(card.alone for card in mine):
        return 0
    return sum(not card.alone and card.name in {one.name for one in mine} for card in left)


def _cost(
    spec: Spec, weighed: Sequence[Weighed], host: Host, placement: Placement, container: Container, cards_left: int
) -> Cost:
    model, cards = weighed[0].weights.architecture, len(placement.module_ids)
    sizes = [one.weights.size + one.weights.draft for one in weighed]
    platform = platform_of(host.accelerator)
    held = [_held(one, _adapters_gib(one, platform)) for one in weighed]
    measured = cards or platform.memory == OF_NODES
    whole = [in_full for in_full, _ in held]
    memory = _memory(weighed, host, placement, container, whole, cards_left) if measured else None
    if memory and (adapters := _adapters_gib(weighed[0], platform)):
        memory["adapters_gib"] = round(adapters, 1)
    blocks = _server_blocks(model, memory)
    counts = _graphs(spec, placement, container, blocks, buckets=platform.warmup_s is None)
    seconds, cached = platform.warmup_s if cards else None, platform.warmup_cached_s
    if seconds is None:
        seconds, cached = _warmup(spec, weighed[0].weights, cards, counts)
    share = sum(in_full * halves for in_full, halves in held) / GIB / max(1, cards)
    generation = platform.generation(host) if cards else None
    likely = spec["warmup_budget_minutes"] * 15 if seconds is None else seconds
    return Cost(
        weights_gib=memory["weights_gib"] if memory and platform.memory in (OF_NODES, OF_VLLM) else round(share, 1),
        read_gib=round(sum(sizes) / GIB, 1),
        device_gib=DEVICE_GIB[generation] if generation else _card_gib(host, placement, memory),
        memory=memory,
        buckets=counts or BucketCounts(),
        graphs=None if counts is None else counts.prompt + counts.decode,
        warmup_s=seconds,
        warmup_cached_s=cached,
        start_timeout_s=spec.get("start_timeout_s") or start_timeout(likely, sum(sizes)),
        hang_timeout_s=spec.get("hang_timeout_s", HANG_TIMEOUT_S),
        hang_least_s=None if "hang_timeout_s" in spec else platform.hang_least_s,
    )


def _card_gib(host: Host, placement: Placement, memory: Mapping[str, Any] | None) -> float | None:
    """Return the memory of the model's smallest device or NUMA node in GiB; None if its platform does not use that."""
    if memory and "nodes" in memory:
        return float(memory["device_gib"])
    sizes = [card.memory_mib for card in host.cards if card.module_id in placement.module_ids]
    counts = platform_of(host.accelerator).memory == OF_VLLM and sizes and min(sizes)
    return round(min(sizes) / 1024, 1) if counts else None


def _held(one: Weighed, adapters_gib: float) -> tuple[int, float]:
    """Return the bytes of a model's weights before INC, 0 if unknown, and the factor that INC applies."""
    model, size = one.weights.architecture, one.weights.size
    # INC halves the weights of the model, but not those of its draft model.
    halves = 0.5 if one.halved else 1
    more = model.dequantised_bytes(size) if one.dequantises else 0
    adapters = adapters_gib * GIB * one.spec.tensors * one.spec.stages
    return size and size + more + int((one.weights.draft + adapters) / halves), halves


def _adapters_gib(one: Weighed, platform: Platform) -> float:
    """Return the GiB of each card that are reserved for a model's adapters."""
    spec, model = one.spec, one.weights.architecture
    version = spec.get("vllm_version") or vllm_of(str(spec.get("image")))
    release = release_of(version) if platform.memory in (OF_NODES, OF_VLLM) else version or OF_FORK
    return adapters_gib(spec, model, str(release), 0, model.layers or 0) / spec.stages


def _of_vllm(
    one: Weighed, host: Host, placement: Placement, container: Container, cards_left: int
) -> dict[str, Any] | None:
    """Return how vLLM's own rules divide a model's cards, or the NUMA nodes of its workers."""
    planned = _to_plan(one.spec, one.weights, container.env)
    if platform_of(host.accelerator).memory == OF_NODES:
        workers = nodes_of(one.spec, host.cpu.nodes) if host.cpu else ()
        return plan_nodes(planned, workers, now=not any(live.runs for live in host.services.values()))
    cards = tuple(card for card in host.cards if card.module_id in placement.module_ids)
    if serves(one.spec, host, placement, container):  # It has its memory, and other programs came later.
        cards = tuple(replace(card, others_mib=None) for card in cards)
    return plan_vllm(replace(planned, cards=cards, cards_left=cards_left))


def _memory(
    weighed: Sequence[Weighed],
    host: Host,
    placement: Placement,
    container: Container,
    held: Sequence[int],
    cards_left: int,
) -> dict[str, Any] | None:
    """Return how the cards are divided. A model that shares a card gets a share of what the earlier ones leave."""
    if platform_of(host.accelerator).memory in (OF_NODES, OF_VLLM):
        return _of_vllm(weighed[0], host, placement, container, cards_left)
    rounding = container.buckets.rounding if container.buckets else Rounding()
    left = cards_left if len(held) == 1 else 0
    found: list[dict[str, Any]] = []
    for each, size in zip(weighed, held, strict=True):
        one, model = each.spec, each.weights.architecture
        sized = Spec({"max_model_len": model.context, **one})
        taken = sum(part["weights_gib"] + part["graphs_gib"] + part["kv_cache_gib"] + PROFILE_GIB for part in found)
        memory = plan_memory(sized, container.env, container.args, host, model, size, left, rounding, taken)
        memory = _overridden(one, _in_blocks(memory, container))
        if memory is None:
            return None
        found.append(memory)
        if not memory["fits"]:
            return {**memory, "place": len(found) - 1, "taken_gib": round(taken, 1)} if len(held) > 1 else memory
    return found[0] if len(found) == 1 else _together(found)


def _together(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the memory of models on a shared card as one. Its sequences are the smallest number of any model."""
    sums = ("weights_gib", "graphs_gib", "kv_cache_gib")
    counts = {key: sum(one[key] for one in found) for key in ("num_hpu_blocks", "kv_tokens")}
    together = {key: round(sum(one[key] for one in found), 1) for key in sums}
    return {**found[-1], **together, **counts, "sequences": min(one["sequences"] for one in found)}


def _precision(one: Weighed) -> str | None:
    """Return the precision of a served model: from the engine, from INC, from the weights, or from ``dtype``."""
    spec, model = one.spec, one.weights.architecture
    by_load = "fp8" if one.halved else None
    stored = None if one.dequantises else model.precision
    return engine_of(spec).precision or by_load or stored or spec.get("dtype")


def _server_blocks(model: Architecture, memory: Mapping[str, Any] | None) -> int | None:
    """Return the blocks with which a server makes its buckets. Those of a hybrid are for fewer layers."""
    if not memory:
        return None
    count = model.layers or 1
    return int(memory["num_hpu_blocks"]) * count // max(1, count - model.stateful_layers)


def _warmup(
    spec: Spec, weights: WeightsFacts, cards: int, counts: BucketCounts | None
) -> tuple[int | None, int | None]:
    """Return the seconds of a warm-up, and those with a filled recipe cache or None."""
    if counts is None:
        return None, None
    model, engine, graphs = weights.architecture, engine_of(spec), counts.prompt + counts.decode
    depth = model.layers or likely_layers(weights.size / 2 or 8e9)
    version = str(spec.get("vllm_version") or NEWEST.since)
    seconds, cached = engine.warmup(
        *(graphs, depth, max(1, cards), engine.served_in(spec)),
        experts=model.experts,
        keeps_experts=comparable(version) >= comparable(KEEPS_EXPERTS_SINCE),
        vision_layers=vision_layers(spec, model, version),
    )
    return seconds, cached if spec.get("recipe_cache_path") or not graphs else None


def _in_blocks(memory: dict[str, Any] | None, container: Container) -> dict[str, Any] | None:
    """Return the memory in the server's own block size, which can be larger than usual."""
    size = container.buckets.given.block_size if isinstance(container.buckets, PluginBucketing) else BLOCK
    if not memory or size == BLOCK:
        return memory
    blocks = memory["kv_tokens"] // size
    return {**memory, "num_hpu_blocks": blocks, "kv_tokens": blocks * size}


def _block(memory: Mapping[str, Any]) -> int:
    """Return the tokens of a block."""
    return memory["kv_tokens"] // memory["num_hpu_blocks"] if memory["num_hpu_blocks"] else BLOCK


def _overridden(spec: Spec, memory: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the memory with at most the number of KV cache blocks that the user allows."""
    most = spec.get("num_gpu_blocks_override")
    if not memory or not most or most >= memory["num_hpu_blocks"]:
        return memory
    tokens = most * _block(memory)
    sequences = tokens // int(spec["max_model_len"]) if spec.get("max_model_len") else memory["sequences"]
    return {**memory, "num_hpu_blocks": most, "kv_tokens": tokens, "sequences": sequences}


def _graphs(
    spec: Spec, placement: Placement, container: Container, held: int | None, *, buckets: bool
) -> BucketCounts | None:
    """Return the graphs that a start warms up; None if the server chooses its ``buckets`` itself."""
    skipped = str(container.env.get("VLLM_SKIP_WARMUP", "")).lower() in ("true", "1")
    if skipped or (container.buckets is None and (not placement.module_ids or not buckets)):
        return BucketCounts()
    if container.buckets is None:
        return None
    return container.buckets.counts(container.tokens, held if engine_of(spec).capped else None)


def start_timeout(warmup_s: int, size: int) -> int:
    """Return the time limit of a start in seconds: four warm-ups, ``size`` bytes at 0.2 GB/s, and ten minutes."""
    return 600 + 4 * warmup_s + size // 200_000_000


def _cost_warnings(spec: Spec, weighed: Sequence[Weighed], host: Host, placement: Placement, cost: Cost) -> list[str]:
    """Return warnings about a model's cost, and about costs that are unknown."""
    found = [*(_cache_warnings(spec, cost.memory) if len(spec.served) == 1 else []), *cost.buckets.notes]
    seconds = round(cost.read_gib * GIB / LOAD_BYTES_S) + (cost.warmup_s or 0)
    if cost.start_timeout_s < seconds:
        found.append(
            f"start_timeout_s {cost.start_timeout_s} is below the estimated start of {seconds} s, which reads "
            f"{cost.read_gib:.0f} GiB of weights and warms up: systemd ends the server before it answers"
        )
    on_nodes = platform_of(host.accelerator).memory == OF_NODES
    found += _unknown_nodes(spec, weighed[0].weights, host, cost) if on_nodes else []
    for one in weighed if placement.module_ids else ():
        found += named(spec, one.spec, [*_loaded(one), *_unknown(one, host, cost)])
    return found


def _unknown_nodes(spec: Spec, weights: WeightsFacts, host: Host, cost: Cost) -> list[str]:
    """Return why the memory of a model on processors is not checked; empty if it is."""
    if cost.memory:
        return []
    needed = {"config": weights.architecture.layers, "weight_bytes": weights.size}
    lacks = [name for name, known in needed.items() if not known]
    if not (host.cpu and host.cpu.nodes):
        return ["memory is not checked: the facts do not have the memory of this host's NUMA nodes"]
    if not nodes_of(spec, host.cpu.nodes):
        return ["memory is not checked: env sets the processors or NUMA nodes of its workers"]
    if lacks:
        what = " and ".join(lacks)
        return [f"memory is not checked, because {what} is unknown; set {what}, or download its weights"]
    return ["memory is not checked: what its layers store, or its context, is unknown"]


def _cache_warnings(spec: Spec, memory: Mapping[str, Any] | None) -> list[str]:
    count, context = spec.get("max_num_seqs"), spec.get("max_model_len")
    context = memory["max_model_len"] if memory and context == AUTO_LENGTH else context
    if not memory or not count or not context:
        return []
    ranges = spec.get("input_range", [0, context])[1] + spec.get("output_range", [0, 0])[1]
    longest = min(int(context), ranges)
    blocks = -(-longest // _block(memory))
    fitting = memory["num_hpu_blocks"] // blocks
    if fitting >= count:
        return []
    return [
        f"the KV cache ({memory['num_hpu_blocks']} blocks) has room for {counted(fitting, 'request')} of {longest} "
        f"tokens, of max_num_seqs {count}: under full load the others wait or start over"
    ]


def _loaded(one: Weighed) -> list[str]:
    """Return a warning if the server converts weights at load, with the variable that prevents it."""
    size = one.weights.size
    if not size or not one.dequantises:
        return []
    loaded = (size + one.weights.architecture.dequantised_bytes(size)) / 1e9
    told = f"its weights of {size / 1e9:.0f} GB become {loaded:.0f} GB of BF16 while they are loaded"
    return [f"{told}; env: {{{one.preserved_by}: '1'}} keeps them" if one.preserved_by else told]


def _partly_there(one: Weighed, host: Host) -> list[str]:
    """Return a warning if the folder lacks a part of the weights. A model that serves has all of them."""
    live, here, size = host.services.get(one.spec.name), one.weights.here, one.weights.size
    if not here or here >= 0.95 * size or (live and live.active):
        return []
    return [f"the folder has {here / 1e9:.0f} of {size / 1e9:.0f} GB; the estimate includes the rest"]


def _unknown(one: Weighed, host: Host, cost: Cost) -> list[str]:
    """Return warnings about checks that were not possible for a model on cards, and what would allow them."""
    spec, model, size = one.spec, one.weights.architecture, one.weights.size
    platform = platform_of(host.accelerator)
    lacks = [name for name, known in (("config", memory_names(model)), ("weight_bytes", size)) if not known]
    warnings = _partly_there(one, host)
    draft = draft_model(spec)
    if draft and not one.weights.draft:
        warnings.append(
            f"the estimate leaves out the weights of draft model {draft}: this host has no facts about its folder"
        )
    if (hybrid := model.stateful_layers) and platform.memory != OF_VLLM:
        warnings.append(
            f"{hybrid} of its {model.layers} layers store a state instead of a KV cache; memory is estimated as if all "
            "had a cache, so more requests fit than shown"
        )
        warnings += _graph_room(cost)
    if not is_counted(spec, model):
        warnings.append("the estimate leaves out its adapters (enable_lora): the shapes of its layers are unknown")
    if platform.no_memory:
        warnings.append(platform.no_memory)
    elif lacks:
        what = " and ".join(lacks)
        warnings.append(f"memory is not checked, because {what} is unknown; set {what}, or download its weights")
    elif spec.cards > MOST_CARDS or (not cost.memory and spec.tensors > MOST_CARDS):
        warnings.append(f"memory is not checked: its rules are known only for up to {MOST_CARDS} cards")
    elif cost.device_gib is None:
        warnings.append(f"memory is not checked: the memory of {host.device_name} is unknown")
    elif not cost.memory:
        why = "what its layers store is unknown" if platform.memory == OF_VLLM else "set max_model_len"
        warnings.append(f"memory is not checked: {why}")
    return warnings + _unknown_graphs(one, cost)


def _unknown_graphs(one: Weighed, cost: Cost) -> list[str]:
    """Return the warning about graphs, or a warm-up, that are not known."""
    spec, size = one.spec, one.weights.size
    if cost.graphs is None:
        minutes = spec["warmup_budget_minutes"]
        return [
            f"graphs and warm-up are unknown, because profile {spec.launch_profile} lets the server choose its "
            f"buckets; the start timeout allows warmup_budget_minutes ({minutes}) and the time to read the weights"
        ]
    if not cost.graphs or one.weights.architecture.layers:
        return []
    assumed = f"of {size / 2e9:.0f} billion parameters" if size else "of 8 billion parameters"
    return [f"the warm-up is estimated as that of a model {assumed}; set config for its layers"]


def _graph_room(cost: Cost) -> list[str]:
    """Return a warning if the graphs of a model with states can need more memory than a server keeps for them."""
    most, memory = (cost.graphs or 0) * STATEFUL_GRAPH_GIB, cost.memory
    if not memory or most * 2 / 3 <= memory["graphs_gib"]:
        return []
    share = min(0.5, most / (memory["graphs_gib"] + memory["kv_cache_gib"]))
    return [
        f"a warm-up of {counted(cost.graphs or 0, 'graph')} with such layers can need {most * 2 / 3:.0f} to {most:.0f} "
        f"GiB per card, and VLLM_GRAPH_RESERVED_MEM keeps {memory['graphs_gib']} GiB: set it to {share:.2f} and "
        "VLLM_COMPACT_GDN to 'true' in env, or lower max_model_len or max_num_seqs"
    ]


def _cost_problems(spec: Spec, cost: Cost) -> list[Problem]:
    """Return the problems with the cost of a model: memory, and a warm-up above the budget."""
    problems: list[Problem] = []
    if cost.memory and not cost.memory["fits"]:
        problems.append(_shared_problem(spec, cost.memory) or _memory_problem(spec, cost.memory, cost.read_gib))
    problems += _weights_alone(spec, cost)
    problems += engine_of(spec).late_problems(spec)
    minutes, budget = (cost.warmup_s or 0) / 60, spec["warmup_budget_minutes"]
    if minutes > budget:
        about = "about " if cost.buckets.approximate else ""
        allowed = (
            f"is below the estimated warm-up of {minutes:.0f} minutes ({about}{counted(cost.graphs or 0, 'graph')}); "
            f"{_shorter(spec)}, "
            "or allow more minutes"
        )
        problems.append(("warmup_budget_minutes", budget, allowed))
    return problems


def _shorter(spec: Spec) -> str:
    """Return how to shorten a warm-up, with keys that the model's engine reads."""
    ignored = engine_of(spec).ignored
    if "input_range" not in ignored:
        return "narrow input_range, output_range or max_num_seqs, use reduce_warmup"
    strategy = "" if "bucketing" in ignored else ", set bucketing.strategy to exp or file"
    return f"lower max_num_seqs or max_model_len{strategy}"


def _weights_alone(spec: Spec, cost: Cost) -> list[Problem]:
    """Return the problem if weights of an unknown architecture alone are larger than the cards' memory."""
    if cost.memory or not cost.device_gib or cost.weights_gib < cost.device_gib:
        return []
    allowed = f"gives each card {cost.weights_gib} GiB of weights, of {cost.device_gib} GiB"
    return [spec.size_problem(allowed)]


def _shared_problem(spec: Spec, memory: Mapping[str, Any]) -> Problem | None:
    """Return the problem with the first model on a shared card that has too little memory left."""
    place = memory.get("place")
    if place is None:
        return None
    key, value, allowed = _memory_problem(spec.served[place], memory, 0)
    before = ", ".join(one.name for one in spec.served[:place])
    taken = f"; {before} before it: {memory['taken_gib']} GiB" if before else ""
    key, value = (key, value) if key == "max_model_len" else ("weights", spec.served[place].weights)
    return key_of(place, key), value, f"{allowed}{taken}"


def _memory_problem(spec: Spec, memory: Mapping[str, Any], read_gib: float) -> Problem:
    if "nodes" in memory:
        return _node_problem(spec, memory)
    ways = _ways(memory["suggestions"])
    more = "tensor_parallel_size" in ways and spec.module_ids
    remedy = f"what fits: {ways}{' (and as many module_ids)' if more else ''}"
    remedy = remedy if ways else "nothing that this host has left fits"
    cards = spec.cards
    adapters = memory.get("adapters_gib", 0.0)
    weights = f"{memory['weights_gib']} GiB of weights" + (f" ({adapters} of them for adapters)" if adapters else "")
    if read_gib and (memory["weights_gib"] - adapters) * cards > WIDER * read_gib * spec.copies:
        weights += f" (the {read_gib:.0f} GiB of its files, converted to a wider type at load)"
    if memory["reserved_gib"] > memory["weights_gib"]:
        weights += f" and {memory['reserved_gib']} GiB for a batch, its images or videos, and libraries"
    length = spec.get("max_model_len", memory.get("max_model_len"))
    if memory.get("over") == SHARE:
        allowed = (
            f"of {memory['device_gib']} GiB must be free when the server starts, and other programs and its own "
            f"processes leave {memory['free_gib']} GiB; end programs that use this memory, or set {ways or 'less'}"
        )
        return SHARE, _share_of(spec), allowed
    if fixed := memory.get("over"):
        allowed = (
            f"makes a KV cache of {memory['kv_cache_gib']} GiB a card next to {weights}, of {memory['device_gib']} "
            f"GiB; {memory['short_by_gib']} GiB a card are missing; {remedy}"
        )
        return str(fixed), spec[fixed], allowed
    if memory["kv_cache_gib"] <= 0 or length is None:
        allowed = (
            f"gives each card {weights}, of {memory['device_gib']} GiB; "
            f"{memory['short_by_gib']} GiB a card are missing; {remedy}"
        )
        return spec.size_problem(allowed)
    allowed = (
        f"needs more KV cache than the {memory['kv_cache_gib']} GiB a card ({memory['kv_tokens']} tokens) that "
        f"{weights} leave; {memory['short_by_gib']} GiB a card are missing; {remedy}"
    )
    return "max_model_len", length, allowed


def _share_of(spec: Spec) -> Any:
    """Return the share of its devices that a model uses."""
    return spec.get(SHARE) or utilization(release_of(spec.get("vllm_version") or vllm_of(str(spec.get("image")))))


def _ways(suggestions: Sequence[Mapping[str, Any]]) -> str:
    """Return the changes with which a model fits, as a text; empty without any."""

    def text(key: str, value: Any) -> str:
        if isinstance(value, Mapping):
            return f"{key}: {{{', '.join(f'{name}: {shown(str(one))}' for name, one in value.items())}}}"
        return f"{key} {value}"

    return " or ".join(" with ".join(text(key, value) for key, value in one.items()) for one in suggestions)


def _node_problem(spec: Spec, memory: Mapping[str, Any]) -> Problem:
    """Return the problem with a model that does not fit on the NUMA nodes of its workers."""
    ways = _ways(memory["suggestions"])
    remedy = f"what fits: {ways}" if ways else "nothing that this host has left fits"
    node = f"NUMA node {', '.join(map(str, memory['nodes']))}"
    gone = [f"{memory['hugepages_gib']} GiB are hugepages"] if memory["hugepages_gib"] else []
    gone += [f"{size:.1f} GiB belong to model {name}" for name, size in memory["taken"].items()]
    limit = f"{memory['most_gib']} of {memory['device_gib']} GiB are available{''.join(f', {one}' for one in gone)}"
    parts = f"{memory['weights_gib']} GiB of weights, {memory['reserved_gib']} GiB for the process and a batch"
    key = str(memory.get("over") or "")
    if memory["weights_gib"] + memory["reserved_gib"] >= memory["most_gib"]:
        return "weights", spec.weights, f"need more than {node} has: {parts}, and {limit}; {remedy}"
    if key:
        value = spec.get(key)
        if key == "env":
            key, value = f"env: {KV_SPACE}", (value or {}).get(KV_SPACE)
        if key == SHARE:
            value = _share_of(spec)
        whole = f"{memory['requested_gib']} GiB of {node} ({parts}, the rest for the KV cache)"
        return key, value, f"needs {whole}, and {limit}; {remedy}"
    length = spec.get("max_model_len", memory.get("max_model_len"))
    allowed = (
        f"needs more KV cache than {max(0.0, memory['kv_cache_gib'])} GiB ({memory['kv_tokens']} tokens) of {node} "
        f"({parts}); {memory['short_by_gib']} GiB are missing; {limit}; {remedy}"
    )
    return "max_model_len", length, allowed
