"""Hosts with GPUs: each model gets exactly its devices, by CDI, by NVIDIA's runtime, or by render nodes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

MODELS = ("first", "second")
STATE = "/etc/gaudi-sim/nvidia.json"
WIDE = [{"name": "wide", "port": 30003, "tensor_parallel_size": 4}]
# As the run that made the host.
SITE = ("site.yml", "--skip-tags", "host,validate")
DRIVER = ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-open", "nvidia-persistenced")


def inspected(host: Any, model: str) -> dict[str, Any]:
    """Return what the engine has of a model's container."""
    found: dict[str, Any] = json.loads(host.check_output(f"docker inspect vllm-{model}"))[0]
    return found


def nodes(host: Any, model: str) -> list[str]:
    """Return the nodes of GPUs in a model's container, which the server has tried to open."""
    found = host.check_output(
        f"docker exec vllm-{model} find /dev -name 'nvidia*' -o -name kfd -o -name 'renderD*' -o -name 'card*'"
    )
    return sorted(found.split())


def launch(host: Any, model: str) -> dict[str, Any]:
    """Return a model's launch file."""
    found: dict[str, Any] = json.loads(host.file(f"/etc/gaudi-serve/{model}.json").content_string)
    return found


def minors(host: Any) -> dict[str, int]:
    """Return the numbers of the nodes of NVIDIA's cards by their UUID."""
    return {card["uuid"]: card["minor"] for card in json.loads(host.file(STATE).content_string)["cards"]}


def change(host: Any, **state: Any) -> None:
    """Change what nvidia-smi shows."""
    known = json.loads(host.file(STATE).content_string) | state
    host.check_output(f"cat >{STATE} <<'END'\n{json.dumps(known)}\nEND")


def lose(host: Any, index: int) -> None:
    """Let nvidia-smi lose a card, which stays on the bus."""
    cards = json.loads(host.file(STATE).content_string)["cards"]
    cards[index]["missing"] = True
    change(host, cards=cards)


def as_planned(playbook: Any) -> None:
    """See that a second run changes nothing, and that the status is clean."""
    again = playbook("playbooks/models.yml")
    assert again.changed_nothing, again.text
    # The host is not tuned: that would change the kernel that it shares.
    told = re.findall(r"mol-gpus: (?!host:).*", playbook("playbooks/status.yml").text.partition("PLAY RECAP")[0])
    assert [line for line in told if "not as planned" not in line] == [], told


def has_cards(host: Any, model: str) -> list[str]:
    """Return a model's cards, whose nodes alone are in its container, as nvidia-smi shows there."""
    ids: list[str] = launch(host, model)["device_access"]["ids"]
    mine = [f"/dev/nvidia{minors(host)[one]}" for one in ids]
    assert nodes(host, model) == sorted([*mine, "/dev/nvidia-uvm", "/dev/nvidiactl"])
    shown = host.check_output(f"docker exec vllm-{model} nvidia-smi -L")
    assert re.findall(r"UUID: (\S+)\)", shown) == sorted(ids)
    return ids


def test_a_host_without_a_driver_gets_one_in_the_run_that_serves_its_models(host: Any) -> None:
    assert host.check_output("apt-mark showhold").split() == list(DRIVER)
    assert {host.package(name).version for name in DRIVER} == {"580.95.05-1"}
    daemon = host.service("nvidia-persistenced")
    assert daemon.is_running and daemon.is_enabled
    assert host.file("/sys/module/nvidia_uvm").is_directory and host.file("/sys/module/nvidia").is_directory


def test_each_model_has_its_card_by_cdi(host: Any, playbook: Any) -> None:
    for model in MODELS:
        ids = has_cards(host, model)
        assert len(ids) == 1
        found = inspected(host, model)["HostConfig"]
        assert found["Runtime"] == "runc"
        assert [one["DeviceIDs"] for one in found["DeviceRequests"]] == [[f"nvidia.com/gpu={ids[0]}"]]
    assert host.check_output("dpkg-query --show --showformat '${Version}' nvidia-container-toolkit") == "1.20.0-1"
    again = playbook(*SITE)
    assert again.changed_nothing, again.text
    as_planned(playbook)


def test_a_lost_card_is_reported_and_the_others_serve_on(host: Any, playbook: Any) -> None:
    before = inspected(host, "first")["Id"]
    lose(host, 1)
    status = playbook("playbooks/status.yml")
    assert status.status != 0
    assert "card 0000:18:00.0" in status.flat, status.text
    run = playbook("playbooks/models.yml")
    assert run.status == 3, run.text
    assert "0000:18:00.0" in run.flat and "Nothing has been changed" in run.flat, run.text
    assert inspected(host, "first")["Id"] == before


