"""The collector of metrics, which runs here on made-up hosts: cards of each platform, models, journal and host."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from gaudi_serve.engines import ENGINES
from gaudi_serve.gateway import haproxy
from gaudi_serve.host.observe_services import SUPERVISOR
from gaudi_serve.monitoring.collector import CERTIFICATES, collector_settings
from gaudi_serve.monitoring.metrics import BY_NAME, METRICS, REASONS, STATES
from gaudi_serve.platforms import PLATFORMS
from gpu_trees import Machine, fill_amd, fill_intel, fill_nvidia
from helpers.collector_host import FOLDER, CollectorHost, Written, container, of
from helpers.monitoring_tools import tool
from helpers.plans import gaudi_host, model, planned
from helpers.programs import load_program
from helpers.standin_host import STANDINS, Host

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "roles/monitoring/files/gaudi-metrics"
EMPTY: dict[str, Any] = {"models": []}
STARTED = "2026-11-27T08:00:00.5Z"
BEGIN = 1795766400.5  # the same in seconds


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """Return the collector as a module, which finds its programs on the made-up host."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return load_program(PROGRAM)


@pytest.fixture
def host(tmp_path: Path) -> CollectorHost:
    """Return a host that serves one model, and has no cards."""
    plan = planned(model())
    found = CollectorHost(tmp_path, collector_settings(plan, {"accelerator": "cpu"}))
    digest = plan["models"][0]["digest"]
    found.put("etc/gaudi-serve/qwq.json", json.dumps({"digest": digest}))
    found.put("var/lib/gaudi-serve/qwq/supervisor.json", "{}")
    found.state["units"]["qwq"] = {"ActiveState": "active", "SubState": "running", "StatusText": "serving on ::1:1"}
    found.state["containers"]["qwq"] = container("qwq", STARTED, digest)
    return found


def gaudi(root: Path) -> tuple[CollectorHost, Host]:
    """Return a host with two Gaudi cards, module 2 and 0 as index 0 and 1."""
    cards = Host(root)
    cards.state["cards"] = cards.state["cards"][:2]
    cards.save()
    facts = {"accelerator": "gaudi", "pci_cards": 3}
    found = CollectorHost(root, collector_settings(EMPTY, facts))
    found.tool(STANDINS / "hl-smi")
    for card in cards.state["cards"]:
        for name, lanes in (("current", 8 if card["index"] else 16), ("max", 16)):
            found.put(f"sys/bus/pci/devices/{card['bus_id']}/{name}_link_width", f"{lanes}\n")
    return found, cards


Fill = Callable[[Machine], None]


def vendor(root: Path, platform: str, tool: str, fill: Fill) -> tuple[CollectorHost, Machine]:
    """Return a host with two cards of another vendor."""
    machine = Machine(root, tool)
    fill(machine)
    found = CollectorHost(root, collector_settings(EMPTY, {"accelerator": platform, "pci_cards": 2}))
    found.tool(STANDINS / tool)
    return found, machine


def nvidia(root: Path) -> tuple[CollectorHost, Machine]:
    """Return a host with two NVIDIA cards."""
    return vendor(root, "cuda", "nvidia-smi", lambda machine: fill_nvidia(machine, 2))


def amd(root: Path) -> tuple[CollectorHost, Machine]:
    """Return a host with two AMD GPUs."""
    return vendor(root, "rocm", "amd-smi", lambda machine: fill_amd(machine, ["0000:05:00.0", "0000:26:00.0"]))


def intel(root: Path) -> tuple[CollectorHost, Machine]:
    """Return a host with two Intel GPUs."""
    return vendor(root, "xpu", "xpu-smi", lambda machine: fill_intel(machine, ["0000:03:00.0", "0000:83:00.0"]))


def ok(found: Written) -> dict[str, float]:
    """Return by part whether it could be read."""
    parts = of(found, "collector_success")
    assert isinstance(parts, dict)
    return parts


# Cards


def test_gaudi_cards(tmp_path: Path, program: ModuleType) -> None:
    host, cards = gaudi(tmp_path)
    cards.state["cards"][0] |= {"temperature": 51, "power": 311, "utilization": 87, "used_mib": 90112, "ecc": 3}
    cards.state["cards"][0] |= {"corrected": 12, "thermal_violation": 7}
    cards.state["cards"][1]["links"][5] = "DOWN"
    cards.state["cards"][1]["links"][8] = "DOWN"  # leads to other hosts
    cards.save()
    found = host.collect(program)
    assert (of(found, "cards_expected"), of(found, "cards_present")) == (3, 2)
    details = "HL-225, index 0, 0000:3b:00.0, serial AM50000002"
    assert of(found, "card_info", card="2") == {details: 1}
    assert of(found, "card_temperature_celsius") == {"2": 51, "0": 22}
    assert of(found, "card_power_watts") == {"2": 311, "0": 80}
    assert of(found, "card_utilization_ratio") == {"2": 0.87, "0": 0}
    assert of(found, "card_memory_used_bytes") == {"2": 90112 << 20, "0": 768 << 20}
    assert of(found, "card_memory_total_bytes", card="0") == 98304 << 20
    kinds = {"corrected": 12, "uncorrected": 3, "dram_corrected": 0, "dram_uncorrected": 0}
    assert of(found, "card_ecc_errors_total", card="2") == kinds
    assert of(found, "card_ecc_errors_lifetime", card="2") == kinds
    assert of(found, "card_throttled_seconds_total", card="2") == {"thermal": 7, "power": 0}
    up = of(found, "card_port_up", card="0")
    assert isinstance(up, dict)
    assert {port for port, value in up.items() if not value} == {"5"}
    assert len(up) == 21 and not {"8", "22", "23"} & up.keys()
    assert of(found, "card_pcie_width") == {"2": 16, "0": 8}
    assert of(found, "card_pcie_width_max") == {"2": 16, "0": 16}
    assert ok(found)["cards"] == 1
    # Not known there, so absent.
    assert of(found, "card_temperature_slowdown_celsius") is None
    assert of(found, "card_rows_pending") is None


def test_what_changes_on_a_card_is_seen_at_the_next_run(tmp_path: Path, program: ModuleType) -> None:
    host, cards = gaudi(tmp_path)
    assert of(host.collect(program), "card_ecc_errors_total", card="2", kind="uncorrected") == 0
    cards.state["cards"][0] |= {"ecc": 1, "temperature": 90}
    cards.state["cards"][1]["missing"] = True
    cards.save()
    found = host.collect(program)
    assert of(found, "card_ecc_errors_total", card="2", kind="uncorrected") == 1
    assert of(found, "card_temperature_celsius") == {"2": 90}
    assert (of(found, "cards_expected"), of(found, "cards_present")) == (3, 1)


