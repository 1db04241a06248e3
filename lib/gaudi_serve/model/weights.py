"""What is known of a model's weights: on its host, or by what a user or the catalog says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .host import Host, Weights
from .spec import Spec


def here(spec: Spec, host: Host) -> Weights:
    """Return what is in the folder of a model's weights on the host; nothing where it is not there."""
    return host.weights.get(spec.weights) or Weights()


def model_config(spec: Spec, host: Host) -> Mapping[str, Any]:
    """Return a model's config.json as it is on the host, else what the catalog says of it."""
    config: Mapping[str, Any] = here(spec, host).config or spec.get("config") or {}
    return config


def weight_bytes(spec: Spec, host: Host) -> int:
    """Return the bytes of a model's weights on the host, else what the catalog says; 0 if neither knows."""
    said = int(spec.get("weight_bytes") or 0)
    found = bytes_here(spec, host)
    # What is not whole yet will be completed from its source.
    return max(found, said) if spec.get("source") else found or said


def bytes_here(spec: Spec, host: Host) -> int:
    """Return the bytes of a model's weights on the host; 0 where there are none."""
    return here(spec, host).bytes
