"""The stand-in of NVIDIA's container runtime: what the real one of release 1.20, driven beside it, does and says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gpu_trees import Machine, fill_nvidia
from helpers.standin_host import STANDINS

VISIBLE = "NVIDIA_VISIBLE_DEVICES="
UUIDS = [f"GPU-{number:08x}-0000-0000-0000-000000000001" for number in range(2)]
INJECT = "failed to inject CDI devices: "
MIXED = "requesting a CDI device with vendor 'runtime.nvidia.com' is not supported when requesting other CDI devices"
REFUSED = "could not apply required modification to OCI specification: error modifying OCI spec: "
GENERATED = 'failed to create the automatic CDI modifier: failed to generate CDI spec for mode "auto": '
GENERATED += "failed to construct device spec generators: "


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a machine with two cards, a CDI file, and a runc that does nothing."""
    found = Machine(tmp_path, "nvidia-smi")
    fill_nvidia(found, 2)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/runc").write_text('#!/bin/sh\necho runc "$@"\n', encoding="ascii")
    (tmp_path / "bin/runc").chmod(0o755)
    (tmp_path / "nvidia-ctk").symlink_to(STANDINS / "nvidia-container-runtime")
    assert run(found, tmp_path / "nvidia-ctk", "cdi", "generate", "--output=/etc/cdi/nvidia.yaml").returncode == 0
    return found


