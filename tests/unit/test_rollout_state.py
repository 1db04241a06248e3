"""The state of a host in a rollout: which events it allows, and what a run makes of them and reports."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from gaudi_serve.core.errors import BROKE, InputError
from gaudi_serve.rollout.state import (
    LOST,
    TRANSITIONS,
    UNDER_WAY,
    Event,
    Failure,
    RolloutState,
    State,
    next_state,
    rollout_stopped,
)
from helpers.plugins import ROOT, load

BEFORE = {"m": {"tokens_s": 500.0, "first_token_s": 0.1}}
SLOW = {"m": {"tokens_s": 100.0, "first_token_s": 0.1}}
GIVEN: dict[Event, dict[str, Any]] = {
    Event.VERIFY: {"before": BEFORE, "after": BEFORE, "least_speed": 0.8},
    Event.FAIL: {"task": "Verify | Send test requests to every model", "result": {"msg": "nonsense"}},
    Event.GIVE_UP: {
        "task": "Roll back | Send test requests to every model",
        "result": {"msg": "no answer"},
        "unreachable_s": 0,
    },
}
WAVES = [["h1"], ["h2", "h3"]]
# Every pair that is allowed, apart from the code's own table.
ALLOWED = {
    ("unchanged", "lock"): "gateway",
    ("pending", "lock"): "locked",
    ("locked", "approve"): "approved",
    ("locked", "decline"): "deferred",
    ("approved", "begin"): "draining",
    ("draining", "change"): "changing",
    ("changing", "verify"): "verified",
    ("verified", "accept"): "accepted",
    ("accepted", "serve"): "serving",
    **{(state, "fail"): "rolling_back" for state in ("draining", "changing", "verified")},
    **{(state, "lose"): "rolling_back" for state in ("draining", "changing", "verified", "rolling_back")},
    ("accepted", "fail"): "returning",
    **{(state, "lose"): "returning" for state in ("accepted", "returning")},
    ("rolling_back", "restore"): "rolled_back",
    ("returning", "restore"): "returned",
    **{(state, "give_up"): "left_drained" for state in ("rolling_back", "returning")},
    # It is decided about the others.
    **{(state, event): state for state in ("unchanged", "gateway", "serving") for event in ("approve", "decline")},
}


def at(state: str, **fields: Any) -> RolloutState:
    """Return a host of the second wave in a state."""
    return RolloutState("h2", State(state), 2, **fields)


def path(*events: str, host: str = "h2", **given: Mapping[str, Any]) -> RolloutState:
    """Return the state of a host of the waves after events, of which some are given something else than GIVEN."""
    now = RolloutState.planned(host, WAVES)
    for event in map(Event, events):
        now = next_state(now, event, {**GIVEN.get(event, {}), **given.get(event.value, {})})
        # What a task registers is all that the next one knows.
        now = RolloutState.of(host, yaml.safe_load(yaml.safe_dump(now.as_dict())))
    return now


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_an_event_is_allowed_by_the_table_or_refused_with_host_state_and_event(state: State, event: Event) -> None:
    expected = ALLOWED.get((state.value, event.value))
    now = at(state.value)
    if expected:
        assert next_state(now, event, GIVEN.get(event, {})).state.value == expected
        return
    with pytest.raises(InputError) as caught:
        next_state(now, event, GIVEN.get(event, {}))
    allowed = ", ".join(one.value for one in TRANSITIONS[state]) or "none"
    assert str(caught.value) == (
        f"h2: event {event.value} of a rollout is not allowed in state {state.value}; allowed: {allowed}"
    )


def test_every_state_has_a_row_and_a_way_to_it() -> None:
    assert set(TRANSITIONS) == set(State)
    reached = {state for row in TRANSITIONS.values() for state in row.values()}
    assert reached | {State.PENDING, State.UNCHANGED} == set(State)
    # A host that is under way can be lost, and no other one.
    assert {state for state, row in TRANSITIONS.items() if Event.LOSE in row} == UNDER_WAY


CHANGE = ("lock", "approve", "begin", "change")
DONE = (*CHANGE, "verify", "accept")
PATHS: list[tuple[tuple[str, ...], str, str]] = [
    # A whole one; one that stops after its canary; one whose locks are not all had.
    ((*DONE, "serve"), "serving", "verified"),
    (("lock", "decline"), "deferred", ""),
    ((), "pending", ""),
    # A failure in each step, with a way back and without.
    (("lock", "approve", "begin", "fail", "restore"), "rolled_back", "rolled_back"),
    ((*CHANGE, "fail", "restore"), "rolled_back", "rolled_back"),
    ((*CHANGE, "verify", "fail", "restore"), "rolled_back", "rolled_back"),
    ((*DONE, "fail", "restore"), "returned", "verified"),
    ((*CHANGE, "fail", "give_up"), "left_drained", "left_drained"),
    ((*DONE, "fail", "give_up"), "left_drained", "left_drained"),
    # A lost connection in each step, also while it rolls back, and once more after that.
    (("lock", "approve", "begin", "lose", "restore"), "rolled_back", "rolled_back"),
    ((*CHANGE, "lose", "restore"), "rolled_back", "rolled_back"),
    ((*CHANGE, "verify", "lose", "restore"), "rolled_back", "rolled_back"),
    ((*DONE, "lose", "restore"), "returned", "verified"),
    ((*CHANGE, "fail", "lose", "restore"), "rolled_back", "rolled_back"),
    ((*DONE, "fail", "lose", "restore"), "returned", "verified"),
    ((*CHANGE, "lose", "give_up"), "left_drained", "left_drained"),
    ((*CHANGE, "lose"), "rolling_back", "left_drained"),
]


@pytest.mark.parametrize(("events", "state", "outcome"), PATHS)
def test_paths_of_a_host_through_a_run(events: tuple[str, ...], state: str, outcome: str) -> None:
    found = path(*events)
    assert (found.state.value, found.report.get("outcome", "")) == (state, outcome)
    told = found.as_dict()
    stops = bool({"fail", "lose"} & {*events})
    assert (told["ended"], told["under_way"]) == (stops and state != "rolling_back", state == "rolling_back")
    assert told["lost"] == ("lose" in events)
    assert told["restored"] == (state in ("rolled_back", "returned"))
    # From acceptance on, and until then not, gateways serve what its plan has.
    assert told["accepted"] == ("accept" in events)
    assert rollout_stopped({"h2": {"rollout_host": told}, "h3": {}}, ["h2", "h3", "h4"]) == ["h2"] * stops
    assert rollout_stopped({"h2": {"rollout_host": told}}, ["h2"], lost=True) == ["h2"] * ("lose" in events)


@pytest.mark.parametrize("events", [CHANGE[: count + 1] for count in range(2, 4)] + [(*CHANGE, "fail")])
def test_a_host_that_nothing_more_was_heard_of_stops_the_others(events: tuple[str, ...]) -> None:
    hosts = {"h2": {"rollout_host": path(*events).as_dict()}, "h3": {"rollout_host": path("lock", "approve").as_dict()}}
    assert rollout_stopped(hosts, ["h2", "h3"]) == rollout_stopped(hosts, ["h2", "h3"], lost=True) == ["h2"]


def test_the_canary_needs_no_approval_and_hosts_without_a_change_take_no_part() -> None:
    assert path("lock", host="h1").as_dict()["approved"]
    assert not path("lock").as_dict()["approved"]
    assert path("lock", "approve").as_dict()["approved"]
    gateway = path("lock", "approve", host="gw")
    assert (gateway.state, gateway.wave, gateway.accepted) == (State.GATEWAY, 0, True)
    assert [path(host=name).as_dict()["has_lock"] for name in ("h1", "gw")] == [False, False]
    assert [path("lock", host=name).as_dict()["has_lock"] for name in ("h1", "h2", "gw")] == [True] * 3


def test_a_host_that_is_slower_than_before_is_not_verified() -> None:
    with pytest.raises(InputError) as caught:
        path(*CHANGE, "verify", verify={"after": SLOW})
    assert str(caught.value) == "m: 100 tokens a second, 0.20 of 500 before (rollout_least_speed 0.8)"


def test_what_is_left_as_data_of_a_host_that_serves() -> None:
    canary = [event for event in DONE if event != "approve"]
    assert path(*canary, host="h1").report == {
        "outcome": "verified",
        "before": BEFORE,
        "after": BEFORE,
        "text": "h1 serves with the change, and passed its checks:\n"
        "m: 500 tokens a second (500 before), first token after 0.1 s (0.1 before)",
    }


AGAIN = "It serves the same models as before; the other hosts of later waves are unchanged"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (
            path(*CHANGE, "fail", "restore", fail={"result": {"msg": "no model\nRuntimeError: a\nb"}}),
            "h2 failed its checks, and the rollout stops: Verify | Send test requests to every model: no model. "
            f"{AGAIN}\nRuntimeError: a\nb",
        ),
        # Another run has locked the host: whose that is stands in the place of the task.
        (
            path(*CHANGE, "fail", "restore", fail={"result": {"msg": "h2: ann holds it. Run again", "locked": "ann"}}),
            f"h2 could not be changed, and the rollout stops: ann. {AGAIN}",
        ),
        (
            path("lock", "approve", "begin", "fail", "restore", fail={"task": "Drain", "result": {"msg": "still 3"}}),
            f"h2 was not changed yet, and the rollout stops: Drain: still 3. {AGAIN}",
        ),
        (
            path("lock", "approve", "begin", "lose", "restore"),
            f"h2 could not be reached before it was changed, and the rollout stops: {LOST}. {AGAIN}",
        ),
        (
            path(*CHANGE, "fail", "restore", fail={"result": {"msg": "Broken pipe"}}),
            f"h2 could not be reached while it was changed, and the rollout stops: {LOST}. {AGAIN}",
        ),
        (
            path(*DONE, "fail", "restore", fail={"task": "Return", "result": {"msg": "no gateway"}}),
            "the rollout stops at h2: Return: no gateway. It had passed its checks and serves with the change; "
            "the other hosts of later waves are unchanged",
        ),
        (
            path(*CHANGE, "lose", "give_up", give_up={"unreachable_s": 300}),
            f"h2 could not be reached while it was changed, and the rollout stops: {LOST}. It could not be rolled "
            f"back, and stays drained"
            ": it could not be reached for 300 s; run this again",
        ),
        (
            path(*CHANGE, "fail", "give_up"),
            "h2 failed its checks, and the rollout stops: Verify | Send test requests to every model: nonsense. "
            "It could not be "
            "rolled back, and stays drained: Roll back | Send test requests to every model: no answer; run this again",
        ),
        # Lost once more while it was rolled back.
        (
            path(*CHANGE, "fail", "lose"),
            "h2 failed its checks, and the rollout stops: Verify | Send test requests to every model: nonsense. "
            "It could not be "
            f"rolled back, and stays drained: {LOST}; run this again",
        ),
    ],
)
def test_what_is_reported_of_a_host_at_which_the_rollout_stops(found: RolloutState, text: str) -> None:
    assert found.report["text"] == text


def test_the_reason_of_a_way_back_is_one_line() -> None:
    assert at("rolling_back", failure=Failure(State.CHANGING, "Wait: no\nlines")).reason == "Wait: no"
    assert at("rolling_back", failure=Failure(State.CHANGING, "Wait: no", locked="ann")).reason == "ann"
    assert at("changing").reason == ""
    assert BROKE in path(*CHANGE, "fail", fail={"result": {"msg": "Broken pipe"}}).reason


class Run:
    """The plugin on one host of a run: each task knows what the one before has registered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, check: bool = False) -> None:
        self.action, self.check = load("action_plugins/gaudi_rollout_host.py"), check
        monkeypatch.setattr(self.action.ActionBase, "run", lambda *_, **__: {})
        self.variables: dict[str, Any] = {"inventory_hostname": "h2"}

    def task(self, event: str, **given: Any) -> dict[str, Any]:
        """Run a task and register its result, also one that fails."""
        plugin = self.action.ActionModule.__new__(self.action.ActionModule)
        plugin._task = SimpleNamespace(check_mode=self.check, args={"event": event, **given})
        plugin._load_name = "gaudi_rollout_host"
        found: dict[str, Any] = plugin.run(task_vars=self.variables)
        self.variables["rollout_host"] = found
        return found


