"""Common parts of the launch scripts of all releases of the vendor's fork: cards, cores, and names of models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.errors import label, refusal
from ..core.words import counted
from ..model.host import Card
from .base import Host, Spec


def cards_of(spec: Spec, host: Host) -> tuple[list[str] | None, dict[str, str]]:
    """Return the arguments of numactl, or None, and the variable that selects a server's cards.

    Raises:
        InputError: Cards are not free, or their number is not tensor_parallel_size.
    """
    cards = {card.module_id: card for card in host.cards}
    free = [number for number in sorted(cards) if not cards[number].in_use]
    wanted = list(spec.module_ids)
    if not wanted:
        return None, {"HABANA_VISIBLE_MODULES": ",".join(map(str, free))}
    if len(wanted) != spec.cards:
        allowed = f"has {counted(len(wanted), 'card')}, but tensor_parallel_size is {spec.tensors}"
        raise refusal(label(spec), "module_ids", wanted, allowed)
    taken = [number for number in wanted if number not in free]
    if taken:
        raise refusal(label(spec), "module_ids", taken, f"are not free; free on this host: {free}")
    ids = ",".join(map(str, wanted))
    variable = "HLS_MODULE_ID" if len(wanted) == 1 else "HABANA_VISIBLE_MODULES"
    return _numactl([cards[number] for number in wanted], host.cards), {variable: ids}


def node_warnings(spec: Spec, host: Host) -> list[str]:
    """Return a warning if the cards are on several NUMA nodes."""
    cards = list(spec.module_ids)
    nodes = sorted({card.numa_node for card in host.cards if card.module_id in cards})
    return [f"cards {cards} are on NUMA nodes {nodes}: no core binding, slower transfers"] if len(nodes) > 1 else []


def _numactl(mine: Sequence[Card], every: Sequence[Card]) -> list[str] | None:
    nodes = {card.numa_node for card in mine}
    # Machines without NUMA have node -1, which numactl refuses.
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


def executor(spec: Spec) -> str:
    """Return what spreads a model over cards: Ray for more than the cards of a host, as the scripts do, and for stages.

    The vendor's guide starts a model with stages with Ray, and the scripts have none.
    """
    return "ray" if spec.tensors > 8 or spec.stages > 1 else "mp"


def model_name(spec: Spec) -> str:
    """Return the last part of the path of the weights, in lowercase. The scripts use it as the model's name."""
    return str(spec["weights"]).rstrip("/").rpartition("/")[2].lower()


def flag_text(value: Any) -> str:
    """Return true or false as the scripts write them."""
    return "true" if value else "false"
