"""Machines without accelerators: vLLM on the processors."""

from __future__ import annotations

from ..core.errors import Problem
from ..model.spec import Spec
from ..model.vllm_options import VLLM_0_32
from .base import Platform


def _problems(spec: Spec) -> list[Problem]:
    if not spec.get("module_ids"):
        return []
    return [("module_ids", spec["module_ids"], "are Gaudi cards, of which this CPU host has none")]


PLATFORM = Platform(
    name="cpu",
    title="CPU",
    engine="vllm",
    options=lambda release: VLLM_0_32,
    software=lambda release: "vLLM for CPUs",
    here=lambda root: True,
    about=lambda host: ["CPU host"],
    problems=_problems,
    tuned=True,
)