def test_the_plugin_goes_on_from_what_was_registered_also_by_a_task_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run(monkeypatch)
    assert run.task("lock")["msg"] == "h2: event lock: the host has no state in a rollout yet"
    del run.variables["rollout_host"]
    assert run.task("plan", waves=WAVES)["wave"] == 2
    for event in ("lock", "approve", "begin", "change"):
        found = run.task(event)
    assert (found["state"], found["changed"], found["event"]) == ("changing", False, "change")
    failed = run.task("verify", before=BEFORE, after=SLOW, least_speed=0.8)
    assert (failed["failed"], failed["state"]) == (True, "changing")
    assert "msg" in failed and "0.20 of 500 before" in failed["msg"]
    # What was registered may itself be the result that failed.
    assert run.task("fail", task="Prove", result=failed)["reason"] == f"Prove: {failed['msg']}"
    assert "is not allowed in state rolling_back" in run.task("serve")["msg"]
    assert run.task("restore")["report"]["outcome"] == "rolled_back"


def test_the_plugin_refuses_an_event_that_is_none_or_lacks_something(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch)
    for arguments, text in (
        ({"event": "prove"}, "value of event must be one of"),
        ({"event": "fail", "task": "x"}, "event is fail but all of the following are missing: result"),
        ({"event": "begin", "wave": 1}, "wave"),
    ):
        with pytest.raises(Exception, match=text):
            run.task(**arguments)


