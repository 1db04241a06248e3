"""What is due at which stage, which stages run for it, and which models go down for how long."""

from __future__ import annotations

from typing import Any

import pytest
from gaudi_serve.plan.downtime import downtimes, pending_lines
from gaudi_serve.plan.fleet import vllm_fleet_lines, vllm_fleet_plan
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.stages.changes import StageChanges
from gaudi_serve.stages.registry import (
    STAGES,
    facts_wanted,
    plans_models,
    run_stages,
    tags_refusal,
    task_hosts,
)
from helpers.plans import gaudi_host, model

EVERY = [role for role in STAGES if role not in ("gateway", "monitoring")]


@pytest.mark.parametrize(
    ("asked", "tags", "skipped", "expected"),
    [
        (None, ["all"], [], EVERY),
        ([], ["all"], [], []),
        (["vllm_service", "host_tuning"], ["all"], ["molecule-notest"], ["host_tuning", "vllm_service"]),
        (None, ["models", "host"], [], ["host_tuning", "vllm_service"]),
        (None, ["always"], [], EVERY),
        (None, ["all"], ["driver"], [role for role in EVERY if role != "driver"]),
    ],
)
def test_tags_take_some_of_the_stages(asked: Any, tags: list[str], skipped: list[str], expected: list[str]) -> None:
    assert run_stages(asked, tags, skipped) == expected


def test_a_gateway_has_a_stage_of_its_own_and_others_only_where_it_has_models() -> None:
    assert run_stages(None, ["all"], [], gateway=True) == [role for role in STAGES if role != "monitoring"]
    assert run_stages(None, ["all"], [], gateway=True, models=None) == ["offline", "gateway"]
    assert run_stages(["vllm_service", "gateway"], ["all"], [], gateway=True, models=None) == ["gateway"]
    # No part in the run, which is something else than a playbook without stages.
    for asked in (["driver"], []):
        part = run_stages(asked, ["all"], [], gateway=True, models=None)
        assert (part, facts_wanted(part, True), plans_models(part)) == (["none"], ["system", "haproxy"], False)
    assert run_stages(["gateway"], ["all"], []) == ["none"]
    assert facts_wanted([], True)[-1] == "haproxy"
    assert "haproxy" not in facts_wanted([])


def test_a_host_without_a_task_is_left_alone_but_for_what_it_serves_still() -> None:
    for models, asked, tags, expected in (
        (None, None, ["all"], ["left_alone"]),
        (None, ["host_tuning"], ["all"], ["left_alone"]),
        (None, None, ["host"], ["left_alone"]),
        ([], None, ["all"], ["left_alone"]),
        # Who names stages of a host whose models are set to none prepares it.
        ([], ["host_tuning"], ["all"], ["host_tuning"]),
        ([], None, ["host"], ["host_tuning"]),
    ):
        assert run_stages(asked, tags, models=models) == expected
        named = ["host_tuning"] if asked or tags != ["all"] else EVERY
        assert run_stages(asked, tags, models=models, source=True) == named
    for left in ({"units": {"m": {}}}, {"without_unit": {"m": {}}}, {"orphans": ["vllm-m"]}, {"kept": True}):
        assert run_stages(None, models=[], services=left) == EVERY
    assert run_stages(None, models=[], services={"units": {}, "orphans": [], "kept": False}) == ["left_alone"]
    # What it serves, if anything, is looked at.
    assert (facts_wanted(["left_alone"]), plans_models(["left_alone"])) == (["system", "services"], False)
    # Whatever a host is for, it fetches something.
    assert run_stages(None, models=[], gateway=True) == ["offline", "gateway"]


def test_hosts_that_others_name_have_a_task() -> None:
    hostvars: dict[str, Any] = {
        "a": {"vllm_image_from_host": "img", "model_weights_from_host": "", "vllm_images": None},
        "b": {"model_weights_from_host": "nfs", "vllm_images": [{"name": "i", "build_host": "maker"}, "x"]},
        "c": {"link_validation_nodes": ["n1", "n2"], "vllm_images": 3},
        **{name: {} for name in ("img", "nfs", "n1", "n2", "maker", "alone")},
    }
    assert task_hosts(hostvars, list(hostvars)) == ["img", "nfs", "n1", "n2", "maker"]


def test_a_tag_that_no_stage_has_is_refused() -> None:
    assert tags_refusal(["all", "models"]) == []
    assert tags_refusal(["model"]) == [
        "--tags model: must be one of offline, bios, host, driver, qualify, network, runtime, images, validate, "
        "weights, models, gateway, monitoring; did you mean models?"
    ]


def test_stages_run_from_the_first_that_is_due_on() -> None:
    nothing: dict[str, Any] = {f"{role}_due": [] for role in EVERY}
    assert StageChanges.of(nothing, EVERY).roles(EVERY) == []
    due = {**nothing, "vllm_image_due": ["install x"]}
    assert StageChanges.of(due, EVERY).roles(EVERY) == EVERY[EVERY.index("vllm_image") :]
    assert StageChanges.of(due, ["host_tuning", "vllm_image"]).roles(["host_tuning", "vllm_image"]) == ["vllm_image"]
    # Hosts wait for each other in these.
    assert StageChanges.of({**nothing, "model_weights_together": True}, EVERY).roles(EVERY) == ["model_weights"]
    assert StageChanges.of({**nothing, "link_validation_nodes": ["a", "b"]}, EVERY).roles(EVERY) == ["link_validation"]


