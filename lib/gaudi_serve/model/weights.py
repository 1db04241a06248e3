"""What is known of a model's weights: on its host, or by what a user or the catalog says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .architecture import Architecture
from .draft import draft_bytes
from .host import Host, Weights
from .spec import Spec


def here(spec: Spec, host: Host) -> Weights:
    """Return what is in the folder of a model's weights on the host; nothing where it is not there."""
    return host.weights.get(spec.weights) or Weights()


def architecture_of(spec: Spec, host: Host) -> Architecture:
    """Return a model's architecture by the config.json on the host, else by what the catalog says of it."""
    return Architecture.of(here(spec, host).config or spec.get("config") or {})


def weight_bytes(spec: Spec, host: Host) -> int:
    """Return the bytes of a model's weights on the host, else what the catalog says; 0 if neither knows."""
    said = int(spec.get("weight_bytes") or 0)
    found = here(spec, host).bytes
    # What is not whole yet will be completed from its source.
    return max(found, said) if spec.get("source") else found or said


@dataclass(frozen=True)
class WeightsFacts:
    """What is known of the weights of a model, read once.

    architecture: what its config.json says; on_host: whether it is the one on the host. size: bytes of all
    files, 0 where they are not known; here: of those on the host. draft: bytes of a draft model's weights.
    """

    architecture: Architecture
    on_host: bool
    size: int
    here: int
    draft: int

    @classmethod
    def of(cls, spec: Spec, host: Host) -> WeightsFacts:
        """Return what is known of a model's weights on a host."""
        found = here(spec, host)
        return cls(
            architecture=architecture_of(spec, host),
            on_host=bool(found.config),
            size=weight_bytes(spec, host),
            here=found.bytes,
            draft=draft_bytes(spec, host),
        )

    def said(self, spec: Spec) -> tuple[str, Any, str]:
        """Return key and value by which a finding names where config comes from, and the words before its sentence."""
        return ("weights", spec.weights, "its config.json: ") if self.on_host else ("config", None, "")