def test_ports_are_read_seldom(tmp_path: Path, program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    host, cards = gaudi(tmp_path)

    def asked() -> list[str]:
        found = host.collect(program)
        ports.append(of(found, "card_port_up", card="2", port="5"))
        return [call[2] for call in host.calls() if call[:2] == ["hl-smi", "-n"]]

    ports: list[Any] = []
    assert sorted(asked()) == ["link", "link", "ports", "ports"]
    cards.state["cards"][0]["links"][5] = "DOWN"
    cards.save()
    assert asked() == []
    now = time.time()
    monkeypatch.setattr(program.time, "time", lambda: now + 121)
    assert asked() == ["link", "link"]
    assert ports == [1, 1, 0]
    # A clock that was set back.
    monkeypatch.setattr(program.time, "time", lambda: now - 9999)
    assert sorted(asked()) == ["link", "link", "ports", "ports"]


def test_an_answer_that_reports_nothing_is_asked_for_again(tmp_path: Path, program: ModuleType) -> None:
    host, _ = gaudi(tmp_path)
    real = (tmp_path / "bin/hl-smi").read_text(encoding="utf-8")
    host.program("hl-smi", "if words[0] == '-n': sys.exit('the driver is busy')" + real.split("sys.exit(2)\n")[1])
    assert of(host.collect(program), "card_port_up") is None
    host.put("bin/hl-smi", real)
    ports = of(host.collect(program), "card_port_up", card="2")
    assert isinstance(ports, dict)
    assert len(ports) == 21


@pytest.mark.parametrize(
    ("unknown", "gone"),
    [
        (["ecc.errors.dram.volatile.total"], {"dram_corrected", "dram_uncorrected"}),
        (["ecc.errors.corrected.volatile.total"], {"corrected", "uncorrected"}),
    ],
)
def test_a_field_that_a_release_does_not_know_takes_its_own_call_alone(
    unknown: list[str], gone: set[str], tmp_path: Path, program: ModuleType
) -> None:
    host, cards = gaudi(tmp_path)
    cards.state["unknown"] = unknown
    cards.save()
    found = host.collect(program)
    kinds = of(found, "card_ecc_errors_total", card="2")
    assert isinstance(kinds, dict)
    assert kinds.keys() == {"dram_corrected", "dram_uncorrected", "corrected", "uncorrected"} - gone
    assert of(found, "card_temperature_celsius") == {"2": 22, "0": 22}
    assert ok(found)["cards"] == 1


def test_values_that_cannot_be_read_are_absent(tmp_path: Path, program: ModuleType) -> None:
    host, cards = gaudi(tmp_path)
    odd = {"temperature.aip": "N/A", "power.draw": "[Not Supported]", "utilization.aip": "", "memory.used": "ERR!"}
    cards.state["cards"][0]["odd"] = odd | {"bus_id": "N/A"}
    cards.save()
    found = host.collect(program)
    for name in ("temperature_celsius", "power_watts", "memory_used_bytes", "pcie_width"):
        values = of(found, f"card_{name}")
        assert isinstance(values, dict)
        assert values.keys() == {"0"}
    assert of(found, "card_memory_total_bytes") == {"2": 98304 << 20, "0": 98304 << 20}
    assert of(found, "cards_present") == 2


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[("103 W", 103), ("36", 36), ("15 %", 15), ("71.50", 71.5), (" 512 MiB", 512), (7, 7.0), ("-3 C", -3)],
        *[("N/A", None), ("[N/A]", None), ("", None), ("x16", None), ("1 2", None), ("1e5x", None), (None, None)],
        *[(True, None), (float("nan"), None), (float("inf"), None), ([1], None)],
    ],
)
def test_numbers_of_tools(text: Any, number: float | None, program: ModuleType) -> None:
    assert program.number(text) == number


def test_a_row_that_is_no_row_is_no_card(tmp_path: Path, program: ModuleType) -> None:
    host, cards = gaudi(tmp_path)
    cards.state["cards"][0]["row"] = "0, N/A"
    for text in ("N/A", "Unknown", "[Not Supported]", "7 8", "9" * 65):
        cards.state["cards"][1]["odd"] = {"module_id": text}
        cards.save()
        found = host.collect(program)
        assert ok(found)["cards"] == 0
        assert of(found, "cards_present") is None


def test_nvidia_cards(tmp_path: Path, program: ModuleType) -> None:
    host, machine = nvidia(tmp_path)
    first, second = machine.state["cards"]
    first |= {"temperature": 71, "power": "612.33", "utilization": 98, "used_mib": 70000, "uncorrected": 2}
    first |= {"corrected": 5, "pending": "Yes", "slowed": ["sw_power_cap"], "slowdown": 90}
    first["slowed_us"] = {"hw_thermal_slowdown": 1_500_000, "sw_thermal_slowdown": 500_000}
    second["odd"] = {"power.draw": "[N/A]", "utilization.gpu": "[Not Supported]", "temperature.gpu": "[Unknown Error]"}
    machine.save()
    host.put(f"sys/bus/pci/devices/{first['bus_id']}/current_link_width", "16\n")
    host.put(f"sys/bus/pci/devices/{first['bus_id']}/max_link_width", "255\n")  # it has fallen off the bus
    found = host.collect(program)
    one, two = first["uuid"], second["uuid"]
    assert of(found, "card_info", card=one) == {"NVIDIA H100 80GB HBM3, index 0, 00000000:17:00.0": 1}
    assert of(found, "card_temperature_celsius") == {one: 71}
    assert of(found, "card_temperature_slowdown_celsius") == {one: 90}
    assert of(found, "card_power_watts") == {one: 612.33}
    assert of(found, "card_utilization_ratio") == {one: 0.98}
    assert of(found, "card_memory_used_bytes") == {one: 70000 << 20, two: 1 << 20}
    assert of(found, "card_memory_total_bytes", card=two) == 81559 << 20
    assert of(found, "card_ecc_errors_total") == {f"{one} uncorrected": 2, f"{one} corrected": 5}
    assert of(found, "card_ecc_errors_lifetime", card=one) == {"uncorrected": 2, "corrected": 5}
    assert of(found, "card_rows_pending") == {one: 1}
    assert of(found, "card_throttled", card=one) == {"thermal": 0, "power": 1}
    assert of(found, "card_throttled", card=two) == {"thermal": 0, "power": 0}
    assert of(found, "card_throttled_seconds_total", card=one) == {"thermal": 1.5, "power": 0}
    assert of(found, "card_pcie_width") == {one: 16}
    assert of(found, "card_pcie_width_max") is None
    # Their older name is not asked where the newer one is known.
    assert not [call for call in host.calls() if "clocks_throttle_reasons" in " ".join(call)]


def test_an_older_driver_of_nvidia(tmp_path: Path, program: ModuleType) -> None:
    host, machine = nvidia(tmp_path)
    names = ("hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown", "sw_power_cap")
    unknown = [f"clocks_event_reasons{kind}.{name}" for kind in ("", "_counters") for name in names]
    machine.state["cards"][0]["slowed"] = ["hw_thermal_slowdown"]
    machine.save(unknown=[*unknown, "remapped_rows.pending"])
    found = host.collect(program)
    assert of(found, "card_throttled", card=machine.state["cards"][0]["uuid"]) == {"thermal": 1, "power": 0}
    assert of(found, "card_throttled_seconds_total") is None
    assert of(found, "card_rows_pending") is None
    assert of(found, "cards_present") == 2


def test_a_lost_card_does_not_hide_the_others(tmp_path: Path, program: ModuleType) -> None:
    host, machine = nvidia(tmp_path)
    machine.state["cards"][0]["lost"] = "Unknown Error"  # the tool ends with 15
    machine.save()
    found = host.collect(program)
    assert (of(found, "cards_present"), ok(found)["cards"]) == (1, 1)


