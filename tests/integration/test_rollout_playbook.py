"""Rollouts over hosts that are a file each: what the controller does when a host is lost, and what it reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import forked
import pytest
from gaudi_serve.bench.results import read_results
from helpers.simulated.fleet import ROOT, change, fleet, serving_state, state_of

NAMES = ["h01", "h02", "h03", "h04"]
ROLLOUT = "playbooks/rollout.yml"
PATTERN = "Could not match supplied host pattern"


class Hosts:
    """Four hosts that serve one model, of which two servers must stay."""

    def __init__(self, folder: Path, state: dict[str, Any]) -> None:
        self.folder = folder
        self.environment = fleet(folder, len(NAMES), state, rollout_serial=2)

    def play(self, playbook: str, **given: Any) -> tuple[int, str]:
        """Run a playbook, and return its status and all that it printed."""
        return self.run(playbook, "-e", json.dumps(given))

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run Ansible, and return its status and all that it printed."""
        argv = ["ansible-playbook", "-i", str(self.folder / "hosts.json"), *arguments]
        return forked.playbook(argv, ROOT, self.environment, 300)

    def roll(self, **given: Any) -> tuple[int, str]:
        """Roll more sequences out, with a page."""
        return self.play(ROLLOUT, **{"rollout_approved": True, "page": str(self.folder / "page.html"), **given})

    @property
    def page(self) -> tuple[str, dict[str, str], set[str]]:
        """Return of the page its verdict, what became of hosts that were changed, and which have figures of before."""
        data = json.loads((self.folder / "page.json").read_text(encoding="utf-8"))
        became = {one["name"]: one["outcome"] for one in data["hosts"] if one["outcome"]}
        compared = {one["host"] for one in data["rollout"]["compared"] if one["before"] and one["after"]}
        return data["verdict"]["sentence"], became, compared

    def request(self, **keys: Any) -> None:
        """Request other models of all hosts."""
        path = self.folder / "hosts.json"
        inventory = json.loads(path.read_text(encoding="utf-8"))
        inventory["all"]["vars"]["vllm_models"][0].update(keys)
        path.write_text(json.dumps(inventory), encoding="utf-8")

    @property
    def changed(self) -> list[str]:
        """Return the hosts that serve with the change."""
        states = {name: state_of(self.folder, name) for name in NAMES}
        assert all(one["units"]["m"]["started"] for one in states.values())
        return [name for name, one in states.items() if '"24"' in one["files"]["/etc/gaudi-serve/m.json"]]

    @property
    def locks(self) -> dict[str, list[str]]:
        """Return the locks that are held, by host."""
        states = {name: state_of(self.folder, name) for name in NAMES}
        return {name: sorted(one["held"]) for name, one in states.items() if one["held"]}

    @property
    def kept(self) -> list[str]:
        """Return the hosts on which what served before is kept."""
        return [name for name in NAMES if state_of(self.folder, name).get("kept")]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what a host has on which site.yml has run."""
    return serving_state(tmp_path_factory.mktemp("served"))


@pytest.fixture
def hosts(tmp_path: Path, served: dict[str, Any]) -> Hosts:
    """Return them, with a requested change."""
    found = Hosts(tmp_path, served)
    found.request(max_num_seqs=24, min_available=1)
    return found


def taken_back(lost: str, at: str, given: dict[str, Any], done: list[str], hosts: Hosts) -> None:
    """Lose a host, and see that it is taken back, and which hosts have the change."""
    change(hosts.folder, lost, away={"at": at, "seconds": 3})
    status, text = hosts.roll(**given)
    assert status == 2, text
    when = "while" if at in ("gaudi_files", "vllm_smoke") else "before"
    assert (
        f"{lost} could not be reached {when} it was changed, and the rollout stops: its connection was lost. " in text
    )
    assert "failed its checks" not in text
    assert hosts.locks == {}
    assert (hosts.changed, hosts.kept) == (done, [])
    assert PATTERN not in text


@pytest.mark.parametrize(
    ("lost", "at", "done"),
    # The canary, and one of the two of the second wave: the wave after it does not begin.
    [("h01", "vllm_snapshot saved", []), ("h02", "vllm_smoke", ["h01", "h03"])],
)
def test_a_host_that_is_lost_is_taken_back_when_it_is_there_again(
    lost: str, at: str, done: list[str], hosts: Hosts
) -> None:
    taken_back(lost, at, {}, done, hosts)
    if done:
        # Without that, all is as it was before the first run.
        status, text = hosts.roll()
        assert (status, hosts.changed) == (0, NAMES), text
        # What was measured is kept beside the inventory.
        kept = read_results(hosts.folder / "benchmarks/results.jsonl").records
        assert {(one["host"], one["phase"]) for one in kept if one["by"] == "rollout"} == {
            (name, phase) for name in NAMES for phase in ("before", "after")
        }


@pytest.mark.parametrize(
    ("lost", "at", "given", "done"),
    [("h01", "gaudi_files", {}, []), ("h02", "vllm_benchmark", {"rollout_serial": 1}, ["h01"])],
)
def test_a_host_that_is_lost_at_another_moment_is_taken_back(
    lost: str, at: str, given: dict[str, Any], done: list[str], hosts: Hosts
) -> None:
    taken_back(lost, at, given, done, hosts)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("garbled", "the answer names no country with its capital"),
        ("crash", "model m does not serve: its unit is failed; out of"),
    ],
)
def test_a_canary_that_answers_nonsense_or_does_not_come_up_goes_back(fault: str, said: str, hosts: Hosts) -> None:
    change(hosts.folder, "h01", fault=fault)
    status, text = hosts.roll()
    assert status == 2, text
    assert said in text
    assert "h01 failed its checks, and the rollout stops" in text and "It serves the same models as before" in text, (
        text
    )
    assert (hosts.changed, hosts.kept, hosts.locks) == ([], [], {})


def test_a_host_that_stays_away_is_left_drained_and_finished_by_the_next_rollout(hosts: Hosts) -> None:
    change(hosts.folder, "h02", away={"at": "vllm_smoke", "seconds": 300})
    status, text = hosts.roll(rollout_reconnect_timeout=2)
    assert status == 2, text
    assert "It could not be rolled back, and stays drained: it could not be reached for 2 s" in text
    proven = {"h01": "verified", "h03": "verified"}
    assert hosts.page == ("The rollout stopped at h02.", {**proven, "h02": "left_drained"}, {"h01", "h03"})
    assert hosts.kept == ["h02"]
    change(hosts.folder, "h02", away={})
    status, text = hosts.roll()
    assert status == 0, text
    assert (hosts.changed, hosts.kept) == (NAMES, [])


def test_of_one_wave_a_host_is_lost_and_another_too_slow_and_both_go_back(hosts: Hosts) -> None:
    change(hosts.folder, "h02", away={"at": "vllm_smoke", "seconds": 3})
    change(hosts.folder, "h03", fault="slow")
    status, text = hosts.roll()
    assert status == 2, text
    assert "h02 could not be reached while it was changed, and the rollout stops: its connection was lost. It" in text
    assert "h03 failed its checks, and the rollout stops: Verify | Fail if a model is slower than before" in text
    assert (hosts.changed, hosts.kept) == (["h01"], [])
    became = {"h01": "verified", "h02": "rolled_back", "h03": "rolled_back"}
    assert hosts.page == ("The rollout stopped at h02, h03.", became, {"h01"})


def test_a_host_that_is_lost_while_it_goes_back_goes_back(hosts: Hosts) -> None:
    change(hosts.folder, "h01", fault="slow", away={"at": "vllm_snapshot restored", "seconds": 3})
    status, text = hosts.roll()
    assert status == 2, text
    assert "h01 failed its checks, and the rollout stops: Verify | Fail if a model is slower than before" in text
    assert (hosts.changed, hosts.kept) == ([], [])
    assert hosts.page == ("The rollout stopped at h01.", {"h01": "rolled_back"}, set())


def test_a_rollout_that_begins_no_wave_or_stops_after_the_canary_warns_of_nothing(hosts: Hosts) -> None:
    # Fewer than hosts: the canary starts its models alone.
    hosts.environment["ANSIBLE_FORKS"] = "2"
    status, text = hosts.run(ROLLOUT, "--check", "--diff")
    assert status == 0 and "4 hosts in 3 waves" in text and "[WARNING]" not in text, text
    assert hosts.changed == []
    assert "h02, h03: would change in wave 2" in text and "would change: rollout" in text, text
    # A push after the approval: of the approved plan, the change of h02 was another one.
    lines = ["~ m: restart", "    + --max-num-seqs: 24"]
    approved = {"h01": lines, "h02": ["~ m: restart", "    + --max-num-seqs: 28"], "h03": lines, "h04": lines}
    status, text = hosts.play(ROLLOUT, rollout_as_approved=True, gaudi_rollout={"due": approved})
    assert status != 0 and hosts.changed == [], text
    assert "h02: not in the approved plan: ~ m: restart: + --max-num-seqs: 24" in text, text
    assert "h01: not in the approved plan: ~ m" not in text and "[WARNING]" not in text, text
    # All of a launch is compared, also what no line shows.
    assert "h01: not in the approved plan: launch of m with digest " in text, text
    status, text = hosts.roll(rollout_approved="")
    assert hosts.page == ("1 host changed and verified; 3 hosts left.", {"h01": "verified"}, {"h01"})
    assert status == 0 and "the rollout stops after the canary h01, which serves" in text, text
    assert (hosts.changed, hosts.locks) == (["h01"], {}) and PATTERN not in text and "forks" not in text, text
    status, text = hosts.roll()
    assert (status, hosts.changed) == (0, NAMES), text
    assert hosts.page == ("3 hosts changed and verified.", dict.fromkeys(NAMES[1:], "verified"), set(NAMES[1:]))
    status, text = hosts.roll()
    assert status == 0 and "no host has pending changes" in text and "[WARNING]" not in text, text


def test_variables_of_a_playbook_that_imports_the_rollout_are_read(hosts: Hosts) -> None:
    own = hosts.folder / "own.yml"
    asked = {"rollout_serial": "{{ together }}", "rollout_canary": "h03"}
    own.write_text(json.dumps([{"import_playbook": str(ROOT / ROLLOUT), "vars": asked}]), encoding="utf-8")
    status, text = hosts.run(str(own), "--check", "-e", "together=1")
    assert status == 0 and "4 hosts in 4 waves" in text and "h03: would change in wave 1" in text, text
    status, text = hosts.run(str(own), "--check", "-e", "together=0")
    wrong = "rollout_serial: '0' is neither a number of hosts nor a percentage, such as 20%"
    assert status == 3 and wrong in text, text
    status, text = hosts.run(str(own), "--check")
    assert status == 2 and "'together' is undefined" in text, text


OTHER = {"id": "b", "who": "ann on adm2 (site.yml, process 7)", "controller": "there", "pid": 7, "held": True}
OTHER |= {"stage": "models", "clock": "2026-11-25 10:00:00"}
HELD = "ann on adm2 (site.yml, process 7) has locked this host since 2026-11-25 10:00:00 (models)"


@pytest.mark.parametrize("lock", ["run", "rollout"])
def test_a_host_that_another_run_holds_stops_a_rollout_before_the_first_change(lock: str, hosts: Hosts) -> None:
    change(hosts.folder, "h04", holder={**OTHER, "lock": lock})
    status, text = hosts.run(ROLLOUT, "--check")
    assert status == 0 and f"h04: {HELD}; without --check this run would be refused" in text.replace("\n", " "), text
    status, text = hosts.roll()
    assert status == 2, text
    assert f"h04: {HELD}" in text
    assert "failed its checks" not in text and "rolled back" not in text
    # What it took itself is free for the next one.
    assert (hosts.changed, hosts.kept, hosts.locks) == ([], [], {})


def with_gateway(hosts: Hosts) -> dict[str, Any]:
    """Add gateway gw before all hosts; return its state, in which h02 is drained."""
    path = hosts.folder / "hosts.json"
    inventory = json.loads(path.read_text(encoding="utf-8"))
    gateway = {"fleet_gateway": {"clients": {"c": {"key": "k" * 32}}}, "vllm_models": None}
    inventory["all"]["hosts"] |= {"gw": gateway}
    inventory["all"]["vars"] |= {"fleet_gateway_secret": "0123456789abcdef" * 2}
    del inventory["all"]["vars"]["vllm_models"][0]["min_available"]
    path.write_text(json.dumps(inventory), encoding="utf-8")
    place = {"unit": "m", "model": "m", "address": "10.0.0.1", "port": 1, "takes": 1, "adapters": []}
    well = {"backend": "m", "up": True, "drained": False, "maintained": False, "weight": 100}
    states = [{**well, "name": f"{name}.m", "drained": name == "h02"} for name in NAMES]
    return {"servers": [{"host": name, **place} for name in NAMES], "states": states, "running": "x"}


RESTART, STOP = ("playbooks/restart.yml", "-e", "model=m"), ("playbooks/stop.yml", "-e", "model=m")


def test_a_run_beside_a_rollout_or_its_drained_hosts_takes_no_model_down(hosts: Hosts) -> None:
    live = with_gateway(hosts)
    # An interrupted rollout has left h02 drained.
    change(hosts.folder, "gw", haproxy=live)
    few = "h01: model 'm': 2 of 4 servers behind gateway gw would serve, of which 3 must stay; h02 is drained or down"
    for playbook in (RESTART, STOP, ("playbooks/models.yml",)):
        status, text = hosts.run(*playbook, "--limit", "h01")
        assert status != 0 and few in " ".join(text.split()), text
    # A rollout works, and has drained nothing at this moment.
    live["states"][1]["drained"] = False
    change(hosts.folder, "gw", haproxy=live, holder={**OTHER, "lock": "rollout"})
    status, text = hosts.run(*RESTART, "--limit", "h01")
    assert status != 0 and "because a rollout works behind gateway gw, and models would be down" in text, text
    assert (hosts.changed, hosts.locks) == ([], {})
    change(hosts.folder, "gw", haproxy=live, holder={})
    status, text = hosts.run(*RESTART, "--limit", "h01")
    assert status == 0 and "cannot be read" not in text, text


def test_a_user_may_take_models_down_beside_drained_hosts_and_a_start_takes_none_down(hosts: Hosts) -> None:
    change(hosts.folder, "gw", haproxy=with_gateway(hosts))
    allowed = ("-e", "fleet_all_at_once=true")
    for run in (
        (*RESTART, *allowed),
        ("playbooks/models.yml", "--check", *allowed),
        ("playbooks/start.yml", *RESTART[1:]),
    ):
        status, text = hosts.run(*run, "--limit", "h01")
        assert status == 0 and "too few servers" not in text, text


def test_a_gateway_that_cannot_be_read_is_named_and_stops_nothing(hosts: Hosts) -> None:
    path = hosts.folder / "hosts.json"
    inventory = json.loads(path.read_text(encoding="utf-8"))
    inventory["all"]["hosts"]["gw"] = {"fleet_gateway": {"clients": {"c": {"key": "k" * 32}}}, "vllm_models": None}
    path.write_text(json.dumps(inventory), encoding="utf-8")
    change(hosts.folder, "gw", away={"at": "gaudi_facts", "seconds": 300})
    status, text = hosts.run("playbooks/restart.yml", "-e", "model=m", "--limit", "h01")
    assert status == 0, text
    unread = "gateway gw cannot be read, so whether enough servers stay behind it is not known: "
    assert unread in " ".join(text.split()), text


def test_a_run_that_locks_a_host_meanwhile_is_named_and_nothing_is_reported_of_a_verification(hosts: Hosts) -> None:
    change(hosts.folder, "h02", holder={**OTHER, "at": "vllm_service"})
    status, text = hosts.roll()
    assert status == 2, text
    assert f"h02 could not be changed, and the rollout stops: {HELD}. It serves the same models as before; " in text
    assert f"h02: rolls back to what served before: {HELD}" in text
    assert "failed its checks" not in text
    assert (hosts.changed, hosts.kept, hosts.locks) == (["h01", "h03"], [], {})


def test_locks_that_no_longer_count_are_taken_over_and_reported_so_once(hosts: Hosts) -> None:
    for name in NAMES:
        change(hosts.folder, name, holder={**OTHER, "lock": "rollout", "expired": True})
    status, text = hosts.play(ROLLOUT)
    assert status == 0 and hosts.changed == ["h01"], text
    told = "this run has taken over the lock of ann on adm2 (site.yml, process 7) (models, since 2026-11-25 10:00:00), "
    assert f"{', '.join(NAMES)}: {told}since it was not renewed for 300 s" in text and text.count(told) == 1, text
