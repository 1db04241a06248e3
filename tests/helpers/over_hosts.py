"""Models over two hosts, for every engine and executor, and the environment of their containers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gaudi_serve.plan.fleet import vllm_fleet_plan
from gaudi_serve.stages.service import env_text, vllm_container
from helpers.plans import TINY, cluster
from helpers.programs import load_program

SUPERVISOR = load_program(Path(__file__).parents[2] / "roles/vllm_service/files/vllm-supervisor")
HOSTS = ["gaudi01", "gaudi02"]
ENTRY = {"name": "big", "weights": "/m", "hosts": HOSTS, "max_model_len": 4096}
GAUDI = {
    **{"max_model_len": 4096, "input_range": [128, 1024], "output_range": [128, 1024], "port": 30001},
    **{"tensor_parallel_size": 16, "distributed_experimental": True},
}
# Platform, release and keys of a model over two hosts, by engine and executor.
LAUNCHES: list[tuple[str, str, dict[str, Any]]] = [
    ("gaudi", "1.21.3", {**GAUDI, "launch_profile": "aice_1_21"}),
    ("gaudi", "1.22.0", {**GAUDI, "launch_profile": "aice_1_22"}),
    ("gaudi", "1.22.0", {**GAUDI, "launch_profile": "aice_1_22", "host": "0.0.0.0"}),
    ("gaudi", "1.21.3", {**GAUDI, "launch_profile": "deepseek_r1", "recipe_cache_path": "/cache"}),
    ("gaudi", "1.24.1", {**GAUDI, "launch_profile": "plugin"}),
    ("gaudi", "1.24.1", {**GAUDI, "launch_profile": "plugin", "distributed_executor_backend": "ray"}),
    ("gaudi", "1.24.1", {**GAUDI, "launch_profile": "plugin", "distributed_executor_backend": "mp"}),
    ("cuda", "", {"tensor_parallel_size": 4}),
    ("cuda", "", {"tensor_parallel_size": 4, "distributed_executor_backend": "ray"}),
    ("cuda", "", {"data_parallel_size": 4}),
    ("rocm", "", {"tensor_parallel_size": 4}),
    ("rocm", "", {"tensor_parallel_size": 4, "distributed_executor_backend": "ray"}),
    ("cpu", "", {"tensor_parallel_size": 2}),
    ("cpu", "", {"data_parallel_size": 2}),
]


def over_two_hosts(platform: str, release: str, keys: dict[str, Any], addresses: Sequence[str]) -> dict[str, Any]:
    """Plan a model over two hosts with these cluster addresses; their default route has another interface."""
    variables = cluster(HOSTS, [{**ENTRY, **keys}], platform, {}, accelerator=platform)
    for number, (one, address) in enumerate(zip(variables.values(), addresses, strict=True), 1):
        one["vllm_cluster_address"] = address
        one.update({"accelerator_release": release} if release else {})
        config = {**TINY, "num_attention_heads": 128, "num_key_value_heads": 16}
        host = one["gaudi_host"] | {"weights": {"/m": {"config": config, "bytes": 6_000_000}}}
        more = {f"fast{number}": address, "bond0": f"10.88.0.{number}"}
        networks = [{"interface": name, "address": own, "prefix": 16, "mtu": 9000} for name, own in more.items()]
        one["gaudi_host"] = host | {"interface": f"eth{number}", "networks": [*host["networks"], *networks]}
    return vllm_fleet_plan(variables, HOSTS, [])


def parts(plan: dict[str, Any], name: str = "big") -> list[dict[str, Any]]:
    """Return a model's parts, the first host's first."""
    assert plan["errors"] == []
    return [next(one for one in plan["hosts"][host]["models"] if one["name"] == name) for host in HOSTS]


def write_launch(part: dict[str, Any], folder: Path) -> Path:
    """Write the files from which the supervisor starts a part; return the launch file."""
    path = folder / "big.json"
    path.write_text(json.dumps(vllm_container(part)), encoding="utf-8")
    path.with_suffix(".env").write_text(env_text(part), encoding="utf-8")
    return path


def environment(part: dict[str, Any], folder: Path) -> dict[str, str]:
    """Return the variables that the supervisor gives the container of a part."""
    path = write_launch(part, folder)
    found = SUPERVISOR.Supervisor(path)
    options = found.options(list(range(8)))
    assert options.count("--env-file") == 1
    given = [options[place + 1] for place, one in enumerate(options) if one == "--env"]
    lines = [*path.with_suffix(".env").read_text(encoding="utf-8").splitlines(), *given]
    assert len({line.partition("=")[0] for line in lines}) == len(lines)
    return {line.partition("=")[0]: line.partition("=")[2] for line in lines}