def test_amd_cards(tmp_path: Path, program: ModuleType) -> None:
    host, machine = amd(tmp_path)
    first, second = machine.state["cards"]
    first |= {"temperature": 88, "power": 702, "activity": 100, "used_mib": 150000, "uncorrectable": 1, "corrected": 4}
    first |= {"pending": [4096], "throttled": ["hbm_thermal"], "slowdown": 100}
    second |= {"unread": ["hotspot", "socket_power", "gfx_activity", "total_uncorrectable_count"]}
    machine.save(warns=True)
    found = host.collect(program)
    one, two = first["bdf"], second["bdf"]
    assert of(found, "card_info") == {f"{one} GPU 0, {one}": 1, f"{two} GPU 1, {two}": 1}
    assert of(found, "card_temperature_celsius") == {one: 88}
    assert of(found, "card_temperature_slowdown_celsius") == {one: 100}
    assert of(found, "card_power_watts") == {one: 702}
    assert of(found, "card_utilization_ratio") == {one: 1}
    assert of(found, "card_memory_used_bytes") == {one: 150000 << 20, two: 283 << 20}
    assert of(found, "card_memory_total_bytes", card=one) == 196592 << 20
    assert of(found, "card_ecc_errors_total") == {f"{one} uncorrected": 1, f"{one} corrected": 4, f"{two} corrected": 0}
    assert of(found, "card_rows_pending") == {one: 1, two: 0}
    assert of(found, "card_throttled", card=one) == {"thermal": 1, "power": 0}


def test_an_older_amd_smi_and_the_other_wrapping(tmp_path: Path, program: ModuleType) -> None:
    host, machine = amd(tmp_path)
    machine.save(release="24.6.1", wrapped=True)
    found = host.collect(program)
    assert of(found, "card_throttled") is None
    assert of(found, "card_power_watts") == {"0000:05:00.0": 137, "0000:26:00.0": 137}
    assert of(found, "card_rows_pending") == {"0000:05:00.0": 0, "0000:26:00.0": 0}


