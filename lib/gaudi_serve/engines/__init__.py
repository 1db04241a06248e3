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


def profile_of(
    spec: Mapping[str, Any], accelerator: str | None, release: str | None = None, running: str | None = None
) -> str:
    """Return the engine's name of a model.

    Args:
        spec: its keys; its own ``launch_profile`` wins.
        accelerator: the platform of its host.
        release: the release of the host's software, whose first engine is the default.
        running: the engine that serves the model now; it stays wherever the release has it, so that no default that
            changes restarts a model.
    """
    platform = platform_of(accelerator)
    row = platform.release(release) if release else None
    usual = row.engines[0] if row else platform.engine
    known = row.engines if row else (usual,)
    return str(spec.get("launch_profile") or (running if running in known else usual))


def engine_of(spec: Mapping[str, Any]) -> Engine:
    """Return the engine of a complete model, or of a planned one."""
    return ENGINES[spec["launch_profile"]]
