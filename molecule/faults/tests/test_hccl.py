"""hccl_demo under the habana runtime: figures, thresholds, faults, models in the way, two hosts together."""

from __future__ import annotations

import json
from typing import Any

import pytest
import testinfra
from runs import eventually

FILE = "/var/lib/gaudi-serve/hccl.json"
STATE = "/etc/gaudi-sim/state.json"


FIRST = pytest.mark.on("mol-fault-a")
SECOND = pytest.mark.on("mol-fault-b")


def result(host: Any) -> dict[str, Any]:
    """Return what the last measurement has left."""
    found: dict[str, Any] = json.loads(host.file(FILE).content_string)
    return found


def simulate(host: Any, **changes: Any) -> None:
    """Change the simulated machine."""
    state = {**json.loads(host.file(STATE).content_string), **changes}
    assert host.run(f"echo {json.dumps(json.dumps(state))} > {STATE}").rc == 0


HOSTS = ("mol-fault-a", "mol-fault-b")
KEPT = "/root/hccl.json"


@pytest.fixture(scope="module", autouse=True)
def keep_the_first_measurement() -> None:
    """Keep what converge has measured, before a test measures again or cuts a measurement off."""
    for name in HOSTS:
        testinfra.get_host(f"docker://{name}").check_output(f"[ -e {KEPT} ] || cp {FILE} {KEPT}")


@pytest.fixture
def idle() -> None:
    """Let both hosts have nothing on their cards, and the first run's measurement."""
    for name in HOSTS:
        testinfra.get_host(f"docker://{name}").check_output(f"systemctl stop 'vllm-*'; cp {KEPT} {FILE}")


def on_idle_hosts(test: Any) -> Any:
    """Mark a test as one that begins on hosts without a running model."""
    return pytest.mark.anyhow(pytest.mark.usefixtures("idle")(test))


# Before those that stop the models, which would have to be started for it.
@FIRST
def test_models_are_in_the_way_unless_they_may_be_drained(host: Any, playbook: Any, unit: Any) -> None:
    site = ("playbooks/validate.yml", "--limit", "mol-fault-a")
    due = playbook(*site, link_validation_asked=False, link_validation_thresholds={"all": 1})
    assert due.status == 0, due.text
    before = unit("qwq-32b", "ExecMainStartTimestampMonotonic")
    refused = playbook(*site)
    assert refused.status != 0
    text = "the measurement takes the cards of qwen2.5-7b, qwq-32b; allow it with -e link_validation_drain=true"
    assert text in refused.flat, refused.text
    assert unit("qwq-32b", "ExecMainStartTimestampMonotonic") == before
    drained = playbook(*site, link_validation_drain=True)
    assert drained.status == 0, drained.text
    assert playbook("playbooks/models.yml", "--limit", "mol-fault-a").status == 0
    for model in ("qwq-32b", "qwen2.5-7b"):
        assert unit(model, "ActiveState") == "active"
    assert unit("qwq-32b", "ExecMainStartTimestampMonotonic") != before
    assert result(host)["passed"]


@FIRST
def test_models_that_a_lost_run_has_stopped_for_a_measurement_start_again(host: Any, playbook: Any, unit: Any) -> None:
    promise = "gaudi-serve-hccl-models"
    site = ("playbooks/validate.yml", "--limit", "mol-fault-a")
    stopped = lambda: host.run("systemctl is-active vllm-qwq-32b").stdout.strip() == "inactive"  # noqa: E731
    playbook(*site, until=stopped, link_validation_drain=True)
    host.check_output(f"systemctl is-active {promise}.timer")
    # What systemd does when all measurements would be over.
    host.check_output(f"systemctl start {promise}.service && systemctl stop {promise}.timer")
    for model in ("qwq-32b", "qwen2.5-7b"):
        assert eventually(lambda: unit(model, "ActiveState") == "active", 60)  # noqa: B023 - asked at once
    # The module outlives the run, and writes what became of its measurement.
    assert eventually(lambda: host.run("ls -d /tmp/ansible_*measure_links*_payload_*").rc != 0, 60)


@on_idle_hosts
def test_the_first_run_has_measured(host: Any) -> None:
    found = result(host)
    assert found["passed"]
    (run,) = found["runs"]
    assert (run["name"], run["nw_gb_s"], run["threshold"]) == ("all", 258.259144, 127.0)
    assert found["last_good"] == {"all": 258.259144}
    assert found["fingerprint"]["driver"].startswith("1.21.3")
    assert host.file(FILE).mode == 0o640
    assert host.run("docker inspect gaudi-serve-hccl").rc != 0


