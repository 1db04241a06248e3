"""The engines: ways of starting vLLM, by their ``launch_profile``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.versions import comparable
from ..model.distributed import EXECUTOR, MP
from ..model.host import LiveModel
from ..model.shared import members
from ..model.spec import Spec
from ..platforms import Platform, platform_of
from ..platforms.releases import vllm_of
from . import aice_1_21, aice_1_22, aice_1_22_shared, deepseek_r1, plugin, vllm
from .base import Engine, Launch

# The order is that of messages.
ENGINES: dict[str, Engine] = {
    one.ENGINE.name: one.ENGINE for one in (aice_1_21, aice_1_22, aice_1_22_shared, deepseek_r1, plugin, vllm)
}

# vLLM 0.11.0 has no --nnodes, and 0.8 has neither --data-parallel-start-rank nor --headless.
NODES_SINCE, COPIES_SINCE = "0.11.1", "0.9.0"

__all__ = [
    "COPIES_SINCE",
    "ENGINES",
    "Engine",
    "Launch",
    "engine_of",
    "executors",
    "profile_of",
    "running_engine",
    "spreads_copies",
    "with_executor",
]


def profile_of(
    spec: Mapping[str, Any],
    accelerator: str | None,
    release: str | None = None,
    running: LiveModel | None = None,
    offered: Sequence[str] = (),
) -> str:
    """Return the name of a model's engine.

    Args:
        spec: The keys of the model. Its own ``launch_profile`` decides.
        accelerator: The platform of its host.
        release: The release of the host's software. Its first engine is the default.
        running: The live model. Its engine stays if the release has it, so that a changed default restarts no model.
        offered: The engines for which the catalog has keys. The first of the release among them is used.
    """
    if spec.get("launch_profile"):
        return str(spec["launch_profile"])
    platform = platform_of(accelerator)
    row = platform.release(release) if release else None
    known = row.engines if row else (platform.engine, *(name for name in offered if _serves(name, platform)))
    # An entry of several models needs an engine that serves several. A single model never uses such an engine.
    several = [name for name in known if name in ENGINES and ENGINES[name].share]
    if members(spec) and several:
        return several[0]
    known = tuple(name for name in known if name not in several) or known
    present = running_engine(running) if running else None
    if present in known:
        return present
    if row is None and platform.engine not in offered and not any(name in known for name in offered):
        # Such a platform has one engine, which accepts the common keys of any entry.
        return platform.engine
    # If an entry has no engine of this release, a later check refuses its engine and names the right ones.
    return next((name for name in known if name in offered), offered[0] if offered else known[0])


def running_engine(service: LiveModel) -> str | None:
    """Return the engine of a launch file, or None without one. Old files do not name it, and have one of two."""
    if service.launch_profile or not service.command:
        return service.launch_profile
    serves = all(part in service.command for part in vllm.ENGINE.command)
    return vllm.ENGINE.name if serves else aice_1_21.ENGINE.name


def _serves(engine: str, platform: Platform) -> bool:
    return engine in ENGINES and ENGINES[engine].serves(platform)


def engine_of(spec: Mapping[str, Any]) -> Engine:
    """Return the engine of a complete model, or of a planned one."""
    return ENGINES[spec["launch_profile"]]


def executors(spec: Spec, platform: Platform, release: str) -> tuple[str, ...]:
    """Return the executors of a model's engine and vLLM for several hosts, its default first."""
    by_nodes = "nnodes" in platform.options(release) and not _before(spec, NODES_SINCE)
    return tuple(one for one in engine_of(spec).executors if one != MP or by_nodes)


def spreads_copies(spec: Spec, platform: Platform, release: str) -> bool:
    """Return whether a model's engine and vLLM spread copies over hosts."""
    able = MP in engine_of(spec).executors and "data_parallel_start_rank" in platform.options(release)
    return able and not _before(spec, COPIES_SINCE)


def _before(spec: Spec, since: str) -> bool:
    """Return whether a model's vLLM is known, and older than a version."""
    version = spec.get("vllm_version") or vllm_of(str(spec.get("image") or ""))
    return bool(version) and comparable(str(version)) < comparable(since)


def with_executor(spec: Spec, platform: Platform, release: str) -> Spec:
    """Return a model over several hosts with the executor of its engine and release, if that is not vLLM's own."""
    found = executors(spec, platform, release)
    if spec.members is None or spec.copied_over_hosts or spec.get(EXECUTOR) or not found or found[0] == MP:
        return spec
    return spec.but(**{EXECUTOR: found[0]})
