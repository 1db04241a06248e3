"""Who may change a host: what one run says of another; two real runs are in scenario faults."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from plugins import load

ROOT = Path(__file__).parents[2]
MINE = {"id": "a", "controller": "here", "pid": 1, "begin": "1", "who": "me"}
OTHER = {"id": "b", "controller": "there", "pid": 2, "begin": "2", "who": "anna on ctl (site.yml, process 2)"}


@pytest.fixture(scope="module")
def module() -> ModuleType:
    """Return what runs on the host."""
    return load("library/gaudi_lock.py")


@pytest.fixture(scope="module")
def action() -> ModuleType:
    """Return what runs on the controller."""
    return load("action_plugins/gaudi_lock.py")


def asked(**changed: Any) -> dict[str, Any]:
    """Return what a run asks the host."""
    return {"run": MINE, "observed": {"at": 100.0, "boot": "this"}, "lease_s": 3600, "instead_of": "", **changed}


@pytest.mark.parametrize(
    ("found", "given", "expected"),
    [
        ({}, asked(), ""),
        ({**MINE, "held": True, "at": 150}, asked(), ""),
        ({**OTHER, "held": True, "at": 150}, asked(), "held"),
        ({**OTHER, "held": True, "at": 150}, asked(instead_of="b"), ""),
        ({**OTHER, "held": True, "at": -3451}, asked(), ""),
        ({**OTHER, "controller": "here", "held": True, "at": -3451}, asked(), "held"),
        ({**OTHER, "held": False, "at": 150}, asked(), "changed"),
        ({**OTHER, "held": False, "at": 99}, asked(), ""),
        ({**OTHER, "held": False, "at": 150}, asked(observed={}), ""),
        # A boot that this run has not seen: the record is younger than its look, though its time is smaller.
        ({**OTHER, "held": False, "at": 50}, asked(observed={"at": 100.0, "boot": "before"}), "changed"),
    ],
)
def test_another_run_is_in_the_way_while_it_holds_or_after_it_has_changed(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], given: dict[str, Any], expected: str
) -> None:
    monkeypatch.setattr(module, "since_boot", lambda: 200.0)
    monkeypatch.setattr(module, "boot_id", lambda: "this")
    assert module.in_the_way(found, given) == expected


@pytest.mark.parametrize("text", ["", "{half", "[]", "7"])
def test_a_record_that_cannot_be_read_holds_nobody(module: ModuleType, tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text, encoding="utf-8")
    assert module.record(tmp_path / "run.json") == {}


def test_only_a_dead_run_of_the_same_controller_is_known_to_be_dead(action: ModuleType) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        living = {"controller": "here", "pid": child.pid, "begin": action._begin(child.pid)}
        assert not action.is_dead(living, MINE)
        # The number of a process is given to another one some day.
        assert action.is_dead({**living, "begin": "1"}, MINE)
        child.kill()
    assert action.is_dead(living, MINE)
    assert not action.is_dead({**living, "controller": "there"}, MINE)


def test_refusals_name_the_holder_and_what_to_do(action: ModuleType) -> None:
    record = {**OTHER, "stage": "container_runtime", "clock": "2026-11-21 10:00:00"}
    held = action.refusal("h1", record, "held")
    assert held.startswith("h1: anna on ctl (site.yml, process 2) holds this host since 2026-11-21 10:00:00")
    assert "-e gaudi_lock_break=true" in held
    changed = action.refusal("h1", record, "changed")
    assert "has changed this host (container_runtime, 2026-11-21 10:00:00) since this run looked at it" in changed


def test_a_run_tells_person_machine_playbook_and_process(action: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ansible-playbook", "-i", "inventory/a.yml", "site.yml"])
    run = action.this_run({"awx_user_name": "anna"})
    assert run["who"].startswith("anna on ")
    assert "(site.yml, " in run["who"]
    assert run["pid"] == os.getppid()
    assert f"process {os.getppid()})" in run["who"]
    job = action.this_run({"awx_job_id": 7, "awx_schedule_name": "hourly"})
    assert "AWX job 7)" in job["who"]
    assert job["who"].startswith("schedule hourly on ")
    refusal = action.refusal("h", job, "held")
    questions = yaml.safe_load((ROOT / "playbooks/vars/awx.yml").read_text(encoding="utf-8").replace("!unsafe", ""))
    question = questions["__awx_questions"]["break"]
    assert question["variable"] == "gaudi_lock_break" and f'question "{question["question_name"]}"' in refusal


def test_the_look_that_counts_is_the_one_that_the_plan_was_made_of(action: ModuleType) -> None:
    later = {"gaudi_observed_at": 200.0, "gaudi_boot_id": "x"}
    assert action.observed({**later, "preflight_observed": {"at": 100.0, "boot": "x"}}) == {"at": 100.0, "boot": "x"}
    assert action.observed(later) == {"at": 200.0, "boot": "x"}
    assert action.observed({}) == {}


def test_a_lease_is_renewed_while_its_run_lives_and_ends_with_it(
    action: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The keeper is a process of its own; it goes by the run's process, here a stand-in for ansible-playbook."""
    log = tmp_path / "renewed"

    def execute(name: str, given: dict[str, Any], task_vars: Any = None) -> dict[str, Any]:
        with log.open("a", encoding="ascii") as out:
            out.write(f"{name} {given['state']}\n")
        return {"held": True}

    def renewals() -> int:
        return len(log.read_text(encoding="ascii").splitlines()) if log.exists() else 0

    def wait(condition: Any) -> bool:
        deadline = time.monotonic() + 20
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.05)
        return bool(condition())

    plugin = action.ActionModule.__new__(action.ActionModule)
    plugin._execute_module = execute
    monkeypatch.setattr(action, "RENEW_S", 0.2)
    with subprocess.Popen(["sleep", "60"]) as child:
        run = {"pid": child.pid, "begin": action._begin(child.pid)}
        plugin._keep({"run": run, "lease_s": 1, "state": "present"}, {})
        assert wait(lambda: renewals() >= 2)
        child.kill()
    time.sleep(0.5)
    ended = renewals()
    time.sleep(0.7)
    assert renewals() == ended
    assert "gaudi_lock renewed" in log.read_text(encoding="ascii")
