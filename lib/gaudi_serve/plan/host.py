"""The plan of a host: what is to run there, and everything that is wrong with the request.

Pure functions: the same inputs give the same plan, and nothing is touched. A model goes through it once: it is resolved
(merged and completed), checked, placed, launched, and what it costs is counted; its digest comes last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core.errors import Finding, InputError, Problem
from ..model.host import Card, Host
from ..model.shared import key_of
from ..platforms import platform_of, sick_cards
from ..platforms.releases import DEFAULT
from .check import host_problems, release_unset
from .cost import cost_of, cost_problems, cost_warnings, down_for, named, precision_of, weighed_of
from .launch import container_of, launch_warnings
from .loads import load_notes
from .model import Placement, PlannedModel, ServedModel
from .place import Placed, place, topology_notes
from .resolve import ResolvedModel, Site, resolve
from .sharing import smoke_of
from .version import version_notes
from .wanted import Wanted

AWAITS_DRIVER = "its devices do not answer before the run has installed their driver: its models are planned then"


@dataclass(frozen=True)
class HostPlan:
    """What is to run on a host, every mistake in what was requested, and notes on the host itself."""

    host: str
    models: tuple[PlannedModel, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as ``vllm_plan`` does."""
        return {
            "models": [model.as_dict() for model in self.models],
            "errors": [one.as_dict() for one in self.findings],
            "warnings": [
                *[f"{self.host}: {text}" for text in self.notes],
                *[f"{self.host}: model {one.spec.name}: {text}" for one in self.models for text in one.warnings],
            ],
        }


def vllm_plan(
    models: Any,
    host: Mapping[str, Any],
    catalog: Mapping[str, Any] | None = None,
    *,
    host_name: str = "this host",
    defaults: Mapping[str, Any] | None = None,
    release: str = "1.21.3",
    host_nics: bool = False,
    device_family: str = "",
    images: Sequence[Mapping[str, Any]] = (),
    weights_come: bool = True,
    move_allowed: bool = False,
) -> dict[str, Any]:
    """Return ``{models, errors, warnings}``, the plan of one host.

    The arguments are those of ``Wanted`` and of plan_models.
    """
    wanted = Wanted(
        models=models,
        catalog=catalog or {},
        defaults=defaults,
        release=release,
        host_nics=host_nics,
        device_family=device_family,
        weights_come=weights_come,
        move_allowed=move_allowed,
    )
    return plan_models(host_name, wanted, host, images).as_dict()


def plan_models(
    host_name: str, wanted: Wanted, host: Mapping[str, Any], images: Sequence[Mapping[str, Any]]
) -> HostPlan:
    """Plan the models of one host.

    Args:
        host_name: how messages call the host.
        wanted: what is requested; its models must be a list.
        host: host facts, as module gaudi_facts returns them in ``gaudi_host``.
        images: what filter vllm_images returned; models may leave out a built image's tag.

    Returns:
        The plan. A user's mistake never raises, and is one of its findings.
    """
    nics = wanted.host_nics or host.get("host_nics")
    machine = Host.of({**host, "host_nics": nics, "device_family": wanted.device_family})
    if wrong := _whole(wanted.models, machine, host_name, wanted.release):
        return HostPlan(host_name, (), (wrong,))
    release = str(wanted.release or DEFAULT)
    site = Site(machine, host_name, release, wanted.catalog, wanted.defaults or {}, images)
    requests, findings = resolve(wanted.models, site)
    findings += _checked(requests, site, wanted.weights_come)
    if machine.awaits_driver:
        return HostPlan(host_name, (), tuple(findings), (AWAITS_DRIVER,))
    planned, more = _placed(requests, _names(wanted.models), machine, host_name, release, wanted.move_allowed)
    notes = (*machine.unused_cards, *sick_cards(host), *machine.notes)
    return HostPlan(host_name, tuple(planned), (*findings, *more), notes)


def _checked(requests: Sequence[ResolvedModel], site: Site, weights_come: bool) -> list[Finding]:
    """Return what of each model cannot be on its host."""
    checked = [
        (request, host_problems(request.spec, site.host, request.weights, site.release, weights_come))
        for request in requests
    ]
    return [one for request, problems in checked for one in request.findings(problems, site.host_name)]


