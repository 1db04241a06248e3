"""Models over several hosts whose entry has their number, and models of which a host is unreachable."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from gaudi_serve.gateway.fleet import fleet_entries
from gaudi_serve.model.distributed import host_models
from gaudi_serve.monitoring.collector import collector_settings
from gaudi_serve.monitoring.fleet import fleet_watched
from gaudi_serve.plan.downtime import downtimes, pending_lines
from gaudi_serve.plan.fleet import vllm_fleet_plan
from gaudi_serve.plan.peers import Fleet, tied_models
from gaudi_serve.show.report import endpoint_table
from gaudi_serve.show.status import fleet_status, fleet_status_lines
from gaudi_serve.stages.base import Given
from gaudi_serve.stages.service import STAGE
from helpers.plans import cluster, host_of, live_of

NAMES = ["gpu01", "gpu02", "gpu03", "gpu04"]
GROUPS = {"all": ["gate", *NAMES], "gpus": NAMES, "few": NAMES[:1]}
ENTRY = {
    **{"name": "big", "weights": "/m", "hosts": 2, "group": "gpus", "max_model_len": 4096},
    **{"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
}
NAMED = {key: value for key, value in ENTRY.items() if key != "group"}
OWN = {"name": "own", "weights": "/m", "port": 8001, "max_model_len": 4096}


def hostvars(*entries: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """Return the variables of four hosts with two cards each; ``facts`` by host change what was read of it."""
    return cluster(NAMES, list(entries or (ENTRY,)), "cuda", facts, groups=GROUPS)


def plan_of(variables: dict[str, Any], hosts: list[str] = NAMES) -> dict[str, Any]:
    """Plan a run on these hosts."""
    return vllm_fleet_plan(variables, hosts, [])


def served(plan: dict[str, Any], name: str = "big") -> list[str]:
    """Return the hosts of a model in a plan without errors."""
    assert [one["message"] for one in plan["errors"]] == []
    return [host for host, one in plan["hosts"].items() if name in [model["name"] for model in one["models"]]]


def serving(variables: dict[str, Any], hosts: list[str]) -> dict[str, Any]:
    """Return the variables after a run has started the model on these hosts, the head first."""
    found = copy.deepcopy(variables)
    for known in found.values():
        known["vllm_distributed_models"] = [
            {**{key: value for key, value in one.items() if key != "group"}, "hosts": hosts}
            if one["name"] == "big"
            else one
            for one in known["vllm_distributed_models"]
        ]
    plan = plan_of(found)
    after = copy.deepcopy(variables)
    for host in hosts:
        services = live_of({"models": [one for one in plan["hosts"][host]["models"] if one["name"] == "big"]})
        after[host]["gaudi_host"]["services"] = services
        for card in after[host]["gaudi_host"]["modules"]:
            card["in_use"] = True
    return after


def test_the_first_hosts_of_the_group_that_can_are_chosen() -> None:
    plan = plan_of(hostvars())
    assert served(plan) == ["gpu01", "gpu02"]
    (head,) = plan["hosts"]["gpu01"]["models"]
    assert head["group"]["hosts"] == ["gpu01", "gpu02"] and head["module_ids"] == [0, 1]
    assert plan_of(hostvars())["hosts"] == plan["hosts"]


def test_hosts_without_free_cards_are_passed_by() -> None:
    busy = [{**card, "in_use": True, "held_by": "python (pid 3)"} for card in host_of("cuda")["modules"]]
    assert served(plan_of(hostvars(gpu01={"modules": busy}))) == ["gpu02", "gpu03"]
    # Cards that a host's own models are to have are not free either.
    variables = hostvars()
    variables["gpu02"]["vllm_models"] = [OWN]
    assert served(plan_of(variables)) == ["gpu01", "gpu03"]


def test_a_fast_network_between_cards_comes_first_and_kinds_are_not_mixed() -> None:
    variables = hostvars()
    for name in ("gpu03", "gpu04"):
        variables[name]["accelerator_network_between"] = "nics"
    assert served(plan_of(variables)) == ["gpu03", "gpu04"]
    variables = hostvars(gpu01={"device_name": "NVIDIA H200"}, gpu02={"device_name": "NVIDIA H200"})
    assert served(plan_of(variables)) == ["gpu01", "gpu02"]
    assert served(plan_of(hostvars(gpu01={"device_name": "NVIDIA H200"}))) == ["gpu02", "gpu03"]


def test_hosts_that_serve_a_model_keep_it() -> None:
    variables = serving(hostvars(), ["gpu03", "gpu02"])
    plan = plan_of(variables)
    assert served(plan) == ["gpu02", "gpu03"]
    assert [plan["hosts"][name]["changes"] for name in NAMES] == [[], [], [], []]
    # Whatever else their hosts lack: an error reports it, and nothing moves.
    variables["gpu02"]["gaudi_host"]["weights"] = {"/m": None}
    found = [one["message"] for one in plan_of(variables)["errors"]]
    assert any(one.startswith("gpu02: model big: weights") for one in found), found
    assert not any("gpu01" in one or "gpu04" in one for one in found), found


def test_a_host_that_is_read_alone_knows_the_others_by_its_launch_file() -> None:
    variables = serving(hostvars(), ["gpu03", "gpu02"])
    for name in ("gpu01", "gpu02", "gpu04"):
        del variables[name]["gaudi_host"]
    (found,) = plan_of(variables, ["gpu03"])["errors"]
    assert "has gpu02, of which this run has read no facts: add it to --limit (gpu03,gpu02)" in found["message"]


def test_more_hosts_are_added_to_those_that_serve() -> None:
    variables = serving(hostvars(), ["gpu03", "gpu02"])
    more = {**ENTRY, "hosts": 4}
    for known in variables.values():
        known["vllm_distributed_models"] = [more]
    plan = plan_of(variables)
    assert served(plan) == NAMES
    assert plan["hosts"]["gpu01"]["models"][0]["group"]["hosts"] == ["gpu03", "gpu02", "gpu01", "gpu04"]
    # A host that has left the group is replaced, and removes its part.
    variables = serving(hostvars(), ["gpu03", "gpu02"])
    for known in variables.values():
        known["groups"] = {**GROUPS, "gpus": ["gpu01", "gpu02", "gpu04"]}
        known["vllm_models"] = []
    plan = plan_of(variables)
    assert served(plan) == ["gpu01", "gpu02"]
    assert plan["hosts"]["gpu03"]["changes"] == ["- big: stop and remove (it used cards 0,1)"]


def test_too_few_hosts_are_one_error_with_each_reason() -> None:
    variables = hostvars(
        gpu01={"weights": {"/m": None}},
        gpu02={"modules": []},
        gpu03={"device_name": "NVIDIA H200"},
    )
    found = [one["message"] for one in plan_of(variables)["errors"]]
    assert len(found) == len(NAMES), found
    first = found[0].replace("'", "").replace('"', "")
    text = "gpu01: model big: hosts 2: group gpus has too few hosts that can serve a part of it: "
    assert first.startswith(text), first
    for reason in (
        "gpu01: weights /m",
        "gpu02: shows no cards: install its driver first (playbooks/driver.yml)",
        "gpu03: is the only host of its kind",
        "gpu04: qualifies, but only 1 host with NVIDIA L4",
    ):
        assert reason in first, first
    assert len({one.partition(": ")[2] for one in found}) == 1


def test_two_entries_share_the_hosts() -> None:
    other = {**ENTRY, "name": "other", "port": 8002, "cluster_port": 29700}
    plan = plan_of(hostvars(ENTRY, other))
    assert served(plan) == ["gpu01", "gpu02"] and served(plan, "other") == ["gpu03", "gpu04"]


def test_hosts_that_were_not_read_are_waited_for_before_the_first_choice() -> None:
    variables = hostvars()
    del variables["gpu04"]["gaudi_host"]
    variables["gpu01"]["vllm_models"] = [OWN]
    plan = plan_of(variables, NAMES[:3])
    assert served(plan) == [] and served(plan, "own") == ["gpu01"]
    text = "its hosts cannot be chosen: no facts were read of gpu04, which may serve it already"
    assert [one for one in plan["warnings"] if text in one and one.startswith("gpu01: model big: it stays unchanged")]


def test_saved_facts_of_all_hosts_are_needed(tmp_path: Any) -> None:
    variables = hostvars()
    for name in NAMES[:3]:
        text = json.dumps({key: variables[name][key] for key in ("gaudi_host", "gaudi_system", "gaudi_services")})
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    found = [one["message"] for one in vllm_fleet_plan(variables, NAMES[:3], [], str(tmp_path))["errors"]]
    assert found and all("gpu04: its facts were not read" in one for one in found), found
    text = json.dumps({key: variables["gpu04"][key] for key in ("gaudi_host", "gaudi_system", "gaudi_services")})
    (tmp_path / "gpu04.json").write_text(text, encoding="utf-8")
    assert served(vllm_fleet_plan(variables, NAMES, [], str(tmp_path))) == ["gpu01", "gpu02"]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            {"group": None},
            "hosts 2: needs group: NAME, the group of the inventory from which the plan chooses the hosts",
        ),
        ({"group": "gpuz"}, "group 'gpuz': is not a group of the inventory; did you mean gpus?"),
        ({"group": "few"}, "hosts 2: group few has 1"),
        ({"hosts": ["gpu01", "gpu02"]}, "group 'gpus': is for a number of hosts, such as hosts: 2; leave it out"),
        ({"hosts": 1}, "must be a list of 2 to 16 different hosts of the inventory"),
    ],
)
def test_what_is_no_group_or_number_is_refused(changed: dict[str, Any], text: str) -> None:
    found = [one["message"] for one in plan_of(hostvars({**ENTRY, **changed}))["errors"]]
    assert found and any(f"vllm_distributed_models[0] (big): {text}" in one or text in one for one in found), found


def test_every_host_of_the_group_may_have_a_part_until_the_plan_has_chosen() -> None:
    (part,) = host_models(None, [ENTRY], "gpu03", {}, GROUPS)
    assert part["name"] == "big" and "group" not in part
    assert host_models(None, [ENTRY], "gate", {}, GROUPS) is None
    assert host_models(None, [ENTRY], "gpu03", {"big": ["gpu01", "gpu02"]}, GROUPS) == []
    (part,) = host_models(None, [ENTRY], "gpu02", {"big": ["gpu01", "gpu02"]}, GROUPS)
    assert part["hosts"] == {"names": ["gpu01", "gpu02"], "rank": 1}


def test_an_earlier_choice_of_the_run_is_kept() -> None:
    variables = hostvars()
    for known in variables.values():
        known["preflight_chosen"] = {"big": ["gpu04", "gpu02"]}
    assert served(plan_of(variables)) == ["gpu02", "gpu04"]


@pytest.fixture
def unreachable() -> dict[str, Any]:
    """Return the variables of a run in which one of two hosts that serve a model cannot be reached."""
    variables = serving(hostvars({**NAMED, "hosts": ["gpu01", "gpu02"]}), ["gpu01", "gpu02"])
    del variables["gpu02"]["gaudi_host"]
    # Four cards, two of them free for another model.
    cards = [
        {**card, "module_id": number, "index": number} for number, card in enumerate(host_of("cuda")["modules"] * 2)
    ]
    for number, card in enumerate(cards):
        card |= {"device_id": f"GPU-{number}", "in_use": number < 2}
    variables["gpu01"]["gaudi_host"]["modules"] = cards
    variables["gpu01"]["vllm_models"] = [OWN]
    return variables


def test_a_model_with_an_unreachable_host_stays_as_it_is(unreachable: dict[str, Any]) -> None:
    plan = plan_of(unreachable)
    assert {one["host"] for one in plan["errors"]} == {"gpu02"}, plan["errors"]
    (text,) = [one for one in plan["warnings"] if "it stays unchanged" in one]
    assert text.startswith("gpu01: model big: it stays unchanged, because no facts could be read of gpu02")
    host = plan["hosts"]["gpu01"]
    assert host["changes"] == ["+ own: start on cards 2, port 8001"] and not host["down"]
    # Its cards go to nobody else.
    unreachable["gpu01"]["vllm_models"] = [{**OWN, "tensor_parallel_size": 4}]
    (text,) = [one["message"] for one in plan_of(unreachable)["errors"] if one["host"] == "gpu01"]
    assert "2 of them free (held: 0: big, 1: big)" in text


def test_a_host_outside_the_run_is_refused_as_before(unreachable: dict[str, Any]) -> None:
    (found,) = plan_of(unreachable, ["gpu01"])["errors"]
    assert "has gpu02, of which this run has read no facts: add it to --limit (gpu01,gpu02)" in found["message"]


def test_what_is_left_is_neither_removed_nor_forgotten_by_others(unreachable: dict[str, Any]) -> None:
    host = unreachable["gpu01"]["gaudi_host"]
    plan = {"models": [], "errors": [], "warnings": [], "left": {"big": "it is left as it is"}}
    unit = {"state": "active", "active": True, "secret_differs": True}
    services = {
        "units": {"big": unit, "old": {**unit, "secret_differs": False}},
        "supervisor_sha256": None,
        "images": {},
    }
    known = {"gaudi_services": services, "vllm_service_secrets": {}, "vllm_service_plan": plan}
    found = STAGE.pending(Given("gpu01", known))
    assert found.changes["remove"] == ["old"]
    assert "update the secrets" not in found.due
    # The plan's lines, the gateway, and the collector of figures.
    lines = pending_lines({"gaudi_host": host, "preflight_plan": plan}, ["vllm_service"])
    assert not any("big" in one for one in lines)
    server = {"host": "gpu01", "unit": "big", "model": "big", "address": "10.0.0.1", "port": 8000, "takes": 8}
    entries = fleet_entries({"gpu01": {"gaudi_host": host, "preflight_plan": plan}}, ["gpu01"], "gate", [server])
    assert [one["unit"] for one in entries] == ["big"]
    assert collector_settings(plan, host)["models"]["big"]["endpoint"] is True


def test_a_stage_below_takes_it_down_for_its_own_time_alone(unreachable: dict[str, Any]) -> None:
    host = unreachable["gpu01"]["gaudi_host"]
    plan = {"models": [], "errors": [], "warnings": [], "left": {"big": "it is left as it is"}}
    known = {
        "gaudi_host": host,
        "preflight_plan": plan,
        "container_runtime_due": ["restart"],
        "container_runtime_restarts": True,
    }
    found = [one for one in downtimes(known) if one.model == "big"]
    assert [one.minutes for one in found] == [1]


def test_what_is_left_is_shown_and_watched_further(unreachable: dict[str, Any]) -> None:
    host = unreachable["gpu01"]["gaudi_host"]
    why = "it stays unchanged, because no facts could be read of gpu02"
    plan = {"models": [], "errors": [], "warnings": [], "left": {"big": why}}
    units = {"big": {"state": "active", "launch": host["services"]["big"]["launch"]}}
    known = {"gaudi_host": host, "preflight_plan": plan, "gaudi_services": {"units": units}}
    (row,) = [one for one in endpoint_table({"gpu01": known}, ["gpu01"]) if "big" in one]
    assert row.split()[:4] == ["gpu01,", "gpu02", "big", "0,1"]
    status = fleet_status({"gpu01": {**known, "vllm_service_status": [], "vllm_service_health": {}}}, ["gpu01"])
    lines = [" ".join(one.split()) for one in fleet_status_lines(status)]
    assert "gpu01 big 0,1 active - http://127.0.0.1:8000/v1" in lines and f"gpu01: model big: {why}" in lines
    server = {"model": "big", "served": "big", "address": "127.0.0.1", "port": 8000, "slo": {"ttft_s": 1}}
    before = [{"host": "gpu01", "address": "10.0.0.1", "models": [server]}]
    watching = {"fleet_monitoring": {}, "gaudi_metrics": {"watched": before}}
    found = fleet_watched({"gpu01": {**known, **watching}}, ["gpu01"], "gpu01")["watched"]
    assert [one["model"] for one in found[0]["models"]] == ["big"]


def test_nothing_is_chosen_or_removed_on_a_host_that_waits_for_its_driver() -> None:
    variables = serving(hostvars(), ["gpu01", "gpu02"])
    variables["gpu01"]["preflight_expected"] = {"awaits_driver": True}
    tied = tied_models("gpu01", Fleet(variables, [], NAMES), waits=True)
    assert tied.chosen == {"big": ()} and tied.left == {"big": ""} and not tied.findings
    plan = plan_of(variables)
    assert not [one for one in plan["errors"] if one["host"] == "gpu01"]
    assert not any("big" in one for one in plan["hosts"]["gpu01"]["changes"])


def test_hosts_see_alike_what_another_one_leaves_as_it_is(unreachable: dict[str, Any]) -> None:
    """A model on a host of the one that stays is planned by both of its hosts with the same cards."""
    other = {**NAMED, "name": "other", "hosts": ["gpu01", "gpu03"], "port": 8002, "cluster_port": 29700}
    for known in unreachable.values():
        known["vllm_distributed_models"].append(other)
    unreachable["gpu01"]["vllm_models"] = []
    plan = plan_of(unreachable)
    assert {one["host"] for one in plan["errors"]} == {"gpu02"}, plan["errors"]
    (head,), (worker,) = (plan["hosts"][host]["models"] for host in ("gpu01", "gpu03"))
    assert head["placements"] == worker["placements"]
    assert head["placements"][0]["module_ids"] == [2, 3]
    assert head["group"]["id"] == worker["group"]["id"]
