"""A serving model for each engine."""

from __future__ import annotations

from typing import Any

from gaudi_serve.plan.host import vllm_plan
from helpers.plans import gaudi_host, model

CPU = {"accelerator": "cpu", "modules": [], "device_name": None, "ip": "10.0.0.9", "interface": "eth0"}
# A serving model of each engine, with options in an order that is not alphabetical, because a running model keeps its
# live order.
ADDED = {"tool_call_parser": "hermes", "enable_auto_tool_choice": True, "seed": 3}
QWQ = model(port=30001, env={"B": "1"}, recipe_cache_path="/data/cache", **ADDED)
SERVING: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "aice_1_21": ("1.21.3", {}, QWQ),
    "aice_1_22": (
        "1.22.0",
        {},
        {"name": "qwq", "weights": "/data/QwQ-32B", "image": "vllm:1", "tensor_parallel_size": 2, "max_num_seqs": 16}
        | {"max_model_len": 8192, "extra_args": ["--seed", "3"], "launch_profile": "aice_1_22"},
    ),
    "aice_1_22_shared": (
        "1.22.0",
        {},
        {"name": "gte", "weights": "/data/gte", "image": "vllm:1", "task": "embed", "recipe_cache_path": "/data/cache"}
        | {"shares_card_with": [{"name": "bge", "weights": "/data/bge", "task": "score"}]}
        | {"max_num_prefill_seqs": 2, **ADDED},
    ),
    "deepseek_r1": (
        "1.21.3",
        {"weights": {}},
        {"name": "r1", "weights": "/data/DeepSeek-R1", "image": "vllm:1", "launch_profile": "deepseek_r1", **ADDED},
    ),
    "plugin": (
        "1.24.1",
        {"device_name": "HL-325L", "driver_version": "1.24.1-1", "weights": {}},
        {"name": "q", "weights": "/data/Q", "image": "vllm:1", "tensor_parallel_size": 2, "max_num_seqs": 16, **ADDED},
    ),
    "vllm": ("1.24.1", {**CPU, "weights": {}}, {"name": "tiny", "weights": "/m/tiny", "image": "vllm:1", **ADDED}),
}


def planned(engine: str, wish: dict[str, Any], **host: Any) -> dict[str, Any]:
    """Plan one model on a host of its engine."""
    release, facts, _ = SERVING[engine]
    paths = ("/data/other", "/data/gte", "/data/bge", "/data/elsewhere", "/data/Q", "/data/DeepSeek-R1", "/m/tiny")
    known = gaudi_host()["weights"] | {path: {"config": {}, "bytes": 10**9} for path in paths}
    return vllm_plan([wish], gaudi_host(**{**facts, "weights": known}, **host), host_name="g", release=release)
