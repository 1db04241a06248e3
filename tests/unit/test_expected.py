"""What a run changes of a host before its models are served: they are planned by what is there then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.core.errors import Finding
from gaudi_serve.inventory.facts import checked_host
from gaudi_serve.plan.assembly import assemble
from gaudi_serve.plan.fleet import vllm_fleet_plan
from gaudi_serve.plan.host import AWAITS_DRIVER
from gaudi_serve.plan.judged import judged
from gaudi_serve.plan.wanted import Wanted
from gaudi_serve.stages.registry import STAGES, expected_host
from helpers.container_engine import live
from helpers.driver import PACKAGES
from helpers.driver import live as gaudi_driver
from helpers.plans import gaudi_host, host_of, known, model

TOOLKIT = "nvidia-container-toolkit"
IMAGE = "vllm/vllm-openai:v0.33.0"
MODEL = {"name": "m", "weights": "/m/x", "image": IMAGE, "max_model_len": 4096}
SYSTEM = {"id": "debian", "version_id": "13", "pretty_name": "Debian 13", "accelerator": "cuda"}
# What the roles take where an inventory has nothing.
USUAL: dict[str, Any] = {
    **{"driver_version": "", "driver_packages": [], "driver_optional_packages": [], "driver_modules": []},
    **{"driver_repository": {}, "driver_upgrade_allowed": False, "driver_manage": True, "driver_release": "1.21.3"},
    "driver_ports_may_be_down": [],
}
OFFERED = {"nvidia-open": ["580.95.05-1", "570.195.03-1"]}
SILENT = {"modules": [], "device_name": None, "driver_version": None, "problem": ["nvidia-smi: not found"]}


def nvidia_driver(version: str | None = "570.195.03", **more: Any) -> dict[str, Any]:
    """Return ``gaudi_driver`` of a host with NVIDIA's driver, or without any."""
    package = {"version": f"{version}-1", "held": True, "whole": True}
    found: dict[str, Any] = {"packages": {"nvidia-open": package} if version else {}, "offered": OFFERED}
    found |= {"modules": ["nvidia", "nvidia_uvm"] if version else [], "driver_version": version, "services": {}}
    return {**found, "broken": "", "needs_companion": False, **more}


def expected(stages: tuple[str, ...] = (), *, plans_again: bool = True, **more: Any) -> dict[str, Any]:
    """Return what a run changes of a host with NVIDIA cards."""
    usual = {**USUAL, "gaudi_system": SYSTEM, "gaudi_host": host_of("cuda", cdi=True, engine_cdi=True)}
    return expected_host("g", {**usual, **more}, stages, plans_again=plans_again)


@pytest.mark.parametrize(
    ("installed", "pinned", "engine", "cdi"),
    [
        # Of a host that has it, or gets the newest.
        ("1.20.0-1", "", True, True),
        ("1.17.8-1", "", True, False),
        ("", "", True, True),
        # The version that the run installs.
        ("1.17.8-1", "1.20.0-1", True, True),
        ("1.20.0-1", "1.17.8-1", True, False),
        ("", "1.17.8-1", True, False),
        # An engine that takes no names of devices.
        ("1.17.8-1", "1.20.0-1", False, False),
        ("", "", False, False),
    ],
)
@pytest.mark.parametrize("saved", [False, True])
def test_devices_are_given_as_the_toolkit_does_that_is_there_after_the_run(
    installed: str, pinned: str, engine: bool, cdi: bool, saved: bool
) -> None:
    now = {"engine_cdi": engine, "cdi": engine and installed != "1.17.8-1"}
    runtime = live(packages={"docker.io": "26", **({TOOLKIT: installed} if installed else {})}, **now)
    facts = {"gaudi_host": host_of("cuda", **now), **({} if saved else {"gaudi_runtime": runtime})}
    pin = {"container_runtime_nvidia_version": pinned}
    assert expected(**facts, **pin)["cdi"] is cdi
    # A run without the stage, and one that leaves the toolkit alone, go by what is there.
    assert "cdi" not in expected(("vllm_image", "vllm_service"), **facts, **pin)
    assert expected(**facts, **pin, container_runtime_nvidia="never")["cdi"] is now["cdi"]


