"""What the stages would do on a host, read once from the facts in which they keep it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .registry import BY_ROLE, OBJECTS, STAGES, Known


@dataclass(frozen=True)
class StageChanges:
    """What the stages of a run would do on a host.

    pending: lines by role, in the order of a run, of the stages that have something to do. stops: the models that each
    stage of those takes down, by role; of the stage that serves the models ``{restart, stop, remove}`` is in
    ``served``. ends_all: roles of those that take every model down. waits: roles of stages in which hosts wait for each
    other, so that they run in any case.
    """

    pending: Mapping[str, Sequence[str]] = field(default_factory=dict)
    stops: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ends_all: frozenset[str] = frozenset()
    served: Mapping[str, Sequence[str]] = field(default_factory=dict)
    waits: frozenset[str] = frozenset()

    @classmethod
    def of(cls, known: Known, stages: Sequence[str] = tuple(STAGES)) -> StageChanges:
        """Read them from a host's variables: the facts ``<role>_due``, ``<role>_stops`` and what ``ends_all`` names.

        Args:
            known: the host's variables.
            stages: roles of the stages that are asked for.
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
        """Return the stages that run, of those of a run: from the first with something to do on.

        One stage changes what the next sees. Stages in which hosts wait for each other run in any case; each looks for
        itself what there is to do.
        """
        first = next((index for index, role in enumerate(stages) if role in self.pending), len(stages))
        return [role for index, role in enumerate(stages) if index >= first or role in self.waits]

    def taken_down(self, role: str, serving: Sequence[str]) -> Sequence[str]:
        """Return the models that a stage takes down, given those that serve."""
        return serving if role in self.ends_all else self.stops.get(role, ())
