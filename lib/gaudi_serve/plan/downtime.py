"""Which models a run takes down, from which stage on and for how long; what it would do, as lines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.served import served_names
from ..model.host import LiveModel, live_models
from ..stages.changes import StageChanges
from ..stages.container_runtime import engine_stopped
from ..stages.registry import OBJECTS, STAGES, Known
from ..stages.service import kept_models, runs_as_planned
from .changes import vllm_plan_changes

# Bytes a second that weights are read with from one NVMe disk; a network share is slower.
LOAD_BYTES_S = 1.5e9


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


def pending_lines(known: Known, stages: Sequence[str]) -> list[str]:
    """Return what a run would do on a host as lines: by stage, the models' changes, which models are down.

    Args:
        known: the host's variables; read are the facts that the stages keep, ``preflight_plan``
            and ``gaudi_host``.
        stages: the stages that the run is about.
    """
    due = StageChanges.of(known, stages).pending
    lines = [f"{STAGES[stage]}: {text}" for stage, texts in due.items() if stage != "vllm_service" for text in texts]
    planned, live = known.get("preflight_plan"), known.get("gaudi_host")
    changes: list[str] = []
    if "vllm_service" in stages and planned and live:
        changes = vllm_plan_changes(planned["models"], live["services"], kept_models(planned))
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
    changes = StageChanges.of(known, stages)
    host = known.get("gaudi_host") or {}
    services = live_models(host)
    plan = known.get("preflight_plan") or {}
    planned = {str(model["name"]): model for model in plan.get("models", [])}
    serving = _serving(services, known.get("gaudi_runtime"))
    found: dict[str, Down] = {}
    for stage in OBJECTS:
        usual, reason = stage.down or (0, "")
        minutes = int(known.get(f"{stage.role}_down_minutes") or usual)
        for name in changes.taken_down(stage.role, serving):
            if name in serving and name not in found:
                back = minutes + _start(planned[name], host, cached=True) if name in planned else None
                found[name] = Down(name, stage.tag, reason, back)
                # A run of this stage alone plans no models; each starts again, in a time that is not known.
                if "preflight_plan" not in known or name in (plan.get("left") or []):
                    found[name] = Down(name, stage.tag, f"{reason}, and then it starts", minutes)
    for key, reason in (("remove", "it is not planned any more"), ("stop", "it is planned stopped")):
        for name in changes.served.get(key, []):
            if name in serving:
                found.setdefault(name, Down(name, STAGES["vllm_service"], reason, None))
    for name in changes.served.get("restart", []):
        if name in serving and name in planned:
            same = runs_as_planned(services[name], planned[name])
            minutes = _start(planned[name], host, cached=same)
            found.setdefault(name, Down(name, STAGES["vllm_service"], "it restarts", minutes))
    return [dataclasses.replace(one, others=_others(one.model, services[one.model])) for one in found.values()]


def _others(name: str, live: LiveModel) -> list[str]:
    """Return the names for clients of what a unit serves now besides its first model."""
    return list(served_names(name, live.command)[1:])


def _serving(services: Mapping[str, LiveModel], runtime: Any) -> list[str]:
    """Return the models that a run could take down: without its engine, what is on its way serves nothing."""
    stopped = engine_stopped(runtime)
    return [name for name, one in services.items() if (one.active if stopped else one.runs)]


def _start(model: Known, host: Known, *, cached: bool) -> int:
    """Return about how many minutes a model takes to start: reading its weights, and the warm-up."""
    folders = [one["weights"] for one in model.get("served") or [model]]
    size = sum(((host.get("weights") or {}).get(path) or {}).get("bytes") or 0 for path in folders)
    warmup = model["warmup_cached_s"] if cached and model["warmup_cached_s"] is not None else model["warmup_s"]
    return max(1, round((size / LOAD_BYTES_S + (warmup or 0)) / 60))
