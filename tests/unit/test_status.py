"""What playbooks/status.yml shows of a fleet."""

from __future__ import annotations

from typing import Any

from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.show.status import fleet_status, fleet_status_lines, status_metrics
from gaudi_serve.stages.base import drift_lines
from helpers.plans import gaudi_host, model, planned


def known(**more: Any) -> dict[str, Any]:
    """Return what is kept of a host that serves one model as planned."""
    return {
        "gaudi_host": gaudi_host(),
        "gaudi_services": {"units": {"qwq": {"state": "active", "status": "serving", "restarts": 0}}},
        "preflight_plan": planned(model()),
        "vllm_service_health": {"qwq": ""},
        **{key: [] for key in ("preflight_status", "host_tuning_status", "vllm_service_status")},
        "link_validation_notes": ["HCCL all_reduce: all 258.1 GB/s"],
        **more,
    }


def test_a_fleet_as_planned() -> None:
    status = fleet_status({"a": known()}, ["a"])
    assert (status["drifted"], status["unread"]) == ([], [])
    lines = fleet_status_lines(status)
    assert " ".join(lines[2].split()) == "a qwq 0,1 active yes http://127.0.0.1:30001/v1"
    assert lines[-2:] == ["a: HCCL all_reduce: all 258.1 GB/s", "1 host: 1 as planned, 0 drifted, 0 could not be read"]


def test_every_kind_of_trouble_is_a_line_with_its_host() -> None:
    silent = known(vllm_service_health={"qwq": "GET /health on port 30001: refused"})
    hosts = {
        "a": known(host_tuning_status=["sysctl kernel.numa_balancing"], vllm_image_status=["vllm:1 is missing"]),
        "b": silent,
        "c": {},
        "d": {"status_problem": "no python3\non this host"},
        "e": {"status_problem": "'gaudi_host' is undefined"},
        "f": {**known(), "status_problem": "x"},
    }
    status = fleet_status(hosts, list(hosts))
    assert status["drifted"] == ["a", "b"]
    assert status["unread"] == ["c", "d", "e"]
    lines = fleet_status_lines(status)
    for line in (
        "a: host: sysctl kernel.numa_balancing",
        "a: images: vllm:1 is missing",
        "b: answers: qwq does not answer: GET /health on port 30001: refused",
        "c: cannot be reached",
        "d: no python3 on this host",
        "e: cannot be reached",
    ):
        assert line in lines
    assert lines[-1] == "6 hosts: 1 as planned, 2 drifted, 3 could not be read"


def test_cards_that_are_not_used_are_named() -> None:
    host = gaudi_host()
    host["modules"][7] |= {"problem": "hl-smi's row of it cannot be used: '7'"}
    lines = fleet_status_lines(fleet_status({"a": known(gaudi_host=host)}, ["a"]))
    assert lines[-3] == "a: card 7 is not used: hl-smi's row of it cannot be used: '7'"


def test_a_stopped_model_need_not_answer() -> None:
    host = known(preflight_plan=planned(model(state="stopped")), vllm_service_health={})
    status = fleet_status({"a": host}, ["a"])
    assert status["drifted"] == []
    assert " active (wanted: stopped) " in " ".join(fleet_status_lines(status)[2].split()) + " "


def test_differences_as_lines() -> None:
    changes = {"due": True, "install": ["docker.io"], "load": ["habanalabs"], "reload": True}
    found = drift_lines({**changes, "reboot": ["the kernel lacks x"], "hold": [], "version": "1"}, ["version"])
    assert found == [
        "docker.io is not installed",
        "module habanalabs is not loaded",
        "the loaded driver is not the planned one",
        "the kernel lacks x",
    ]


def test_a_template_with_a_mistake_is_no_host_that_cannot_be_reached() -> None:
    hosts = {"a": {"status_problem": "a: vllm_models: 'nope' is undefined"}}
    assert fleet_status_lines(fleet_status(hosts, ["a"]))[0] == "a: vllm_models: 'nope' is undefined"


