"""Processors by their architecture: what is read of them, and what they are refused for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.core.errors import InputError
from gaudi_serve.core.run import Result
from gaudi_serve.inventory.facts import checked_host
from gaudi_serve.model.architecture import Architecture
from gaudi_serve.model.host import Host
from gaudi_serve.model.spec import Spec
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.platforms import cpu, processors
from gaudi_serve.platforms.processors import of_files, of_lscpu
from helpers.gpu_hosts import put

PLATFORM = cpu.PLATFORM


def field(name: str, data: str | None, *children: dict[str, Any]) -> dict[str, Any]:
    return {"field": f"{name}:", "data": data, **({"children": list(children)} if children else {})}


def lscpu(*fields: dict[str, Any]) -> str:
    return json.dumps({"lscpu": list(fields)})


FLAGS = "fpu sse4_2 avx avx2 avx512f avx512_bf16 amx_tile amx_bf16 rdpid"
# As util-linux 2.38 and newer print it, and as older ones do.
NESTED = lscpu(
    field("Architecture", "x86_64", field("CPU op-mode(s)", "32-bit, 64-bit")),
    field("CPU(s)", "224", field("On-line CPU(s) list", "0-223")),
    field(
        "Vendor ID",
        "GenuineIntel",
        field("Model name", "Intel(R) Xeon(R) Platinum 8480+", field("Thread(s) per core", "2"), field("Flags", FLAGS)),
    ),
    field("NUMA", None, field("NUMA node(s)", "2"), field("NUMA node0 CPU(s)", "0-55,112-167")),
)
FLAT = lscpu(
    field("Architecture", "x86_64"),
    field("Thread(s) per core", "2"),
    field("NUMA node(s)", "2"),
    field("Model name", "Intel(R) Xeon(R) Platinum 8480+"),
    field("Flags", FLAGS),
)
SAPPHIRE = {
    "architecture": "x86_64",
    "name": "Intel(R) Xeon(R) Platinum 8480+",
    "features": ["avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16"],
    "numa_nodes": 2,
    "threads_per_core": 2,
}
CPUINFO = {
    "x86_64": "processor\t: 0\nmodel name\t: AMD EPYC 7742 64-Core Processor\nflags\t\t: fpu sse avx avx2\n",
    "aarch64": "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd asimddp sve i8mm bf16\n",
    "s390x": "vendor_id       : IBM/S390\nfeatures\t: esan3 zarch vx vxd vxe vxe2 sort\n",
    "ppc64le": "processor\t: 0\ncpu\t\t: POWER10 (architected), altivec supported\n",
    "riscv64": "processor\t: 0\nisa\t\t: rv64imafdcv_zicbom_zba\nuarch\t\t: sifive,x280\n",
}


@pytest.mark.parametrize("text", [NESTED, FLAT])
def test_both_forms_of_lscpu_are_read(text: str) -> None:
    assert of_lscpu(text) == SAPPHIRE


@pytest.mark.parametrize(
    "text", ["", "{}", '{"lscpu": 3}', '{"lscpu": [{"field": "CPU(s):"}]}', "Architecture: x86_64"]
)
def test_garbage_of_lscpu_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(InputError, match="lscpu -J: "):
        of_lscpu(text)


@pytest.mark.parametrize(
    ("machine", "features"),
    [
        ("x86_64", ["avx2"]),
        ("aarch64", ["asimd", "asimddp", "i8mm", "bf16", "sve"]),
        ("s390x", ["vx", "vxe", "vxe2"]),
        ("ppc64le", ["altivec"]),
        ("riscv64", ["v"]),
    ],
)
def test_the_kernels_files_report_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, features: list[str]
) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "h", "6.1", "1", machine)))
    monkeypatch.setattr(processors, "run", lambda argv: Result(127, "", "lscpu: not found"))
    put(tmp_path, "proc/cpuinfo", CPUINFO[machine])
    put(tmp_path, "sys/devices/system/node/node0/cpulist", "0-7\n")
    put(tmp_path, "sys/devices/system/node/node1/cpulist", "8-15\n")
    put(tmp_path, "sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0,8\n")
    found = processors.processors(str(tmp_path))
    assert found == of_files(str(tmp_path))
    assert (found["architecture"], found["features"]) == (machine, features)
    assert (found["numa_nodes"], found["threads_per_core"]) == (2, 2)


def facts(architecture: str, *features: str, name: str = "") -> dict[str, Any]:
    cpu = {
        "architecture": architecture,
        "name": name,
        "features": list(features),
        "numa_nodes": 1,
        "threads_per_core": 1,
    }
    return {"accelerator": "cpu", "modules": [], "device_name": None, "cpu": cpu}


def test_facts_of_a_host_can_be_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "run", lambda argv: Result(0, NESTED, ""))
    found = cpu.observe(str(tmp_path))
    assert found == {"device_name": None, "modules": [], "cpu": {**SAPPHIRE, "nodes": []}, "notes": []}
    host, problems = checked_host({"accelerator": "cpu", **found})
    assert problems == []
    read = Host.of(host).cpu
    assert read is not None and read.features >= {"amx_tile", "avx512f"} and read.threads_per_core == 2


@pytest.mark.parametrize("cpu", [3, {"features": "avx2"}, {"numa_nodes": -1}, {"architecture": 4}])
def test_processors_that_cannot_be_are_one_sentence(cpu: Any) -> None:
    _, problems = checked_host({"accelerator": "cpu", "modules": [], "cpu": cpu})
    assert [problem[0] for problem in problems] == ["gaudi_host.cpu"]


def test_avx2_alone_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        processors, "run", lambda argv: Result(0, FLAT.replace("avx512f ", "").replace("amx_tile ", ""), "")
    )
    (note,) = PLATFORM.observe()["notes"]
    assert note.startswith("its processors have AVX2 and no AVX-512")


@pytest.mark.parametrize(
    ("host", "says"),
    [
        (facts("x86_64", "avx512f"), ""),
        (facts("x86_64", "avx2"), ""),
        (facts("x86_64", "avx2", "amx_tile"), ""),
        (facts("x86_64", name="Intel(R) Xeon(R) E5-2670"), "Intel(R) Xeon(R) E5-2670 is not served"),
        (facts("aarch64", "asimd"), ""),
        (facts("s390x", "vx", "vxe", "vxe2"), ""),
        (facts("s390x", "vx"), "does not run on machines before z15; it needs vxe2"),
        (facts("ppc64le", "altivec"), ""),
        (facts("riscv64", "v"), ""),
        (facts("loongarch64"), "its processors are loongarch64, on which vLLM does not run; served are x86, Arm"),
        ({"accelerator": "cpu", "modules": []}, ""),
    ],
)
def test_which_hosts_are_served(host: dict[str, Any], says: str) -> None:
    found = [text for _, text in PLATFORM.reasons(Host.of(host), "h", 0, "")]
    assert len(found) == bool(says) and all(text.startswith("h: ") and says in text for text in found)


def refusals(host: dict[str, Any], config: dict[str, Any], keys: dict[str, Any]) -> list[tuple[str, str]]:
    spec = Spec({"name": "m", "weights": "/m/x", "image": "vllm:1", "tensor_parallel_size": 1, **keys})
    model = Architecture.of({"model_type": "llama", "torch_dtype": "float16", **config})
    found = [*PLATFORM.problems(spec), *PLATFORM.capability_problems(spec, model, Host.of(host), ())]
    return [(key, text) for key, _, text in found]


AVX512, AVX2 = facts("x86_64", "avx2", "avx512f"), facts("x86_64", "avx2")
GRAVITON2, GRAVITON3 = facts("aarch64", "asimd"), facts("aarch64", "asimd", "bf16")
BF16, AWQ = {"torch_dtype": "bfloat16"}, {"quantization_config": {"quant_method": "awq"}}
CT = {"quantization_config": {"quant_method": "compressed-tensors"}}
MLA = {"kv_lora_rank": 512}
Z16, POWER, RISCV = facts("s390x", "vxe2"), facts("ppc64le"), facts("riscv64")


@pytest.mark.parametrize(
    ("host", "config", "keys", "key", "says"),
    [
        (GRAVITON2, BF16, {}, "dtype", "needs Armv8.6 (Graviton3 or newer); set dtype: float16 or float32"),
        (GRAVITON2, {}, {"dtype": "bfloat16"}, "dtype", "Armv8.6"),
        (GRAVITON3, AWQ, {}, "weights", "is not loaded on Arm, where compressed-tensors is"),
        (POWER, CT, {}, "weights", "is not loaded on ppc64le, where awq, gptq are"),
        (RISCV, AWQ, {}, "weights", "is not loaded on RISC-V, where none is"),
        (AVX2, {}, {"kv_cache_dtype": "fp8"}, "kv_cache_dtype", "it needs AVX-512 or AMX"),
        (GRAVITON3, {}, {"kv_cache_dtype": "fp8_e5m2"}, "kv_cache_dtype", "it needs AVX-512 or AMX"),
        (AVX512, MLA, {"kv_cache_dtype": "fp8"}, "kv_cache_dtype", "not for models with MLA"),
        (
            Z16,
            {},
            {"image": "vllm/vllm-openai-cpu:v0.33.0"},
            "image",
            "by docker/Dockerfile.s390x, and set its name here",
        ),
        (RISCV, {}, {"image": "docker.io/vllm/vllm-openai-cpu:latest"}, "image", "vLLM publishes none"),
        (GRAVITON3, {}, {"image": "vllm/vllm-openai-cpu:v0.33.0-x86_64"}, "image", "for Arm ends with -arm64"),
        (AVX512, {}, {"image": "vllm/vllm-openai-cpu:v0.33.0-arm64"}, "image", "for x86 ends with -x86_64"),
        (AVX512, {}, {"distributed_executor_backend": "ray"}, "distributed_executor_backend", "or set mp"),
        (AVX512, {}, {"pipeline_parallel_size": 2, "nnodes": 2}, "nnodes", "one host alone"),
        ({"accelerator": "cpu"}, {}, {"distributed_executor_backend": "ray"}, "distributed_executor_backend", "leave"),
    ],
)
def test_what_processors_cannot_do_is_refused(
    host: dict[str, Any], config: dict[str, Any], keys: dict[str, Any], key: str, says: str
) -> None:
    ((about, text),) = refusals(host, config, keys)
    assert about == key and says in text


@pytest.mark.parametrize(
    ("host", "config", "keys"),
    [
        (AVX512, BF16, {"kv_cache_dtype": "fp8", "image": "vllm/vllm-openai-cpu:v0.33.0-x86_64"}),
        (AVX512, AWQ, {"distributed_executor_backend": "mp", "pipeline_parallel_size": 2}),
        (AVX2, BF16, {"kv_cache_dtype": "auto"}),
        (GRAVITON2, BF16, {"dtype": "float32"}),
        (GRAVITON3, {**BF16, **CT}, {"image": "vllm/vllm-openai-cpu:v0.33.0"}),
        (Z16, AWQ, {"image": "registry.example/vllm-s390x:1"}),
        ({"accelerator": "cpu"}, {**BF16, **AWQ}, {"kv_cache_dtype": "fp8", "image": "vllm/vllm-openai-cpu:x-arm64"}),
    ],
)
def test_what_processors_can_do_is_not_refused(
    host: dict[str, Any], config: dict[str, Any], keys: dict[str, Any]
) -> None:
    assert refusals(host, config, keys) == []


@pytest.mark.parametrize("more", [{}, {"recipe_cache_path": "/var/cache/recipes"}, {"kv_cache_dtype": "fp8"}])
def test_a_host_that_serves_keeps_its_launch_its_digest_and_its_warnings(more: dict[str, Any]) -> None:
    model = {"name": "m", "weights": "/m/x", "image": "vllm:1", "launch_profile": "vllm", **more}
    before = {"accelerator": "cpu", "modules": [], "device_name": None}
    known = {**before, "cpu": SAPPHIRE, "notes": []}
    assert vllm_plan([model], known, host_name="h") == vllm_plan([model], before, host_name="h")
    assert PLATFORM.about(Host.of(known)) == PLATFORM.about(Host.of(before)) == ["CPU host"]
    assert PLATFORM.about(Host.of(GRAVITON3)) == ["CPU host, aarch64"]
