"""Whether links are to be measured, and what is good enough."""

from __future__ import annotations

from typing import Any

import pytest
from gaudi_serve.host.hccl import hccl_arguments
from gaudi_serve.host.links import link_verdict
from gaudi_serve.stages.links import STAGE, link_note, link_refusal, link_runs, link_validation_plan
from gaudi_serve.stages.registry import task_hosts
from helpers.plans import gaudi_host

DAY = 86400.0


def measured(host: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the state that a good measurement leaves."""
    plan = link_validation_plan(host, {}, image="i", image_id="sha256:1")
    runs = [{**run, "nw_gb_s": 250.0, "passed": True} for run in plan["runs"]]
    return {
        "fingerprint": plan["fingerprint"],
        "runs": runs,
        "passed": True,
        "time": 0.0,
        "last_good": {"all": 250.0},
        **more,
    }


def due(host: dict[str, Any], state: dict[str, Any], **more: Any) -> list[str]:
    """Return why a measurement is due."""
    found: list[str] = link_validation_plan(host, state, **{"image": "i", "image_id": "sha256:1", **more})["due"]
    return found


def test_a_measurement_holds_until_something_that_matters_changes() -> None:
    host = gaudi_host(driver_version="1.21.3")
    state = measured(host)
    assert due(host, {}) == ["never measured"]
    assert due(host, state, now=89 * DAY) == []
    assert due(host, state, now=100 * DAY) == ["measured 100 days ago, more than 90"]
    assert due(host, state, now=100 * DAY, max_age_days=0) == []
    assert due(host, {**state, "passed": False}) == ["the last measurement did not pass"]
    assert due({**host, "driver_version": "1.22.0"}, state) == ["driver was 1.21.3, is 1.22.0"]
    assert due(host, state, image_id="sha256:2") == ["image was sha256:1, is sha256:2"]
    assert due({**host, "modules": host["modules"][:7]}, state) == ["cards was 8 cards, is 7 cards"]


def test_gaudi2e_is_measured_by_group_and_across() -> None:
    runs = link_runs(gaudi_host(device_name="HL-288E"), {"quad": 90})
    assert [(run["name"], run["custom_comm"], run["threshold"]) for run in runs] == [
        ("quad-0", [0, 1, 2, 3], 90.0),
        ("quad-1", [4, 5, 6, 7], 90.0),
        ("all", None, 15.0),
    ]


@pytest.mark.parametrize(
    ("device", "cards", "thresholds", "expected"),
    [
        ("HL-225D", 8, {}, [("all", 127.0)]),
        ("HL-225", 8, {"all": 200}, [("all", 200.0)]),
        ("HL-225", 4, {}, [("all", None)]),
        ("HL-325L", 8, {}, [("all", 250.0)]),
        ("HL-338", 8, {}, [("all", 15.0)]),
        ("HL-338", 4, {}, [("all", None)]),
        ("HL-288", 4, {}, [("all", None)]),
        ("HL-225", 1, {}, []),
    ],
)
def test_thresholds_follow_the_machine(device: str, cards: int, thresholds: Any, expected: Any) -> None:
    host = gaudi_host(device_name=device)
    runs = link_runs({**host, "modules": host["modules"][:cards]}, thresholds)
    assert [(run["name"], run["threshold"]) for run in runs] == expected


@pytest.mark.parametrize(
    ("device", "nodes", "expected"),
    [("HL-225", 2, 103.0), ("HL-325L", 2, 206.0), ("HL-225", 3, 103.0), ("HL-288", 2, None)],
)
def test_hosts_together_have_thresholds_of_their_own(device: str, nodes: int, expected: float | None) -> None:
    (run,) = link_runs(gaudi_host(device_name=device), {}, nodes=nodes)
    assert (run["name"], run["threshold"]) == (f"all-{nodes}-hosts", expected)


def test_a_figure_must_be_there_and_good() -> None:
    run = {"name": "all", "threshold": 127.0, "last_good": None}
    assert link_verdict(run, 258.0) is None
    assert link_verdict(run, 100.0) == "all: 100.0 GB/s is below 127 GB/s"
    assert link_verdict(run, None) == "all: no bandwidth in the output"
    free = {"name": "all", "threshold": None, "last_good": 300.0}
    assert link_verdict(free, 241.0) is None
    assert link_verdict(free, 239.0) == "all: 239.0 GB/s is far below the last good 300.0 GB/s"


def test_cards_that_others_hold_and_models_that_run() -> None:
    host = gaudi_host(services={"qwq": {"module_ids": [0, 1], "active": True}})
    host["modules"][5].update(in_use=True, held_by="python3 (pid 7)")
    host["modules"][6].update(problem="hl-smi does not show it")
    plan = link_validation_plan(host, {}, image="i", image_id=None)
    assert link_refusal(plan, "g", drain=False) == [
        "g: card 5 is used by python3 (pid 7); end it first",
        "g: card 6 cannot be used: hl-smi does not show it",
        "g: the measurement takes the cards of qwq; allow it with -e link_validation_drain=true",
    ]
    assert link_refusal({**plan, "busy": []}, "g", drain=True) == []


def test_the_report_shows_the_last_figure_and_what_is_due() -> None:
    host = gaudi_host()
    state = measured(host)
    plan = link_validation_plan(host, state, image="i", image_id="sha256:1")
    assert link_note(plan, state) == ["HCCL all_reduce: all 250.0 GB/s"]
    bad = {**state, "passed": False, "runs": [{**state["runs"][0], "passed": False, "nw_gb_s": 20.0}]}
    plan = link_validation_plan(host, bad, image="i", image_id="sha256:1")
    assert link_note(plan, bad) == [
        "HCCL all_reduce: all 20.0 GB/s (last good 250.0)",
        "HCCL validation pending (the last measurement did not pass): playbooks/validate.yml",
    ]
    never = {**bad, "last_good": {}, "runs": [{"name": "all", "passed": False}]}
    assert link_note(plan, never)[0] == "HCCL all_reduce: all failed (never good)"
    assert link_note({**plan, "runs": []}, state) == []


def test_the_manuals_command_and_its_variants() -> None:
    run = {"name": "all", "custom_comm": None}
    assert " ".join(hccl_arguments(run, {"cards": 8})) == (
        "--nranks 8 --node_id 0 --size 32m --test all_reduce --loop 10000 --ranks_per_node 8 -no_color"
    )
    options = {"cards": 8, "nodes": 2, "node_id": 1, "size_range": ["1m", "32m"], "loop": 10, "measure": "latency"}
    assert " ".join(hccl_arguments({**run, "custom_comm": [0, 1]}, options)) == (
        "--nranks 16 --node_id 1 --size_range 1m 32m --test all_reduce --loop 10 --ranks_per_node 8 -no_color "
        "--custom_comm 0,1 --measure latency"
    )


def test_what_is_measured_aside_is_judged_by_itself() -> None:
    host = gaudi_host()
    state = measured(host)
    both = link_validation_plan(host, state, image="i", image_id="sha256:1", nodes=2, thresholds={"all-2-hosts": 20})
    assert both["aside"] == "all-2-hosts"
    assert [(run["name"], run["threshold"], run["last_good"]) for run in both["runs"]] == [("all-2-hosts", 20.0, None)]
    late = link_validation_plan(host, state, image="i", image_id="sha256:1", options={"measure": "latency"})
    assert late["aside"] == "latency"
    assert [(run["name"], run["threshold"], run["last_good"]) for run in late["runs"]] == [("all", None, None)]
    plain = link_validation_plan(host, state, image="i", image_id="sha256:1")
    assert plain["aside"] == ""
    aside = {"latency": {"runs": [{"name": "all", "device_latency_ms": 0.2271, "passed": True}]}}
    assert "HCCL latency: 0.2271 ms" in link_note(plain, {**state, "aside": aside})


def test_hosts_that_measure_together_are_found() -> None:
    name = "link_validation_nodes"
    assert task_hosts({"a": {name: ["b", "c"]}, "b": {}, "c": {}, "d": {}}, ["a", "b", "c", "d"]) == ["b", "c"]
    assert STAGE.waits({name: ["a", "b"]}) and not STAGE.waits({name: ["a"]}) and not STAGE.waits({})
