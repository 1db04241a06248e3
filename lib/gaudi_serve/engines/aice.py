"""What the launch scripts of the vendor's fork do alike, whichever release: cards, cores, and names of models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.errors import label, refusal
from ..core.words import counted
from ..model.host import Card
from .base import Host, Spec


def cards_of(spec: Spec, host: Host) -> tuple[list[str] | None, dict[str, str]]:
    """Return the arguments of numactl, or None, and the variable that gives a server its cards.

    Raises:
        InputError: for cards that are not free, or not as many as tensor_parallel_size.
    """
    cards = {card.module_id: card for card in host.cards}
    free = [number for number in sorted(cards) if not cards[number].in_use]
    wanted = list(spec.module_ids)
    if not wanted:
        return None, {"HABANA_VISIBLE_MODULES": ",".join(map(str, free))}
    if len(wanted) != spec.cards:
        allowed = f"give {counted(len(wanted), 'card')}, tensor_parallel_size is {spec.tensors}"
        raise refusal(label(spec), "module_ids", wanted, allowed)
    taken = [number for number in wanted if number not in free]
    if taken:
        raise refusal(label(spec), "module_ids", taken, f"are not free; free on this host: {free}")
    ids = ",".join(map(str, wanted))
    variable = "HLS_MODULE_ID" if len(wanted) == 1 else "HABANA_VISIBLE_MODULES"
    return _numactl([cards[number] for number in wanted], host.cards), {variable: ids}


def node_warnings(spec: Spec, host: Host) -> list[str]:
    """Return that cards lie on several NUMA nodes, if they do."""
    cards = list(spec.module_ids)
    nodes = sorted({card.numa_node for card in host.cards if card.module_id in cards})
    return [f"cards {cards} lie on NUMA nodes {nodes}: no core binding, slower transfers"] if len(nodes) > 1 else []


def _numactl(mine: Sequence[Card], every: Sequence[Card]) -> list[str] | None:
    nodes = {card.numa_node for card in mine}
    # A node of -1 is none, as machines without NUMA have it; numactl refuses it.
    if len(nodes) != 1 or -1 in nodes or not mine[0].cpus:
        return None
    node = nodes.pop()
    neighbours = sum(card.numa_node == node for card in every)
    low, _, high = mine[0].cpus[0].partition("-")
    first = int(low)
    share = (int(high or low) - first + 1) // neighbours
    ranges = []
    for card in mine:
        start = first + share * (card.module_id % neighbours)
        ranges.append(f"{start}-{start + share - 1}")
    return ["-C", ",".join(ranges), "-p", str(node)]


def model_name(spec: Spec) -> str:
    """Return the last part of the path of the weights, in lower case, by which the scripts know models."""
    return str(spec["weights"]).rstrip("/").rpartition("/")[2].lower()


def flag_text(value: Any) -> str:
    """Return true or false, as the scripts write them."""
    return "true" if value else "false"