def test_the_vendors_engine_takes_names_of_devices_though_the_systems_does_not() -> None:
    bare = live(packages={}, info=None, cdi=False, engine_cdi=False)
    vendor = {"container_runtime_engine": "vendor", "gaudi_runtime": bare}
    assert expected(**vendor)["cdi"] and not expected(gaudi_runtime=bare)["cdi"]
    assert not expected(**vendor, container_runtime_nvidia_version="1.17.8-1")["cdi"]
    there = live(packages={"docker.io": "20"}, cdi=False, engine_cdi=False)
    assert not expected(**{**vendor, "gaudi_runtime": there})["cdi"]


def test_saved_facts_are_planned_with_the_wanted_toolkit(tmp_path: Path) -> None:
    host = host_of("cuda", cdi=False, engine_cdi=True) | {"weights": {"/m/x": {"config": {}, "bytes": 1}}}
    (tmp_path / "g.json").write_text(json.dumps(host), encoding="utf-8")
    said: dict[str, Any] = {"vllm_models": [MODEL]}
    for version, runtime in (("", "nvidia"), ("1.20.0-1", None), ("1.17.8-1", "nvidia")):
        variables = {**said, "container_runtime_nvidia_version": version}
        fleet = vllm_fleet_plan({"g": variables}, ["g"], [], str(tmp_path))
        assert fleet["errors"] == []
        assert [one["runtime"] for one in fleet["hosts"]["g"]["models"]] == [runtime], version


def test_a_driver_that_the_run_replaces_counts_as_replaced() -> None:
    old = {"gaudi_driver": nvidia_driver(), "gaudi_host": host_of("cuda", driver_version="570.195.03")}
    assert "driver_version" not in expected(**old)
    # Without leave the stage refuses.
    assert "driver_version" not in expected(**old, driver_version="580")
    newer = {"driver_version": "580", "driver_upgrade_allowed": True}
    assert expected(**old, **newer)["driver_version"] == "580.95.05"
    assert "driver_version" not in expected(("container_runtime", "vllm_service"), **old, **newer)
    assert "driver_version" not in expected(**old, **newer, driver_manage=False)
    loaded = nvidia_driver(packages=nvidia_driver("580.95.05")["packages"])
    assert expected(**{**old, "gaudi_driver": loaded}, driver_upgrade_allowed=True)["driver_version"] == "580.95.05"


def planned(found: dict[str, Any], **more: Any) -> Any:
    """Return the plan of a host with NVIDIA cards as it is expected."""
    weights = {"/m/x": {"config": {}, "bytes": 1}}
    host = checked_host({**host_of("cuda", driver_version="570.195.03", weights=weights), **more})[0]
    wanted = Wanted(models=[MODEL], images=[{"name": IMAGE}], cards=2, accelerator="cuda")
    return assemble("g", wanted, {"gaudi_host": {**host, **found}, "gaudi_system": SYSTEM}, None, [])


def test_the_plan_takes_a_model_that_the_new_driver_can_serve() -> None:
    (finding,) = planned({}).findings
    assert "needs driver 580 or newer, and this host has 570.195.03" in finding.message
    assert planned({"driver_version": "580.95.05"}).findings == []


def test_a_release_of_gaudis_that_the_run_fetches_counts() -> None:
    facts = {"gaudi_system": {**SYSTEM, "accelerator": "gaudi"}, "gaudi_host": gaudi_host(driver_version="1.21.3-57")}
    newer = {"driver_release": "1.22.0", "driver_packages": PACKAGES, "driver_modules": ["habanalabs"]}
    assert expected(**facts, gaudi_driver=gaudi_driver(), **newer) == {}
    allowed = expected(**facts, gaudi_driver=gaudi_driver(), **newer, driver_upgrade_allowed=True)
    assert allowed == {"driver_version": "1.22.0"}
    host = {**facts["gaudi_host"], **allowed}
    wanted = Wanted(models=[model()], images=[{"name": "vllm:1"}], release="1.22.0")
    told = [one.message for one in assemble("g", wanted, {"gaudi_host": host}, None, []).findings]
    assert not [text for text in told if "driver" in text]


