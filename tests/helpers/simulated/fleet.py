"""Inventories of any number of simulated hosts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import forked

ROOT = Path(__file__).parents[3]


def fleet(folder: Path, hosts: int, state: Mapping[str, Any] | None = None, **variables: Any) -> dict[str, str]:
    """Write ``hosts.json``, an inventory of hosts with one model each, and a file for each host.

    Args:
        folder: the folder of the files.
        hosts: number of hosts; they are h01, h02 ...
        state: the state of all hosts; the default is the connection plugin's VIRGIN.
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
    """Return the state of a host after a run of site.yml in an empty folder."""
    argv = ["ansible-playbook", "-i", str(folder / "hosts.json"), "site.yml"]
    status, text = forked.playbook(argv, ROOT, fleet(folder, 1), 300)
    assert status == 0, text
    return state_of(folder, "h01")


def state_of(folder: Path, name: str) -> dict[str, Any]:
    """Return the state of a host."""
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return found


def change(folder: Path, name: str, **state: Any) -> None:
    """Change the state of a host."""
    path = folder / f"{name}.json"
    before = state_of(folder, name) if path.exists() else {}
    path.write_text(json.dumps({**before, **state}), encoding="utf-8")
