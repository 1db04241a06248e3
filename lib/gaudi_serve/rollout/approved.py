"""The comparison of a rollout's plan with the approved plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.checks import is_true
from ..model.host import LiveModel, live_models
from ..plan.downtime import pending_lines
from ..stages.changes import StageChanges
from ..stages.registry import STAGES
from ..stages.service import runs_as_planned

Known = Mapping[str, Any]
# Lines with estimated downtimes differ from run to run and are not compared.
ESTIMATE = "! "
# Stages whose lines only name what changes, with the variable that has the details.
NAMED = {"vllm_image": "vllm_images", "gateway": "fleet_gateway", "monitoring": "fleet_monitoring"}


def rollout_due(hostvars: Mapping[str, Known], hosts: Sequence[str]) -> dict[str, list[str]]:
    """Return the pending changes of a rollout, as lines by host. Hosts without a change are left out.

    Details that no line shows, such as the options of a starting model, have a line with their digest.

    Args:
        hostvars: Variables by host, with the facts of preflight.
        hosts: The hosts of the run.
    """
    found = {name: _lines(hostvars[name]) for name in hosts}
    return {name: lines for name, lines in found.items() if lines}


def rollout_unapproved(hostvars: Mapping[str, Known], hosts: Sequence[str], variables: Known) -> list[str]:
    """Return the changes of a rollout that are not in the approved plan, as sentences; empty without approval.

    Args:
        hostvars: Variables by host, with the facts of preflight.
        hosts: The hosts of the run.
        variables: The variables of any host. It reads ``rollout_as_approved``, which requires an approved plan, and
            ``gaudi_rollout``, the artifact of the job whose plan was approved.
    """
    if not is_true(variables.get("rollout_as_approved")):
        return []
    artifact = variables.get("gaudi_rollout")
    approved = artifact.get("due") if isinstance(artifact, Mapping) else None
    if not isinstance(approved, Mapping):
        return ["no earlier job has left an approved plan (artifact gaudi_rollout); launch the workflow again"]
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
    return launches + [f"{name} with digest {_digest(known.get(name))}" for name in names]


def _starts(model: Known, live: LiveModel) -> bool:
    goes_on = live.runs and runs_as_planned(live, model)
    return model["state"] != "stopped" and not goes_on


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _paths(lines: Sequence[Any]) -> list[str]:
    """Return each line. Indented lines are prefixed with the line to which they belong."""
    found, head = [], ""
    for line in map(str, lines):
        if line.startswith(" "):
            found.append(f"{head}: {line.strip()}")
        else:
            head = line
            found.append(line)
    return found