def test_stages_below_the_models_need_little() -> None:
    assert facts_wanted(["host_tuning"]) == ["system", "tuning"]
    assert "hccl" in facts_wanted(["host_tuning", "vllm_image"])
    assert "hccl" in facts_wanted([])


def known(**changed: Any) -> dict[str, Any]:
    """Return the variables of a host that serves qwq as planned, and old, which is not planned."""
    host = gaudi_host()
    plan = vllm_plan([model(recipe_cache_path="/data/cache")], host)
    assert not plan["errors"]
    same = {"active": True, "digest": plan["models"][0]["digest"], "module_ids": [0, 1], "launch": {}, "env": {}}
    host["services"] = {"qwq": same, "old": {**same, "module_ids": [2]}}
    return {"gaudi_host": host, "preflight_plan": plan, **changed}


def minutes(**changed: Any) -> dict[str, tuple[str, int | None]]:
    """Return what goes down: by model the stage and the minutes."""
    return {one.model: (one.stage, one.minutes) for one in downtimes(known(**changed))}


def test_a_model_is_down_for_its_stage_and_its_start() -> None:
    plan = known()["preflight_plan"]["models"][0]
    load = known()["gaudi_host"]["weights"][plan["weights"]]["bytes"] / 1.5e9
    cached, whole = (round((load + plan[key]) / 60) for key in ("warmup_cached_s", "warmup_s"))
    assert 1 < cached < whole
    assert minutes() == {}
    # Due, and yet nothing of it takes a model down.
    assert minutes(host_tuning_due=["x"], container_runtime_due=["x"]) == {}
    reboot = minutes(host_tuning_due=["x"], host_tuning_reboots=True)
    assert reboot == {"qwq": ("host", 10 + cached), "old": ("host", None)}
    assert minutes(driver_due=["x"], driver_stops=["qwq"]) == {"qwq": ("driver", 5 + cached)}
    assert minutes(container_runtime_due=["x"], container_runtime_restarts=True)["qwq"] == ("runtime", 1 + cached)
    assert minutes(link_validation_due=["x"], link_validation_stops=["qwq"]) == {"qwq": ("validate", 5 + cached)}
    assert minutes(model_weights_due=["x"], model_weights_stops=["qwq"]) == {"qwq": ("weights", cached)}
    changes = {"restart": ["qwq"], "remove": ["old"], "stop": []}
    due = {"vllm_service_due": ["x"], "vllm_service_stops": changes}
    assert minutes(**due) == {"old": ("models", None), "qwq": ("models", cached)}
    # Another launch compiles again.
    other = known(**due)
    other["gaudi_host"]["services"]["qwq"]["digest"] = "other"
    assert {one.model: one.minutes for one in downtimes(other)} == {"old": None, "qwq": whole}
    # What is down already is not taken down again.
    assert minutes(**due, host_tuning_due=["x"], host_tuning_reboots=True) == reboot


def test_lines_report_what_differs_what_becomes_of_the_models_and_what_is_down() -> None:
    changes = {"restart": [], "remove": ["old"], "stop": []}
    due = {"vllm_service_due": ["remove old"], "vllm_service_stops": changes, "host_tuning_due": ["cpu0: a -> b"]}
    assert pending_lines(known(**due), EVERY) == [
        "host: cpu0: a -> b",
        "- old: stop and remove (it used cards 2)",
        "! old stops for good, from stage models on: it is not planned any more",
    ]
    # Permissions have their own line beside the changes of models.
    due["vllm_service_due"] = ["remove old", "correct /etc/gaudi-serve: mode 0777 instead of 0750"]
    assert pending_lines(known(**due), EVERY)[2] == "models: correct /etc/gaudi-serve: mode 0777 instead of 0750"
    assert pending_lines(known(vllm_service_due=["write x"], vllm_service_stops={}), ["host_tuning"]) == []


def test_the_plan_of_a_live_host_reports_all_that_a_run_would_do() -> None:
    told = {
        "host_tuning_due": ["cpu0: a -> b"],
        "host_tuning_reboots": True,
        "driver_refusal": ["a: driver 1.20 and release 1.21.3 differ"],
    }
    host = known(**told, vllm_models=[model(recipe_cache_path="/data/cache")])
    fleet = vllm_fleet_plan({"a": host}, ["a"], [])
    assert fleet["hosts"]["a"]["due"] == {"host_tuning": ["cpu0: a -> b"]}
    assert [one["model"] for one in fleet["hosts"]["a"]["down"]] == ["qwq", "old"]
    assert fleet["errors"][0]["message"] == "a: driver 1.20 and release 1.21.3 differ"
    text = "\n".join(vllm_fleet_lines(fleet))
    assert "    host: cpu0: a -> b\n    - old: stop and remove" in text
    assert "    ! old stops for good, from stage host on: the host reboots" in text


def test_the_plan_names_a_reboot_that_is_due_and_not_allowed() -> None:
    host = known(host_tuning_reboot_reasons=["the running kernel lacks iommu=pt"], vllm_models=[])
    text = "\n".join(vllm_fleet_lines(vllm_fleet_plan({"a": host}, ["a"], [])))
    assert "a reboot is pending, which is not allowed yet (host_tuning_reboot_allowed: true):" in text
    allowed = {**host, "host_tuning_reboots": True}
    assert "nobody has allowed" not in "\n".join(vllm_fleet_lines(vllm_fleet_plan({"a": allowed}, ["a"], [])))
