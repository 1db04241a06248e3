"""Machines and models for placement."""

from __future__ import annotations

from typing import Any

from gaudi_serve.core.errors import Finding
from gaudi_serve.model.host import Host
from gaudi_serve.model.spec import Spec
from gaudi_serve.plan import launch
from gaudi_serve.plan import place as ledger


def machine(device: str = "HL-225", nodes: tuple[int, ...] = (0, 0, 0, 0, 1, 1, 1, 1), **more: Any) -> dict[str, Any]:
    """Return a host whose card n is on nodes[n]; a node has 40 cores."""
    modules = [
        {"module_id": number, "numa_node": node, "in_use": False, "cpus": [f"{node * 40}-{node * 40 + 39}"]}
        for number, node in enumerate(nodes)
    ]
    return {"device_name": device, "modules": modules, "services": {}, **more}


def request(name: str, cards: int, module_ids: list[int] | None = None) -> dict[str, Any]:
    """Return the placement request of a model."""
    return {"name": name, "weights": "/w", "tensor_parallel_size": cards, "module_ids": module_ids}


def running(**cards: list[int]) -> dict[str, Any]:
    """Return services that use these cards."""
    return {name: {"module_ids": numbers, "active": True} for name, numbers in cards.items()}


def place(
    requests: list[dict[str, Any]], host: dict[str, Any], host_nics: bool = False, move_allowed: bool = False
) -> tuple[dict[str, list[int]], list[dict[str, Any]], dict[str, list[int]]]:
    """Return the cards of the models, the errors of models without cards, and the current cards of moved models."""
    specs = [Spec(one) for one in requests]
    found = ledger.place(specs, Host.of({**host, "host_nics": host_nics}), (), move_allowed)
    errors = [
        Finding.of_model("g", one, *found.refused[one.name]).as_dict() for one in specs if one.name in found.refused
    ]
    return dict(found.cards), errors, dict(found.moved)


def disjoint_cores(host: dict[str, Any]) -> dict[int, str]:
    """Return distinct cores for cards to which the vendor's rule would give the same ones."""
    return launch.disjoint_cores(Host.of(host))