def run(machine: Machine, *argv: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program of the machine."""
    env = {"GAUDI_SIM_ROOT": str(machine.root), "PATH": f"{machine.root}/bin:/usr/bin:/bin"}
    return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False, env=env)


def created(machine: Machine, *environment: str) -> tuple[list[str], list[str], str]:
    """Create a container, and return its nodes, the last of its variables, and why there is none."""
    spec: dict[str, Any] = {"process": {"env": ["A=b", *environment]}, "linux": {}}
    (machine.root / "config.json").write_text(json.dumps(spec), encoding="utf-8")
    result = run(machine, STANDINS / "nvidia-container-runtime", "create", "--bundle", machine.root, "name")
    edited = json.loads((machine.root / "config.json").read_text(encoding="utf-8"))
    said = json.loads(result.stderr.partition("level=error msg=")[2] or '""')
    assert (result.returncode, edited == spec) == (1, True) if said else result.stdout.startswith("runc create")
    nodes = [node["path"].removeprefix("/dev/nvidia") for node in edited["linux"].get("devices", [])]
    return nodes, edited["process"]["env"][1 + len(environment) :], said


COMMON = ["-uvm", "ctl"]
VOID = [f"{VISIBLE}void"]


@pytest.mark.parametrize(
    ("environment", "nodes"),
    [
        ([], []),
        ([VISIBLE], []),
        ([f"{VISIBLE}void"], []),
        ([f"{VISIBLE}0,void"], []),
        (["CUDA_VERSION=13.0", "NVIDIA_REQUIRE_CUDA=cuda>=13.0"], []),
        (["CUDA_VERSION=11.0"], ["1", "0", *COMMON]),
        # The number of a card is not that of its node.
        ([f"{VISIBLE}0"], ["1", *COMMON]),
        ([f"{VISIBLE}{UUIDS[1]}"], ["0", *COMMON]),
        ([f"{VISIBLE}0", f"{VISIBLE}1"], ["0", *COMMON]),
        ([f"{VISIBLE}all"], ["1", "0", *COMMON]),
        ([f"{VISIBLE}1,0"], ["1", "0", *COMMON]),
        ([f"{VISIBLE}none"], COMMON),
        ([f"{VISIBLE}0,1,1"], COMMON),
        ([f"{VISIBLE}nvidia.com/gpu={UUIDS[0]}"], ["1", *COMMON]),
    ],
)
def test_a_container_gets_what_its_last_variable_names(
    environment: list[str], nodes: list[str], machine: Machine
) -> None:
    assert created(machine, *environment) == (nodes, VOID if nodes else [], "")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("0,7", f"{GENERATED}failed to get device handle from index: Invalid Argument"),
        (UUIDS[1][:-1] + "9", f"{GENERATED}failed to get device handle from UUID: Not Found"),
        ("ALL", f'{GENERATED}identifier is not a valid UUID or index: "ALL"'),
        ("nvidia.com/gpu=0,nvidia.com/gpu=7", f"{INJECT}unresolvable CDI devices nvidia.com/gpu=7"),
        ("nvidia.com/gpu=0,1", MIXED),
        ("nvidia.com/gpu=0,nvidia.com/gpu=0", MIXED),
    ],
)
def test_a_device_that_does_not_exist_ends_it_and_nothing_is_given(value: str, reason: str, machine: Machine) -> None:
    assert created(machine, f"{VISIBLE}{value}")[2] == REFUSED + reason


def test_a_node_that_is_gone_ends_it(machine: Machine) -> None:
    (machine.root / "dev/nvidia1").unlink()
    said = 'failed to inject devices: failed to stat CDI host device "/dev/nvidia1": no such file or directory'
    assert created(machine, f"{VISIBLE}nvidia.com/gpu=0")[2] == f"{REFUSED}{INJECT}{said}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = [1,\n", "error loading config: failed to load specified config file: "),
        ('[nvidia-container-runtime]\nmode = "bogus"\n', 'invalid mode "bogus"'),
    ],
)
def test_settings_that_it_cannot_read_end_it(text: str, said: str, machine: Machine) -> None:
    folder = machine.root / "etc/nvidia-container-runtime"
    folder.mkdir()
    (folder / "config.toml").write_text(text, encoding="utf-8")
    assert said in created(machine)[2]


def test_the_engine_is_reported_in_its_log(machine: Machine) -> None:
    log = machine.root / "log.json"
    created(machine, f"{VISIBLE}nvidia.com/gpu=7")
    options = ["--root", "/x", "--log", log, "--log-format", "json"]
    run(machine, STANDINS / "nvidia-container-runtime", *options, "create", "--bundle", machine.root, "name")
    told = json.loads(log.read_text(encoding="utf-8"))
    assert (told["level"], told["msg"]) == ("error", f"{REFUSED}{INJECT}unresolvable CDI devices nvidia.com/gpu=7")


def test_without_a_driver_the_library_is_missing(machine: Machine) -> None:
    (machine.root / "etc/gaudi-sim/nvidia.json").unlink()
    assert "failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND" in created(machine, f"{VISIBLE}0")[2]


def test_nvidia_smi_shows_the_cards_whose_nodes_are_here(machine: Machine) -> None:
    (machine.root / "dev/nvidia1").unlink()
    (line,) = run(machine, STANDINS / "nvidia-smi", "-L").stdout.splitlines()
    assert line == f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {UUIDS[1]})"


def test_nvidia_smi_measures_and_refuses_what_a_driver_does_not_know(machine: Machine) -> None:
    card = machine.state["cards"][0]
    card |= {"slowed": ["sw_power_cap"], "slowed_us": {"sw_power_cap": 12}, "slowdown": 90, "temperature": 61}
    machine.save()
    fields = "temperature.gpu,power.draw,clocks_event_reasons.sw_power_cap,clocks_event_reasons_counters.sw_power_cap"
    query = [STANDINS / "nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    assert run(machine, *query).stdout.splitlines() == ["61, 71.50, Active, 12", "34, 71.50, Not Active, 0"]
    shown = [run(machine, STANDINS / "nvidia-smi", "-q", "-d", "TEMPERATURE", "-i", uuid).stdout for uuid in UUIDS]
    slowdown = [line.partition(":")[2] for text in shown for line in text.splitlines() if "GPU Slowdown Temp" in line]
    assert slowdown == [" 90 C", " N/A"]
    machine.save(unknown=["clocks_event_reasons.sw_power_cap"])
    result = run(machine, *query)
    assert (result.returncode, "is not a valid field to query" in result.stdout) == (2, True)
