"""The plan of a host: what is to run there, and everything that is wrong with the wish.

Pure functions: the same inputs give the same plan, and nothing is touched. A model goes through it once: it is resolved
(merged and completed), checked, placed, launched, and what it costs is counted; its digest comes last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core.errors import Finding, InputError, Problem
from ..model.host import Host
from ..platforms import platform_of
from ..platforms.releases import DEFAULT
from .check import host_problems, release_unsaid
from .cost import cost_of, cost_problems, cost_warnings, down_for, named, precision_of, weighed_of
from .launch import container_of, launch_warnings
from .loads import load_notes
from .model import Placement, PlannedModel, ServedModel
from .place import Placed, place
from .resolve import Site, Wish, resolve
from .sharing import smoke_of
from .version import version_notes


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
    """Return ``{models, errors, warnings}``, the plan of one host; the arguments are those of plan_models."""
    return plan_models(
        models,
        host,
        catalog,
        host_name=host_name,
        defaults=defaults,
        release=release,
        host_nics=host_nics,
        device_family=device_family,
        images=images,
        weights_come=weights_come,
        move_allowed=move_allowed,
    ).as_dict()


def plan_models(
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
) -> HostPlan:
    """Plan the models of one host.

    Args:
        models: the user's list.
        host: host facts, as module gaudi_facts returns them in ``gaudi_host``.
        catalog: known models; ``model: <entry>`` takes the entry's keys, a model's own keys win.
        host_name: how messages call the host.
        defaults: keys that every model takes where neither it nor the catalog has them.
        release: of driver and serving image, such as 1.21.3; empty where nobody has said one.
        host_nics: the machine has NICs for traffic between cards (matters on Gaudi2E only).
        device_family: as what cards are served whose name is not known, such as HL-325; empty where it is known.
        images: what filter vllm_images returned; models may leave out a built image's tag.
        weights_come: weights with a ``source`` are brought by a later stage.
        move_allowed: running models may get other cards where others need theirs, which restarts them.

    Returns:
        The plan. A user's mistake never raises, and is one of its findings.
    """
    machine = Host.of({**host, "host_nics": host_nics or host.get("host_nics"), "device_family": device_family})
    if wrong := _whole(models, machine, host_name, release):
        return HostPlan(host_name, (), (wrong,))
    site = Site(machine, host_name, str(release or DEFAULT), catalog or {}, defaults or {}, images)
    wishes, findings = resolve(models, site)
    findings += _checked(wishes, site, weights_come)
    planned, more = _placed(wishes, _names(models), machine, host_name, site.release, move_allowed)
    return HostPlan(host_name, tuple(planned), (*findings, *more), tuple(machine.unused_cards))


def _checked(wishes: Sequence[Wish], site: Site, weights_come: bool) -> list[Finding]:
    """Return what of each model cannot be on its host."""
    checked = [(wish, host_problems(wish.spec, site.host, wish.weights, site.release, weights_come)) for wish in wishes]
    return [one for wish, problems in checked for one in wish.findings(problems, site.host_name)]


def _whole(models: Any, host: Host, host_name: str, release: str) -> Finding | None:
    """Return what keeps all models of a host from being planned."""
    if not isinstance(models, list):
        return Finding.of_model(host_name, {}, "vllm_models", models, "must be a list of models")
    return None if release else release_unsaid(host, host_name)


def _names(models: Sequence[Any]) -> set[str]:
    found = (given.get("name") for given in models if isinstance(given, Mapping))
    return {name for name in found if isinstance(name, str)}


def _placed(
    wishes: Sequence[Wish], named: set[str], host: Host, host_name: str, release: str, move_allowed: bool
) -> tuple[list[PlannedModel], list[Finding]]:
    """Place all models whose number of cards is sound, also those that something else is wrong with.

    The running ones of the others (``named``) keep their cards: a mistake must not give them away.
    """
    sized = [wish for wish in wishes if not wish.bad & {"name", "tensor_parallel_size", "module_ids", "launch_profile"}]
    found = Placed({}, {}, {})
    if platform_of(host.accelerator).devices:
        reserved = named - {wish.spec.name for wish in sized}
        found = place([wish.spec for wish in sized], host, reserved, move_allowed)
    given = {number for mine in found.cards.values() for number in mine}
    left = sum(card.module_id not in given for card in host.cards if not card.in_use)
    findings: list[Finding] = []
    planned = []
    for wish in sized:
        if wish.spec.name in found.refused:
            findings += wish.findings([found.refused[wish.spec.name]], host_name)
            continue
        placement = Placement(host_name, tuple(found.cards.get(wish.spec.name, ())))
        model, problems = _planned(wish, host, placement, release, left)
        findings += wish.findings(problems, host_name)
        if model and not wish.bad:
            old = found.moved.get(wish.spec.name)
            move = [_move(model, old)] if old else []
            planned.append(replace(model, warnings=(*wish.notes, *move, *model.warnings)))
    return planned, findings


def _move(model: PlannedModel, old: list[int]) -> str:
    cards = list(model.placement.module_ids)
    return f"moves from cards {old} to {cards}, and restarts; {down_for(model.cost)}"


def _planned(
    wish: Wish, host: Host, placement: Placement, release: str, cards_left: int
) -> tuple[PlannedModel | None, list[Problem]]:
    spec, platform = wish.spec, platform_of(host.accelerator)
    weighed = weighed_of(spec, wish.weights, host, release)
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
    warnings = (*container.notes, *costs, *launch_warnings(spec), *notes)
    nodes = {card.numa_node for card in host.cards if card.module_id in placement.module_ids}
    node = nodes.pop() if len(nodes) == 1 else None
    served = tuple(
        ServedModel(one.spec["served_model_name"], one.spec.weights, smoke_of(one.spec, one.weights)) for one in weighed
    )
    precision = precision_of(weighed[0])
    planned = PlannedModel(spec, placement, container, cost, precision, node, warnings, served)
    return planned, cost_problems(spec, cost)
