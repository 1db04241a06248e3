"""The downtime of models in a run: from which stage on and for how long, and the pending changes as lines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.served import served_names
from ..model.host import LiveModel, live_models
from ..stages.base import CORRECT
from ..stages.changes import StageChanges
from ..stages.container_runtime import engine_stopped
from ..stages.registry import OBJECTS, STAGES, Known
from ..stages.service import kept_models, runs_as_planned
from .changes import vllm_plan_changes
from .cost import LOAD_BYTES_S


@dataclasses.dataclass(frozen=True)
class Down:
    """A serving model that a run stops.

    minutes: estimated downtime; None if the model does not start again. others: the other models of its server.
    """

    model: str
    stage: str
    reason: str
    minutes: int | None
    others: Sequence[str] = ()

    @property
    def line(self) -> str:
        """Return the downtime as a sentence."""
        name = f"{self.model} (with {', '.join(self.others)})" if self.others else self.model
        if self.minutes is None:
            return f"{name} stops for good, from stage {self.stage} on: {self.reason}"
        return f"{name} is down from stage {self.stage} on for about {self.minutes} min: {self.reason}"


def pending_lines(known: Known, stages: Sequence[str]) -> list[str]:
    """Return the pending changes of a host as lines: by stage, for the models, and the models that are down.

    Args:
        known: The host's variables, with the stages' facts, ``preflight_plan`` and ``gaudi_host``.
        stages: The stages of the run.
    """
    due = StageChanges.of(known, stages).pending
    lines = [f"{STAGES[stage]}: {text}" for stage, texts in due.items() if stage != "vllm_service" for text in texts]
    planned, live = known.get("preflight_plan"), known.get("gaudi_host")
    changes: list[str] = []
    if "vllm_service" in stages and planned and live:
        changes = vllm_plan_changes(planned["models"], live["services"], kept_models(planned))
    # Changes without their own line, such as a unit file that another program changed.
    rest = [text for text in due.get("vllm_service", []) if not changes or text.startswith(CORRECT)]
    rest = [f"{STAGES['vllm_service']}: {text}" for text in rest]
    return [*lines, *changes, *rest, *[f"! {one.line}" for one in downtimes(known, stages)]]


def downtimes(known: Known, stages: Sequence[str] = tuple(STAGES)) -> list[Down]:
    """Return the serving models that a run takes down, with stage and estimated time.

    The first reason counts, because a model that is already down is not taken down again. The time has two parts. The
    first is that of the stage: 10 min for a reboot, 5 for the driver and for a measurement, 1 for the container engine.
    The second is the start: reading the weights at 1.5 GB/s, and the warm-up, with a filled recipe cache if the launch
    is unchanged.
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
                # A run of only this stage plans no models. Each starts again, after an unknown time.
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
    """Return the names for clients of the other models that a unit serves now."""
    return list(served_names(name, live.command)[1:])


def _serving(services: Mapping[str, LiveModel], runtime: Any) -> list[str]:
    """Return the models that a run could take down. Without its container engine, a starting model serves nothing."""
    stopped = engine_stopped(runtime)
    return [name for name, one in services.items() if (one.active if stopped else one.runs)]


def _start(model: Known, host: Known, *, cached: bool) -> int:
    """Return the estimated minutes of a model's start: reading its weights, and the warm-up."""
    folders = [one["weights"] for one in model.get("served") or [model]]
    size = sum(((host.get("weights") or {}).get(path) or {}).get("bytes") or 0 for path in folders)
    warmup = model["warmup_cached_s"] if cached and model["warmup_cached_s"] is not None else model["warmup_s"]
    return max(1, round((size / LOAD_BYTES_S + (warmup or 0)) / 60))
