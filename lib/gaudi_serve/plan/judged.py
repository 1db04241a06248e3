"""The decisions of a plan for a run: why it must not begin on a host, its stages there, and its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import Finding
from ..stages.changes import StageChanges
from ..stages.registry import BEHIND, PLANNED, STAGES, awaits_driver, plans_models
from .downtime import pending_lines
from .refusal import without_driver_twice

Known = Mapping[str, Any]


def reasons(known: Known, stages: Sequence[str], findings: Sequence[Finding], host_name: str) -> list[str]:
    """Return why a run must not begin on a host, one sentence per reason.

    Args:
        known: The host's variables, with the facts ``<role>_refusal`` and ``preflight_unclear``.
        stages: The stages of the run.
        findings: The findings of the plan of the models.
        host_name: The name of the host in messages.
    """
    counted = without_driver_twice(findings, known) if _counts(stages) else []
    found = [one.message for one in counted]
    for stage in STAGES:
        found += known.get(f"{stage}_refusal") or []
    if "preflight_unclear" in known:
        found.append(f"{host_name}: {known['preflight_unclear']}")
    return [*dict.fromkeys(found)]


def judged(
    host_name: str, known: Known, stages: Sequence[str], findings: Sequence[Finding], warnings: Sequence[str]
) -> dict[str, Any]:
    """Return the facts that decide whether a run begins on a host.

    Returns:
        ``preflight_refusal`` (sentences), ``preflight_stages`` (the stages that run), ``preflight_lines`` (the pending
        changes) and ``preflight_warnings``.
    """
    # If the run is only about a gateway, mistakes in the models behind it are warnings.
    beside = [] if _counts(stages) else [one.message for one in findings]
    now = [role for role in stages if role not in PLANNED] if awaits_driver(known) else stages
    return {
        "preflight_refusal": reasons(known, stages, findings, host_name),
        "preflight_stages": StageChanges.of(known, now).roles(now),
        "preflight_lines": pending_lines(known, now),
        "preflight_warnings": [*warnings, *beside],
        # Later playbooks of this run reuse these facts. They skip a refused host.
        "preflight_passed": True,
    }


def _counts(stages: Sequence[str]) -> bool:
    return plans_models(stages) and BEHIND not in stages
