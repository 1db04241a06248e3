"""Inventories of simulated hosts, as many as one likes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import forked

ROOT = Path(__file__).parents[3]


def fleet(folder: Path, hosts: int, state: Mapping[str, Any] | None = None, **variables: Any) -> dict[str, str]:
    """Write ``hosts.json``, an inventory of hosts with a model each, and a file a host.

    Args:
        folder: where to.
        hosts: how many; they are h01, h02 ...
        state: what all of them have, as the connection plugin's VIRGIN, which is what they have where nothing is said.
        variables: further variables of all hosts.

    Returns:
        The environment of runs on them.
    """
    names = [f"h{number:02}" for number in range(1, hosts + 1)]
    for name in names:
        change(folder, name, **(state or {}))
    one = {"name": "m", "weights": "/data/model", "port": 30001, "tensor_parallel_size": 1, "max_model_len": 4096}
    common = {
        **{"ansible_connection": "simulated", "ansible_python_interpreter": "/usr/bin/python3"},
        **{"accelerator_release": "1.21.3", "vllm_images": [{"name": "vllm:1"}]},
        "vllm_models": [{**one, "image": "vllm:1", "launch_profile": "vllm"}],
        **variables,
    }
    inventory = {"all": {"vars": common, "hosts": {name: {} for name in names}}}
    (folder / "hosts.json").write_text(json.dumps(inventory), encoding="utf-8")
    return {
        **os.environ,
        **{"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
        "ANSIBLE_CONNECTION_PLUGINS": str(Path(__file__).with_name("connection")),
        "GAUDI_SERVE_SIMULATED": str(folder),
    }


def serving_state(folder: Path) -> dict[str, Any]:
    """Return what a host has on which site.yml has run; the run is made in an empty folder."""
    argv = ["ansible-playbook", "-i", str(folder / "hosts.json"), "site.yml"]
    status, text = forked.playbook(argv, ROOT, fleet(folder, 1), 300)
    assert status == 0, text
    return state_of(folder, "h01")


def state_of(folder: Path, name: str) -> dict[str, Any]:
    """Return what a host has."""
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return found


def change(folder: Path, name: str, **state: Any) -> None:
    """Let a host have something else."""
    path = folder / f"{name}.json"
    before = state_of(folder, name) if path.exists() else {}
    path.write_text(json.dumps({**before, **state}), encoding="utf-8")