def test_a_server_that_generates_nothing_is_not_up_behind_its_gateway() -> None:
    states = [{"name": f"{host}.qwq", "up": True} for host in "ab"]
    gateway = {"fleet_gateway": {}, "gaudi_haproxy": {"unit": {"active": True}, "states": states}}
    hosts = {"a": known(**gateway), "b": known(vllm_service_health={"qwq": "POST on port 30001: no token within 60 s"})}
    lines = [" ".join(line.split()) for line in fleet_status_lines(fleet_status(hosts, ["a", "b"]))]
    assert "a (gateway) - active 1 of 2 up http://127.0.0.1:8080/v1" in lines


def test_a_gateway_that_the_inventory_has_no_more_is_drift() -> None:
    services = {**known()["gaudi_services"], "gateway": True}
    status = fleet_status({"a": known(gaudi_services=services)}, ["a"])
    assert status["drifted"] == ["a"]
    line = "a: gateway: it runs here, but the inventory has no fleet_gateway for this host; set fleet_gateway"
    assert any(one.startswith(line) for one in fleet_status_lines(status))
    assert fleet_status({"a": known(gaudi_services=services, gateway_status=[])}, ["a"])["drifted"] == []


def test_a_sick_card_is_a_note_of_status_and_plan() -> None:
    cards = [{"module_id": number, "ecc_uncorrectable": 3 * number, "numa_node": 0} for number in range(2)]
    bad = {"module_id": 2, "ecc_uncorrectable": 9, "problem": "it has no node", "numa_node": 0}
    host = {**gaudi_host(), "accelerator": "rocm", "device_name": "AMD Instinct MI300X", "modules": [*cards, bad]}
    text = "card 1 is sick: its memory had 3 uncorrectable errors since the driver was loaded"
    status = fleet_status({"a": known(gaudi_host=host)}, ["a"])
    assert text in status["hosts"]["a"]["notes"] and status["drifted"] == []
    assert [one for one in status["hosts"]["a"]["notes"] if "sick" in one] == [text]
    assert f"a: {text}" in vllm_plan([], host, host_name="a")["warnings"]


def test_a_status_is_kept_for_prometheus() -> None:
    hosts = {"a": known(vllm_image_status=["one", "two"]), "c": {}}
    status = fleet_status(hosts, list(hosts))
    text = status_metrics(status, "a", 1795773536.5)
    assert 'gaudi_serve_fleet_pending_changes{stage="images"} 2\n' in text
    assert 'gaudi_serve_fleet_pending_changes{stage="host"} 0\n' in text
    assert "gaudi_serve_fleet_status_timestamp_seconds 1795773536.5\n" in text
    assert status_metrics(status, "c", 1.0) == ""


def test_a_host_that_watches_has_a_line() -> None:
    units = {f"gaudi-{name}.service": {"active": True} for name in ("prometheus", "alertmanager")}
    watches = {"monitoring_status": [], "fleet_monitoring": {"port": 9191}, "gaudi_metrics": {"units": units}}
    status = fleet_status({"p": watches}, ["p"])
    assert (status["unread"], status["drifted"]) == ([], [])
    assert "p (prometheus) - active - http://127.0.0.1:9191" in [
        " ".join(line.split()) for line in fleet_status_lines(status)
    ]
    units["gaudi-alertmanager.service"]["active"] = False
    watches["monitoring_status"] = ["start gaudi-alertmanager.service"]
    status = fleet_status({"p": watches}, ["p"])
    assert status["drifted"] == ["p"] and status["hosts"]["p"]["monitoring"]["state"] == "not there"
    # The toolkit runs none where the site has its own.
    watches["fleet_monitoring"] = {"files_only": "/etc/prometheus/gaudi-serve"}
    assert fleet_status({"p": watches}, ["p"])["hosts"]["p"]["monitoring"] is None
