"""The stages of a run: their order, the stages that apply to a host, and those with pending changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import near, readable
from . import (
    accelerator_network,
    bios,
    container_runtime,
    driver,
    gateway,
    host_tuning,
    image,
    links,
    monitoring,
    offline,
    qualification,
    service,
    weights,
)
from .base import Given, Stage

Known = Mapping[str, Any]

# Every stage in the order of a run; a new stage is a file next to this one and a line here.
OBJECTS: tuple[Stage, ...] = (
    offline.STAGE,
    bios.STAGE,
    host_tuning.STAGE,
    driver.STAGE,
    qualification.STAGE,
    accelerator_network.STAGE,
    container_runtime.STAGE,
    image.STAGE,
    links.STAGE,
    weights.STAGE,
    service.STAGE,
    gateway.STAGE,
    monitoring.STAGE,
)
BY_ROLE = {one.role: one for one in OBJECTS}
# The tag of every stage by its role; it is also the name of its playbook.
STAGES = {one.role: one.tag for one in OBJECTS}
# Marks a host to which no stage of the run applies; an empty list means all stages.
NONE = "none"
# Marks a host to which no run applies, since its inventory gives it no task.
ALONE = "left_alone"
# Marks a host whose models run behind a gateway that is the subject of the run: they are planned, not changed.
BEHIND = "behind_gateway"
LEFT_ALONE = "left alone: the inventory gives it no models, no gateway and no other task"
# Stages that need a plan of the models without errors; the others may repair a host whose models have errors.
PLANNED = tuple(one.role for one in OBJECTS if one.planned)
# Stages that depend on the plans of all hosts and run after all models are ready.
OF_FLEET = tuple(one.role for one in OBJECTS if one.of_fleet)
# The gaudi_facts subsets of each stage that does not need all.
SUBSETS = {
    **{one.role: one.reads for one in OBJECTS if not one.planned},
    BEHIND: ("system", "runtime", "services", "host"),
    NONE: ("system",),
    # Its running models, if any: an inventory that was not read must not hide them.
    ALONE: ("system", "services"),
}
EVERYTHING = (
    *("system", "tuning", "runtime", "services", "hccl", "host", "driver"),
    *("network", "qualification", "bios", "mirror"),
)
# The facts that store the pending changes of the stages.
REPORTED = (
    *(name for one in OBJECTS for name in one.names("due", "refusal", "stops", *one.reports)),
    *(name for one in OBJECTS if one.ends_all for name in one.names(one.ends_all)),
    *("preflight_unclear", "preflight_expected"),
)
# Tags with a meaning in Ansible itself.
TAGS = ("all", "always", "never", "tagged", "untagged")

# Variables that name hosts with a task for others, with the functions that read the names.
NAMING = {key: names for one in OBJECTS for key, names in one.hosts.items()}


def run_stages(
    asked: Sequence[str] | None,
    tags: Sequence[str] = (),
    skipped: Sequence[str] = (),
    gateway: bool = False,
    removes: bool = False,
    models: Any = True,
    services: Known | None = None,
    source: bool = False,
    gateways: bool = False,
    monitor: bool = False,
    monitors: bool = False,
) -> list[str]:
    """Return the roles of the stages of a run that apply to a host, in their order.

    Args:
        asked: roles of the stages of the playbook; None for all.
        tags, skipped: ``ansible_run_tags``: names of stages (host, driver, ...), or ``all``; ``ansible_skip_tags``.
        gateway, removes, monitor: the host is a gateway, loses it, monitors others. gateways, monitors: any host does.
        models: ``vllm_models`` of the host; None if it is not set.
        services: ``gaudi_services`` of the host; None before it was read.
        source: other hosts get images or weights from it, or measure links with it (task_hosts).

    Returns:
        Roles; ``[]`` if the playbook has no stages, ``["none"]`` if none applies to the host, ``["left_alone"]`` if no
        stage at all does; a host with an empty list of models counts only if the playbook or a tag names stages.
        ``"behind_gateway"`` is included if a run only reads the host's models.
    """
    every = bool((wanted := {*tags} - {"always"} or {"all"}) & {"all", "tagged"})
    named = models is not None and (bool(asked) or not every)
    serves = bool(models or named or source) or still_serves(services or {})
    watched = (monitors and (serves or gateway or monitor)) or bool((services or {}).get("monitoring"))
    has = {"gateway": gateway or removes, "monitoring": watched, "offline": serves or gateway or removes or watched}
    part = [role for role in STAGES if has.get(role, serves)]
    found = [role for role in _unskipped(skipped, asked) if every or STAGES[role] in wanted]
    looks = {role for role, there in (("gateway", gateways), ("monitoring", monitors)) if there} & set(found)
    reads = [BEHIND] if models and looks and not set(found) & set(PLANNED) else []
    mine = [role for role in found if role in part] + reads
    return mine or ([NONE] if found or not serves else []) if part else [ALONE]


def _unskipped(skipped: Sequence[str], asked: Sequence[str] | None) -> list[str]:
    """Return the roles of the stages of a playbook without tags that a run skips."""
    left = [role for role, tag in STAGES.items() if not {tag, "all", "tagged"} & set(skipped)]
    return [role for role in left if asked is None or role in asked]


def still_serves(services: Known) -> bool:
    """Return whether a host has models or remains of them, by its ``gaudi_services``."""
    return any(services.get(key) for key in ("units", "without_unit", "orphans", "kept"))


def task_hosts(hostvars: Mapping[str, Known], hosts: Sequence[str]) -> list[str]:
    """Return the hosts with a task for others: sources of images or weights, image builders, partners in measurements.

    A variable that cannot be rendered adds no host; its own host refuses it.
    """
    found = {one for name in hosts for key in NAMING for one in _named(hostvars[name], key)}
    return [name for name in hosts if name in found]


def _named(variables: Known, key: str) -> set[str]:
    try:
        return {name for name in NAMING[key](variables.get(key)) if isinstance(name, str)}
    # Rendering raises many kinds of errors, from Ansible and from Jinja.
    except Exception:
        return set()


def tags_refusal(tags: Sequence[str]) -> list[str]:
    """Return the errors in ``ansible_run_tags``: with an unknown tag, a run would do nothing and succeed."""
    known = list(STAGES.values())
    wrong = [tag for tag in tags if tag not in (*known, *TAGS)]
    return [f"--tags {readable(tag)}: must be one of {', '.join(known)}{near(tag, known, 1)}" for tag in wrong]


def facts_wanted(
    stages: Sequence[str], gateway: bool = False, monitored: bool = False, offline: bool = False
) -> list[str]:
    """Return the subsets of gaudi_facts that stages need; all of them if models are planned.

    Args:
        stages: the result of run_stages.
        gateway: the host is a gateway.
        monitored: the inventory has a monitoring host.
        offline: everything comes from the site's mirror, whose contents each run reads.
    """
    looks = {"system", "mirror"} if offline else set()
    own = [*(["haproxy"] if gateway else []), *(["metrics"] if monitored else [])]
    if set(stages) & set(PLANNED) or not stages:
        return [*EVERYTHING, *own]
    wanted = looks.union(*(SUBSETS[stage] for stage in stages))
    return [subset for subset in EVERYTHING if subset in wanted] + own


def expected_host(host_name: str, known: Known, stages: Sequence[str], *, plans_again: bool) -> dict[str, Any]:
    """Return the values of ``gaudi_host`` that the stages before the models will change.

    Args:
        host_name: name of the host in messages.
        known: its variables.
        stages: roles of the stages of the run; empty for all.
        plans_again: the run plans models again after it has installed a driver; other runs need an installed driver.
    """
    given = Given(host_name, known)
    found = [one.expected(given) for one in OBJECTS if one.role in stages or not stages]
    changed = {key: value for values in found for key, value in values.items()}
    return changed if plans_again else {key: value for key, value in changed.items() if key != "awaits_driver"}


def awaits_driver(known: Known) -> bool:
    """Return whether the stages that need a plan of the models must wait for the driver."""
    return bool((known.get("preflight_expected") or {}).get("awaits_driver"))


def plans_models(stages: Sequence[str]) -> bool:
    """Return whether stages need a plan of the models."""
    return bool(set(stages) & {*PLANNED, BEHIND}) or not stages
