"""Whether the links between a host's cards are to be measured, how, and what is good enough."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..core.checks import is_true
from ..core.images import vllm_image_id
from ..core.words import counted
from ..host.hccl import last_good
from ..model.host import Host
from ..platforms import accelerator_needs, platform_of
from .base import Given, Pending, Stage
from .reset import hccl_validation_reset

Run = dict[str, Any]

# all_reduce of 32 MB with eight cards a host, network bandwidth in GB/s: about half of what a healthy machine gives, by
# which gross faults are found. HL-225: the vendor measures 258 on one host and 206 on two; another tool for fleets
# alarms below 127. HL-325: links of twice the speed; the vendor's page of collectives measures 513 on one host, at
# 256 MB. HL-288: 18 to 20 across the two groups without host NICs. HL-338: nothing is published; its slowest way, over
# PCI Express, is no slower than that of HL-288. Of other machines a figure passes, and later ones are compared with it.
THRESHOLDS = {
    "HL-225": {"all": 127.0, "all-2-hosts": 103.0},
    "HL-325": {"all": 250.0, "all-2-hosts": 206.0},
    "HL-288": {"all": 15.0},
    "HL-338": {"all": 15.0},
}


def hccl_validation_plan(
    host: Mapping[str, Any],
    state: Mapping[str, Any],
    *,
    image: str,
    image_id: str | None,
    max_age_days: float = 90,
    now: float = 0,
    thresholds: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    nodes: int = 1,
) -> dict[str, Any]:
    """Return what is to be measured on a host, and what is in the way.

    Args:
        host: ``gaudi_host`` of the host.
        state: ``gaudi_hccl`` of the host: what the last measurement left.
        image: name of the serving image.
        image_id: what the engine says that image is; None where it is missing.
        max_age_days: a measurement older than that is repeated; 0 never for its age.
        now: seconds since 1970.
        thresholds: GB/s by run (``all``, ``quad-0``, ``quad-1``, ``all-2-hosts``) that override the built-in ones.
        options: what is measured instead of the default, such as ``{measure: latency}``.
        nodes: hosts that measure together.

    Returns:
        ``due`` (reasons, empty when the last measurement holds), ``busy`` (cards that others hold or that are bad, as
        sentences), ``drain`` (the toolkit's own models among them), ``runs``, ``fingerprint``, and
        ``aside``: the name under which a measurement that is none of the host by itself is kept, or empty.
    """
    fingerprint = _fingerprint(host, image_id or image)
    return {
        "due": _due(fingerprint, state, max_age_days, now),
        "busy": _foreign_programs(host),
        "drain": sorted(set(Host.of(host).held.values())),
        "runs": hccl_runs(host, thresholds or {}, state, options, nodes),
        "aside": _aside(options or {}, nodes),
        "fingerprint": fingerprint,
    }


def _foreign_programs(host: Mapping[str, Any]) -> list[str]:
    found = Host.of(host)
    held = [
        f"card {card.module_id} is held by {card.held_by or 'another program'}; end it first"
        for card in found.cards
        if card.in_use and not card.problem and card.module_id not in found.held
    ]
    return held + [f"card {card.module_id} cannot be used: {card.problem}" for card in found.cards if card.problem]


def _aside(options: Mapping[str, Any], nodes: int) -> str:
    kind = "latency" if options.get("measure") == "latency" else "-".join(sorted(options))
    return "-".join(filter(None, [f"all-{nodes}-hosts" if nodes > 1 else "", kind]))


def _fingerprint(host: Mapping[str, Any], image: str) -> dict[str, Any]:
    """Return what a measurement is valid for."""
    cards = [[module["module_id"], module.get("bus_id")] for module in host.get("modules", [])]
    return {
        "driver": host.get("driver_version"),
        "device": host.get("device_name"),
        "image": image,
        "cards": cards,
    }


def _due(fingerprint: Mapping[str, Any], state: Mapping[str, Any], days: float, now: float) -> list[str]:
    if not state.get("runs"):
        return ["never measured"]
    reasons = [] if state.get("passed") else ["the last measurement did not pass"]
    before = state.get("fingerprint") or {}
    reasons += [
        f"{key} was {_short(before.get(key))}, is {_short(value)}"
        for key, value in fingerprint.items()
        if before.get(key) != value
    ]
    age = (now - float(state.get("time") or 0)) / 86400
    if days and age > days:
        reasons.append(f"measured {counted(round(age), 'day')} ago, more than {days:g}")
    return reasons


def _short(value: Any) -> str:
    return counted(len(value), "card") if isinstance(value, list) else str(value)[:80]


def hccl_runs(
    host: Mapping[str, Any],
    thresholds: Mapping[str, Any],
    state: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    nodes: int = 1,
) -> list[Run]:
    """Return the measurements of a host: all cards, and on Gaudi2E each group of four before.

    Each: ``name``, ``cards`` (how many take part), ``custom_comm`` (ranks, or None for all),
    ``threshold`` (GB/s, or None), ``last_good`` (GB/s, or None). A host with one card has none. Hosts
    together have one of their own name, and what ``options`` ask for is compared with nothing.
    """
    count = len(host.get("modules", []))
    known = next((value for key, value in THRESHOLDS.items() if str(host.get("device_name")).startswith(key)), {})
    runs: list[Run] = []
    # Whatever connects the groups, each is measured by itself too.
    group = platform_of(host.get("accelerator")).group(Host.of({**host, "host_nics": False}))
    if nodes > 1:
        runs.append({"name": f"all-{nodes}-hosts", "cards": count, "custom_comm": None})
    elif group and count > group:
        for quad in range(-(-count // group)):
            ranks = list(range(quad * group, min(count, quad * group + group)))
            runs.append({"name": f"quad-{quad}", "cards": len(ranks), "custom_comm": ranks})
    if count > 1 and nodes == 1:
        runs.append({"name": "all", "cards": count, "custom_comm": None})
    good = last_good(state or {}, _fingerprint(host, ""))
    for run in runs:
        name = run["name"]
        given = thresholds.get(name, thresholds.get("quad") if name.startswith("quad") else None)
        # Fewer cards than the published figures are for give other ones.
        published = known.get(name) if count == 8 else None
        run["threshold"] = None if options else float(given) if given is not None else published
        run["last_good"] = None if options else good.get(name)
    return runs


def hccl_note(plan: Mapping[str, Any], state: Mapping[str, Any]) -> list[str]:
    """Return what the report says of a host's links."""
    if not plan["runs"]:
        return []
    notes = []
    if state.get("runs"):
        figures = ", ".join(f"{run['name']} {_figure(run, state)}" for run in state["runs"])
        notes.append(f"HCCL all_reduce: {figures}")
    for name, other in (state.get("aside") or {}).items():
        notes.append(f"HCCL {name}: {_figure(other['runs'][-1], state)}")
    if plan["due"]:
        notes.append(f"HCCL validation due ({'; '.join(plan['due'])}): playbooks/validate.yml")
    return notes


def _figure(run: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    figure = run.get("nw_gb_s")
    if run.get("device_latency_ms") is not None:
        return f"{run['device_latency_ms']:g} ms"
    good = (state.get("last_good") or {}).get(run["name"])
    text = f"{figure:.1f} GB/s" if figure is not None else "failed"
    return text if run.get("passed") else f"{text} (last good {good:.1f})" if good else f"{text} (never good)"


def hccl_refusal(plan: Mapping[str, Any], host_name: str, *, drain: bool) -> list[str]:
    """Return why a measurement must not begin now: cards that others hold, or models that are not to be stopped."""
    reasons = [f"{host_name}: {text}" for text in plan["busy"]]
    if plan["drain"] and not drain:
        models = ", ".join(plan["drain"])
        reasons.append(
            f"{host_name}: the measurement takes the cards of {models}; allow it with -e hccl_validation_drain=true"
        )
    return reasons


def _pending(given: Given) -> Pending:
    known = given.known
    host, state, image = known["gaudi_host"], known["gaudi_hccl"], known["hccl_validation_image"]
    nodes = list(known["hccl_validation_nodes"] or [])
    together, drain = len(nodes) > 1, is_true(known["hccl_validation_drain"])
    plan = hccl_validation_plan(
        host,
        state,
        image=image,
        image_id=vllm_image_id(known["gaudi_services"]["images"], image),
        max_age_days=known["hccl_validation_max_age_days"],
        now=int(time.time()),
        thresholds=known["hccl_validation_thresholds"],
        options=known["hccl_validation_options"],
        nodes=len(nodes) or 1,
    )
    refusal = hccl_refusal(plan, given.host, drain=drain)
    possible = "hccl_validation" in accelerator_needs(host["accelerator"]) and image != "" and bool(plan["runs"])
    asked = is_true(known["hccl_validation_asked"]) or bool(plan["due"] and not refusal)
    now = possible and (not together or given.host in nodes) and asked
    # Measured without being asked for, it waits where cards are in use.
    return Pending(
        changes={
            **plan,
            **{"refusal": refusal, "now": now, "together": together, "first": (nodes or [given.host])[0]},
        },
        due=[f"measure {', '.join(run['name'] for run in plan['runs'])}"] if now else [],
        stops=plan["drain"] if now and drain else [],
        notes=hccl_note(plan, state) if possible else [],
    )


def _reset(given: Given) -> dict[str, Any]:
    return hccl_validation_reset(given.known["gaudi_left"])


STAGE = Stage(
    role="hccl_validation",
    tag="validate",
    planned=True,
    down=(5, "its cards are measured"),
    noted=("report", "status"),
    given=("image",),
    hosts={"hccl_validation_nodes": lambda value: value or []},
    waits=lambda known: len(known.get("hccl_validation_nodes") or []) > 1,
    pending=_pending,
    reset=_reset,
)
