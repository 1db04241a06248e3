"""Whether the links between a host's cards must be measured, and which of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.checks import is_true
from ..core.errors import shown
from ..core.images import vllm_image_id
from ..core.words import counted
from ..host.links import last_good
from ..model.between import NICS, Between
from ..model.host import Card, Host
from ..platforms import platform_of
from ..platforms.between import NICS_PART, PORTS_PART, line_rate
from ..platforms.links import Links, islands
from .accelerator_network import between_of
from .base import Given, Pending, Stage
from .reset import link_validation_reset

Run = dict[str, Any]
# Name, cards, and the ranks of hccl_demo.
Group = tuple[str, list[Card], list[int] | None]


def link_validation_plan(
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
    program: str = "",
) -> dict[str, Any]:
    """Return the measurements that a host needs, and what prevents them.

    Args:
        host: ``gaudi_host``.
        state: ``gaudi_hccl``: the results of the last measurement.
        image, image_id: name of the serving image, and its ID in the engine; None if it is missing.
        max_age_days: an older measurement is repeated; 0 disables this.
        now: seconds since 1970.
        thresholds: GB/s by run (``all``, ``quad-0``, ``group-0``, ``all-2-hosts``) that override the built-in ones.
        options: settings for hccl_demo that replace the defaults, such as ``{measure: latency}``.
        nodes: number of hosts that measure together. program: replaces the platform's measurement.

    Returns:
        ``due`` (reasons, empty if the last measurement is valid), ``busy`` (sentences on cards in use or faulty cards),
        ``drain`` (the toolkit's own models on them), ``runs``, ``fingerprint``, and ``aside``: the name under which a
        special measurement, such as one of several hosts, is saved.
    """
    fingerprint = _fingerprint(host, image_id or image) | ({"program": program} if program else {})
    known, cards = Host.of(host), _together(Host.of(host))
    return {
        "due": _due(fingerprint, state, max_age_days, now),
        "busy": _foreign_programs(known, cards),
        "drain": sorted({known.held[card.module_id] for card in cards if card.module_id in known.held}),
        "runs": link_runs(host, thresholds or {}, state, options, nodes),
        "aside": _aside(options or {}, nodes),
        "fingerprint": fingerprint,
    }


def _without_excluded(host: Mapping[str, Any], excluded: Sequence[str]) -> dict[str, Any]:
    """Return a ``gaudi_host`` without the excluded cards: no model uses their links."""
    return {**host, "modules": [one for one in host["modules"] if (one.get("serial") or "") not in excluded]}


def _together(host: Host) -> list[Card]:
    """Return the cards that may work together with others."""
    return [card for card in host.cards if not card.alone]


def nothing_to_measure(host: Host) -> str:
    """Return why a host has no links to measure."""
    platform = platform_of(host.accelerator)
    if platform.links is None:
        return f"{platform.title} hosts have no devices whose links are measured"
    if any(card.alone for card in host.cards):
        return "parts of divided cards do not work together, so that there are no links to measure"
    return f"it has {counted(len(host.cards), 'card')}, so that there are no links to measure"


def _foreign_programs(host: Host, cards: Sequence[Card]) -> list[str]:
    held = [card.end_first for card in cards if card.in_use and not card.problem and card.module_id not in host.held]
    return held + [f"card {card.module_id} cannot be used: {card.problem}" for card in cards if card.problem]


def _aside(options: Mapping[str, Any], nodes: int) -> str:
    kind = "latency" if options.get("measure") == "latency" else "-".join(sorted(options))
    return "-".join(filter(None, [f"all-{nodes}-hosts" if nodes > 1 else "", kind]))


def _fingerprint(host: Mapping[str, Any], image: str) -> dict[str, Any]:
    """Return the properties for which a measurement is valid."""
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
        for key in dict.fromkeys([*fingerprint, *before])
        if before.get(key) != (value := fingerprint.get(key))
    ]
    age = (now - float(state.get("time") or 0)) / 86400
    if days and age > days:
        reasons.append(f"measured {counted(round(age), 'day')} ago, more than {days:g}")
    return reasons


def _short(value: Any) -> str:
    if value is None:
        return "not set"
    return counted(len(value), "card") if isinstance(value, list) else str(value)[:80]


def link_runs(
    host: Mapping[str, Any],
    thresholds: Mapping[str, Any],
    state: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    nodes: int = 1,
) -> list[Run]:
    """Return the measurements of a host: first each group of cards that are linked among themselves, then all cards.

    Each has ``name``, ``cards`` (number of participating cards), ``module_ids`` (of the cards in its container),
    ``custom_comm`` (the ranks of hccl_demo, or None for all), ``threshold`` (GB/s, or None), ``last_good`` (GB/s, or
    None). A host with one card has none. Several hosts together have one under a name of its own, and measurements with
    ``options`` are not compared with a threshold.
    """
    # The groups of Gaudi2E are also measured separately, whatever connects them.
    known = Host.of({**host, "host_nics": False})
    links, cards = platform_of(known.accelerator).links, _together(known)
    if links is None or len(cards) < 2:
        return []
    together = "all" if nodes == 1 else f"all-{nodes}-hosts"
    groups = _groups(known, cards) if nodes == 1 else []
    good = last_good(state or {}, _fingerprint(host, ""))
    runs: list[Run] = []
    for name, members, ranks in [*groups, (together, cards, None)]:
        given = thresholds.get(name, None if nodes > 1 else thresholds.get(name.partition("-")[0]))
        published = links.threshold(members, str(known.device_name), nodes)
        # hccl_demo itself selects the cards.
        numbers = [card.module_id for card in (cards if ranks else members)]
        run: Run = {"name": name, "cards": len(members), "custom_comm": ranks, "module_ids": numbers}
        run["threshold"] = None if options else float(given) if given is not None else published
        run["last_good"] = None if options else good.get(name)
        runs.append(run)
    return runs


def _groups(host: Host, cards: Sequence[Card]) -> list[Group]:
    """Return the groups of cards that are linked among themselves only."""
    platform = platform_of(host.accelerator)
    if size := platform.group(host):
        quads = sorted({card.module_id // size for card in cards})
        places = {quad: [rank for rank, card in enumerate(cards) if card.module_id // size == quad] for quad in quads}
        found: list[Group] = [
            (f"quad-{quad}", [cards[one] for one in ranks], ranks) for quad, ranks in places.items() if len(ranks) > 1
        ]
        return found if len(quads) > 1 else []
    near = islands(cards, platform.near)
    members = [[card for card in cards if near.get(card.module_id) == island] for island in sorted(set(near.values()))]
    several = [group for group in members if 1 < len(group) < len(cards)]
    return [(f"group-{place}", group, None) for place, group in enumerate(several)]


def link_note(plan: Mapping[str, Any], state: Mapping[str, Any], library: str = "HCCL") -> list[str]:
    """Return the lines of the report on a host's links.

    Args:
        plan: the result of link_validation_plan.
        state: ``gaudi_hccl`` of the host.
        library: the communication library of the devices.
    """
    if not plan["runs"]:
        return []
    notes = []
    if state.get("runs"):
        figures = ", ".join(f"{run['name']} {_figure(run, state)}" for run in state["runs"])
        notes.append(f"{library} all_reduce: {figures}")
    for name, other in (state.get("aside") or {}).items():
        notes.append(f"{library} {name}: {_figure(other['runs'][-1], state)}")
    if plan["due"]:
        notes.append(f"{library} validation pending ({'; '.join(plan['due'])}): playbooks/validate.yml")
    return notes


def _figure(run: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    figure = run.get("nw_gb_s")
    if run.get("device_latency_ms") is not None:
        return f"{run['device_latency_ms']:g} ms"
    good = (state.get("last_good") or {}).get(run["name"])
    text = f"{figure:.1f} GB/s" if figure is not None else "failed"
    return text if run.get("passed") else f"{text} (last good {good:.1f})" if good else f"{text} (never good)"


def between_hosts(network: Mapping[str, Any], between: Between) -> float | None:
    """Return the GB/s that devices of several hosts must reach, derived from the line rate; None if unknown.

    Args:
        network: ``gaudi_network`` of the host.
        between: network settings of the inventory.
    """
    if between.kind == NICS:
        nics = [one for one in network.get("nics") or () if not between.devices or one["device"] in between.devices]
        rate = line_rate([float(one["gbit_s"]) for one in nics]) * NICS_PART
    else:
        rate = line_rate([port["speed"] / 1000 for port in network.get("ports") or () if port["carrier"]]) * PORTS_PART
    return round(rate, 1) or None


def by_line_rate(runs: Sequence[Run], figure: float | None) -> list[Run]:
    """Return measurements of several hosts, with this threshold for those without a published figure."""
    return [{**run, "threshold": figure if run["threshold"] is None else run["threshold"]} for run in runs]


def link_refusal(plan: Mapping[str, Any], host_name: str, *, drain: bool) -> list[str]:
    """Return why a measurement must not begin now: cards in use, or models that must not be stopped."""
    reasons = [f"{host_name}: {text}" for text in plan["busy"]]
    if plan["drain"] and not drain:
        models = ", ".join(plan["drain"])
        reasons.append(
            f"{host_name}: the measurement takes the cards of {models}; allow it with -e link_validation_drain=true"
        )
    return reasons


def _over(known: Mapping[str, Any], between: Between, together: bool) -> tuple[dict[str, str], list[str]]:
    """Return the environment of the communication library, and the RDMA devices that it uses."""
    host = known["gaudi_host"]
    env = {str(name): str(value) for name, value in (known["link_validation_env"] or {}).items()}
    if together and host.get("interface"):
        env = {"NCCL_SOCKET_IFNAME": host["interface"], **env}
    if not (together and between.kind == NICS):
        return env, []
    verbs = tuple(host.get("verbs") or ())
    return {**platform_of(host["accelerator"]).over_nics(between, verbs), **env}, list(between.used(verbs))


def _nccl_tests(known: Mapping[str, Any], links: Links | None, nodes: int) -> str:
    """Return the vendor's test program that measures the links; only for a single host on a platform with NCCL."""
    program = str(known.get("link_validation_nccl_tests") or "")
    return program if links and links.tests and nodes < 2 else ""


def _plan(known: Mapping[str, Any], host: Mapping[str, Any], options: Mapping[str, Any], nodes: int) -> dict[str, Any]:
    """Return link_validation_plan for a host's variables."""
    image = known["link_validation_image"]
    plan = link_validation_plan(
        host,
        known["gaudi_hccl"],
        image=image,
        image_id=vllm_image_id(known["gaudi_services"]["images"], image),
        max_age_days=known["link_validation_max_age_days"],
        now=int(time.time()),
        thresholds=known["link_validation_thresholds"],
        options=options,
        nodes=nodes,
        program=_nccl_tests(known, platform_of(host["accelerator"]).links, nodes),
    )
    if nodes > 1 and not options:
        figure = between_hosts(known.get("gaudi_network") or {}, between_of(known))
        plan["runs"] = by_line_rate(plan["runs"], figure)
    return plan


def _pending(given: Given) -> Pending:
    known = given.known
    state, image = known["gaudi_hccl"], known["link_validation_image"]
    host = _without_excluded(known["gaudi_host"], known.get("accelerator_cards_excluded") or ())
    nodes = list(known["link_validation_nodes"] or [])
    links = platform_of(host["accelerator"]).links
    together, drain = len(nodes) > 1, is_true(known["link_validation_drain"])
    options = {} if links and links.backend else known["link_validation_hccl_options"]
    plan = _plan(known, host, options, len(nodes) or 1)
    refusal = link_refusal(plan, given.host, drain=drain)
    if links and links.host_by_host and together:
        refusal.append(f"{given.host}: link_validation_nodes {shown(nodes)}: {links.library} is measured host by host")
    possible = image != "" and bool(plan["runs"])
    asked = is_true(known["link_validation_asked"])
    # A measurement that was not requested waits while cards are in use.
    now = possible and (not together or given.host in nodes) and (asked or bool(plan["due"] and not refusal))
    env, nics = _over(known, between_of(known), together)
    more = {"refusal": refusal, "now": now, "together": together, "first": (nodes or [given.host])[0]}
    more |= {"env": env, "options": options, "nothing": "", "nics": nics}
    more |= {"nccl_tests": _nccl_tests(known, links, len(nodes))}
    if asked and image and not plan["runs"]:
        more["nothing"] = nothing_to_measure(Host.of(host))
    more |= {"host": {key: host.get(key) for key in ("accelerator", "device_name", "cdi", "modules")}}
    return Pending(
        changes={**plan, **more},
        due=[f"measure {', '.join(run['name'] for run in plan['runs'])}"] if now else [],
        stops=plan["drain"] if now and drain else [],
        notes=link_note(plan, state, links.library) if possible and links else [],
    )


def _reset(given: Given) -> dict[str, Any]:
    return link_validation_reset(given.known["gaudi_left"])


STAGE = Stage(
    role="link_validation",
    tag="validate",
    planned=True,
    down=(5, "its cards are measured"),
    noted=("report", "status"),
    hosts={"link_validation_nodes": lambda value: value or []},
    waits=lambda known: len(known.get("link_validation_nodes") or []) > 1,
    pending=_pending,
    reset=_reset,
)
