"""The engines: ways of starting vLLM, by the names that ``launch_profile`` takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..platforms import platform_of
from . import aice_1_21, aice_1_22, deepseek_r1, plugin, vllm
from .base import Engine, Launch

# In the order in which messages name them.
ENGINES: dict[str, Engine] = {one.ENGINE.name: one.ENGINE for one in (aice_1_21, aice_1_22, deepseek_r1, plugin, vllm)}

__all__ = ["ENGINES", "Engine", "Launch", "engine_of", "profile_of"]


def profile_of(spec: Mapping[str, Any], accelerator: str | None) -> str:
    """Return the engine's name of a model: its own ``launch_profile``, else what the host's platform starts."""
    return str(spec.get("launch_profile", platform_of(accelerator).engine))


def engine_of(spec: Mapping[str, Any]) -> Engine:
    """Return the engine of a complete model, or of a planned one."""
    return ENGINES[spec["launch_profile"]]