@FIRST
@on_idle_hosts
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("slow", "all: 25.8 GB/s is below 127 GB/s"),
        ("crash", "all: hccl_demo ended with 1:"),
        ("silent", "no figure in the output, which ends with:"),
        ("hang", "all: it did not end within 12 s"),
    ],
)
def test_a_bad_measurement_fails_with_its_reason(host: Any, playbook: Any, fault: str, message: str) -> None:
    simulate(host, hccl_fault=fault)
    try:
        run = playbook("playbooks/validate.yml", "--limit", "mol-fault-a")
    finally:
        simulate(host, hccl_fault=None)
    assert run.status != 0
    assert message in run.flat
    found = result(host)
    assert not found["passed"]
    # The last good figure stays.
    assert found["last_good"] == {"all": 258.259144}
    assert host.run("docker inspect gaudi-serve-hccl").rc != 0


@FIRST
@on_idle_hosts
def test_what_did_not_pass_is_repeated_and_then_holds(host: Any, playbook: Any) -> None:
    failed = {**result(host), "passed": False}
    host.check_output("printf %s > %s", json.dumps(failed), FILE)
    converge = ("playbooks/validate.yml", "--limit", "mol-fault-a", "-e", '{"link_validation_asked": false}')
    assert "the last measurement did not pass" in playbook(*converge).text
    assert result(host)["passed"]
    assert playbook(*converge).changed_nothing


@FIRST
@on_idle_hosts
def test_a_port_that_is_down(host: Any, playbook: Any) -> None:
    cards = json.loads(host.file(STATE).content_string)["cards"]
    broken = [{**card, "links": ["DOWN", *card["links"][1:]]} if card["index"] == 3 else card for card in cards]
    simulate(host, cards=broken)
    try:
        run = playbook("playbooks/validate.yml", "--limit", "mol-fault-a")
    finally:
        simulate(host, cards=cards)
    assert run.status != 0
    assert "is down" in run.text


@FIRST
@on_idle_hosts
def test_gaudi2e_by_group_and_across(host: Any, playbook: Any) -> None:
    simulate(host, device_name="HL-288")
    try:
        run = playbook("playbooks/validate.yml", "--limit", "mol-fault-a")
        names = {one["name"]: (one["cards"], one["threshold"]) for one in result(host)["runs"]}
    finally:
        simulate(host, device_name="HL-225")
    assert run.status == 0, run.text
    assert names == {"quad-0": (4, None), "quad-1": (4, None), "all": (8, 15.0)}


@SECOND
@on_idle_hosts
def test_two_hosts_together_and_a_latency(host: Any, playbook: Any) -> None:
    nodes = ["mol-fault-a", "mol-fault-b"]
    alone = result(host)
    absent = playbook("playbooks/validate.yml", "--limit", "mol-fault-b", link_validation_nodes=nodes)
    assert absent.status != 0
    assert "link_validation_nodes: mol-fault-a are not in this run" in absent.flat
    # Each host measures in a fork of its own: with one, they would wait for each other with their models stopped.
    alone_each = playbook("playbooks/validate.yml", "--forks", "1", link_validation_nodes=nodes)
    assert alone_each.status == 3
    assert "which needs as many forks; this run has 1. Run it with --forks 2" in alone_each.flat
    run = playbook("playbooks/validate.yml", link_validation_nodes=nodes, link_validation_thresholds={"all-2-hosts": 1})
    assert run.status == 0, run.text
    assert result(host)["aside"]["all-2-hosts"]["runs"][0]["nw_gb_s"] == 258.259144
    slow = playbook(
        "playbooks/validate.yml", link_validation_nodes=nodes, link_validation_thresholds={"all-2-hosts": 300}
    )
    assert slow.status != 0
    assert "all-2-hosts: 258.3 GB/s is below 300 GB/s" in slow.flat
    latency = playbook(
        "playbooks/validate.yml", "--limit", "mol-fault-b", link_validation_hccl_options={"measure": "latency"}
    )
    assert latency.status == 0, latency.text
    assert result(host)["aside"]["latency"]["runs"][0]["device_latency_ms"] == 0.2271
    sizes = playbook(
        "playbooks/validate.yml", "--limit", "mol-fault-b", link_validation_hccl_options={"size_range": ["1m", "32m"]}
    )
    assert sizes.status == 0, sizes.text
    sized = result(host)["aside"]["size_range"]["runs"][0]["results"]
    assert [one["size_bytes"] for one in sized][::5] == [2**20, 2**25]
    # None of this is the host's own measurement.
    assert {key: result(host)[key] for key in ("time", "runs", "passed", "fingerprint")} == {
        key: alone[key] for key in ("time", "runs", "passed", "fingerprint")
    }
    assert result(host)["last_good"]["all"] == alone["last_good"]["all"]