def test_a_host_without_a_driver_waits_for_the_one_that_the_run_installs() -> None:
    bare = {"gaudi_driver": nvidia_driver(None), "gaudi_host": host_of("cuda", **SILENT)}
    assert expected(**bare)["awaits_driver"]
    loose = nvidia_driver(driver_version=None, modules=[])
    assert expected(**{**bare, "gaudi_driver": loose})["awaits_driver"]
    fetch = {"uris": ["https://mirror.example/cuda"], "suites": ["/"]}
    unknown = nvidia_driver(None, offered={})
    assert expected(**{**bare, "gaudi_driver": unknown}, driver_repository=fetch)["awaits_driver"]
    # Nobody installs it, or nobody would plan again.
    refused = nvidia_driver(None, modules=["nouveau"])
    for more in (
        {"gaudi_driver": unknown},
        {"gaudi_driver": refused},
        {"driver_manage": False},
        {"gaudi_driver": nvidia_driver()},
        {"plans_again": False},
        {"stages": ("container_runtime", "vllm_service")},
    ):
        assert "awaits_driver" not in expected(**{**bare, **more}), more


def test_what_is_known_of_models_is_reported_before_the_driver_is_installed() -> None:
    found = planned({"awaits_driver": True}, **SILENT)
    assert found.findings == [] and found.models["models"] == []
    assert found.warnings == [f"g: {AWAITS_DRIVER}"]
    wrong = host_of("cuda", **SILENT) | {"awaits_driver": True}
    wanted = Wanted(models=[{**MODEL, "max_model_len": "x"}, {**MODEL, "port": 8001}], images=[])
    told = [one.message for one in assemble("g", wanted, {"gaudi_host": wrong}, None, []).findings]
    assert [text for text in told if "max_model_len" in text] and not [text for text in told if "card" in text], told


def test_stages_that_need_a_plan_wait_for_the_driver() -> None:
    stages = list(STAGES)
    facts = {"driver_due": ["install"], "gaudi_host": {"services": {"m": {}}}, "preflight_plan": {"models": []}}
    found = judged("g", {**facts, "preflight_expected": {"awaits_driver": True}}, stages, [], [])
    before = ["driver", "qualification", "accelerator_network"]
    assert found["preflight_stages"] == [*before, "container_runtime", "gateway", "monitoring"]
    # Of models that serve, nothing is reported to become before they are planned.
    assert found["preflight_lines"] == ["driver: install"]


def test_a_driver_of_another_release_is_one_error_with_the_remedy_of_its_stage() -> None:
    general = Finding("g", "driver_version", "g: driver and image differ")
    other = Finding("g", "accelerator", "g: other")
    facts = {"gaudi_host": {"services": {}}, "preflight_plan": {"models": []}}
    refused = judged("g", {**facts, "driver_refusal": ["g: remove the driver"]}, list(STAGES), [general, other], [])
    assert refused["preflight_refusal"] == ["g: other", "g: remove the driver"]
    without = judged("g", {**facts, "driver_refusal": []}, list(STAGES), [general, other], [])
    assert without["preflight_refusal"] == ["g: driver and image differ", "g: other"]


def test_the_plan_of_a_fleet_shows_what_waits_for_a_driver() -> None:
    services = {"m": {"module_ids": [0], "port": 8000, "active": True, "digest": "x", "launch": {}, "env": {}}}
    host = host_of("cuda", **SILENT) | {"services": services}
    told = {"preflight_expected": {"awaits_driver": True}, "driver_due": ["nvidia-open is not installed"]}
    variables = known(gaudi_host=host, vllm_models=[{**MODEL, "image": "vllm:1"}], gaudi_system=SYSTEM, **told)
    fleet = vllm_fleet_plan({"g": variables}, ["g"], [])
    assert fleet["errors"] == [] and f"g: {AWAITS_DRIVER}" in fleet["warnings"]
    shown = fleet["hosts"]["g"]
    assert shown["changes"] == shown["down"] == [] and shown["due"] == {"driver": ["nvidia-open is not installed"]}
