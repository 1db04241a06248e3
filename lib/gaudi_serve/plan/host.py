"""The plan of a host: its models, and all findings about the request.

Pure functions: the same inputs give the same plan, and nothing is changed. Each model is resolved (merged and
completed), checked, placed and launched. Then its cost is estimated, and its digest is computed last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..core.errors import Finding, InputError, Problem
from ..memory.nodes import nodes_of, taken_by
from ..model.adapters import adapter_notes
from ..model.fetches import fetch_warnings
from ..model.host import Card, Host
from ..model.shared import key_of, with_name
from ..model.spec import Spec
from ..platforms import card_warnings, platform_of, serial_notes, sick_cards, with_health
from ..platforms.releases import DEFAULT
from .check import checked
from .cost import cache_of, cost_of, serves
from .distributed import Part, joined, notes_between
from .launch import container_of, launch_warnings
from .loads import load_notes
from .meeting import Reach, addresses_of
from .model import Placement, PlannedModel, ServedModel
from .place import Placed, place, topology_notes
from .request import Mistake, ResolvedModel, Site
from .resolve import resolve
from .sharing import named, smoke_of
from .version import release_unset, served_by
from .wanted import Wanted

AWAITS_DRIVER = "its devices do not answer until the run has installed their driver; the models are planned after that"


@dataclass(frozen=True)
class HostPlan:
    """The planned models of a host, all findings about the request, and notes about the host.

    left: models that are not planned now and stay unchanged, each with the reason.
    """

    host: str
    models: tuple[PlannedModel, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    machine: Host = field(default_factory=Host)
    release: str = ""
    named: frozenset[str] = frozenset()
    left: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as filter ``vllm_plan`` returns it."""
        return {
            "models": [model.as_dict() for model in self.models],
            "errors": [one.as_dict() for one in self.findings],
            "warnings": [
                *[f"{self.host}: {text}" for text in self.notes],
                *[f"{self.host}: model {name}: {text}" for name, text in self.left.items() if text],
                *[f"{self.host}: model {one.spec.name}: {text}" for one in self.models for text in one.warnings],
            ],
            "left": dict(self.left),
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
    """Return ``{models, errors, warnings, left}``, the plan of one host. left: unchanged models, with the reason.

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
    host_name: str,
    wanted: Wanted,
    host: Mapping[str, Any],
    images: Sequence[Mapping[str, Any]],
    hosts: Mapping[str, Reach] | None = None,
) -> HostPlan:
    """Plan the models of one host.

    Args:
        host_name: The name of the host in messages.
        wanted: The request. Its models must be a list.
        host: The facts that module gaudi_facts returns in ``gaudi_host``.
        images: The result of filter vllm_images. Models may leave out the tag of a built image.
        hosts: How to reach each host of models over several hosts. ``with_peers`` then joins the parts of such a
            model.

    Returns:
        The plan. A user's mistake never raises; it is one of its findings.
    """
    nics = wanted.nics or host.get("host_nics")
    judged = with_health(host, wanted.cards_excluded, wanted.cards_accepted)
    given = {"accelerator_cards_excluded": wanted.cards_excluded, "accelerator_cards_accepted": wanted.cards_accepted}
    unknown = serial_notes(host, given)
    machine = Host.of({**judged, "host_nics": nics, "device_family": wanted.device_family}, wanted.between)
    if not isinstance(wanted.models, list):
        wrong = Finding.of_model(host_name, {}, "vllm_models", wanted.models, "must be a list of models")
        return HostPlan(host_name, (), (wrong,))
    if unset := None if wanted.release else release_unset(machine, host_name):
        return HostPlan(host_name, (), (unset,))
    release = str(wanted.release or DEFAULT)
    site = Site(machine, release, wanted.catalog, wanted.defaults or {}, images, hosts or {}, wanted.offline)
    requests, mistakes = resolve(wanted.models, site)
    mistakes += checked(requests, site, wanted.weights_come)
    named = {*_names(wanted.models), *wanted.left}
    planned, more = _placed(requests, named, site, host_name, wanted.move_allowed)
    notes = (AWAITS_DRIVER,) if machine.awaits_driver else (*_notes(machine, host, wanted), *unknown)
    findings = tuple(Finding.of_model(host_name, spec, *problem) for spec, problem in (*mistakes, *more))
    findings += _in_both(host_name, wanted)
    return HostPlan(host_name, tuple(planned), findings, notes, machine, release, frozenset(named), wanted.left)


def _notes(machine: Host, host: Mapping[str, Any], wanted: Wanted) -> tuple[str, ...]:
    """Return the notes about a host and its cards."""
    health = (*sick_cards(host), *card_warnings(host), *wanted.port_notes)
    return (*machine.unused_cards, *health, *machine.notes)


def _in_both(host_name: str, wanted: Wanted) -> tuple[Finding, ...]:
    """Return the finding for serial numbers that are both excluded and accepted."""
    key = "accelerator_cards_accepted"
    both = sorted({*wanted.cards_excluded} & {*wanted.cards_accepted})
    text = f"{host_name}: {key} {', '.join(both)}: accelerator_cards_excluded has the same; leave one of them out"
    return (Finding(host_name, key, text),) if both else ()


def with_peers(
    plan: HostPlan, plans: Mapping[str, HostPlan], hosts: Mapping[str, Reach], images: Mapping[str, Mapping[str, str]]
) -> HostPlan:
    """Return the plan of a host, with its models joined to their parts on other hosts.

    Args:
        plan: The plan that plan_models returned.
        plans: The plans of all hosts of its models, including its own. Every host makes the same ones.
        hosts: See plan_models.
        images: By host, the ids by name of the images that the run does not change.
    """
    models: list[PlannedModel] = []
    findings = list(plan.findings)
    for planned in plan.models:
        spec = planned.spec
        if spec.members is None:
            models.append(planned)
            continue
        parts = {
            name: Part(
                plans[name].machine,
                next((one for one in plans[name].models if one.spec.name == spec.name), None),
                plans[name].release,
                images.get(name, {}).get(str(spec.get("image"))),
                spec.name in plans[name].named,
                _unplanned(plans[name], spec.name),
            )
            for name in spec.members.names
            if name in plans
        }
        model, problems = joined(planned, parts, addresses_of(spec.name, spec.members.names, hosts))
        findings += [Finding.of_model(plan.host, spec, *problem) for problem in problems]
        models += [model] if model and not problems else []
    return replace(plan, models=tuple(models), findings=tuple(findings))


def _unplanned(plan: HostPlan, model: str) -> str:
    """Return why a host has no part of a model, from the findings of its plan; empty if it has none."""
    if plan.machine.awaits_driver:
        return AWAITS_DRIVER
    where = f"{plan.host}: model {model}: "
    found = [one.message.removeprefix(where) for one in plan.findings if one.model == model]
    return next(iter(found), "")


def _names(models: Sequence[Any]) -> set[str]:
    found = (given.get("name") for given in map(with_name, models) if isinstance(given, Mapping))
    return {name for name in found if isinstance(name, str)}


def _placed(
    requests: Sequence[ResolvedModel], named: set[str], site: Site, host_name: str, move_allowed: bool
) -> tuple[list[PlannedModel], list[Mistake]]:
    """Place all models with a valid number of cards, also if they have other problems.

    The other models (``named``) keep the cards on which they run, so that a mistake does not free them.
    """
    host = site.host
    if host.awaits_driver:
        return [], []
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
    left = [card for card in host.cards if not card.in_use and not card.avoided and card.module_id not in given]
    mistakes: list[Mistake] = []
    planned = []
    for request in sized:
        if request.spec.name in found.refused:
            mistakes += request.mistakes([found.refused[request.spec.name]])
            continue
        placement = Placement(host_name, tuple(found.cards.get(request.spec.name, ())))
        model, problems = _planned(request, site, placement, left)
        site = _with_taken(site, model) if model else site
        mistakes += request.mistakes(problems)
        if model and not request.bad:
            old = found.moved.get(request.spec.name)
            move = [_move(model, old)] if old else []
            planned.append(replace(model, warnings=(*request.notes, *move, *model.warnings)))
    return planned, mistakes


def _move(model: PlannedModel, old: list[int]) -> str:
    cards = list(model.here.module_ids)
    return f"moves from cards {old} to {cards}, and restarts; {model.cost.down_for}"


def _with_taken(site: Site, model: PlannedModel) -> Site:
    """Return the site after a model took its part of the memory of the NUMA nodes, if its host has such a plan."""
    cpu, memory = site.host.cpu, model.cost.memory
    if cpu is None or not memory or "nodes" not in memory:
        return site
    nodes = taken_by(cpu.nodes, nodes_of(model.spec, cpu.nodes), memory, model.spec.name)
    return replace(site, host=replace(site.host, cpu=replace(cpu, nodes=nodes)))


def _planned(
    request: ResolvedModel, site: Site, placement: Placement, left: Sequence[Card]
) -> tuple[PlannedModel | None, list[Problem]]:
    """Return a model with a KV cache that fits on processors. One that serves with vLLM's own cache keeps it."""
    model, problems = _planned_as(request.spec, request, site, placement, left)
    size = cache_of(request.spec, request.weights[0], site.host)
    if model is None or size is None or serves(model.spec, site.host, placement, model.container):
        return model, problems
    return _planned_as(request.spec.but(kv_cache_memory_bytes=size), request, site, placement, left)


def _planned_as(
    spec: Spec, request: ResolvedModel, site: Site, placement: Placement, left: Sequence[Card]
) -> tuple[PlannedModel | None, list[Problem]]:
    host, release = site.host, site.release
    platform = platform_of(host.accelerator)
    row = platform.release(release)
    models = list(zip(spec.served, request.weights, strict=True))
    versioned, versions = served_by(spec, row)
    try:
        container = container_of(versioned, host, placement, release, site.addresses(spec))
        ignored = launch_warnings(spec, platform)
        costed = cost_of(versioned, request.weights, row, host, placement, container, left)
    except InputError as problem:
        return None, [problem.finding or ("launch", None, str(problem))]
    loads = [text for one, weights in models for text in named(spec, one, load_notes(one, host, weights, release))]
    cards = [card for card in host.cards if card.module_id in placement.module_ids]
    links = [*topology_notes(host, placement.module_ids), *notes_between(spec, host, site.addresses(spec))]
    able = [
        text
        for one, weights in models
        for text in named(spec, one, platform.capability_notes(one, weights.architecture, host, cards))
    ]
    fetches = [text for one, weights in models for text in named(spec, one, fetch_warnings(one, weights.architecture))]
    notes = (*versions, *adapter_notes(spec, host), *loads, *platform.notes(spec, release), *links, *able)
    warnings = (*container.notes, *costed.warnings, *ignored, *fetches, *notes)
    nodes = {card.numa_node for card in cards}
    node = nodes.pop() if len(nodes) == 1 else None
    served = tuple(
        ServedModel(one["served_model_name"], one.weights, smoke_of(one, weights), weights.architecture.sees)
        for one, weights in models
    )
    planned = PlannedModel(spec, (placement,), container, costed.cost, costed.precision, node, warnings, served)
    unable = [
        (key_of(place, key), value, text)
        for place, (one, weights) in enumerate(models)
        for key, value, text in platform.capability_problems(one, weights.architecture, host, cards)
    ]
    return planned, unable + costed.problems
