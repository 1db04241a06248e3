"""Who may change a host: what one run reports of another; two real runs are in scenario faults."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from helpers.plugins import acting, load

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
    assert module.conflict(found, given) == expected


@pytest.mark.parametrize("text", ["", "{half", "[]", "7"])
def test_a_record_that_cannot_be_read_holds_nobody(module: ModuleType, tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text, encoding="utf-8")
    assert module.record(tmp_path / "run.json") == {}


def test_only_a_dead_run_of_the_same_controller_is_known_to_be_dead(action: ModuleType) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        living = {"controller": "here", "pid": child.pid, "begin": action.begin_of(child.pid)}
        assert not action.is_dead(living, MINE)
        # The number of a process is given to another one some day.
        assert action.is_dead({**living, "begin": "1"}, MINE)
        child.kill()
    assert action.is_dead(living, MINE)
    assert not action.is_dead({**living, "controller": "there"}, MINE)


def test_refusals_name_the_holder_and_what_to_do(action: ModuleType) -> None:
    record = {**OTHER, "stage": "container_runtime", "clock": "2026-11-21 10:00:00"}
    held = action.refusal("h1", record, "held", {})
    assert held.startswith("h1: anna on ctl (site.yml, process 2) has locked this host since 2026-11-21 10:00:00")
    assert "-e fleet_lock_break=true" in held
    changed = action.refusal("h1", record, "changed", {})
    assert "has changed this host (container_runtime, 2026-11-21 10:00:00) since this run looked at it" in changed


def test_a_run_reports_person_machine_playbook_and_process(action: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ansible-playbook", "-i", "inventory/a.yml", "site.yml"])
    run = action.this_run({"awx_user_name": "anna"})
    assert run["who"].startswith("anna on ")
    assert "(site.yml, " in run["who"]
    assert run["pid"] == os.getppid()
    assert f"process {os.getppid()})" in run["who"]
    job = action.this_run({"awx_job_id": 7, "awx_schedule_name": "hourly"})
    assert "AWX job 7)" in job["who"]
    assert job["who"].startswith("schedule hourly on ")
    refusal = action.refusal("h", job, "held", {"awx_job_id": 8})
    # The survey of a workflow does not ask.
    within = action.refusal("h", job, "held", {"awx_job_id": 8, "awx_workflow_job_id": 9})
    assert "template images: launch it" in within and "-e fleet" not in within
    questions = yaml.safe_load((ROOT / "playbooks/vars/awx.yml").read_text(encoding="utf-8").replace("!unsafe", ""))
    question = questions["__awx_questions"]["break"]
    assert question["variable"] == "fleet_lock_break" and f'question "{question["question_name"]}"' in refusal


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

    def renew() -> bool:
        with log.open("a", encoding="ascii") as out:
            out.write("renewed\n")
        return True

    def renewals() -> int:
        return len(log.read_text(encoding="ascii").splitlines()) if log.exists() else 0

    def wait(condition: Any) -> bool:
        deadline = time.monotonic() + 20
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.05)
        return bool(condition())

    monkeypatch.setattr(action, "RENEW_S", 0.2)
    with subprocess.Popen(["sleep", "60"]) as child:
        run = {"pid": child.pid, "begin": action.begin_of(child.pid)}
        action.keep(run, 1, renew)
        assert wait(lambda: renewals() >= 2)
        child.kill()
    time.sleep(0.5)
    ended = renewals()
    time.sleep(0.7)
    assert renewals() == ended


class Host:
    """A host whose lock files are a folder: what the action plugin sends, the module's own code answers."""

    def __init__(self, module: ModuleType, action: ModuleType, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.action, self.module, self.patch = action, module, patch
        self.renew: Callable[[], bool] | None = None
        patch.setattr(module, "FOLDER", folder)
        patch.setattr(action, "keep", lambda run, lease_s, renew: setattr(self, "renew", renew))

    def lock(self, who: str, controller: str = "here", begin: str = "1", check: bool = False, **given: Any) -> Any:
        """Let a run lock the host, or check or release that; return the result of its task."""
        run = {"id": f"{who}-{begin}", "who": who, "controller": controller, "pid": os.getpid(), "begin": begin}
        variables = given.pop("variables", {})
        self.patch.setattr(self.action, "this_run", lambda _: run)
        arguments = {"name": "rollout", "stage": "rollout", **given}
        plugin = acting(self.action, lambda _, sent: self.execute(sent, check), check, **arguments)
        return plugin.run(task_vars={"inventory_hostname": "h1", **variables})

    def execute(self, sent: dict[str, Any], check: bool) -> dict[str, Any]:
        """Run the module with arguments as Ansible does, and return its answer."""
        said = io.StringIO()
        arguments = patch_module_args({**sent, "_ansible_check_mode": check})
        with arguments, contextlib.redirect_stdout(said), pytest.raises(SystemExit):
            self.module.main()
        answer: dict[str, Any] = json.loads(said.getvalue())
        answer.pop("invocation", None)
        return answer


def test_variables_set_the_lease_of_a_lock_and_break_it(
    module: ModuleType, action: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host, begin = Host(module, action, monkeypatch, tmp_path / "locks"), action.begin_of(os.getpid())
    named = {"variables": {"fleet_lock_break": True, "fleet_lock_lease_s": 7}}
    assert host.lock("ann", begin=begin, **named)["held"]
    assert "its lock ends 7 s after" in host.lock("ben", controller="there")["msg"]
    assert host.lock("ben", check=True, **named)["warnings"][0].endswith("), since fleet_lock_break is set")


def test_a_rollout_finds_the_lock_of_another_run_and_takes_over_stale_ones(
    module: ModuleType, action: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now, folder = [1000.0], tmp_path / "locks"
    monkeypatch.setattr(module, "since_boot", lambda: now[0])
    host, begin = Host(module, action, monkeypatch, folder), action.begin_of(os.getpid())
    # A check takes nothing, on a host that was never locked too.
    told = {"changed": False, "held": False, "holder": {}, "taken_over": {}}
    assert host.lock("ann", begin=begin, check=True) == told
    assert not folder.exists()
    assert host.lock("ann", begin=begin)["held"]
    # What the process beside the run does meanwhile.
    assert host.renew and host.renew()
    for state in ("free", "present"):
        refused = host.lock("ben", controller="there", state=state)
        assert refused["failed"] and refused["locked"].startswith("ann has locked this host since ")
    checked = host.lock("ben", controller="there", check=True)
    assert checked["warnings"][0].startswith("h1: ann has locked this host since ") and "failed" not in checked
    assert checked["warnings"][0].endswith(" (rollout); without --check this run would be refused")
    broken = {"variables": {"fleet_lock_break": True}}
    assert "would take over the lock of ann (rollout, since " in host.lock("ben", check=True, **broken)["warnings"][0]
    taken = host.lock("ben", **broken)["warnings"][0]
    assert taken.startswith("h1: this run has taken over the lock of ann (rollout, since ")
    assert taken.endswith("), since fleet_lock_break is set")
    # Its process has this number no more: of the same controller that is known at once.
    dead = host.lock("cem", begin=begin)
    assert dead["held"] and dead["warnings"][0].endswith("since its process on this controller has ended")
    assert "lock of ben" in dead["warnings"][0]
    now[0] += 299
    assert host.lock("dan", controller="there")["failed"]
    now[0] += 2
    expired = host.lock("dan", controller="there")
    assert expired["held"] and expired["warnings"][0].endswith("since it was not renewed for 300 s")
    # What is one's own, or was released, is nobody's to be informed about.
    assert "warnings" not in host.lock("dan", controller="there")
    assert host.lock("dan", controller="there", state="absent")["held"] is False
    assert "warnings" not in host.lock("eva")
