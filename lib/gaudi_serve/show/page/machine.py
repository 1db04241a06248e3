"""The cards of a host and the last measurement of their links, for the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...model.host import Host

Known = Mapping[str, Any]
MIB = 1024


def card_rows(facts: Known) -> list[dict[str, Any]]:
    """Return the cards of a ``gaudi_host``, including unusable ones.

    Each card has ``card`` (its module_id), ``name``, ``numa_node``, ``memory_gib``, ``model`` (the model of this
    toolkit that uses it now), ``held_by`` (a program other than these models) and ``problem``. Unknown values are None.
    """
    host = Host.of(facts)
    held = host.held
    known = [
        {
            "card": card.module_id,
            "name": card.name or host.device_name,
            "numa_node": None if card.numa_node < 0 else card.numa_node,
            "memory_gib": round(card.memory_mib / MIB, 1) or None,
            "model": held.get(card.module_id),
            "held_by": _foreign(card.held_by, card.in_use and not card.problem and card.module_id not in held),
            "problem": card.problem,
        }
        for card in host.cards
    ]
    nothing = {"numa_node": None, "memory_gib": None, "model": None, "held_by": None}
    return known + [{"card": None, "name": name, **nothing, "problem": problem} for name, problem in host.unusable]


def _foreign(program: str | None, foreign: bool) -> str | None:
    return (program or "another program") if foreign else None


def link_rows(state: Any) -> dict[str, Any] | None:
    """Return the last measurement of a ``gaudi_hccl``: ``time``, ``passed``, ``runs``; None without a measurement."""
    if not isinstance(state, Mapping) or not state.get("runs"):
        return None
    keys = ("name", "cards", "nw_gb_s", "threshold", "last_good", "passed", "problem")
    runs = [{key: run.get(key) for key in keys} for run in state["runs"]]
    good = dict(state.get("last_good") or {})
    return {"time": state.get("time"), "passed": bool(state.get("passed")), "runs": runs, "last_good": good}
