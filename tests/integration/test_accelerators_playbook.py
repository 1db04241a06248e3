"""One inventory serves hosts with accelerators of several vendors: plan, run, second run, status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import forked
from helpers.simulated.fleet import ROOT, change, fleet, state_of


def card(number: int, **more: Any) -> dict[str, Any]:
    """Return a device of a host."""
    place = {"numa_node": number, "cpus": [f"{number * 16}-{number * 16 + 15}"]}
    return {"module_id": number, "index": number, "in_use": False, **place, **more}


NVIDIA = {
    **{"accelerator": "cuda", "device_name": "NVIDIA H100 80GB HBM3", "driver_version": "580.95.05"},
    "modules": [
        card(number, device_id=f"GPU-{number}", name="NVIDIA H100 80GB HBM3", memory_mib=81559, capability="9.0")
        for number in range(2)
    ],
}
AMD = {
    **{"accelerator": "rocm", "device_name": "AMD Instinct MI300X", "driver_version": "30.30.1"},
    "modules": [
        card(
            number, index=128 + number, device_id=f"0000:2{number}:00.0", name="AMD Instinct MI300X", memory_mib=196592
        )
        | {"capability": "gfx942"}
        for number in range(2)
    ],
}
OFFICIAL = "vllm/vllm-openai-rocm:v0.33.0-rocm72"
TOOLKIT = {
    "runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime", "runtimeArgs": []}},
    "packages": {"nvidia-container-toolkit": "1.20.0-1"},
}


def play(folder: Path, environment: dict[str, str], playbook: str, *options: str, status: int = 0, **given: Any) -> str:
    """Run a playbook on the hosts of a folder, and return its output."""
    argv = ["ansible-playbook", "-i", str(folder / "hosts.json"), playbook, *options, "-e", json.dumps(given)]
    ended, text = forked.playbook(argv, ROOT, environment, 300)
    assert ended == status, text
    return text


def test_one_model_on_hosts_of_three_vendors(tmp_path: Path) -> None:
    environment = fleet(tmp_path, 3)
    change(tmp_path, "h02", devices=NVIDIA, cmdline=["root=/dev/sda1"], **TOOLKIT)
    change(tmp_path, "h03", devices=AMD, cmdline=["root=/dev/sda1"])
    # A model that names no image gets the official one, which needs no entry.
    hosts = json.loads((tmp_path / "hosts.json").read_text(encoding="utf-8"))
    named = hosts["all"]["vars"]["vllm_models"][0]
    perf = {"link_validation_image": "nccl-tests:1", "link_validation_nccl_tests": "/opt/all_reduce_perf"}
    hosts["all"]["hosts"]["h02"] = perf
    hosts["all"]["hosts"]["h03"] = {"vllm_models": [{key: value for key, value in named.items() if key != "image"}]}
    (tmp_path / "hosts.json").write_text(json.dumps(hosts), encoding="utf-8")
    plan = play(tmp_path, environment, "playbooks/plan.yml")
    assert "2 cards NVIDIA H100 80GB HBM3 on 2 NUMA nodes" in plan and "2 cards AMD Instinct MI300X" in plan, plan
    assert "3 hosts, 3 models, 3 hosts would change, 0 errors" in plan
    assert f"provide {OFFICIAL}" in plan, plan
    play(tmp_path, environment, "site.yml")
    launches = {
        name: json.loads(state_of(tmp_path, name)["files"]["/etc/gaudi-serve/m.json"]) for name in ("h02", "h03")
    }
    nvidia, amd = launches["h02"], launches["h03"]
    assert (nvidia["runtime"], nvidia["device_access"]["ids"]) == ("nvidia", ["GPU-0"])
    assert amd["runtime"] is None and amd["device_access"]["options"][:2] == ["--device", "/dev/kfd"]
    assert amd["image"] == OFFICIAL and OFFICIAL in state_of(tmp_path, "h03")["images"]
    # Links are measured before anything serves, by the image of the model.
    measured = state_of(tmp_path, "h03")["hccl"]
    assert (measured["image"], measured["accelerator"]) == (OFFICIAL, "rocm")
    assert [(run["name"], run["module_ids"]) for run in measured["runs"]] == [("all", [0, 1])]
    # Or by the program that the inventory names.
    assert [state_of(tmp_path, "h02")["hccl"][key] for key in ("image", "program")] == [*perf.values()]
    # What the manual sets for its own hosts alone is on none of these.
    for name in ("h02", "h03"):
        files = state_of(tmp_path, name)["files"]
        assert "/etc/default/grub.d/zz-gaudi-serve.cfg" not in files
        assert "nr_hugepages" not in files["/etc/sysctl.d/zz-gaudi-serve.conf"]
    again = play(tmp_path, environment, "site.yml")
    assert "nothing changed" in again and " changed:" not in again, again
    status = play(tmp_path, environment, "playbooks/status.yml")
    assert "3 hosts: 3 as planned, 0 drifted, 0 could not be read" in status, status
    assert "h02: NCCL all_reduce: all 258.0 GB/s" in status and "h03: RCCL all_reduce: all 258.0 GB/s" in status, status
    rolls_out(tmp_path, environment, hosts, launches)


def rolls_out(folder: Path, environment: dict[str, str], hosts: dict[str, Any], before: dict[str, Any]) -> None:
    """Roll a change out over all hosts, one after the other: each proves itself on its own devices."""
    for one in hosts["all"]["vars"]["vllm_models"], hosts["all"]["hosts"]["h03"]["vllm_models"]:
        one[0] |= {"max_num_seqs": 24, "min_available": 2}
    (folder / "hosts.json").write_text(json.dumps(hosts), encoding="utf-8")
    rolled = play(folder, environment, "playbooks/rollout.yml", rollout_approved=True)
    assert "3 hosts in 3 waves" in rolled, rolled
    for name in ("h01", "h02", "h03"):
        launch = json.loads(state_of(folder, name)["files"]["/etc/gaudi-serve/m.json"])
        assert "24" in launch["command"], launch
        assert name not in before or launch["device_access"] == before[name]["device_access"]


def test_what_a_host_cannot_do_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    model = {"name": "m", "weights": "/data/model", "port": 30001, "image": "vllm/vllm-openai:v0.33.0"}
    model |= {"tensor_parallel_size": 1, "max_model_len": 4096, "dtype": "bfloat16"}
    old = {"name": "Tesla T4", "memory_mib": 15360, "capability": "7.5"}
    environment = fleet(tmp_path, 2, vllm_models=[model], vllm_images=[{"name": model["image"]}])
    cards = [{**one, **old} for one in NVIDIA["modules"]]
    change(
        tmp_path, "h01", devices={**NVIDIA, "driver_version": "570.86.15", "modules": cards, "device_name": "Tesla T4"}
    )
    change(tmp_path, "h02", devices={"accelerator": "tpu", "device_name": None, "modules": []})
    text = play(tmp_path, environment, "site.yml", status=3)
    flat = " ".join(text.split())
    assert "model m: dtype 'bfloat16': needs compute capability 8.0 or more, and card 0 (Tesla T4) has 7.5" in flat, (
        text
    )
    assert "is made with CUDA 13, which needs driver 580 or newer, and this host has 570.86.15" in flat, text
    assert "h02: its TPUs are not served here" in flat, text
    assert state_of(tmp_path, "h01")["files"] == {}


def test_models_of_a_host_without_a_driver_wait_for_it(tmp_path: Path) -> None:
    environment = fleet(tmp_path, 2)
    bare = {"accelerator": "cuda", "device_name": None, "driver_version": None, "modules": []}
    change(tmp_path, "h02", devices={**bare, "problem": ["nvidia-smi: not found"]}, **TOOLKIT)
    waits = "h02: its devices do not answer until the run has installed their driver; the models are planned after that"
    plan = " ".join(play(tmp_path, environment, "playbooks/plan.yml").split())
    assert waits in plan and "2 hosts, 1 model, 2 hosts would change, 0 errors" in plan, plan
    assert "driver: nvidia-open=580.95.05-1 is not installed" in plan
    check = play(tmp_path, environment, "site.yml", "--check")
    assert waits in check and "would change: install nvidia-open=580.95.05-1" in check, check
    assert "h02: would change: host, driver (" in check, check
    # A rollout plans no host again, and a run without the stage installs nothing.
    for playbook in ("playbooks/rollout.yml", "playbooks/models.yml"):
        refused = " ".join(play(tmp_path, environment, playbook, status=3).split())
        assert "h02: the cards do not answer: nvidia-smi: not found" in refused and waits not in refused, refused
