"""Models, hosts and their variables for planning, and the live state after a plan was carried out."""

from __future__ import annotations

from typing import Any

from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.stages.service import vllm_container

QWQ = {
    "num_hidden_layers": 64,
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40960,
}


def gaudi_host(**more: Any) -> dict[str, Any]:
    """Return eight idle cards on two NUMA nodes, with the weights of one model."""
    modules = [
        {
            "module_id": number,
            "index": 7 - number,
            "in_use": False,
            "cpus": ["0-39", "80-119"] if number < 4 else ["40-79", "120-159"],
            "numa_node": number // 4,
        }
        for number in range(8)
    ]
    host = {"accelerator": "gaudi", "device_name": "HL-225", "ip": "10.0.0.1", "interface": "eth0", "modules": modules}
    weights = {"/data/QwQ-32B": {"config": QWQ, "bytes": 65_000_000_000}}
    return {**host, "services": {}, "ports": {}, "weights": weights, **more}


def model(**more: Any) -> dict[str, Any]:
    """Return a model that fits the host above."""
    base = {"name": "qwq", "weights": "/data/QwQ-32B", "image": "vllm:1", "tensor_parallel_size": 2}
    lengths = {"input_range": [800, 4096], "output_range": [800, 2048], "max_model_len": 8192}
    return {**base, **lengths, "max_num_batched_tokens": 8192, **more}


def planned(*models: Any, **host: Any) -> dict[str, Any]:
    """Plan models on the host above."""
    return vllm_plan(list(models), gaudi_host(**host), host_name="gaudi01")


SYSTEM = {"id": "debian", "version_id": "12", "pretty_name": "Debian 12"}


def known(**more: Any) -> dict[str, Any]:
    """Return the variables of a host that plans one model."""
    host = gaudi_host(driver_version="1.21.3-57")
    facts = {"gaudi_host": host, "gaudi_system": SYSTEM, "gaudi_services": {"images": {"vllm:1": "x"}}}
    return {"vllm_models": [model()], "accelerator_release": "1.21.3", **facts, **more}


def live_of(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the services of a host on which a plan has been carried out."""
    return {
        one["name"]: {
            **{"launch": vllm_container(one), "env": one["env"], "digest": one["digest"], "active": True},
            **{"module_ids": one["module_ids"], "port": one["port"]},
        }
        for one in plan["models"]
    }


DEBIAN = {"id": "debian", "version_id": "12", "pretty_name": "Debian GNU/Linux 12 (bookworm)"}
EMPTY: dict[str, Any] = {"models": [], "errors": [], "warnings": []}
LLAMA = {
    "MODEL": "llama-8b",
    "MAX_MODEL_LEN": 8192,
    "MODEL_MEM_FROM_CONFIG": 16_060_522_496,
    "NUM_HIDDEN_LAYERS": 32,
    "HIDDEN_SIZE": 4096,
    "NUM_KEY_VALUE_HEADS": 8,
    "NUM_ATTENTION_HEADS": 32,
}


DEVICES = {
    "cuda": ("NVIDIA L4", 23034, "8.9"),
    "rocm": ("AMD Instinct MI300X OAM", 196592, "gfx942"),
    "xpu": ("Intel(R) Arc(TM) Pro B60 Graphics", 24480, ""),
}
X86 = {"architecture": "x86_64", "features": ["avx2", "avx512f"]}


def host_of(platform: str, **more: Any) -> dict[str, Any]:
    """Return a host with two devices of a platform, or none for a CPU platform."""
    name, mib, capability = DEVICES.get(platform, (None, 0, ""))
    modules = [
        {"module_id": number, "index": number, "device_id": f"GPU-{number}", "name": name, "memory_mib": mib}
        | {"capability": capability, "numa_node": 0}
        for number in range(2 if name else 0)
    ]
    facts = {"accelerator": platform, "device_name": name, "driver_version": "580.95.05", "modules": modules}
    return {**facts, "ip": "10.0.0.1", "cpu": X86, "ports": {}, "services": {}, "weights": {}, **more}


# A model that is small enough for any card, with few layers.
TINY = {**QWQ, "num_hidden_layers": 2, "hidden_size": 1024, "intermediate_size": 2048}


def cluster(
    names: list[str], entries: list[dict[str, Any]], platform: str, facts: dict[str, Any], **more: Any
) -> dict[str, dict[str, Any]]:
    """Return the variables of hosts that can serve models together, with the weights of TINY.

    Args:
        names: the hosts.
        entries: ``vllm_distributed_models``.
        platform: of all hosts.
        facts: by host, what differs in ``gaudi_host``.
        more: further variables of all hosts.
    """
    found = {}
    for place, name in enumerate(names, 1):
        address = f"10.0.0.{place}"
        own = {
            "ip": address,
            "weights": {"/m": {"config": TINY, "bytes": 6_000_000}},
            "networks": [{"interface": f"eth{place}", "address": address, "prefix": 24, "mtu": 1500}],
            **facts.get(name, {}),
        }
        found[name] = {
            "vllm_distributed_models": list(entries),
            "vllm_model_defaults": {"image": "v:1"},
            "gaudi_host": gaudi_host(**own) if platform == "gaudi" else host_of(platform, **own),
            "gaudi_system": SYSTEM,
            "gaudi_services": {"images": {"v:1": "x"}},
            **more,
        }
    return found