@pytest.mark.parametrize("release", ["2.1", "1.3"])
def test_intel_cards(release: str, tmp_path: Path, program: ModuleType) -> None:
    host, machine = intel(tmp_path)
    machine.state["cards"][0]["dumped"] = {
        "0": "55.50",
        "1": "119.61",
        "3": ["60.00", "67.00"],
        "18": ["9.00", "4096.00"],
    }
    machine.state["cards"][0]["dumped"]["30"] = "2"
    machine.state["cards"][1]["dumped"] = {"0": "N/A", "3": " N/A", "29": "N/A", "30": "N/A"}
    machine.save(release=release)
    found = host.collect(program)
    one, two = "0000:03:00.0", "0000:83:00.0"
    assert of(found, "card_info", card=one) == {f"Intel(R) Arc(TM) Pro B60 Graphics, device 0, {one}": 1}
    # Utilisation and power are known from the second row on, which counts.
    assert of(found, "card_utilization_ratio") == {one: 0.555}
    assert of(found, "card_power_watts") == {one: 119.61, two: 14.61}
    assert of(found, "card_temperature_celsius") == {one: 67}
    assert of(found, "card_memory_used_bytes") == {one: 4096 << 20, two: 29 << 20}
    assert of(found, "card_memory_total_bytes") == {one: 24480 << 20, two: 24480 << 20}
    assert of(found, "card_ecc_errors_total") == {f"{one} corrected": 0, f"{one} uncorrected": 2}


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("hangs", "hl-smi: no answer within 1 s"),
        ("garbage", "hl-smi: its answer is larger than 1 MiB"),
        ("fails", "hl-smi shows no card"),
        ("missing", "hl-smi: No such file or directory"),
        ("silent", "hl-smi shows no card"),
    ],
)
def test_a_tool_that_does_not_answer_hides_its_own_part_alone(
    fault: str,
    why: str,
    tmp_path: Path,
    program: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    host, _ = gaudi(tmp_path)
    host.collect(program)
    assert "gaudi-cards.prom" in host.texts()
    monkeypatch.setattr(program, "CALL_S", 1.0)
    monkeypatch.setattr(program, "LARGEST", 1 << 20)
    if fault == "missing":
        (tmp_path / "bin/hl-smi").unlink()
    elif fault == "silent":
        host.program("hl-smi", "")
    host.state["faults"]["hl-smi"] = fault
    begin = time.monotonic()
    found = host.collect(program)
    assert time.monotonic() - begin < 5
    assert "gaudi-cards.prom" not in host.texts()
    assert ok(found) == {"host": 1, "cards": 0}
    # From the plan: the alert on missing cards compares with it.
    assert (of(found, "cards_expected"), of(found, "cards_present")) == (3, None)
    assert of(found, "host_locked") == 0
    assert capsys.readouterr().err == f"cards: PartError: {why}\n"


def test_what_hangs_in_the_kernel_is_not_asked_again(tmp_path: Path, program: ModuleType) -> None:
    host, _ = gaudi(tmp_path)
    (tmp_path / "var/lib/gaudi-serve/metrics").mkdir(parents=True)
    path = tmp_path / "var/lib/gaudi-serve/metrics/stuck.json"
    with subprocess.Popen(["sleep", "60"]) as other:
        path.write_text(json.dumps({"hl-smi": [other.pid, program.start_of(other.pid)]}), encoding="ascii")
        for _ in range(2):
            assert ok(host.collect(program))["cards"] == 0
        assert host.calls() == []
        other.kill()
    assert ok(host.collect(program))["cards"] == 1
    assert json.loads(path.read_text(encoding="ascii")) == {}
    # Another process has its number now.
    path.write_text(json.dumps({"hl-smi": [os.getpid(), 1]}), encoding="ascii")
    assert ok(host.collect(program))["cards"] == 1


def test_a_program_that_cannot_be_killed_is_remembered(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program.os, "killpg", lambda *_: None)
    with pytest.raises(program.PartError, match="sleep: no answer within 0 s"):
        list(program.chunks(["sleep", "2"], 0.1))
    pid, start = program.STUCK["sleep"]
    assert start and start == program.start_of(pid)
    with pytest.raises(program.PartError, match=f"sleep: its process {pid} hangs in the kernel"):
        list(program.chunks(["sleep", "0"], 1))


def test_a_host_without_cards_has_no_file_and_no_verdict_of_them(host: CollectorHost, program: ModuleType) -> None:
    assert host.settings["cards"] is None
    host.put(f"{FOLDER}/gaudi-cards.prom", "old\n")
    found = host.collect(program)
    assert "gaudi-cards.prom" not in host.texts()
    assert ok(found) == {"host": 1, "models": 1, "containers": 1, "journal": 1}


def test_every_metric_of_a_platform_is_in_the_table() -> None:
    for platform in PLATFORMS.values():
        metrics = platform.metrics
        for query in (metrics.cards, *metrics.queries) if metrics else ():
            groups = set(re.compile(query.pattern).groupindex) - {"value"}
            for value in query.values:
                known = BY_NAME[f"gaudi_serve_card_{value.metric}"]
                assert {"card", *value.labels, *groups} == set(known.labels), value
                assert query.pattern or not query.columns or value.source in query.columns
            assert query.key or "{" in " ".join(query.argv)


# Models


@pytest.mark.parametrize(
    ("active", "sub", "status", "state"),
    [
        ("active", "running", "serving on 127.0.0.1:8000", "serving"),
        ("active", "running", "a part of the model that gaudi01 serves", "serving"),
        ("active", "running", "has not answered /health for 99 s", "silent"),
        ("active", "running", "answers /health, and does no work for 301 s", "silent"),
        ("activating", "start", "warming up: prompt graph 3 of 24", "starting"),
        ("activating", "start", "waiting for cards [7]; there are [0]", "starting"),
        ("activating", "start", "failed before; next try in 300 s", "failed"),
        ("activating", "auto-restart", "the server ended with status 1", "failed"),
        ("failed", "failed", "", "failed"),
        ("inactive", "dead", "", "stopped"),
        ("deactivating", "stop-sigterm", "stopping", "stopped"),
    ],
)
def test_states_of_a_model(
    active: str, sub: str, status: str, state: str, host: CollectorHost, program: ModuleType
) -> None:
    host.state["units"]["qwq"] = {"ActiveState": active, "SubState": sub, "StatusText": status}
    found = host.collect(program)
    assert of(found, "model_state", model="qwq") == {one: int(one == state) for one in STATES}


def test_what_a_supervisor_reports_is_what_the_collector_knows(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    supervisor = load_program(ROOT / "roles/vllm_service/files" / SUPERVISOR.name)
    said: list[str] = []
    monkeypatch.setattr(supervisor, "notify", lambda **fields: said.append(fields.get("STATUS", "")))
    monkeypatch.setattr(supervisor, "say", lambda text: said.append(f"gaudi-serve: {text}"))
    one = supervisor.Supervisor(tmp_path / "qwq.json")
    one.launch = {"host": "::1", "port": 1, "hang_timeout_s": 600, "start_timeout_s": 9}
    one.answered(supervisor.Backoff(tmp_path, ""))
    assert program.ANSWERS.match(said[0])
    one.judge_silence()
    one.pulse = type("Pulse", (), {"idle_for": lambda self, limit: (301.0, ""), "limit": lambda self: 600})()
    one.judge_work()
    assert [bool(program.SILENT.match(text)) for text in said[-2:]] == [True, True]
    one.stopping.set()
    with pytest.raises(supervisor.SupervisorError):
        one.pause(5)
    assert said[-1].startswith(program.PAUSES)
    worker = supervisor.Supervisor(tmp_path / "qwq.json")
    worker.group = object.__new__(supervisor.Worker)
    worker.group.serving, worker.group.head = True, "gaudi01"
    worker.followed()
    assert program.ANSWERS.match(said[-2])


def test_a_model_that_a_run_stops_or_removes_is_expected_no_more(host: CollectorHost, program: ModuleType) -> None:
    assert of(host.collect(program), "model_expected", model="qwq") == 1
    host.state["units"]["qwq"] |= {"ActiveState": "inactive", "UnitFileState": "disabled"}
    assert of(host.collect(program), "model_expected", model="qwq") == 0
    # Stopped for a while, or failed: it is missed.
    host.state["units"]["qwq"]["UnitFileState"] = "enabled"
    assert of(host.collect(program), "model_expected", model="qwq") == 1
    (host.root / "etc/gaudi-serve/qwq.json").unlink()
    assert of(host.collect(program), "model_expected", model="qwq") == 0


def test_plan_of_a_model_and_what_is_kept_of_it(host: CollectorHost, program: ModuleType) -> None:
    stopped = planned(model(), model(name="other", state="stopped", port=30002))
    host.settings |= {"models": collector_settings(stopped, {"accelerator": "cpu"})["models"]}
    host.put("var/lib/gaudi-serve/qwq/smoke.json", "{}")
    os.utime(host.root / "var/lib/gaudi-serve/qwq/smoke.json", (BEGIN, BEGIN))
    found = host.collect(program)
    plan = stopped["models"][0]
    assert of(found, "model_expected") == {"qwq": 1, "other": 0}
    assert of(found, "model_endpoint") == {"qwq": 1, "other": 1}
    assert of(found, "model_planned_warmup_seconds", model="qwq") == plan["warmup_s"]
    assert of(found, "model_planned_graphs", model="qwq") == plan["graphs"]
    assert of(found, "model_planned_kv_blocks", model="qwq") == plan["memory"]["num_hpu_blocks"]
    assert of(found, "model_smoke_timestamp_seconds") == {"qwq": BEGIN}
    # What the plan does not know is absent.
    host.settings["models"]["qwq"]["planned"] = {"seconds": None, "graphs": None, "blocks": None}
    found = host.collect(program)
    for name in ("warmup_seconds", "graphs", "kv_blocks"):
        assert of(found, f"model_planned_{name}", model="qwq") is None


def test_restarts_by_reason(host: CollectorHost, program: ModuleType) -> None:
    none = dict.fromkeys(REASONS, 0)
    assert of(host.collect(program), "model_restarts_total", model="qwq") == none
    supervisor = load_program(ROOT / "roles/vllm_service/files" / SUPERVISOR.name)
    folder = host.root / "var/lib/gaudi-serve/qwq"
    for reason in ("crash", "frozen", "crash", "of a later version"):
        supervisor.count_end(folder, reason, "the server ended with status 1")
    assert of(host.collect(program), "model_restarts_total", model="qwq") == none | {
        "crash": 2,
        "frozen": 1,
        "other": 1,
    }
    (folder / "ends.json").write_text("{half", encoding="ascii")
    assert of(host.collect(program), "model_restarts_total", model="qwq") is None


def test_container_of_a_model(host: CollectorHost, program: ModuleType) -> None:
    found = host.collect(program)
    assert of(found, "model_start_timestamp_seconds", model="qwq") == BEGIN
    assert of(found, "model_launch_differs", model="qwq") == 0
    host.put("etc/gaudi-serve/qwq.json", json.dumps({"digest": "another"}))
    assert of(host.collect(program), "model_launch_differs", model="qwq") == 1
    host.put("etc/gaudi-serve/qwq.json", json.dumps({"digest": host.state["containers"]["qwq"]["labels"].pop("x", "")}))
    digest = host.state["containers"]["qwq"]["labels"]["gaudi-serve.digest"]
    host.put("etc/gaudi-serve/qwq.json", json.dumps({"digest": digest}))
    host.state["units"]["qwq"]["NeedDaemonReload"] = "yes"
    assert of(host.collect(program), "model_launch_differs", model="qwq") == 1
    host.put("etc/gaudi-serve/qwq.json", "")
    assert of(host.collect(program), "model_launch_differs", model="qwq") is None
    host.state["containers"].clear()
    found = host.collect(program)
    assert of(found, "model_start_timestamp_seconds", model="qwq") is None
    assert ok(found)["containers"] == 1


def test_without_the_engine_everything_else_is_there(host: CollectorHost, program: ModuleType) -> None:
    host.state["journal"]["qwq"] = [(BEGIN + 9, "gaudi-serve: the server answers")]
    host.collect(program)
    host.state["faults"]["docker"] = "fails"
    found = host.collect(program)
    assert ok(found) == {"host": 1, "models": 1, "containers": 0, "journal": 1}
    assert of(found, "model_state", model="qwq", state="serving") == 1
    # The container that was known goes on.
    assert of(found, "model_ready_timestamp_seconds", model="qwq") == BEGIN + 9


# Journal

FORK = [
    (0.5, "gaudi-serve: started container vllm-qwq, module_ids [0, 1] as indices [7, 6]"),
    (9, "INFO 11-27 [executor_base.py:112] # hpu blocks: 2816, # CPU blocks: 2048"),
    (10, "INFO 11-27 [hpu_model_runner.py:1066] [Warmup][Prompt][1/2] batch_size:1 seq_len:512 free_mem:30.1 GiB"),
    (11, "INFO 11-27 [hpu_model_runner.py:1066] [Warmup][Prompt][2/2] batch_size:1 seq_len:256 free_mem:30.1 GiB"),
    (12, "INFO 11-27 [hpu_model_runner.py:1066] [Warmup][Decode][1/4] batch_size:4 num_blocks:128 free_mem:30.1 GiB"),
    (13, "INFO 11-27 [hpu_model_runner.py:1066] [Warmup][Decode][4/4] batch_size:1 num_blocks:128 free_mem:30.1 GiB"),
    (14, "INFO 11-27 [hpu_model_runner.py:1066] [Warmup][Graph/Prompt][2/2] batch_size:1 seq_len:512"),
    (15, "INFO 11-27 [hpu_model_runner.py:1066] [Warmup][Graph/Decode][3/4] batch_size:1 num_blocks:128"),
    (16, "INFO 11-27 [hpu_model_runner.py:1206] Warmup finished in 49 secs, allocated 14.19 GiB of device memory"),
    (17, "gaudi-serve: the server answers"),
    (20, "WARNING 11-27 [hpu_model_runner.py:1013] Configuration: ('prompt', 1, 36864) was not warmed-up!"),
]
PLUGIN = [
    (9, "(EngineCore pid=9) INFO [hpu_worker.py:546] Usable num_blocks: 4001, actual allocated num_blocks: 4002"),
    (9, "(EngineCore pid=9) INFO [kv_cache_utils.py:1307] GPU KV cache size: 512,128 tokens"),
    *((10, f"(Worker_TP{rank} pid=9) [Warmup][Prompt][1/3] batch_size:1 query_len:128") for rank in (0, 1)),
    *((11, f"(Worker_TP{rank} pid=9) [Warmup][Prompt][3/3] batch_size:1 query_len:128") for rank in (0, 1)),
    # One of them is slower.
    (11, "(Worker_TP1 pid=9) [Warmup][Prompt][2/3] batch_size:1 query_len:128"),
    *((12, f"(Worker_TP{rank} pid=9) [Warmup][Decode][2/4] batch_size:1 query_len:1") for rank in (0, 1)),
]
ENDED = [
    (13, "(Worker_TP0 pid=9) INFO [hpu_model_runner.py:6308] Warmup finished in 61 secs, allocated 1.5 GiB"),
    (13, "(Worker_TP1 pid=9) [Warmup][Decode][4/4] batch_size:1 query_len:1"),
    (13, "(Worker_TP1 pid=9) INFO [hpu_model_runner.py:6308] Warmup finished in 60 secs, allocated 1.5 GiB"),
]


def unwarmed(*shapes: str) -> list[tuple[float, str]]:
    """Return what two workers print of shapes that they compile while serving."""
    text = "(Worker_TP{} pid=9) WARNING 11-27 [hpu_model_runner.py:3588] Configuration: ({}) was not warmed-up!"
    return [(30, text.format(rank, shape)) for shape in shapes for rank in (0, 1)]


def tell(host: CollectorHost, lines: list[tuple[float, str]], name: str = "qwq") -> None:
    """Add lines to the journal of a model; their seconds count from the start of its container."""
    host.state["journal"].setdefault(name, []).extend((BEGIN + after, text) for after, text in lines)


def with_engine(host: CollectorHost, profile: str) -> None:
    """Let the model be served by another engine."""
    plan = planned(model())
    plan["models"][0]["launch_profile"] = profile
    host.settings["models"] = collector_settings(plan, {"accelerator": "cpu"})["models"]


def test_journal_of_the_fork(host: CollectorHost, program: ModuleType) -> None:
    tell(host, FORK)
    found = host.collect(program)
    assert of(found, "model_kv_blocks", model="qwq") == 2816
    assert of(found, "model_warmup_seconds", model="qwq") == 49
    assert of(found, "model_warmup_graphs", model="qwq") == 2 + 4
    assert of(found, "model_ready_timestamp_seconds", model="qwq") == BEGIN + 17
    assert of(found, "model_unwarmed_shapes_total", model="qwq") == {"prompt": 1, "decode": 0}
    assert of(found, "model_warmup_progress_ratio", model="qwq") is None


def test_progress_of_a_warm_up_line_by_line(host: CollectorHost, program: ModuleType) -> None:
    progress = []
    for line in FORK[:9]:
        tell(host, [line])
        progress.append(of(host.collect(program), "model_warmup_progress_ratio", model="qwq"))
    assert progress == [None, None, 1 / 8, 1 / 4, 5 / 16, 1 / 2, 3 / 4, pytest.approx(15 / 16), None]


def test_journal_of_the_plugin_whose_workers_print_each_line(host: CollectorHost, program: ModuleType) -> None:
    with_engine(host, "plugin")
    tell(host, PLUGIN)
    found = host.collect(program)
    assert of(found, "model_kv_blocks", model="qwq") == 4001
    assert of(found, "model_warmup_progress_ratio", model="qwq") == 0.75
    assert of(found, "model_unwarmed_shapes_total", model="qwq") == {"prompt": 0, "decode": 0}
    tell(host, [*ENDED, *unwarmed("'decode', 4, 1, 512", "'prompt', 1, 960, 0", "'decode', 4, 1, 512")])
    found = host.collect(program)
    assert of(found, "model_warmup_seconds", model="qwq") == 61
    assert of(found, "model_warmup_graphs", model="qwq") == 3 + 4
    assert of(found, "model_unwarmed_shapes_total", model="qwq") == {"prompt": 1, "decode": 1}
    # Each new shape is seen, no matter what prints it first.
    tell(host, unwarmed("'decode', 8, 1, 512"))
    assert of(host.collect(program), "model_unwarmed_shapes_total", model="qwq", phase="decode") == 2
    # Of a server whose rank stands in the line, or with a phase of a later version.
    tell(host, [(31, "Configuration: rank (0, prompt, 1, 896, 0) was not warmed-up!")])
    tell(host, [(31, "Configuration: ('mixed', 1, 1, 1) was not warmed-up!")])
    counts = {"prompt": 2, "decode": 2, "other": 1}
    assert of(host.collect(program), "model_unwarmed_shapes_total", model="qwq") == counts


def test_journal_of_upstream(host: CollectorHost, program: ModuleType) -> None:
    host.settings["models"]["qwq"] |= {"block": 16}
    with_engine(host, "vllm")
    host.settings["models"]["qwq"]["block"] = 16
    tell(
        host, [(9, "INFO 11-27 [kv_cache_utils.py:1307] GPU KV cache size: 1,600,000 tokens, Maximum concurrency ...")]
    )
    tell(host, [(9, "INFO [core.py:214] init engine (profile, create kv cache, warmup model) took 2.73 seconds")])
    found = host.collect(program)
    assert of(found, "model_kv_blocks", model="qwq") == 100_000
    assert of(found, "model_warmup_seconds", model="qwq") == 2.73
    # Nothing there reports shapes.
    assert of(found, "model_unwarmed_shapes_total", model="qwq") is None
    assert of(found, "model_warmup_graphs", model="qwq") is None


def test_a_server_of_two_models_warms_up_twice(host: CollectorHost, program: ModuleType) -> None:
    tell(host, [*FORK[:9], *FORK[1:9]])
    found = host.collect(program)
    assert of(found, "model_kv_blocks", model="qwq") == 2 * 2816
    assert of(found, "model_warmup_seconds", model="qwq") == 2 * 49
    assert of(found, "model_warmup_graphs", model="qwq") == 2 * 6


def test_only_new_lines_are_read(host: CollectorHost, program: ModuleType) -> None:
    tell(host, FORK)
    host.collect(program)
    assert [call[6] for call in host.calls() if call[0] == "journalctl"] == [f"--since=@{int(BEGIN)}"]
    host.collect(program)
    host.collect(program)
    cursor = f"--after-cursor=s=1;i={len(FORK) - 1}"
    assert [call[6] for call in host.calls() if call[0] == "journalctl"] == [cursor] * 2


def test_another_container_begins_again_and_another_supervisor_does_not(
    host: CollectorHost, program: ModuleType
) -> None:
    tell(host, FORK)
    host.collect(program)
    # Adopted: its container stays.
    tell(
        host,
        [(40, "gaudi-serve: adopted container vllm-qwq, running since x"), (41, "gaudi-serve: the server answers")],
    )
    tell(host, unwarmed("'decode', 1, 1"))
    found = host.collect(program)
    assert of(found, "model_unwarmed_shapes_total", model="qwq") == {"prompt": 1, "decode": 1}
    assert of(found, "model_ready_timestamp_seconds", model="qwq") == BEGIN + 17
    # Ended: between two containers nothing is known of a start.
    running = host.state["containers"].pop("qwq")
    found = host.collect(program)
    assert of(found, "model_unwarmed_shapes_total", model="qwq") is None
    host.state["containers"]["qwq"] = {**running, "id": "x", "started": "2026-11-27T08:01:00Z"}
    tell(host, [(60, FORK[1][1]), (61, FORK[2][1])])
    found = host.collect(program)
    assert of(found, "model_unwarmed_shapes_total", model="qwq") == {"prompt": 0, "decode": 0}
    assert of(found, "model_warmup_seconds", model="qwq") is None
    assert of(found, "model_ready_timestamp_seconds", model="qwq") is None
    assert of(found, "model_warmup_progress_ratio", model="qwq") == 0.125


def test_a_journal_that_does_not_end_in_time_is_read_on_by_the_next_run(
    host: CollectorHost, program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "CALL_S", 0.5)
    tell(host, FORK)
    host.state["faults"]["journal ends after"] = 4
    found = host.collect(program)
    assert (ok(found)["journal"], of(found, "model_warmup_progress_ratio", model="qwq")) == (1, 0.25)
    del host.state["faults"]["journal ends after"]
    found = host.collect(program)
    assert of(found, "model_warmup_graphs", model="qwq") == 6
    assert [call[6] for call in host.calls() if call[0] == "journalctl"][1] == "--after-cursor=s=1;i=3"


def test_lines_of_one_run_are_bounded(
    host: CollectorHost, program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "MOST_LINES", 5)
    monkeypatch.setattr(program.os, "read", lambda number, _, read=os.read: read(number, 700))
    tell(host, [*FORK, *[(50, "a request")] * 40, *unwarmed("'decode', 1, 1")])
    seen = [of(host.collect(program), "model_unwarmed_shapes_total", model="qwq") for _ in range(12)]
    assert seen[0] == {"prompt": 0, "decode": 0}
    assert seen[-1] == {"prompt": 1, "decode": 1}


def test_a_collector_that_was_killed_loses_and_doubles_nothing(host: CollectorHost, program: ModuleType) -> None:
    tell(host, FORK)
    host.collect(program)
    tell(host, unwarmed("'decode', 1, 1", "'decode', 2, 1"))
    host.state["faults"]["journal ends after"] = len(FORK) + 2
    argv = [sys.executable, str(PROGRAM), str(host.save())]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as running:
        deadline = time.monotonic() + 10
        while not any(call[0] == "journalctl" for call in host.calls()) and time.monotonic() < deadline:
            time.sleep(0.05)
        running.kill()
    del host.state["faults"]["journal ends after"]
    assert of(host.collect(program), "model_unwarmed_shapes_total", model="qwq") == {"prompt": 1, "decode": 2}


def test_a_place_that_has_gone_from_the_journal_is_looked_for_again(host: CollectorHost, program: ModuleType) -> None:
    tell(host, [*FORK[:8], (30.1, FORK[1][1]), (30.2, FORK[8][1])])
    host.collect(program)
    host.state["faults"]["cursor"] = True
    assert ok(host.collect(program))["journal"] == 0
    assert "gaudi-journal.prom" not in host.texts()
    tell(host, unwarmed("'decode', 1, 1"))
    # By time, the last second is read again; what is known is not counted twice.
    host.state["journal"]["qwq"][-2:] = [(BEGIN + 30.3, text) for _, text in host.state["journal"]["qwq"][-2:]]
    found = host.collect(program)
    assert ok(found)["journal"] == 1
    assert of(found, "model_unwarmed_shapes_total", model="qwq") == {"prompt": 0, "decode": 1}
    assert of(found, "model_warmup_graphs", model="qwq") == 6
    assert of(found, "model_kv_blocks", model="qwq") == 2816


def test_what_another_version_has_kept_begins_again(host: CollectorHost, program: ModuleType) -> None:
    tell(host, FORK)
    path = host.root / "var/lib/gaudi-serve/metrics/qwq.journal"
    host.collect(program)
    older = {"container": json.loads(path.read_text(encoding="utf-8"))["container"], "shapes": []}
    for text in (json.dumps(older), "{half", "[]"):
        path.write_text(text, encoding="ascii")
        found = host.collect(program)
        assert of(found, "model_unwarmed_shapes_total", model="qwq") == {"prompt": 1, "decode": 0}


def test_what_is_no_text_and_no_entry_is_passed_over(host: CollectorHost, program: ModuleType) -> None:
    host.state["journal"]["qwq"] = [(BEGIN + 1, None), (BEGIN + 2, [98, 255]), (BEGIN + 3, "x" * 100_000)]
    # What was reported of the container before, in the second of the start.
    host.state["journal"]["qwq"].insert(0, (BEGIN - 0.2, FORK[-1][1]))
    tell(host, FORK[:10])
    found = host.collect(program)
    assert of(found, "model_unwarmed_shapes_total", model="qwq") == {"prompt": 0, "decode": 0}
    assert of(found, "model_warmup_graphs", model="qwq") == 6


def test_shapes_that_are_reported_apart_are_bounded(
    host: CollectorHost, program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "MOST_SHAPES", 3)
    tell(host, unwarmed(*(f"'decode', {number}, 1" for number in range(9))))
    assert of(host.collect(program), "model_unwarmed_shapes_total", model="qwq", phase="decode") == 3


def test_a_model_that_has_left_leaves_nothing(host: CollectorHost, program: ModuleType) -> None:
    tell(host, FORK)
    host.collect(program)
    assert (host.root / "var/lib/gaudi-serve/metrics/qwq.journal").exists()
    host.settings["models"]["other"] = host.settings["models"].pop("qwq")
    found = host.collect(program)
    assert not [labels for _, labels in found if ("model", "qwq") in labels]
    assert not (host.root / "var/lib/gaudi-serve/metrics/qwq.journal").exists()
    host.settings["models"].clear()
    found = host.collect(program)
    assert ok(found) == {"host": 1}
    assert host.texts().keys() == {"gaudi-host.prom", "gaudi-collector.prom"}


def test_patterns_of_every_engine_have_their_groups() -> None:
    wanted = {"graph": {"phase", "done", "total"}, "finished": {"seconds"}, "unwarmed": {"phase", "shape"}}
    for engine in ENGINES.values():
        for kind, groups in wanted.items():
            for pattern in getattr(engine.journal, kind):
                assert set(re.compile(pattern).groupindex) == groups
        assert all(set(re.compile(one).groupindex) <= {"blocks", "tokens"} for one in engine.journal.cache)
        assert engine.journal.cache and bool(engine.journal.graph) == bool(engine.journal.phases)


# Host


def test_host(host: CollectorHost, program: ModuleType) -> None:
    found = host.collect(program)
    for name in ("in_rollout", "locked", "reboot_due"):
        assert of(found, f"host_{name}") == 0
    for name in ("hugepages_expected", "validation_timestamp_seconds", "validation_passed"):
        assert of(found, f"host_{name}") is None
    host.put("etc/sysctl.d/zz-gaudi-serve.conf", "vm.nr_hugepages = 15000\n")
    host.put("etc/default/grub.d/zz-gaudi-serve.cfg", 'gaudi_serve_args="iommu=pt"\n')
    host.put("var/lib/gaudi-serve/rollout/record.json", "{}")
    host.put("var/lib/gaudi-serve/hccl.json", json.dumps({"time": BEGIN, "passed": False, "runs": []}))
    found = host.collect(program)
    assert (of(found, "host_in_rollout"), of(found, "host_hugepages_expected")) == (1, 15000)
    assert (of(found, "host_validation_timestamp_seconds"), of(found, "host_validation_passed")) == (BEGIN, 0)
    assert of(found, "host_reboot_due") == 0
    host.put("var/lib/gaudi-serve/hccl.json", json.dumps({"time": BEGIN, "passed": True}))
    assert of(host.collect(program), "host_validation_passed") == 1
    host.put("var/lib/gaudi-serve/hccl.json", "[]")
    assert of(host.collect(program), "host_validation_passed") is None


def test_what_a_host_was_tuned_to_have_stands_in_its_files(host: CollectorHost, program: ModuleType) -> None:
    host.put(
        "etc/sysctl.d/zz-gaudi-serve.conf", "# By gaudi-serve\nkernel.numa_balancing = 0\nvm.nr_hugepages = 15000\n"
    )
    host.put(
        "etc/default/grub.d/zz-gaudi-serve.cfg",
        '# By gaudi-serve\ngaudi_serve_args="iommu=pt"\nA="$gaudi_serve_args"\n',
    )
    found = host.collect(program)
    assert (of(found, "host_hugepages_expected"), of(found, "host_reboot_due")) == (15000, 0)
    host.put("etc/sysctl.d/zz-gaudi-serve.conf", "kernel.numa_balancing = 0\n")
    host.put("etc/default/grub.d/zz-gaudi-serve.cfg", 'gaudi_serve_args="iommu=pt intel_idle.max_cstate=0"\n')
    found = host.collect(program)
    assert (of(found, "host_hugepages_expected"), of(found, "host_reboot_due")) == (None, 1)


def test_a_reboot_is_due_for_packages_or_kernel_arguments(host: CollectorHost, program: ModuleType) -> None:
    grub = "etc/default/grub.d/zz-gaudi-serve.cfg"
    host.put(grub, 'gaudi_serve_args="iommu=pt intel_idle.max_cstate=0"\n')
    assert of(host.collect(program), "host_reboot_due") == 1
    (host.root / grub).unlink()
    assert of(host.collect(program), "host_reboot_due") == 0
    host.put("run/reboot-required", "*** System restart required ***\n")
    assert of(host.collect(program), "host_reboot_due") == 1


def certificate(host: CollectorHost, path: str, days: int) -> None:
    """Make a certificate and its key in one file, in either order."""
    (host.root / path).parent.mkdir(parents=True, exist_ok=True)
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-keyout", "-", "-out", "-", "-days", str(days), "-subj", "/CN=x"]
    made = subprocess.run(argv, capture_output=True, text=True, check=True)
    host.put(path, made.stdout)


def test_certificates_of_a_host(host: CollectorHost, program: ModuleType) -> None:
    found = host.collect(program)
    assert "certificates" not in ok(found)
    certificate(host, "etc/gaudi-monitoring/host.pem", 30)
    certificate(host, "etc/ssl/private/gateway.pem", 7)
    text = "frontend public\n    bind 0.0.0.0:8443 ssl crt /etc/ssl/private/gateway.pem alpn h2,http/1.1\n"
    host.put("etc/gaudi-serve/gateway/current/haproxy.cfg", text)
    found = host.collect(program)
    left = of(found, "certificate_expiry_timestamp_seconds")
    assert isinstance(left, dict)
    assert {name: round((end - time.time()) / 86400) for name, end in left.items()} == {"gateway": 7, "monitoring": 30}
    # A gateway without TLS, and a file that is none.
    host.put("etc/gaudi-serve/gateway/current/haproxy.cfg", "frontend public\n    bind 127.0.0.1:8080\n")
    assert of(host.collect(program), "certificate_expiry_timestamp_seconds", certificate="gateway") is None
    host.put("etc/gaudi-monitoring/client.pem", "half")
    assert ok(host.collect(program))["certificates"] == 0
    assert "gaudi-certificates.prom" not in host.texts()


def test_a_gateway_names_its_certificate_where_it_is_looked_for() -> None:
    template = (ROOT / "roles/gateway/templates/haproxy.cfg.j2").read_text(encoding="utf-8")
    assert '    bind {{ gateway.address }}:{{ gateway.port }}{{ " ssl crt %s alpn h2' in template
    assert CERTIFICATES["gateway"][0] == f"{haproxy.FOLDER}/{haproxy.LINK}/haproxy.cfg"


def test_a_lock_counts_while_it_is_renewed(host: CollectorHost, program: ModuleType) -> None:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    for record, locked in (
        ({"held": True, "at": now, "lease_s": 300}, 1),
        ({"held": True, "at": now - 301, "lease_s": 300}, 0),
        ({"held": True, "at": now - 200, "lease_s": 60}, 0),
        ({"held": False, "at": now}, 0),
        ({}, 0),
    ):
        host.put("run/gaudi-serve/run.json", json.dumps(record))
        assert of(host.collect(program), "host_locked") == locked


def test_when_a_run_changed_the_host_last_is_when_it_wrote_its_record(host: CollectorHost, program: ModuleType) -> None:
    assert of(host.collect(program), "host_changed_timestamp_seconds") is None
    host.put("run/gaudi-serve/run.json", json.dumps({"held": False, "at": 1.0}))
    os.utime(host.root / "run/gaudi-serve/run.json", (BEGIN, BEGIN))
    assert of(host.collect(program), "host_changed_timestamp_seconds") == BEGIN


# The whole


@pytest.mark.parametrize("text", ["", "{half", "[]", "{}", '{"folder": "/x", "models": {}}'])
def test_without_settings_nothing_old_stays(text: str, host: CollectorHost, program: ModuleType) -> None:
    host.collect(program)
    path = host.root / "metrics.json"
    path.write_text(text, encoding="ascii")
    program.FOLDER = str(host.root / FOLDER)
    if text.endswith("}}"):
        path.write_text(json.dumps({"root": str(host.root), "folder": FOLDER, "models": {}}), encoding="ascii")
    assert program.main(path) == 1
    assert host.texts() == {}


def test_one_broken_part_hides_no_other(host: CollectorHost, program: ModuleType) -> None:
    before = (host.root / FOLDER / "gaudi-journal.prom").stat().st_ino if host.collect(program) else 0
    host.state["faults"]["systemctl"] = "fails"
    (host.root / "proc/cmdline").unlink()
    found = host.collect(program)
    assert ok(found) == {"host": 0, "models": 0, "containers": 1, "journal": 1}
    assert host.texts().keys() == {"gaudi-containers.prom", "gaudi-journal.prom", "gaudi-collector.prom"}
    # Half a line of an earlier run would hide a whole file; files are replaced whole.
    assert (host.root / FOLDER / "gaudi-journal.prom").stat().st_ino != before
    assert not list((host.root / FOLDER).glob("*.new"))


def test_labels_are_escaped(tmp_path: Path, program: ModuleType) -> None:
    host, cards = gaudi(tmp_path)
    cards.state["cards"][0]["odd"] = {"name": 'HL "2"\\n\x07'}
    cards.save()
    texts = host.collect(program)
    assert of(texts, "card_info", card="2") == {'HL "2"\\n , index 0, 0000:3b:00.0, serial AM50000002': 1}
    assert 'details="HL \\"2\\"\\\\n , index' in host.texts()["gaudi-cards.prom"]


def test_as_a_program_with_files_that_node_exporter_may_read(host: CollectorHost) -> None:
    tell(host, FORK)
    environment = {"PATH": f"{host.root}/bin:/usr/bin:/bin"}
    mask = os.umask(0o077)
    try:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), str(host.save())],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=60,
        )
    finally:
        os.umask(mask)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = host.written()
    duration, at = of(found, "collector_duration_seconds"), of(found, "collector_last_run_timestamp_seconds")
    assert isinstance(duration, float) and 0 < duration < 30
    assert isinstance(at, float) and abs(time.time() - at) < 60
    build = of(found, "build_info")
    assert isinstance(build, dict)
    assert list(build.values()) == [1] and all(re.fullmatch(r"[0-9a-f]{12}", one) for one in build)
    assert {path.stat().st_mode & 0o777 for path in (host.root / FOLDER).iterdir()} == {0o644}
    # Keys stand in the environment of containers: it is not asked for.
    assert "Env" not in json.dumps(host.calls())


