"""The memory of a model on processors: the NUMA nodes of its workers, what they may use, and a cache that fits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.errors import Problem
from ..core.words import counted
from ..model.host import Card, MemoryNode
from ..model.spec import Spec
from .vllm import FIXED, Planned, cache_on_node, plan_vllm
from .vllm_figures import CACHE_STEP, GIB, KV_SPACE, NODE, NODE_SHARE_SINCE, SHARE, at_least

# The memory of a node for the system and for the other processes of servers: at most this, or this part of the node.
SYSTEM_GIB, SYSTEM_PART = 4.0, 0.25
CACHE_PART = 0.25  # The part of what a node has for models that one model's cache gets by default.
# A computed cache stays in this range around the one in the launch file: a new kernel changes a node's size a little.
STEADY = 2**30
BINDING, VISIBLE = "VLLM_CPU_OMP_THREADS_BIND", "CPU_VISIBLE_MEMORY_NODES"
SIMULATED = "VLLM_CPU_SIM_MULTI_NUMA"  # With it, several workers share a node.


def usable_gib(node: MemoryNode) -> float:
    """Return the GiB of a node that models may use. It follows from sizes that do not change while models serve."""
    total = node.total / 1024
    return max(0.0, total - node.hugepages / 1024 - min(SYSTEM_GIB, SYSTEM_PART * total))


def _visible(spec: Spec, nodes: Sequence[MemoryNode]) -> tuple[MemoryNode, ...]:
    """Return the nodes for a model's workers in vLLM's order: that of the variable, or all; empty if unknown."""
    said = str((spec.get("env") or {}).get(VISIBLE) or "")
    known = {str(node.number): node for node in nodes}
    return tuple(known[one.strip()] for one in said.split(",") if one.strip() in known) if said else tuple(nodes)


def _binding(spec: Spec) -> str:
    return str((spec.get("env") or {}).get(BINDING) or "auto")


def binding_problems(planned: Planned, nodes: Sequence[MemoryNode]) -> list[Problem]:
    """Return the problem if fewer nodes are visible than a copy has workers: vLLM binds each to its own, or ends."""
    spec = planned.spec
    seen, workers = _visible(spec, nodes), spec.tensors * spec.stages // spec.nodes
    unbound = _binding(spec) != "auto" or SIMULATED in (spec.get("env") or {})
    if not seen or unbound or workers <= len(seen) or not at_least(planned.release, NODE_SHARE_SINCE):
        return []
    allowed = (
        f"makes {workers} workers on this host, and vLLM binds each to its own NUMA node, of which it has "
        f"{len(seen)}; take at most {counted(len(seen), 'worker')}, or set env: {BINDING} to the processors of each "
        "worker, such as '0-15|16-31'"
    )
    key = "tensor_parallel_size" if spec.tensors > 1 else "pipeline_parallel_size"
    return [(key, spec[key], allowed)]


def nodes_of(spec: Spec, nodes: Sequence[MemoryNode]) -> tuple[MemoryNode, ...]:
    """Return the node of each of a model's workers on a host; empty if unknown.

    vLLM binds the first worker to the first node, and so on. Without binding all use the first node.
    """
    seen, binding = _visible(spec, nodes), _binding(spec)
    if not seen or binding not in ("auto", "nobind"):
        return ()
    return seen[: spec.cards] if binding == "auto" and len(seen) >= spec.cards else (seen[0],) * spec.cards


def left_gib(workers: Sequence[MemoryNode], *, now: bool) -> float:
    """Return the GiB that the models that were planned before leave to each of a model's workers.

    Args:
        workers: The node of each worker.
        now: No model of this toolkit runs, so other programs have what is not available.
    """
    counts = Counter(node.number for node in workers)
    found = []
    for node in workers:
        free = usable_gib(node)
        if now and node.available is not None:
            free = min(free, node.available / 1024)
        found.append((free - sum(node.taken.values())) / counts[node.number])
    return max(0.0, min(found))


def on_nodes(planned: Planned, workers: Sequence[MemoryNode], most_gib: float) -> Planned:
    """Return a plan for NUMA nodes."""
    cards = tuple(Card(node.number, memory_mib=node.total, capability=NODE) for node in workers)
    return replace(planned, cards=cards, most_gib=most_gib)


def plan_nodes(planned: Planned, workers: Sequence[MemoryNode], *, now: bool) -> dict[str, Any] | None:
    """Return how the node with the least memory is divided, as plan_vllm does; None if something is unknown.

    Also ``nodes``: the numbers of the workers' nodes, ``hugepages_gib``, and ``taken``: the GiB of other models there.
    """
    found = plan_vllm(on_nodes(planned, workers, left_gib(workers, now=now))) if workers else None
    if found is None:
        return None
    left = max(0.0, found["most_gib"] - found["requested_gib"])
    taken: dict[str, float] = {}
    for node in workers:
        taken |= node.taken
    numbers = list(dict.fromkeys(node.number for node in workers))
    pages = round(max(node.hugepages for node in workers) / 1024, 1)
    return {**found, "left_gib": round(left, 1), "nodes": numbers, "taken": taken, "hugepages_gib": pages}


def default_cache(planned: Planned, workers: Sequence[MemoryNode]) -> int | None:
    """Return the bytes of cache for a model whose user sets no size; None if vLLM's own default is better or unknown.

    It depends on the host's size and on the model only, so another model, and programs of the host, change nothing.
    """
    spec = planned.spec
    said = any(spec.get(key) for key in (*FIXED, SHARE)) or KV_SPACE in (spec.get("env") or {})
    if said or not workers or not at_least(planned.release, NODE_SHARE_SINCE):
        return None
    counts = Counter(node.number for node in workers)
    most = min(usable_gib(node) / counts[node.number] for node in workers)
    node = on_nodes(planned, workers, most)
    rest = cache_on_node(node, most)
    part = min(rest, math.floor(CACHE_PART * most * GIB / CACHE_STEP) * CACHE_STEP)
    for size in (part, rest):
        found = plan_vllm(replace(node, spec=spec.but(kv_cache_memory_bytes=size))) if size else None
        if found and found["fits"]:
            return size
    return part or None


def steady(size: int, present: Any) -> int:
    """Return the cache in a launch file if the computed ``size`` is about the same, else the computed one."""
    known = int(present) if str(present).isdigit() else 0
    return known if known and abs(known - size) <= min(STEADY, known // 4) else size


def taken_by(
    nodes: Sequence[MemoryNode], workers: Sequence[MemoryNode], memory: Mapping[str, Any], model: str
) -> tuple[MemoryNode, ...]:
    """Return a host's nodes after a model was planned on them."""
    counts = Counter(node.number for node in workers)
    size = float(memory["requested_gib"])
    return tuple(
        replace(node, taken={**node.taken, model: size * counts[node.number]}) if counts[node.number] else node
        for node in nodes
    )
