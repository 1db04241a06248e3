"""The stand-ins of AMD's and Intel's tools: what they print, and that they refuse as the real ones do."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from helpers.gpu_hosts import GpuHost, amd_host, intel_host
from helpers.standin_host import STANDINS

THROTTLE = ("metric", "--throttle", "--json")


def run(host: GpuHost, *words: str, timeout: float = 20) -> subprocess.CompletedProcess[str]:
    """Run the stand-in of a host."""
    env = {"GAUDI_SIM_ROOT": str(host.root), "PATH": "/usr/bin:/bin"}
    argv = [STANDINS / host.tool, *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False, env=env)


@pytest.fixture
def amd(tmp_path: Path) -> GpuHost:
    """Return a host with two MI300X."""
    return amd_host(tmp_path, ["0000:05:00.0", "0000:26:00.0"])


@pytest.fixture
def intel(tmp_path: Path) -> GpuHost:
    """Return a host with two Arc Pro B60."""
    return intel_host(tmp_path, ["0000:03:00.0", "0000:83:00.0"])


def test_amd_smi_lists_its_gpus(amd: GpuHost) -> None:
    rows = json.loads(run(amd, "list", "-e", "--json").stdout)
    assert [(row["gpu"], row["bdf"], row["drm_render"]) for row in rows] == [
        (0, "0000:05:00.0", 128),
        (1, "0000:26:00.0", 129),
    ]
    assert "drm_render" not in json.loads(run(amd, "list", "--json").stdout)[0]


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        (["list", "--jsn", "--json"], "Parameter '--jsn' is invalid. Run '--help' for more info.", -2),
        (["static", "--everything", "--json"], "Parameter '--everything' is invalid. Run '--help' for more info.", -2),
        (["lsit", "--json"], "Command 'lsit' is invalid. Run '--help' for more info.", -1),
    ],
)
def test_amd_smi_refuses_in_its_output_and_ends_well(amd: GpuHost, words: list[str], message: str, code: int) -> None:
    result = run(amd, *words)
    assert (result.returncode, json.loads(result.stdout)) == (0, {"error": message, "code": code})
    plain = run(amd, *(word for word in words if word != "--json"))
    assert plain.stdout == f"{message} Error code: {code}\n"


def test_an_older_amd_smi_does_not_know_its_enumeration(amd: GpuHost) -> None:
    amd.save(release="24.6.1")
    assert json.loads(run(amd, "list", "-e", "--json").stdout)["code"] == -2


def test_amd_smi_without_a_driver_or_a_gpu(amd: GpuHost) -> None:
    amd.save(driver_loaded=False)
    result = run(amd, "list", "--json")
    assert (result.returncode, result.stdout) == (255, "")
    assert "Unable to detect any GPU devices" in result.stderr


def test_amd_smi_measures(amd: GpuHost) -> None:
    amd.state["cards"][0] |= {"temperature": 70, "throttled": ["ppt"], "slowdown": 100, "unread": ["gfx_activity"]}
    amd.save()
    first, second = json.loads(run(amd, "metric", "--usage", "--temperature", "--mem-usage", "--json").stdout)
    assert first["temperature"]["hotspot"] == {"value": 70, "unit": "C"}
    assert (first["usage"]["gfx_activity"], second["usage"]["gfx_activity"]) == ("N/A", {"value": 0, "unit": "%"})
    assert second["mem_usage"]["total_vram"] == {"value": 196592, "unit": "MB"}
    assert "power" not in first
    throttle = [row["throttle"]["ppt_violation_status"] for row in json.loads(run(amd, *THROTTLE).stdout)]
    assert throttle == ["ACTIVE", "NOT ACTIVE"]
    limits = [row["limit"] for row in json.loads(run(amd, "static", "--limit", "--json").stdout)]
    assert limits[0]["slowdown_hotspot_temperature"] == {"value": 100, "unit": "C"}
    amd.save(release="24.6.1")
    assert json.loads(run(amd, *THROTTLE).stdout)["code"] == -2


@pytest.mark.parametrize("release", ["2.1", "1.3"])
def test_xpu_smi_dumps_rows(intel: GpuHost, release: str) -> None:
    intel.state["cards"][1]["dumped"] = {"1": "99.50", "30": "N/A"}
    intel.save(release=release)
    head, *rows = run(intel, "dump", "-d", "-1", "-m", "1,3,30", "-i", "1", "-n", "2").stdout.splitlines()
    degrees = "Celsius Degree" if release == "1.3" else "C"
    assert head == (
        f"Timestamp, DeviceId, GPU Power (W), GPU Core Temperature ({degrees}), GPU Memory Errors Uncorrectable"
    )
    assert [row.partition(",")[2].split(", ") for row in rows] == [
        ["    0", " N/A", "41.00", "0"],
        ["    1", " N/A", "41.00", "N/A"],
        ["    0", "14.61", "41.00", "0"],
        ["    1", "99.50", "41.00", "N/A"],
    ]
    assert run(intel, "dump", "-d", "-1", "-m", "1,99", "-i", "1", "-n", "1").returncode
    assert run(intel, "dump", "-m", "1").returncode


@pytest.mark.parametrize("release", ["2.1", "1.3"])
def test_xpu_smi_shows_its_cards(intel: GpuHost, release: str) -> None:
    intel.save(release=release)
    first, second = json.loads(run(intel, "discovery", "-j").stdout)["device_list"]
    assert (first["device_id"], second["pci_bdf_address"]) == (0, "0000:83:00.0")
    assert ("device_function_type" in first) == (release == "2.1")
    detail = json.loads(run(intel, "discovery", "-d", "1", "-j").stdout)
    assert isinstance(detail["memory_physical_size_byte"], str if release == "1.3" else int)
    assert run(intel, "topology", "-m").stdout.count("GPU 1/0") == 2


@pytest.mark.parametrize(
    ("release", "status", "said"),
    [("2.1", 1, "not expected: '--everything'."), ("1.3", 109, "not expected: --everything")],
)
def test_xpu_smi_refuses_what_it_does_not_know(intel: GpuHost, release: str, status: int, said: str) -> None:
    intel.save(release=release)
    result = run(intel, "discovery", "--everything")
    assert result.returncode == status and said in result.stdout
    assert run(intel, "nonsense").returncode == status


@pytest.mark.parametrize("kind", ["amd", "intel"])
def test_a_tool_that_hangs_does_not_end(kind: str, request: pytest.FixtureRequest) -> None:
    host = request.getfixturevalue(kind)
    host.save(hangs=True)
    with pytest.raises(subprocess.TimeoutExpired):
        run(host, "list", "--json", timeout=0.5)
