"""Machines without accelerators: vLLM on the processors, with the differences between architectures as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import Problem
from ..model.architecture import Architecture
from ..model.host import Card, Host, Processor
from ..model.spec import Spec
from ..model.vllm_options import vllm_options
from .abilities import cache_problems, is_bfloat16, method_problems, unknown_executor
from .base import OF_NODES, Platform
from .processors import memory_nodes, processors
from .releases import made_for, official_image

X86, ARM = "x86_64", "aarch64"
ONE_HOST = ("mp", "uni")
# vLLM has no Ray resource for processors. A plug-in of the image must give them this one, since Ray reports to a worker
# only its share of accelerators that Ray knows.
RAY_RESOURCE, PLUGINS = "HPU", "VLLM_PLUGINS"
FAST = ("avx512f", "amx_tile")
SLOW = (
    "its processors have AVX2 and no AVX-512: vLLM is much slower there, and lacks a KV cache of FP8 and some "
    "quantisations"
)


@dataclass(frozen=True)
class Kind:
    """An architecture of processors.

    title: its name in messages. needs: the instructions of which it must have one; older: processors without them.
    methods: supported quantisation methods of weights; None if only the engine determines them. bfloat16: processors
    that compute with it, empty for all. tag: the end of its images' tags; empty if vLLM publishes none. recipe: how to
    build one.
    """

    title: str
    needs: tuple[str, ...] = ()
    older: str = ""
    methods: tuple[str, ...] | None = None
    bfloat16: str = ""
    tag: str = ""
    recipe: str = ""


KINDS = {
    X86: Kind("x86", ("avx2", *FAST), "processors without AVX2", tag="-x86_64"),
    ARM: Kind("Arm", methods=("compressed-tensors",), bfloat16="bf16", tag="-arm64"),
    "s390x": Kind(
        "s390x",
        needs=("vxe2",),
        older="machines before z15",
        methods=("awq", "gptq", "compressed-tensors"),
        recipe=", by docker/Dockerfile.s390x",
    ),
    "ppc64le": Kind("ppc64le", methods=("awq", "gptq"), recipe=", by docker/Dockerfile.ppc64le"),
    "riscv64": Kind("RISC-V", methods=()),
}
SERVED = ", ".join(kind.title for kind in KINDS.values())


def observe(root: str = "/") -> dict[str, Any]:
    """Return the processors with their memory, and no cards.

    Their name is no ``device_name``, which identifies a cache of recipes.
    """
    found = processors(root)
    slow = found["architecture"] == X86 and "avx2" in found["features"] and not {*FAST} & {*found["features"]}
    cpu = {**found, "nodes": memory_nodes(root)}
    return {"device_name": None, "modules": [], "cpu": cpu, "notes": [SLOW] if slow else []}


def _image(host: Host, release: str, live: str) -> str | None:
    """Return vLLM's own image if there is one for these processors."""
    kind = KINDS.get(host.cpu.architecture) if host.cpu else None
    return official_image("cpu", release, live) if kind and kind.tag else None


def _about(host: Host) -> list[str]:
    if host.cpu is None or host.cpu.architecture == X86:
        return ["CPU host"]
    return [f"CPU host, {host.cpu.architecture}"]


def _reasons(host: Host, host_name: str, cards: int, release: str) -> list[tuple[str, str]]:
    if host.cpu is None:
        return []
    kind, named = KINDS.get(host.cpu.architecture), host.cpu.name or host.cpu.architecture
    if kind is None:
        text = f"its processors are {host.cpu.architecture}, on which vLLM does not run; served are {SERVED}"
        return [("accelerator", f"{host_name}: {text}")]
    if kind.needs and not {*kind.needs} & host.cpu.features:
        text = f"{named} is not served: vLLM does not run on {kind.older}; it needs {' or '.join(kind.needs)}"
        return [("accelerator", f"{host_name}: {text}")]
    return []


def _problems(spec: Spec) -> list[Problem]:
    problems: list[Problem] = []
    if spec.get("module_ids"):
        problems.append(("module_ids", spec["module_ids"], "are Gaudi cards, of which this CPU host has none"))
    if spec.get("distributed_executor_backend") == "ray" and not (spec.get("env") or {}).get(PLUGINS):
        allowed = (
            "is refused by vLLM on processors; leave it out, or set mp (an image with a platform plug-in that names "
            f"the resource {RAY_RESOURCE} takes it, with env: {PLUGINS})"
        )
        problems += unknown_executor(spec, ONE_HOST, allowed)
    if spec.get("pipeline_parallel_size") not in (None, 1) and spec.get("nnodes") not in (None, 1):
        allowed = "must be 1: on processors, the layers of a model are spread over the processes of one host alone"
        key = "pipeline_parallel_size" if spec.members else "nnodes"
        problems.append((key, spec[key], allowed))
    return problems


def _cannot(spec: Spec, model: Architecture, host: Host, cards: Sequence[Card]) -> list[Problem]:
    """Return the features of a model that a host's processors cannot handle; empty if the facts lack the processors."""
    kind = KINDS.get(host.cpu.architecture) if host.cpu else None
    if host.cpu is None or kind is None:
        return []
    problems = _images(spec, kind)
    if kind.methods is not None:
        methods = kind.methods
        works = f"{', '.join(methods)} are" if len(methods) > 1 else f"{methods[0]} is" if methods else "none is"
        allowed = f"is not loaded on {kind.title}, where {works}; take weights that are not quantised"
        problems += method_problems(spec, model, lambda method: method in methods, allowed)
    if kind.bfloat16 and kind.bfloat16 not in host.cpu.features and is_bfloat16(spec, model):
        allowed = "is bfloat16, which needs Armv8.6 (Graviton3 or newer); set dtype: float16 or float32"
        problems.append(("dtype", spec.get("dtype") or "auto", allowed))
    if not _caches_fp8(host.cpu) or model.kv_lora_rank:
        why = "not for models with MLA" if _caches_fp8(host.cpu) else "it needs AVX-512 or AMX"
        problems += cache_problems(spec, f"is not available on these processors: {why}; auto works")
    return problems


def _caches_fp8(cpu: Processor) -> bool:
    return cpu.architecture == X86 and bool({*FAST} & cpu.features)


def _images(spec: Spec, kind: Kind) -> list[Problem]:
    """Return why an official image does not fit an architecture; a user's own may."""
    image = str(spec.get("image") or "")
    if made_for(image) != "cpu":
        return []
    if not kind.tag:
        allowed = f"does not exist for {kind.title}: vLLM publishes none; build one from its source{kind.recipe}"
        return [("image", image, f"{allowed}, and set its name here")]
    others = [one.tag for one in KINDS.values() if one.tag and one.tag != kind.tag and image.endswith(one.tag)]
    allowed = f"is for other processors; the tag for {kind.title} ends with {kind.tag}"
    return [("image", image, allowed)] if others else []


PLATFORM = Platform(
    name="cpu",
    title="CPU",
    engine="vllm",
    ray_resource=RAY_RESOURCE,
    options=vllm_options,
    image=_image,
    software=lambda release: "vLLM for CPUs",
    here=lambda root: True,
    observe=observe,
    about=_about,
    reasons=_reasons,
    problems=_problems,
    tuned=True,
    memory=OF_NODES,
    capability_problems=_cannot,
)