def test_what_a_driver_cannot_do_is_refused_unless_the_run_replaces_it(host: Any, playbook: Any) -> None:
    older, newer = ({"driver_version": version, "driver_upgrade_allowed": True} for version in ("570", "580"))
    run = playbook(*SITE, **older)
    assert run.status == 0, run.text
    assert host.file("/sys/module/nvidia/version").content_string == "570.195.03\n"
    assert host.service("nvidia-persistenced").is_running
    before = {model: inspected(host, model)["Id"] for model in MODELS}
    image = {"image": "vllm/vllm-openai:v0.33.0", "weights": "/data/hf_models/Qwen2.5-7B-Instruct"}
    run = playbook("playbooks/models.yml", vllm_model_defaults=image, **newer)
    assert run.status == 3, run.text
    assert "is made with CUDA 13, which needs driver 580 or newer, and this host has 570.195.03" in run.flat, run.text
    assert {model: inspected(host, model)["Id"] for model in MODELS} == before
    plan = playbook("playbooks/plan.yml", vllm_model_defaults=image, **newer)
    assert plan.status == 0 and "nvidia-open=580.95.05-1 is not installed" in plan.flat, plan.text
    assert "CUDA 13" not in plan.text
    run = playbook(*SITE, **newer)
    assert run.status == 0, run.text
    assert host.check_output("apt-mark showhold").split() == list(DRIVER)


def test_an_older_toolkit_gives_cards_by_its_runtime(host: Any, playbook: Any) -> None:
    older = {"container_runtime_nvidia_version": "1.17.8-1"}
    run = playbook(*SITE, fleet_all_at_once=True, **older)
    assert run.status == 0, run.text
    for model in MODELS:
        ids = has_cards(host, model)
        found = inspected(host, model)
        assert found["HostConfig"]["Runtime"] == "nvidia"
        assert f"NVIDIA_VISIBLE_DEVICES={ids[0]}" in found["Config"]["Env"]
    image = found["Config"]["Image"]
    unknown = host.run(f"docker run --rm --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=0,7 {image} true")
    assert unknown.rc != 0 and "failed to get device handle from index" in unknown.stderr
    again = playbook(*SITE, **older)
    assert again.changed_nothing, again.text
    assert "nvidia-container-toolkit: 1.17.8-1, planned 1.20.0-1" in playbook("playbooks/status.yml").flat
    run = playbook(*SITE, fleet_all_at_once=True)
    assert run.status == 0, run.text
    assert {inspected(host, model)["HostConfig"]["Runtime"] for model in MODELS} == {"runc"}
    again = playbook(*SITE)
    assert again.changed_nothing, again.text


@pytest.mark.anyhow
def test_eight_cards_of_nvswitch(host: Any, playbook: Any) -> None:
    # As a boot does, which numbers cards again.
    host.check_output("systemctl stop vllm-first vllm-second; testhost-gpus cuda 8 4")
    change(host, fabric=["In Progress", "N/A"])
    run = playbook("playbooks/models.yml", wide_model=WIDE)
    assert run.status == 3 and "nvidia-fabricmanager of exactly version 580.95.05 must run" in run.flat, run.text
    change(host, fabric=["Completed", "Success"])
    run = playbook("playbooks/models.yml", wide_model=WIDE, fleet_all_at_once=True)
    assert run.status == 0, run.text
    taken = [one for model in (*MODELS, "wide") for one in has_cards(host, model)]
    assert len(taken) == len(set(taken)) == 6
    before = {model: inspected(host, model)["Id"] for model in ("first", "wide")}
    second = launch(host, "second")["device_access"]["ids"]
    lose(host, int(second[0][4:12], 16))
    assert "~ second" in playbook("playbooks/plan.yml", wide_model=WIDE).text
    run = playbook("playbooks/models.yml", wide_model=WIDE)
    assert run.status == 0, run.text
    assert {model: inspected(host, model)["Id"] for model in before} == before
    assert has_cards(host, "second") != second


@pytest.mark.anyhow
@pytest.mark.parametrize("kind", ["rocm", "xpu"])
def test_render_nodes_of_exactly_the_planned_gpus(host: Any, playbook: Any, kind: str) -> None:
    host.check_output(f"testhost-gpus {kind} 2")
    run = playbook("playbooks/models.yml", fleet_all_at_once=True)
    assert run.status == 0, run.text
    taken = []
    for model in MODELS:
        (bus_id,) = launch(host, model)["device_access"]["ids"]
        link = host.check_output(f"ls /sys/bus/pci/devices/{bus_id}/drm").split()
        render = next(name for name in link if name.startswith("renderD"))
        wanted = {"rocm": [f"/dev/dri/{render}", "/dev/kfd"], "xpu": [f"/dev/dri/{render}"]}
        assert nodes(host, model) == sorted(wanted[kind])
        groups = host.check_output(f"docker exec vllm-{model} id -G").split()
        assert "992" in groups
        taken.append(bus_id)
    assert len(set(taken)) == 2
    as_planned(playbook)


@pytest.mark.anyhow
def test_a_reset_leaves_nothing(host: Any, playbook: Any) -> None:
    host.check_output("testhost-gpus cuda 2")
    run = playbook("playbooks/reset.yml", reset_confirm="reset", reset_packages=True)
    assert run.status == 0, run.text
    listed = "dpkg-query --show --showformat '${Package} ${db:Status-Status}\n'"
    assert host.run(f"{listed} | grep -E 'nvidia-.* installed|docker.* installed'").stdout == ""
    assert host.run("ls -d /etc/gaudi-serve /var/lib/gaudi-serve /etc/docker 2>/dev/null").stdout == ""
    assert host.run("ls -d /sys/module/nvidia* /usr/bin/nvidia-smi /usr/local/sbin/modprobe 2>/dev/null").stdout == ""
    assert host.check_output("ls /etc/systemd/system/ | grep vllm || true") == ""