@pytest.fixture
def everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CollectorHost]]:
    """Return hosts that together have all that can be read: cards of three vendors, models that serve and start."""
    hosts = []
    plan = planned(model(), model(name="plugin", port=30002))
    plan["models"][1]["launch_profile"] = "plugin"
    for number, make in enumerate((gaudi, nvidia, amd, intel)):
        root = tmp_path / str(number)
        root.mkdir()
        host, machine = make(root)
        if number == 1:
            machine.state["cards"][0] |= {"slowdown": 90, "uncorrected": 0, "corrected": 0, "pending": "No"}
            machine.save()
        host.settings |= {"models": collector_settings(plan, gaudi_host())["models"]}
        host.put("etc/sysctl.d/zz-gaudi-serve.conf", "vm.nr_hugepages = 15000\n")
        certificate(host, "etc/gaudi-monitoring/host.pem", 30)
        for name, lines in (("qwq", FORK), ("plugin", PLUGIN)):
            host.put(f"etc/gaudi-serve/{name}.json", '{"digest": "d"}')
            host.put(f"var/lib/gaudi-serve/{name}/smoke.json", "{}")
            host.state["containers"][name] = container(name, STARTED, "d")
            tell(host, lines, name)
        host.put("var/lib/gaudi-serve/hccl.json", json.dumps({"time": BEGIN, "passed": True}))
        host.put("run/gaudi-serve/run.json", json.dumps({"held": False, "at": 1.0}))
        monkeypatch.setenv("PATH", f"{root}/bin:/usr/bin:/bin")
        host.collect(load_program(PROGRAM))
        hosts.append(host)
    yield hosts


