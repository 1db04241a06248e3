"""Models over several hosts through the playbooks: hosts that the plan chooses, and hosts that cannot be reached."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import forked
from helpers.simulated.fleet import ROOT, change, fleet, state_of

BIG = {
    **{"name": "big", "weights": "/data/model", "hosts": 2, "group": "gpus", "tensor_parallel_size": 8, "port": 30001},
    **{"launch_profile": "aice_1_21", "image": "vllm:1", "max_model_len": 4096, "max_num_seqs": 16},
    **{"input_range": [128, 1024], "output_range": [128, 1024]},
}
OWN = {**{key: value for key, value in BIG.items() if key not in ("hosts", "group")}, "name": "own", "port": 30002}


def play(folder: Path, environment: dict[str, str], playbook: str, *words: str) -> tuple[int, str]:
    """Run a playbook on the hosts of a folder; return its status and its output."""
    argv = ["ansible-playbook", "-i", str(folder / "hosts.json"), playbook, *words]
    return forked.playbook(argv, ROOT, environment, 300)


def inventory(folder: Path, group: list[str], **hosts: dict[str, Any]) -> None:
    """Give hosts a group and variables of their own."""
    path = folder / "hosts.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    found["all"]["children"] = {"gpus": {"hosts": {name: {} for name in group}}}
    for name, variables in hosts.items():
        found["all"]["hosts"][name].update(variables)
    path.write_text(json.dumps(found), encoding="utf-8")


def serves(folder: Path) -> list[str]:
    """Return the hosts with a unit of the model."""
    return [name for name in ("h01", "h02", "h03", "h04") if "big" in (state_of(folder, name).get("units") or {})]


def test_a_model_is_served_by_chosen_hosts_and_stays_there(tmp_path: Path) -> None:
    environment = fleet(tmp_path, 4, vllm_models=None, vllm_distributed_models=[BIG])
    addresses = {f"h0{number}": {"vllm_cluster_address": f"192.0.2.{number}"} for number in range(1, 5)}
    inventory(tmp_path, ["h02", "h03"], **addresses)
    status, text = play(tmp_path, environment, "site.yml")
    assert status == 0, text
    assert serves(tmp_path) == ["h02", "h03"]
    # Another host at the head of the group is prepared, and changes nothing else.
    inventory(tmp_path, ["h01", "h02", "h03"])
    status, text = play(tmp_path, environment, "site.yml")
    assert status == 0 and serves(tmp_path) == ["h02", "h03"], text
    assert "h02, h03, h04: nothing changed" in text and "h01: changed" in text
    # One of its hosts alone knows the other; a host that serves no part of it is changed without them.
    status, text = play(tmp_path, environment, "site.yml", "--limit", "h03")
    assert status == 3 and "add it to --limit (h02,h03)" in text, text
    # What only reads needs one of them.
    status, text = play(tmp_path, environment, "playbooks/report.yml", "--limit", "h03")
    assert status == 0 and "big: it is shown as it runs, because this run does not read h02" in text, text
    assert any(line.split()[:2] == ["h02,", "h03"] and "big" in line.split() for line in text.splitlines()), text
    status, text = play(tmp_path, environment, "site.yml", "--limit", "h01")
    assert status == 0 and "big: it stays unchanged, because its hosts cannot be chosen" in text, text
    # While a host is away, the other models of its partner are changed, and its own part stays.
    change(tmp_path, "h03", away={"until": time.time() + 600})
    inventory(tmp_path, ["h01", "h02", "h03"], h02={"vllm_models": [{**OWN, "tensor_parallel_size": 2}]})
    before = state_of(tmp_path, "h02")["units"]["big"]
    status, text = play(tmp_path, environment, "site.yml")
    assert status == 4, text
    assert "h02: model big: it stays unchanged, because no facts could be read of h03" in text
    after = state_of(tmp_path, "h02")
    assert after["units"]["big"] == before and after["units"]["own"]["started"], text
    status, text = play(tmp_path, environment, "playbooks/status.yml")
    assert any(line.split()[:3] == ["h02", "big", "0,1,2,3"] for line in text.splitlines()), text
    assert "h02: model big: it stays unchanged" in text
