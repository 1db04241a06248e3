"""Which stages of a run have something to do on a host, what that is, and which models it takes down for how long."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..core.errors import near, readable
from ..core.served import served_names
from ..plan.changes import vllm_plan_changes
from .container_runtime import engine_stopped
from .service import runs_as_planned

Known = Mapping[str, Any]

# Role of every stage, in the order of a run, with the name of its playbook, which is its tag too.
STAGES = {
    "host_tuning": "host",
    "gaudi_driver": "driver",
    "container_runtime": "runtime",
    "vllm_image": "images",
    "hccl_validation": "validate",
    "model_weights": "weights",
    "vllm_service": "models",
    "gateway": "gateway",
}
# What a host takes part in that has no part in a run, of which an empty list is all.
NONE = "none"
# The same of a host that no run has a part for, since its inventory gives it no task.
ALONE = "left_alone"
# The same of a host whose models run behind a gateway that the run is about: they are planned, and not changed.
BEHIND = "behind_gateway"
LEFT_ALONE = "left alone: the inventory gives it no models, no gateway and no other task"
# Stages that need a sound plan of the models; the others may mend a host whose models are wished for wrongly.
PLANNED = ("vllm_image", "hccl_validation", "model_weights", "vllm_service")
# What gaudi_facts has to read for each.
SUBSETS = {
    "host_tuning": ("system", "tuning"),
    "gaudi_driver": ("system", "host", "services", "driver"),
    "container_runtime": ("system", "runtime", "services"),
    "gateway": ("system",),
    BEHIND: ("system", "runtime", "services", "host"),
    NONE: ("system",),
    # What it serves, if anything: an inventory that was not read must not hide that.
    ALONE: ("system", "services"),
}
EVERYTHING = ("system", "tuning", "runtime", "services", "hccl", "host", "driver")
# The facts in which the roles' due.yml keep what they would do.
TOLD = (
    *(f"{stage}_{kind}" for stage in STAGES for kind in ("due", "refusal", "stops")),
    *("host_tuning_reboots", "host_tuning_reboot_reasons", "container_runtime_restarts", "preflight_unclear"),
)
# Tags that Ansible itself gives a meaning.
TAGS = ("all", "always", "never", "tagged", "untagged")

# Variables that name hosts with a task for others, with what reads the names.
NAMING: dict[str, Callable[[Any], Iterable[Any]]] = {
    "vllm_image_from_host": lambda value: [value],
    "model_weights_from_host": lambda value: [value],
    "hccl_validation_nodes": lambda value: value or [],
    "vllm_images": lambda value: [image.get("build_host") for image in value or [] if isinstance(image, Mapping)],
}

# Minutes, for the announcement only. A server with eight cards and much memory tests both for long when it starts.
REBOOT_MINUTES, DRIVER_MINUTES, ENGINE_MINUTES, MEASURE_MINUTES = 10, 5, 1, 5
# Bytes a second that weights are read with from one NVMe disk; a network share is slower.
LOAD_BYTES_S = 1.5e9


def run_stages(
    asked: Sequence[str] | None,
    tags: Sequence[str] = (),
    skipped: Sequence[str] = (),
    gateway: bool = False,
    models: Any = True,
    services: Known | None = None,
    source: bool = False,
    gateways: bool = False,
) -> list[str]:
    """Return the stages that a run is about on a host, by their roles, in their order.

    Args:
        asked: roles of the stages of the playbook; None for all.
        tags: ``ansible_run_tags``: names of stages (host, driver, ...), or ``all``.
        skipped: ``ansible_skip_tags``.
        gateway, gateways: the host is a gateway; the inventory has gateways.
        models: ``vllm_models`` of the host; None where it is not set.
        services: ``gaudi_services`` of the host; None before it was read.
        source: other hosts get images or weights from it, or measure links with it (task_hosts).

    Returns:
        Roles; ``[]`` where the playbook has no stages, ``["none"]`` where the host has no part in any, and
        ``["left_alone"]`` where no stage has a part in the host. An empty list of models is such a host's too, but for
        a run that names its stages: it prepares the host. ``"behind_gateway"`` is among them where a run of the
        gateway alone only looks at the host's models.
    """
    wanted = set(tags) - {"always"} or {"all"}
    every = bool(wanted & {"all", "tagged"})
    named = models is not None and (bool(asked) or not every)
    serves = bool(models) or named or source or still_serves(services or {})
    part = [role for role in STAGES if (role != "gateway" and serves) or (role == "gateway" and gateway)]
    left = {role: tag for role, tag in STAGES.items() if not {tag, "all", "tagged"} & set(skipped)}
    found = [role for role, tag in left.items() if (asked is None or role in asked) and (every or tag in wanted)]
    if not part:
        return [ALONE]
    mine = [role for role in found if role in part]
    behind = gateways and models and "gateway" in found and not set(found) & set(PLANNED)
    mine += [BEHIND] if behind else []
    return mine or ([NONE] if found or not serves else [])


def still_serves(services: Known) -> bool:
    """Tell whether a host has models, or what is left of them, by its ``gaudi_services``."""
    return any(services.get(key) for key in ("units", "without_unit", "orphans", "kept"))


def task_hosts(hostvars: Mapping[str, Known], hosts: Sequence[str]) -> list[str]:
    """Return the hosts that have a task for others: they give or build images, give weights, or measure links.

    A variable that cannot be read names none, and is refused at its host.
    """
    found = {one for name in hosts for key in NAMING for one in _named(hostvars[name], key)}
    return [name for name in hosts if name in found]


def _named(variables: Known, key: str) -> set[str]:
    try:
        return {name for name in NAMING[key](variables.get(key)) if isinstance(name, str)}
    # Of Ansible's and of Jinja's many errors.
    except Exception:
        return set()


def tags_refusal(tags: Sequence[str]) -> list[str]:
    """Return what is wrong with ``ansible_run_tags``: a tag that no stage has would do nothing, and pass."""
    known = list(STAGES.values())
    wrong = [tag for tag in tags if tag not in (*known, *TAGS)]
    return [f"--tags {readable(tag)}: must be one of {', '.join(known)}{near(tag, known, 1)}" for tag in wrong]


def facts_wanted(stages: Sequence[str], gateway: bool = False) -> list[str]:
    """Return the subsets of gaudi_facts that stages need; all of them where models are planned.

    Args:
        stages: what run_stages returned.
        gateway: the host is a gateway.
    """
    own = ["haproxy"] if gateway else []
    if set(stages) & set(PLANNED) or not stages:
        return [*EVERYTHING, *own]
    return [subset for subset in EVERYTHING if any(subset in SUBSETS[stage] for stage in stages)] + own


def plans_models(stages: Sequence[str]) -> bool:
    """Tell whether stages need a plan of the models."""
    return bool(set(stages) & {*PLANNED, BEHIND}) or not stages


def due_by_stage(known: Known, stages: Sequence[str] = tuple(STAGES)) -> dict[str, list[str]]:
    """Return what is due by stage, of those that have something, from the facts ``<role>_due``."""
    found = {stage: list(known[f"{stage}_due"]) for stage in stages if f"{stage}_due" in known}
    return {stage: lines for stage, lines in found.items() if lines}


def stages_due(known: Known, stages: Sequence[str]) -> list[str]:
    """Return the stages that run on a host: from the first that is due on, since one changes what the next sees.

    Stages in which hosts wait for each other run in any case; each looks for itself what there is to do.

    Args:
        known: the host's variables; read are the facts ``<role>_due`` that the roles' due.yml keep (lists
            of lines), ``model_weights_together`` and ``hccl_validation_nodes``.
        stages: the stages that the run is about.
    """
    due = due_by_stage(known, stages)
    first = next((index for index, stage in enumerate(stages) if stage in due), len(stages))
    together = {
        "model_weights": bool(known.get("model_weights_together")),
        "hccl_validation": len(known.get("hccl_validation_nodes") or []) > 1,
    }
    return [stage for index, stage in enumerate(stages) if index >= first or together.get(stage)]


@dataclasses.dataclass(frozen=True)
class Down:
    """A serving model that a run takes down.

    minutes: about how long; None where it does not start again. others: the other models of its server.
    """

    model: str
    stage: str
    reason: str
    minutes: int | None
    others: Sequence[str] = ()

    @property
    def line(self) -> str:
        """Return it as a sentence."""
        name = f"{self.model} (with {', '.join(self.others)})" if self.others else self.model
        if self.minutes is None:
            return f"{name} goes down for good, from stage {self.stage} on: {self.reason}"
        return f"{name} is down from stage {self.stage} on for about {self.minutes} min: {self.reason}"


def due_lines(known: Known, stages: Sequence[str]) -> list[str]:
    """Return what a run would do on a host as lines: by stage, the models' changes, which models are down.

    Args:
        known: the host's variables; read are the facts that the roles' due.yml keep, ``preflight_plan``
            and ``gaudi_host``.
        stages: the stages that the run is about.
    """
    due = due_by_stage(known, stages)
    lines = [f"{STAGES[stage]}: {text}" for stage, texts in due.items() if stage != "vllm_service" for text in texts]
    planned, live = known.get("preflight_plan"), known.get("gaudi_host")
    changes: list[str] = []
    if "vllm_service" in stages and planned and live:
        wrong = {error["model"] for error in planned["errors"]}
        changes = vllm_plan_changes(planned["models"], live["services"], wrong)
    # What has no line of its own, as a unit file that somebody has changed.
    rest = [] if changes else [f"{STAGES['vllm_service']}: {text}" for text in due.get("vllm_service", [])]
    return [*lines, *changes, *rest, *[f"! {one.line}" for one in downtimes(known, stages)]]


def downtimes(known: Known, stages: Sequence[str] = tuple(STAGES)) -> list[Down]:
    """Return which serving models a run takes down, from which stage on, and for about how long.

    The first reason counts: a model that is down already is not taken down again. The time is that of
    the stage (10 min for a reboot, 5 for the driver and for a measurement, 1 for the engine), and of a
    start: reading the weights at 1.5 GB/s and the warm-up, with a filled recipe cache where the launch
    is the same.
    """
    due = due_by_stage(known, stages)
    host = known.get("gaudi_host") or {}
    services = host.get("services") or {}
    planned = {str(model["name"]): model for model in (known.get("preflight_plan") or {}).get("models", [])}
    serving = _serving(services, known.get("gaudi_runtime"))
    found: dict[str, Down] = {}
    for stage, minutes, reason, stopped in (
        ("host_tuning", REBOOT_MINUTES, "the host reboots", serving if known.get("host_tuning_reboots") else ()),
        ("gaudi_driver", DRIVER_MINUTES, "the driver is replaced", known.get("gaudi_driver_stops") or ()),
        (
            *("container_runtime", ENGINE_MINUTES, "the engine restarts, and its containers with it"),
            serving if known.get("container_runtime_restarts") else (),
        ),
        ("hccl_validation", MEASURE_MINUTES, "its cards are measured", known.get("hccl_validation_stops") or ()),
        ("model_weights", 0, "its weights are replaced", known.get("model_weights_stops") or ()),
    ):
        for name in stopped if stage in due else ():
            if name in serving and name not in found:
                back = minutes + _start(planned[name], host, cached=True) if name in planned else None
                found[name] = Down(name, STAGES[stage], reason, back)
    changes = (known.get("vllm_service_stops") or {}) if "vllm_service" in due else {}
    for key, reason in (("remove", "it is not planned any more"), ("stop", "it is planned stopped")):
        for name in changes.get(key, []):
            if name in serving:
                found.setdefault(name, Down(name, STAGES["vllm_service"], reason, None))
    for name in changes.get("restart", []):
        if name in serving and name in planned:
            same = runs_as_planned(services[name], planned[name])
            minutes = _start(planned[name], host, cached=same)
            found.setdefault(name, Down(name, STAGES["vllm_service"], "it restarts", minutes))
    return [dataclasses.replace(one, others=_others(one.model, services[one.model])) for one in found.values()]


def _others(name: str, service: Known) -> list[str]:
    """Return the names for clients of what a unit serves now besides its first model."""
    return list(served_names(name, (service.get("launch") or {}).get("command") or ())[1:])


def _serving(services: Known, runtime: Any) -> list[str]:
    """Return the models that a run could take down: without its engine, what is on its way serves nothing."""
    there = ("active",) if engine_stopped(runtime) else ("active", "holds")
    return [name for name, service in services.items() if any(service.get(key) for key in there)]


def _start(model: Known, host: Known, *, cached: bool) -> int:
    """Return about how many minutes a model takes to start: reading its weights, and the warm-up."""
    folders = [one["weights"] for one in model.get("served") or [model]]
    size = sum(((host.get("weights") or {}).get(path) or {}).get("bytes") or 0 for path in folders)
    warmup = model["warmup_cached_s"] if cached and model["warmup_cached_s"] is not None else model["warmup_s"]
    return max(1, round((size / LOAD_BYTES_S + (warmup or 0)) / 60))