def test_a_check_finds_the_waves_and_changes_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, check=True)
    run.task("plan", waves=WAVES)
    for event in ("lock", "decline"):
        found = run.task(event)
        assert (found["state"], found["event"], found["has_lock"], found["approved"]) == (
            "pending",
            event,
            False,
            False,
        )


def events_of(tasks: Any) -> list[str]:
    """Return the events of a file of tasks, in order."""
    found = []
    for task in tasks or []:
        for key in ("block", "rescue", "always"):
            found += events_of(task.get(key))
        if "gaudi_rollout_host" in task:
            # A task that is skipped would register that it was skipped in the place of the state.
            assert task["register"] == "rollout_host" and "when" not in task, task["name"]
            found.append(task["gaudi_rollout_host"]["event"])
    return found


def test_playbooks_register_every_event_without_a_condition() -> None:
    files = {
        path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in ROOT.glob("playbooks/tasks/rollout_*")
    }
    found = {name: events_of(tasks) for name, tasks in files.items() if events_of(tasks)}
    assert found == {
        "rollout_lock": ["lock"],
        "rollout_host": ["begin", "change", "verify", "accept", "serve", "fail"],
        "rollout_back": ["restore", "give_up"],
        "rollout_lost": ["lose"],
    }
    for path in ROOT.glob("playbooks/tasks/rollout_*"):
        assert "set_fact" not in path.read_text(encoding="utf-8"), path.name
