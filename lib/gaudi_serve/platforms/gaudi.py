"""Intel Gaudi: cards that a model is given some of, by the habana container runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..buckets import BLOCK
from ..errors import Problem
from ..vllm_options import FORK_1_21, OPTION_NAMES
from .base import Platform


def _options(release: str) -> frozenset[str]:
    # Of 1.22 and 1.23 the options are not known exactly.
    return FORK_1_21 if release.startswith("1.21.") else OPTION_NAMES


def _problems(spec: Mapping[str, Any]) -> list[Problem]:
    problems: list[Problem] = []
    for key in ("pipeline_parallel_size", "data_parallel_size", "data_parallel_size_local"):
        if spec.get(key) not in (None, 1):
            allowed = "must be 1: the plan gives a model as many cards as tensor_parallel_size says"
            problems.append((key, spec[key], allowed))
    if spec.get("block_size") not in (None, BLOCK):
        problems.append(("block_size", spec["block_size"], f"must be {BLOCK}, the block of Gaudi's KV cache"))
    return problems


PLATFORM = Platform(
    name="gaudi",
    title="Gaudi",
    devices="Gaudi cards",
    engine="aice_1_21",
    options=_options,
    software=lambda release: f"the vLLM of release {release}",
    env={"PT_HPU_LAZY_MODE": "1"},
    # A forked worker cannot initialise its card again, and collectives need their lazy form.
    env_between={"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "PT_HPU_ENABLE_LAZY_COLLECTIVES": "true"},
    runtime="habana",
    problems=_problems,
    even_heads=True,
    iommu=True,
)