def test_program_and_table_name_the_same_metrics(everything: list[CollectorHost]) -> None:
    written = {name for host in everything for name, _ in host.written()}
    assert written == {one.name for one in METRICS if not one.name.startswith("gaudi_serve_fleet_")}


def test_promtool_has_nothing_to_report(everything: list[CollectorHost]) -> None:
    promtool = tool("promtool")
    for host in everything:
        texts = host.texts()
        assert texts.keys() == {
            f"gaudi-{one}.prom"
            for one in ("host", "certificates", "models", "containers", "journal", "cards", "collector")
        }
        for text in texts.values():
            argv = [promtool, "check", "metrics"]
            done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# Settings


def test_settings_of_a_host() -> None:
    plan = planned(model())
    settings = collector_settings(plan, gaudi_host())
    assert json.loads(json.dumps(settings)) == json.loads(json.dumps(settings, sort_keys=True))
    assert settings["cards"]["expected"] == 8
    assert settings["host"] == {
        "sysctl": "/etc/sysctl.d/zz-gaudi-serve.conf",
        "grub": "/etc/default/grub.d/zz-gaudi-serve.cfg",
    }
    assert settings["folder"] == f"/{FOLDER}"
    (one,) = settings["models"].values()
    assert (one["expected"], one["endpoint"], one["block"]) == (True, True, 128)
    # Of a model over several hosts, one answers.
    worker = {**plan["models"][0], "group": {"answers": False}}
    assert collector_settings({"models": [worker]}, gaudi_host())["models"]["qwq"]["endpoint"] is False
    # What is on the bus counts, where a tool does not show it, too.
    assert collector_settings(EMPTY, gaudi_host(pci_cards=9))["cards"]["expected"] == 9
    parts = [{"bus_id": "0000:17:00.0", "module_id": number} for number in range(7)]
    assert collector_settings(EMPTY, {"accelerator": "cuda", "modules": parts})["cards"]["expected"] == 1
    assert collector_settings(EMPTY, {"accelerator": "cpu", "modules": []})["cards"] is None
    assert collector_settings(EMPTY, {"accelerator": "gaudi", "modules": []})["cards"] is None
