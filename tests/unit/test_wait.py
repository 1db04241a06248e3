"""Waiting for models: what is looked at on the host, what a broken connection does, and what a failure shows."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from helpers.plugins import acting, load

ROOT = Path(__file__).parents[2]
SERVES = {"active": True, "state": "active", "sub_state": "running", "status": "", "restarts": 0}
STARTS = {**SERVES, "active": False, "state": "activating", "sub_state": "start"}


@pytest.fixture
def action() -> ModuleType:
    """Return the action plugin."""
    return load("action_plugins/vllm_wait.py")


def waiting(
    action: ModuleType, monkeypatch: pytest.MonkeyPatch, looks: list[Any], **args: Any
) -> tuple[Any, list[Any]]:
    """Return the plugin, whose modules give one of ``looks`` after the other, and the list of what they were asked."""
    asked: list[Any] = []

    def execute(name: str, given: dict[str, Any]) -> Any:
        asked.append((name, dict(given)))
        look = looks.pop(0)
        if isinstance(look, Exception):
            raise look
        return look

    monkeypatch.setattr(action.time, "sleep", lambda _: None)
    return acting(action, execute, **args), asked


def test_what_serves_is_not_asked_again(action: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [{"units": {"a": SERVES, "b": STARTS}}, {"units": {"b": SERVES}}]
    plugin, asked = waiting(action, monkeypatch, looks, models={"a": 60, "b": 60})
    assert not plugin.run(task_vars={}).get("failed")
    assert [given["models"] for _, given in asked] == [["a", "b"], ["b"]]
    assert {name for name, _ in asked} == {"vllm_units"}


def test_fewer_forks_than_hosts_are_reported_with_the_way_out(
    action: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts whose turn has not come have failed, or serve, silently."""
    told: list[str] = []
    monkeypatch.setattr(action.display, "warning", told.append)
    for forks, hosts in ((2, 3), (3, 3), (0, 3), (5, 0)):
        plugin, _ = waiting(action, monkeypatch, [{"units": {"a": SERVES}}], models={"a": 60})
        plugin.run(task_vars={"ansible_forks": forks, "ansible_play_batch": ["h"] * hosts})
    (note,) = told
    assert note.startswith("3 hosts start models, and this run has 2 forks: it waits for 2 hosts at a time")
    assert "--forks 3 " in note


def test_restarts_are_counted_from_a_first_look_that_waits_for_nothing(
    action: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a server that crashes at once has restarted a few times before anybody counts."""
    looks = [{"units": {"a": STARTS}}, {"units": {"a": {**STARTS, "restarts": 1}}}, {"units": {"a": SERVES}}]
    plugin, asked = waiting(action, monkeypatch, looks, models={"a": 60})
    plugin.run(task_vars={})
    assert [given["for_s"] for _, given in asked] == [0, 30, 30]
    assert [given["restarts"] for _, given in asked] == [{}, {"a": 0}, {"a": 1}]


def test_a_connection_that_breaks_is_tried_again(action: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [AnsibleConnectionFailure("reset by peer"), {"units": {"a": SERVES}}]
    plugin, asked = waiting(action, monkeypatch, looks, models={"a": 60})
    assert not plugin.run(task_vars={}).get("failed")
    assert len(asked) == 2


def test_a_host_that_stays_away_is_unreachable(action: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action, "UNREACHABLE_S", -1)
    plugin, _ = waiting(action, monkeypatch, [AnsibleConnectionFailure("no route")], models={"a": 60})
    with pytest.raises(AnsibleConnectionFailure):
        plugin.run(task_vars={})


def test_a_failure_shows_the_last_words_of_the_last_try(action: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = ["old"] * 40 + ["the reason", "vllm-a.service: Failed with result 'exit-code'."] + ["next try"] * 40
    ended = {"reason": "start_failed", "text": "the server ended with status 1: ValueError: no memory", "at": 1}
    paused = {**STARTS, "status": "failed before; next try in 10 s"}
    crashed = {"units": {"a": {**paused, "restarts": 2, "ended": ended}}}
    looks = [{"units": {"a": STARTS}}, crashed, {"stdout": "\n".join(journal)}]
    plugin, _ = waiting(action, monkeypatch, looks, models={"a": 60}, journal_lines=5)
    result = plugin.run(task_vars={"inventory_hostname": "h"})
    assert result["failed"]
    lines = result["msg"].splitlines()
    assert lines[0] == f"h: model a does not serve: it failed 2 times; last: {ended['text']}"
    assert lines[2:] == ["old", "old", "old", "the reason", "vllm-a.service: Failed with result 'exit-code'."]
