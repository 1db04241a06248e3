"""Which model gets which cards: one ledger per host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .spec import finding_error

Spec = dict[str, Any]
Errors = list[dict[str, Any]]


def place(specs: list[Spec], host: Mapping[str, Any], host_name: str) -> tuple[dict[str, list[int]], Errors]:
    """Give every model its cards.

    Models that name their ``module_ids`` get exactly those; a model that runs keeps its cards where
    nobody else asks for them; the others get free cards of one NUMA node where they fit.

    Returns:
        ``{model: [module_id, ...]}`` of the models that could be placed, and the errors of the rest.
    """
    modules = {int(module["module_id"]): module for module in host.get("modules", [])}
    own = own_cards(host)
    strangers = {
        number: module.get("held_by") or "another program"
        for number, module in modules.items()
        if module.get("in_use") and number not in own
    }
    ledger: dict[int, str] = {}
    placed: dict[str, list[int]] = {}
    errors: Errors = []
    for spec in sorted(specs, key=lambda item: not item.get("module_ids")):
        wish = spec.get("module_ids") or _running(spec, host, {**strangers, **ledger}, modules)
        problem = None
        if wish:
            problem = _refusal(spec, wish, modules, ledger, strangers)
        else:
            wish = _free_cards(spec, modules, {**strangers, **ledger})
            if not wish:
                problem = _no_room(spec, modules, ledger, strangers)
        if problem:
            errors.append(finding_error(host_name, spec, *problem))
            continue
        placed[spec["name"]] = wish
        for number in wish:
            ledger[number] = spec["name"]
    return placed, errors


def own_cards(host: Mapping[str, Any]) -> dict[int, str]:
    """Return ``{module_id: model}`` of the cards that this toolkit's own running containers hold."""
    return {
        int(number): name
        for name, service in host.get("services", {}).items()
        if service.get("active") or service.get("holds")
        for number in service.get("module_ids", [])
    }


def _running(spec: Spec, host: Mapping[str, Any], taken: Mapping[int, str], modules: Mapping[int, Any]) -> list[int]:
    cards = [int(number) for number in host.get("services", {}).get(spec["name"], {}).get("module_ids", [])]
    usable = len(cards) == spec["tensor_parallel_size"] and all(
        number in modules and number not in taken for number in cards
    )
    return cards if usable else []


def _refusal(
    spec: Spec,
    wish: list[int],
    modules: Mapping[int, Any],
    ledger: Mapping[int, str],
    strangers: Mapping[int, str],
) -> tuple[str, Any, str] | None:
    missing = [number for number in wish if number not in modules]
    if missing:
        return "module_ids", missing, f"not on this host, which has {sorted(modules)}"
    if len(wish) != spec["tensor_parallel_size"]:
        return (
            "module_ids",
            wish,
            f"are {len(wish)} cards, but tensor_parallel_size is {spec['tensor_parallel_size']}",
        )
    for number in wish:
        if number in ledger:
            return "module_ids", wish, f"card {number} belongs to model {ledger[number]} already"
        if number in strangers:
            return "module_ids", wish, f"card {number} is held by {strangers[number]}; end it or take another card"
    return None


def _free_cards(spec: Spec, modules: Mapping[int, Any], taken: Mapping[int, str]) -> list[int]:
    count = spec["tensor_parallel_size"]
    nodes: dict[int, list[int]] = {}
    for number in sorted(modules):
        if number not in taken:
            nodes.setdefault(int(modules[number]["numa_node"]), []).append(number)
    fitting = [cards for cards in nodes.values() if len(cards) >= count]
    if fitting:
        # The fullest node that still fits: large gaps stay whole for large models.
        return min(fitting, key=lambda cards: (len(cards), cards))[:count]
    free = sorted(number for cards in nodes.values() for number in cards)
    return free[:count] if len(free) >= count else []


def _no_room(
    spec: Spec, modules: Mapping[int, Any], ledger: Mapping[int, str], strangers: Mapping[int, str]
) -> tuple[str, Any, str]:
    holders = ", ".join(f"{number}: {name}" for number, name in sorted({**strangers, **ledger}.items()))
    free = len(modules) - len({**strangers, **ledger})
    return (
        "tensor_parallel_size",
        spec["tensor_parallel_size"],
        f"this host has {len(modules)} cards, {free} of them free" + (f" (held: {holders})" if holders else ""),
    )
