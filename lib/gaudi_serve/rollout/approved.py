"""Whether a rollout would change only what was approved: its plan against the plan that the approver read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.aliases import value_of
from ..core.checks import is_true
from ..model.host import LiveModel, live_models
from ..plan.downtime import pending_lines
from ..stages.changes import StageChanges
from ..stages.registry import STAGES
from ..stages.service import runs_as_planned

Known = Mapping[str, Any]
# Downtimes are estimates, which differ from run to run.
ESTIMATE = "! "
# Stages whose lines name what changes, and not how, with the variable that says how.
NAMED = {"vllm_image": "vllm_images", "gateway": "fleet_gateway", "monitoring": "fleet_monitoring"}


def rollout_due(hostvars: Mapping[str, Known], hosts: Sequence[str]) -> dict[str, list[str]]:
    """Return what a rollout would change, as lines by host; hosts without a change are left out.

    What a line does not show, such as the options of a model that starts, has a line with its digest.

    Args:
        hostvars: variables by host, with the facts that preflight keeps.
        hosts: those of the run.
    """
    found = {name: _lines(hostvars[name]) for name in hosts}
    return {name: lines for name, lines in found.items() if lines}


def rollout_unapproved(hostvars: Mapping[str, Known], hosts: Sequence[str], variables: Known) -> list[str]:
    """Return what a rollout would change beyond the approved plan, a sentence each; empty where nothing was approved.

    Args:
        hostvars: variables by host, with the facts that preflight keeps.
        hosts: those of the run.
        variables: of any host; read are ``rollout_as_approved``, which demands an approved plan, and
            ``gaudi_rollout``, the artifact of the job whose plan was approved.
    """
    if not is_true(variables.get("rollout_as_approved")):
        return []
    artifact = variables.get("gaudi_rollout")
    approved = artifact.get("due") if isinstance(artifact, Mapping) else None
    if not isinstance(approved, Mapping):
        return ["no job before this one has left an approved plan (artifact gaudi_rollout); launch the workflow again"]
    reasons = []
    for host, lines in rollout_due(hostvars, hosts).items():
        known = set(_paths(approved.get(host) or []))
        reasons += [f"{host}: not in the approved plan: {text}" for text in _paths(lines) if text not in known]
    return reasons


def _lines(known: Known) -> list[str]:
    lines = [line for line in pending_lines(known, tuple(STAGES)) if not line.startswith(ESTIMATE)]
    return [*lines, *_digests(known)] if lines else []


def _digests(known: Known) -> list[str]:
    live = live_models(known.get("gaudi_host"))
    models = (known.get("preflight_plan") or {}).get("models", [])
    starts = [model for model in models if _starts(model, live.get(model["name"], LiveModel()))]
    launches = [f"launch of {model['name']} with digest {model['digest']}" for model in starts]
    names = [NAMED[stage] for stage in StageChanges.of(known, tuple(NAMED)).pending]
    return launches + [f"{name} with digest {_digest(value_of(known, name))}" for name in names]


def _starts(model: Known, live: LiveModel) -> bool:
    goes_on = live.runs and runs_as_planned(live, model)
    return model["state"] != "stopped" and not goes_on


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _paths(lines: Sequence[Any]) -> list[str]:
    """Return each line, those that are indented after the line that they belong to."""
    found, head = [], ""
    for line in map(str, lines):
        if line.startswith(" "):
            found.append(f"{head}: {line.strip()}")
        else:
            head = line
            found.append(line)
    return found
