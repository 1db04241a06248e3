"""The pending work of all stages on a host, read from the facts of the stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .registry import BY_ROLE, OBJECTS, STAGES, Known


@dataclass(frozen=True)
class StageChanges:
    """The pending work of the stages of a run on a host.

    pending: lines by role, in the order of a run, of the stages with pending changes. stops: the models that each of
    these stages takes down, by role; for the stage that serves the models, ``served`` has ``{restart, stop, remove}``.
    ends_all: roles of those that take every model down. waits: roles of stages in which hosts wait for each other, so
    that they always run.
    """

    pending: Mapping[str, Sequence[str]] = field(default_factory=dict)
    stops: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ends_all: frozenset[str] = frozenset()
    served: Mapping[str, Sequence[str]] = field(default_factory=dict)
    waits: frozenset[str] = frozenset()

    @classmethod
    def of(cls, known: Known, stages: Sequence[str] = tuple(STAGES)) -> StageChanges:
        """Read the pending work from the facts ``<role>_due``, ``<role>_stops`` and those that ``ends_all`` names.

        Args:
            known: the host's variables.
            stages: roles of the requested stages.
        """
        pending = {role: list(known[f"{role}_due"]) for role in stages if known.get(f"{role}_due")}
        down = [one for one in OBJECTS if one.down and one.role in pending]
        return cls(
            pending=pending,
            stops={one.role: list(known.get(f"{one.role}_stops") or ()) for one in down},
            ends_all=frozenset(one.role for one in down if one.ends_all and known.get(f"{one.role}_{one.ends_all}")),
            served=(known.get("vllm_service_stops") or {}) if "vllm_service" in pending else {},
            waits=frozenset(role for role in stages if role in BY_ROLE and BY_ROLE[role].waits(known)),
        )

    def roles(self, stages: Sequence[str]) -> list[str]:
        """Return the stages that run: all from the first one with pending changes.

        A stage may change the input of later ones. Stages in which hosts wait for each other always run; each
        determines itself whether it has changes.
        """
        first = next((index for index, role in enumerate(stages) if role in self.pending), len(stages))
        return [role for index, role in enumerate(stages) if index >= first or role in self.waits]

    def taken_down(self, role: str, serving: Sequence[str]) -> Sequence[str]:
        """Return the serving models that a stage takes down."""
        return serving if role in self.ends_all else self.stops.get(role, ())
