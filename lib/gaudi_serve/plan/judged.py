"""What a plan means for a run: why it must not begin on a host, which stages it has there, and what it tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.aliases import as_written
from ..core.errors import Finding
from ..stages.changes import StageChanges
from ..stages.registry import BEHIND, PLANNED, STAGES, awaits_driver, plans_models
from .downtime import pending_lines

Known = Mapping[str, Any]


def reasons(known: Known, stages: Sequence[str], findings: Sequence[Finding], host_name: str) -> list[str]:
    """Return why a run must not begin on a host, a sentence each.

    Args:
        known: the host's variables; read are the facts ``<role>_refusal``, ``preflight_unclear``.
        stages: the stages that the run is about.
        findings: what is wrong with the plan of the models.
        host_name: how messages call the host.
    """
    found = [one.message for one in findings] if _counts(stages) else []
    for stage in STAGES:
        found += known.get(f"{stage}_refusal") or []
    if "preflight_unclear" in known:
        found.append(f"{host_name}: {known['preflight_unclear']}")
    return [as_written(text, known) for text in dict.fromkeys(found)]


def judged(
    host_name: str, known: Known, stages: Sequence[str], findings: Sequence[Finding], warnings: Sequence[str]
) -> dict[str, Any]:
    """Return the facts by which a run begins on a host or does not.

    Returns:
        ``preflight_refusal`` (sentences), ``preflight_stages`` (what runs), ``preflight_lines`` (what would change) and
        ``preflight_warnings``.
    """
    # Of models behind a gateway that the run is about, mistakes are worth a warning.
    beside = [] if _counts(stages) else [one.message for one in findings]
    now = [role for role in stages if role not in PLANNED] if awaits_driver(known) else stages
    return {
        "preflight_refusal": reasons(known, stages, findings, host_name),
        "preflight_stages": StageChanges.of(known, now).roles(now),
        "preflight_lines": pending_lines(known, now),
        "preflight_warnings": [*warnings, *beside],
        # Later playbooks of this run take the facts as they are; a host that is refused sees none of them.
        "preflight_passed": True,
    }


def _counts(stages: Sequence[str]) -> bool:
    return plans_models(stages) and BEHIND not in stages