def _whole(models: Any, host: Host, host_name: str, release: str) -> Finding | None:
    """Return what keeps all models of a host from being planned."""
    if not isinstance(models, list):
        return Finding.of_model(host_name, {}, "vllm_models", models, "must be a list of models")
    return None if release else release_unset(host, host_name)


def _names(models: Sequence[Any]) -> set[str]:
    found = (given.get("name") for given in models if isinstance(given, Mapping))
    return {name for name in found if isinstance(name, str)}


def _placed(
    requests: Sequence[ResolvedModel], named: set[str], host: Host, host_name: str, release: str, move_allowed: bool
) -> tuple[list[PlannedModel], list[Finding]]:
    """Place all models whose number of cards is sound, also those that something else is wrong with.

    The running ones of the others (``named``) keep their cards: a mistake must not give them away.
    """
    sized = [
        request
        for request in requests
        if not request.bad & {"name", "tensor_parallel_size", "module_ids", "launch_profile"}
    ]
    found = Placed({}, {}, {})
    if platform_of(host.accelerator).devices:
        reserved = named - {request.spec.name for request in sized}
        found = place([request.spec for request in sized], host, reserved, move_allowed)
    given = {number for mine in found.cards.values() for number in mine}
    left = [card for card in host.cards if not card.in_use and card.module_id not in given]
    findings: list[Finding] = []
    planned = []
    for request in sized:
        if request.spec.name in found.refused:
            findings += request.findings([found.refused[request.spec.name]], host_name)
            continue
        placement = Placement(host_name, tuple(found.cards.get(request.spec.name, ())))
        model, problems = _planned(request, host, placement, release, _besides(placement, host, left))
        findings += request.findings(problems, host_name)
        if model and not request.bad:
            old = found.moved.get(request.spec.name)
            move = [_move(model, old)] if old else []
            planned.append(replace(model, warnings=(*request.notes, *move, *model.warnings)))
    return planned, findings


def _besides(placement: Placement, host: Host, left: Sequence[Card]) -> int:
    """Return how many of the cards that nobody has a model could have besides its own: those of their kind."""
    mine = [card for card in host.cards if card.module_id in placement.module_ids]
    if any(card.alone for card in mine):
        return 0
    return sum(not card.alone and card.name in {one.name for one in mine} for card in left)


def _move(model: PlannedModel, old: list[int]) -> str:
    cards = list(model.head.module_ids)
    return f"moves from cards {old} to {cards}, and restarts; {down_for(model.cost)}"


def _planned(
    request: ResolvedModel, host: Host, placement: Placement, release: str, cards_left: int
) -> tuple[PlannedModel | None, list[Problem]]:
    spec, platform = request.spec, platform_of(host.accelerator)
    weighed = weighed_of(spec, request.weights, host, release)
    try:
        container = container_of(spec, host, placement, release)
        cost = cost_of(spec, weighed, host, placement, container, cards_left)
    except InputError as problem:
        return None, [problem.finding or ("launch", None, str(problem))]
    row = platform.release(release)
    loads = [
        text for one in weighed for text in named(spec, one.spec, load_notes(one.spec, host, one.weights, release))
    ]
    notes = (*version_notes(spec, row), *loads, *platform.notes(spec, release))
    costs = cost_warnings(spec, weighed, host, placement, cost)
    cards = [card for card in host.cards if card.module_id in placement.module_ids]
    links = topology_notes(host, placement.module_ids)
    able = [
        text
        for one in weighed
        for text in named(spec, one.spec, platform.capability_notes(one.spec, one.weights.architecture, host, cards))
    ]
    warnings = (*container.notes, *costs, *launch_warnings(spec, platform), *notes, *links, *able)
    nodes = {card.numa_node for card in host.cards if card.module_id in placement.module_ids}
    node = nodes.pop() if len(nodes) == 1 else None
    served = tuple(
        ServedModel(one.spec["served_model_name"], one.spec.weights, smoke_of(one.spec, one.weights)) for one in weighed
    )
    precision = precision_of(weighed[0])
    planned = PlannedModel(spec, (placement,), container, cost, precision, node, warnings, served)
    unable = [
        (key_of(place, key), value, text)
        for place, one in enumerate(weighed)
        for key, value, text in platform.capability_problems(one.spec, one.weights.architecture, host, cards)
    ]
    return planned, unable + cost_problems(spec, cost)
