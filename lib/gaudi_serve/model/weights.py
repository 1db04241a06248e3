"""Facts about a model's weights: from its host, or from the entry or the catalog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .architecture import Architecture
from .draft import draft_bytes
from .host import Host, Weights
from .spec import Spec


def here(spec: Spec, host: Host) -> Weights:
    """Return the facts of the folder of a model's weights on the host; empty if there is no folder."""
    return host.weights.get(spec.weights) or Weights()


def architecture_of(spec: Spec, host: Host) -> Architecture:
    """Return a model's architecture from the config.json on the host, or else from the catalog."""
    return Architecture.of(here(spec, host).config or spec.get("config") or {})


def weight_bytes(spec: Spec, host: Host) -> int:
    """Return the bytes of a model's weights from the host, or else from the catalog; 0 if unknown."""
    said = int(spec.get("weight_bytes") or 0)
    found = here(spec, host).bytes
    # Incomplete weights will be completed from their source.
    return max(found, said) if spec.get("source") else found or said


@dataclass(frozen=True)
class WeightsFacts:
    """Facts about the weights of a model, read once.

    architecture: from its config.json; on_host: whether that file is on the host. size: bytes of all files, 0 if
    unknown; here: bytes on the host. draft: bytes of a draft model's weights.
    """

    architecture: Architecture
    on_host: bool
    size: int
    here: int
    draft: int

    @classmethod
    def of(cls, spec: Spec, host: Host) -> WeightsFacts:
        """Return the facts about a model's weights on a host."""
        found = here(spec, host)
        return cls(
            architecture=architecture_of(spec, host),
            on_host=bool(found.config),
            size=weight_bytes(spec, host),
            here=found.bytes,
            draft=draft_bytes(spec, host),
        )

    def said(self, spec: Spec) -> tuple[str, Any, str]:
        """Return the key, the value and the start of the message for a finding about the config."""
        return ("weights", spec.weights, "its config.json: ") if self.on_host else ("config", None, "")
