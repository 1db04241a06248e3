"""In which order a rollout changes hosts, what it refuses, and when a host failed its checks."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gaudi_serve.awx.approval import Approvals as action_approvals
from gaudi_serve.core.words import counted
from gaudi_serve.host import rollout as host_rollout
from gaudi_serve.host.smoke import Server, Unhealthy
from gaudi_serve.rollout.approved import rollout_due, rollout_unapproved
from gaudi_serve.rollout.figures import benchmark_lines, slower_models, verified_text
from gaudi_serve.rollout.waves import hosts_down_at_once, restarted_at_once, rollout_plan, too_few_servers
from helpers.plugins import load
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
GATEWAY = {"preflight_gateways": ["gw"]}
# Shown for more than four hosts alone.
STILL_MANY = ["stage_output.py: {len(hosts)} hosts"] * 2


def service(model: str, name: str) -> dict[str, Any]:
    """Return a model that serves, by the name that it was started with."""
    return {
        "active": True,
        "digest": "old",
        "launch": {"command": ["vllm", "--served-model-name", name]},
        "unit": model,
    }


def host(models: dict[str, str], due: bool = True, least: int | None = None, **more: Any) -> dict[str, Any]:
    """Return what preflight has found of a host that serves models, all of which a run restarts."""
    planned = [
        {
            "name": unit,
            "served_model_name": name,
            "min_available": least,
            "digest": "new",
            "weights": "/w",
            "warmup_s": 600,
            "warmup_cached_s": None,
        }
        for unit, name in models.items()
    ]
    return {
        "gaudi_host": {"services": {unit: service(unit, name) for unit, name in models.items()}, "weights": {}},
        "preflight_plan": {"models": planned},
        "vllm_service_due": ["restart"] if due else [],
        "vllm_service_stops": {"restart": list(models)} if due else {},
        **more,
    }


def fleet(count: int, **more: Any) -> dict[str, Any]:
    """Return hosts that all serve one model."""
    return {f"g{number}": host({"qwq": "Qwen/QwQ"}, **more) for number in range(1, count + 1)}


def plan(hosts: dict[str, Any], **variables: Any) -> dict[str, Any]:
    """Return the plan of a rollout over hosts and their gateway."""
    every = {**hosts, **({} if "gw" in hosts else {"gw": {}})}
    return rollout_plan(every, list(every), {**GATEWAY, **variables})


def test_a_canary_comes_first_and_all_but_one_stay() -> None:
    found = plan(fleet(4), rollout_canary="g3", rollout_serial="50%")
    assert found["waves"] == [["g3"], ["g1"], ["g2"], ["g4"]]
    assert [len(wave) for wave in found["waves"][1:]] == [1, 1, 1]
    assert found["lines"][0].split() == ["WAVE", "HOST", "DUE", "AWAY", "STAY"]
    assert found["lines"][2].split() == ["1", "canary", "g3", "models", "qwq", "10", "min", "Qwen/QwQ", "3/4"]
    assert found["steps"][0] == (
        "Wave 1, the canary: g3, for models; away: qwq 10 min; servers that stay: Qwen/QwQ 3/4."
    )
    assert found["lines"][-1] == "waves are smaller than 50%, because 3 servers of Qwen/QwQ must stay"


def test_a_canary_that_has_nothing_due_is_reported() -> None:
    hosts = fleet(3)
    hosts["g2"] = {**hosts["g2"], "vllm_service_due": []}
    found = plan(hosts, rollout_canary="g2")
    assert found["waves"][0] == ["g1"]
    assert "rollout_canary g2: it has no pending changes, so g1 comes first" in found["lines"]


def test_waves_are_as_large_as_may_be() -> None:
    def sizes(found: dict[str, Any]) -> list[int]:
        return [len(wave) for wave in found["waves"][1:]]

    assert sizes(plan(fleet(10, least=5))) == [2, 2, 2, 2, 1]
    assert sizes(plan(fleet(10, least=5), rollout_serial=5)) == [5, 4]
    assert sizes(plan(fleet(10, least=7), rollout_serial="100%")) == [3, 3, 3]
    # Hosts that serve nothing of each other's may go together.
    apart = {"a": host({"x": "x"}), "b": host({"x": "x"}), "c": host({"y": "y"}), "d": host({"y": "y"})}
    assert plan(apart, rollout_serial=4)["waves"] == [["a"], ["b", "c"], ["d"]]


def test_too_few_servers_are_refused_unless_that_is_allowed() -> None:
    alone = plan({"g1": host({"qwq": "qwq"})})
    assert alone["refusal"] == [
        "g1: model 'qwq': has one server on the hosts of this run, and no other serves it while that one is changed; "
        "add one, or allow it: "
        "-e rollout_downtime_allowed=true"
    ]
    assert plan({"g1": host({"qwq": "qwq"})}, rollout_downtime_allowed="true")["waves"] == [["g1"]]
    few = plan(fleet(3, least=3))["refusal"]
    assert few == [
        "g1, g2, g3: model 'Qwen/QwQ': has 3 servers on the hosts of this run, of which min_available 3 must stay; "
        "add one, or allow it: "
        "-e rollout_downtime_allowed=true"
    ]
    # Drained, a host serves none of its models, also those that do not change.
    two = {**fleet(2), "g3": host({"qwq": "Qwen/QwQ", "only": "only"})}
    two["g3"]["vllm_service_stops"]["restart"] = ["qwq"]
    assert "model 'only': has one server" in plan(two)["refusal"][0]
    assert not plan(two, preflight_gateways=[])["refusal"]
    assert "no gateway and no rollout_drain_command" in plan(two, preflight_gateways=[])["lines"][-1]


def test_hosts_that_are_done_are_passed_over_and_drained_ones_are_not() -> None:
    hosts = {"g1": host({"qwq": "q"}, due=False), "g2": host({"qwq": "q"}), "g3": host({"qwq": "q"}, due=False)}
    assert plan(hosts)["waves"] == [["g2"]]
    states = [{"name": "g3.qwq", "drained": True}, {"name": "g1.qwq", "drained": False}]
    servers = [{"host": name, "unit": "qwq"} for name in hosts]
    hosts["gw"] = {"gaudi_haproxy": {"states": states, "servers": servers}}
    assert plan(hosts)["waves"] == [["g2"], ["g3"]]
    assert "return to service" in plan(hosts)["lines"][3]
    assert plan({**hosts, "gw": {}}, preflight_gateways=["gw", "gw2"])["refusal"] == [
        "gw2: is a gateway outside this run, which would send requests to hosts that are down; add it "
        "to --limit, or repair it"
    ]
    hosts["g1"]["gaudi_services"] = {"kept": True}
    assert plan(hosts)["waves"] == [["g1"], ["g2"], ["g3"]]
    assert plan({"g1": host({"q": "q"}, due=False)})["lines"] == ["no host has pending changes"]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"rollout_canary": "g9"}, "rollout_canary: 'g9' is not a host of this run; there are g1, g2, gw"),
        ({"rollout_serial": "0%"}, "rollout_serial: '0%' is neither a number of hosts nor a percentage, such as 20%"),
        ({"rollout_serial": 0}, "rollout_serial: 0 is neither a number of hosts nor a percentage, such as 20%"),
        (
            {"rollout_least_speed": 1.2},
            "rollout_least_speed: 1.2 is not a number from 0 to 1: the required part of a host's earlier speed",
        ),
        (
            {"rollout_tolerance": 0.9},
            "rollout_tolerance: is not a variable of a rollout; did you mean rollout_least_speed?",
        ),
        (
            {"rollout_least_speed": "x"},
            "rollout_least_speed: 'x' is not a number from 0 to 1: the required part of a host's earlier speed",
        ),
        ({"rollout_drain_timeout": "soon"}, "rollout_drain_timeout: 'soon' is not an integer from 1 to 86400"),
        ({"rollout_reconnect_timeout": 0}, "rollout_reconnect_timeout: 0 is not an integer from 1 to 86400"),
        ({"rollout_approved": "sure"}, "rollout_approved: 'sure' is not true or false"),
        ({"rollout_aproved": True}, "rollout_aproved: is not a variable of a rollout; did you mean rollout_approved?"),
        (
            {"rollout_drain_command": ["lb", "x"], "rollout_ready_command": "x"},
            'rollout_drain_command: ["lb", "x"] is not a command; write program and arguments as one text',
        ),
        (
            {"rollout_drain_command": " ", "rollout_ready_command": " "},
            "rollout_drain_command: ' ' is not a command; write program and arguments as one text",
        ),
        (
            {"rollout_drain_command": "x"},
            "rollout_drain_command and rollout_ready_command: set both, or hosts would stay out of service",
        ),
    ],
)
def test_bad_input_gets_one_sentence(variables: dict[str, Any], message: str) -> None:
    found = plan(fleet(2), **variables)
    assert found["refusal"][0].startswith(message), found["refusal"]
    assert found["waves"] == []


def test_models_down_on_several_hosts_at_once() -> None:
    hosts = {"g1": host({"q": "q"}), "g2": host({"q": "q"}), "g3": host({"q": "q"}, due=False)}
    assert hosts_down_at_once(hosts, list(hosts)) == ["g1", "g2"]
    assert hosts_down_at_once(hosts, ["g1", "g3"]) == []
    # What is not planned any more goes for good, and no order of hosts keeps it.
    hosts["g2"]["vllm_service_stops"] = {"remove": ["q"]}
    assert hosts_down_at_once(hosts, list(hosts)) == []


def test_figures_of_a_host_are_reported_beside_those_of_before() -> None:
    before, after = {"m": {"tokens_s": 500.0, "first_token_s": 0.1}}, {"m": {"tokens_s": 450.0, "first_token_s": 0.12}}
    lines = verified_text("h1", before, after).split("\n")
    assert lines == [
        "h1 serves with the change, and passed its checks:",
        "m: 450 tokens a second (500 before), first token after 0.12 s (0.1 before)",
    ]
    assert "before" not in verified_text("h1", {}, after)
    assert benchmark_lines({"h1": after, "h2": {}})[2].split() == ["h1", "m", "120", "ms", "450"]
    assert benchmark_lines({"h1": {}}) == ["no model answers on any host"]


def test_an_answer_that_nobody_gave_counts_as_none() -> None:
    empty = dict.fromkeys(("rollout_canary", "rollout_serial", "rollout_least_speed", "rollout_drain_timeout"), "")
    assert rollout_plan({}, [], empty)["settings"] == rollout_plan({}, [], {})["settings"]


def test_what_is_slower_than_before_is_reported() -> None:
    before = {"a": {"first_token_s": 0.5, "tokens_s": 100.0}, "b": {"first_token_s": 0.01, "tokens_s": 50.0}}
    assert slower_models(before, before, 1.0) == []
    after = {"a": {"first_token_s": 0.7, "tokens_s": 79.0}, "b": {"first_token_s": 0.1, "tokens_s": 41.0}, "new": {}}
    assert slower_models(before, after, 0.8) == [
        "a: 79 tokens a second, 0.79 of 100 before (rollout_least_speed 0.8)",
        "a: first token after 0.7 s, 0.5 s before (rollout_least_speed 0.8)",
    ]
    assert slower_models(before, after, 0.0) == []


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(st.sets(st.sampled_from("xyz"), max_size=3), min_size=1, max_size=8),
    st.sampled_from([1, 3, "20%", "50%", "100%"]),
    st.integers(0, 3) | st.none(),
)
def test_at_no_time_are_there_fewer_servers_than_must_stay(
    models: list[set[str]], serial: Any, least: int | None
) -> None:
    hosts = {f"h{number}": host({one: one for one in some}, least=least) for number, some in enumerate(models)}
    found = plan(hosts, rollout_serial=serial)
    servers = {model: sum(model in some for some in models) for model in "xyz"}
    if found["refusal"]:
        assert any(count > 0 and count - 1 < (least if least is not None else 1) for count in servers.values())
        return
    assert sorted(name for wave in found["waves"] for name in wave) == sorted(hosts)
    assert len(found["waves"][0]) == 1
    for wave in found["waves"]:
        for model, count in servers.items():
            away = sum(model in models[int(name[1:])] for name in wave)
            assert not away or count - away >= (least if least is not None else max(1, count - 1))


@pytest.mark.parametrize(
    ("servers", "away", "least", "said"),
    [
        (3, [], None, ""),
        (1, [], None, ""),
        (3, ["h1"], None, "1 of 3 servers behind gateway gw would serve, of which 2 must stay; h1 is drained or down"),
        (3, ["h1"], 1, ""),
        (3, ["h1", "h2"], 1, "0 of 3 servers behind gateway gw would serve, of which 1 must stay; h1, h2 is drained"),
        (2, [], 2, "1 of 2 servers behind gateway gw would serve, of which 2 must stay"),
        # It serves nothing already.
        (2, ["h0", "h1"], None, ""),
    ],
)
@pytest.mark.parametrize("how", ["drained", "maintained", "up"])
def test_a_run_beside_drained_servers_keeps_enough(
    servers: int, away: list[str], least: int | None, said: str, how: str
) -> None:
    names = [f"h{number}" for number in range(servers)]
    entries = [
        {"host": name, "unit": "m", "model": "m", "address": "10.0.0.1", "port": 1, "takes": 1, "adapters": []}
        for name in names
    ]
    well = {"backend": "m", "up": True, "drained": False, "maintained": False, "weight": 100}
    states = [{**well, "name": f"{name}.m", **({how: how != "up"} if name in away else {})} for name in names]
    hostvars = {"h0": host({"m": "m"}, least=least), "gw": {"gaudi_haproxy": {"servers": entries, "states": states}}}
    # All but h0 are outside the run.
    assert ("h0: model 'm': " + said if said else "") in "".join(too_few_servers(hostvars, ["h0"], ["gw"]))
    assert bool(too_few_servers(hostvars, ["h0"], ["gw"])) == bool(said)
    # A gateway that was not read judges nothing, and a restart of another unit takes nothing down.
    assert (
        too_few_servers({**hostvars, "gw": {}}, ["h0"], ["gw"]) == too_few_servers(hostvars, ["h0"], ["gw"], "n") == []
    )


def test_a_restart_on_several_hosts_at_once_is_found() -> None:
    serving, other = {"m": {"active": True}}, {"m": {"active": False}, "n": {"active": True}}
    hosts = {
        name: {"gaudi_services": {"units": units}} for name, units in (("a", serving), ("b", serving), ("c", other))
    }
    assert restarted_at_once(hosts, ["a", "b", "c"], "m") == ["a", "b"]
    # One that does not serve is started by it; one alone is what was asked for.
    assert restarted_at_once(hosts, ["a", "c"], "m") == [] and restarted_at_once(hosts, ["a", "b", "c"], "n") == []
    assert restarted_at_once({"a": {}, "b": {}}, ["a", "b"], "m") == []


def test_a_host_proves_itself_with_figures() -> None:
    after = {"a": {"first_token_s": 0.5, "tokens_s": 100.0}, "new": {"first_token_s": 0.1, "tokens_s": 7.0}}
    assert verified_text("g1", {"a": {"first_token_s": 0.4, "tokens_s": 90.0}}, after).splitlines() == [
        "g1 serves with the change, and passed its checks:",
        "a: 100 tokens a second (90 before), first token after 0.5 s (0.4 before)",
        "new: 7 tokens a second, first token after 0.1 s",
    ]
    assert verified_text("g1", {}, {}).endswith("it has no model")


@pytest.mark.parametrize(("number", "text"), [(0, "0 hosts"), (1, "1 host"), (2, "2 hosts")])
def test_counts_agree_with_their_nouns(number: int, text: str) -> None:
    assert counted(number, "host") == text


def test_no_message_writes_a_count_by_itself() -> None:
    """A literal plural behind a number shows "1 hosts" some day; those listed are never one, or limits of many."""
    nouns = "host|model|server|file|card|line|request|step|graph|shape|folder|link|time|error|day|thing|fork|job|image"
    plural = re.compile(
        rf"\{{[^{{}}:]*(?:len\(|count|taken|graphs|done|seen|fitting|restarts)[^{{}}:]*\}} (?:{nouns})s\b"
    )
    programs = [
        ROOT / "roles/model_weights/files" / name for name in ("fetch_weights", "convert_weights", "serve_weights")
    ]
    paths = [*ROOT.glob("lib/**/*.py"), *ROOT.glob("action_plugins/*.py"), *ROOT.glob("library/*.py"), *programs]
    found = [f"{path.name}: {text}" for path in paths for text in plural.findall(path.read_text(encoding="utf-8"))]
    assert found == STILL_MANY


def test_what_is_due_on_a_gateway_is_reported_and_is_no_wave() -> None:
    found = plan({"g1": host({"q": "q"}, due=False), "gw": {"gateway_due": ["serve g1.q (q)", "start it"]}})
    assert found["waves"] == []
    assert found["lines"] == [
        "no host has pending changes",
        "gateway gw, when the waves are done: serve g1.q (q); start it",
    ]


def test_a_server_that_shows_no_counts_is_not_idle() -> None:
    class Metrics(BaseHTTPRequestHandler):
        status, text = 200, b"vllm:num_requests_running 2.0\nvllm:num_requests_waiting 1.0\n"

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

        def do_GET(self) -> None:
            self.send_response(self.status)
            self.end_headers()
            self.wfile.write(self.text)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    models = [{"name": "m", "host": "127.0.0.1", "port": server.server_port}]
    assert host_rollout.busy(models) == {"m": "3"}
    Metrics.text = b"vllm:num_requests_running 0\n"
    assert host_rollout.busy(models) == {}
    Metrics.status = 500
    assert "unknown ones (/metrics on port" in host_rollout.busy(models)["m"]
    assert "answered status 500" in host_rollout.wait_idle(models, 0, 0)["m"]
    server.shutdown()
    server.server_close()
    # Nobody listens: there is nothing to wait for.
    assert host_rollout.busy(models) == {}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["data: {oops"], "the benchmark sent a line that is not JSON: b'data: {oops"),
        (["data: 7"], "the benchmark sent an event that is not an object: b'data: 7"),
        (['data: {"choices": null}', "data: [DONE]"], "an answer of the benchmark has no text"),
        (['data: {"choices": [{"delta": null}]}'], "an answer of the benchmark has no text"),
    ],
)
def test_a_stream_that_is_not_of_vllm_is_no_speed(lines: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "lines", lambda *_: (line.encode() for line in lines))
    with pytest.raises(Unhealthy, match=f"^{re.escape(said)}"):
        host_rollout.benchmark({"served_model_name": "m", "host": "127.0.0.1", "port": 1, "smoke": ["text"]}, 1, None)


NAMES = ["h1", "h2", "h3"]


def due_host(*lines: str) -> dict[str, Any]:
    """Return the variables of a host that has something due, as preflight keeps it."""
    return {"host_tuning_due": list(lines)} if lines else {}


def test_a_rollout_changes_nothing_that_was_not_approved() -> None:
    approved = rollout_due({"h1": due_host("sysctl a", "sysctl b"), "h2": due_host("sysctl a"), "h3": {}}, NAMES)
    assert approved == {"h1": ["host: sysctl a", "host: sysctl b"], "h2": ["host: sysctl a"]}
    variables = {"rollout_as_approved": True, "gaudi_rollout": {"due": approved}}
    # What is done already, as the canary's, need not be done again.
    assert rollout_unapproved({"h1": {}, "h2": due_host("sysctl a"), "h3": {}}, NAMES, variables) == []
    pushed = {"h1": due_host("sysctl a", "sysctl c"), "h2": due_host("sysctl a"), "h3": due_host("sysctl a")}
    assert rollout_unapproved(pushed, NAMES, variables) == [
        "h1: not in the approved plan: host: sysctl c",
        "h3: not in the approved plan: host: sysctl a",
    ]
    # Without the plan of the job before, nothing runs; at a desk there is no approval.
    assert "no earlier job" in rollout_unapproved(pushed, NAMES, {"rollout_as_approved": "true"})[0]
    assert rollout_unapproved(pushed, NAMES, {"gaudi_rollout": {"due": {}}}) == []


def test_a_plan_over_the_hosts_of_a_play_leaves_data_for_the_next_job(monkeypatch: pytest.MonkeyPatch) -> None:
    action = load("action_plugins/gaudi_rollout_plan.py")
    monkeypatch.setattr(action.ActionBase, "run", lambda *_, **__: {})
    plugin = action.ActionModule.__new__(action.ActionModule)
    plugin._task = SimpleNamespace(check_mode=False)

    def task(**variables: Any) -> dict[str, Any]:
        hosts = {"g1": {"host_tuning_due": ["sysctl a"], **variables}, "g2": {"host_tuning_due": ["sysctl a"]}}
        known = {"inventory_hostname": "g1", "ansible_play_hosts": list(hosts), "hostvars": {**hosts, "gone": {}}}
        found: dict[str, Any] = plugin.run(task_vars=known)
        return found

    found = task(rollout_as_approved=True, gaudi_rollout={"due": {"g1": []}})
    assert (found["waves"], found["changed"], found["settings"]["serial"]) == ([["g1"], ["g2"]], False, "20%")
    assert found["unapproved"] and found["unapproved"][0].startswith("g1: not in the approved plan: ")
    left = found["data"]
    assert (left["waves"], left["steps"], left["refusal"], left["hosts"]) == (found["waves"], found["steps"], [], {})
    assert left["text"] == "\n".join(found["lines"]) and list(left["due"]) == ["g1", "g2"]
    wrong = task(rollout_serial="0%")
    assert wrong["data"]["text"] == wrong["refusal"][0] and wrong["waves"] == wrong["unapproved"] == []


@pytest.mark.parametrize(
    ("before", "after", "continues", "reasons"),
    [
        ({"a": "successful"}, {"b": ""}, "no", 0),
        ({"a": "successful", "b": "successful"}, {}, "yes", 0),
        ({"a": "pending"}, {"b": ""}, "no", 1),
    ],
)
def test_no_variable_replaces_an_approval_of_awx(
    monkeypatch: pytest.MonkeyPatch, before: dict[str, str], after: dict[str, str], continues: str, reasons: int
) -> None:
    action = load("action_plugins/gaudi_rollout_plan.py")
    monkeypatch.setattr(action.ActionBase, "run", lambda *_, **__: {})
    monkeypatch.setattr(action, "seen_approvals", lambda *_: (action_approvals(before, after), []))
    plugin = action.ActionModule.__new__(action.ActionModule)
    plugin._task = SimpleNamespace(check_mode=False)
    due = {"host_tuning_due": ["sysctl a"], "rollout_approved": "true", "rollout_as_approved": "false"}
    plan = {"due": rollout_due({"g1": due}, ["g1"])}
    hosts = {"g1": {**due, "gaudi_rollout": plan}}
    known = {"inventory_hostname": "g1", "ansible_play_hosts": ["g1"], "hostvars": hosts}
    found = plugin.run(task_vars=known)
    assert (found["continues"], len(found["unapproved"])) == (continues, reasons)
    # The plan must be the approved one, whatever the variables are.
    hosts["g1"]["gaudi_rollout"] = {"due": {}}
    assert any("not in the approved plan" in line for line in plugin.run(task_vars=known)["unapproved"])


@pytest.mark.parametrize("name", ["awx_workflow_job_id", "tower_workflow_job_id"])
def test_a_job_of_a_workflow_asks_for_its_approvals(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    action = load("action_plugins/gaudi_rollout_plan.py")
    monkeypatch.setattr(action.ActionBase, "run", lambda *_, **__: {})
    monkeypatch.setattr(action, "seen_approvals", lambda *given: (None, ["unread"] if given[-1] else []))
    plugin = action.ActionModule.__new__(action.ActionModule)
    plugin._task = SimpleNamespace(check_mode=False)
    known = {"inventory_hostname": "g1", "ansible_play_hosts": ["g1"], "hostvars": {"g1": {}}}
    assert plugin.run(task_vars={**known, name: 9})["unapproved"] == ["unread"]
    assert plugin.run(task_vars=known)["unapproved"] == []


def test_what_no_line_shows_is_compared_too() -> None:
    def host(digest: str = "a", **more: Any) -> dict[str, Any]:
        model = {"name": "m", "state": "started", "module_ids": [0], "port": 8000, "digest": digest}
        plan = {"models": [model], "errors": []}
        return {"preflight_plan": plan, "gaudi_host": {"services": {}}, "vllm_service_due": ["start m"], **more}

    image = {"vllm_image_due": ["provide vllm:1"], "vllm_images": [{"name": "vllm:1", "archive": "/a"}]}
    gateway = {"gateway_due": ["write haproxy.cfg"], "fleet_gateway": {"port": 80}}
    approved = rollout_due({"h1": host(**image, **gateway)}, ["h1"])
    assert approved["h1"][:3] == [
        *("images: provide vllm:1", "gateway: write haproxy.cfg", "+ m: start on cards 0, port 8000"),
    ]
    variables = {"rollout_as_approved": True, "gaudi_rollout": {"due": approved}}

    def beyond(changed: dict[str, Any]) -> list[str]:
        found = rollout_unapproved({"h1": changed}, ["h1"], variables)
        return [line.partition(" with digest ")[0] for line in found]

    assert beyond(host(**image, **gateway)) == []
    # What is done already is not asked for again.
    assert beyond(host(**gateway)) == []
    # The environment of a model that starts, for example.
    assert beyond(host("b", **image, **gateway)) == ["h1: not in the approved plan: launch of m"]
    image["vllm_images"] = [{"name": "vllm:1", "archive": "/b"}]
    assert beyond(host(**image, **gateway)) == ["h1: not in the approved plan: vllm_images"]
    gateway["fleet_gateway"] = {"port": 81}
    assert beyond(host(**gateway)) == ["h1: not in the approved plan: fleet_gateway"]
    gateway["fleet_gateway"] = {"port": 80}
    assert beyond(host(**gateway)) == []
    # A server that runs as it is planned is not started, whatever else is due on its host.
    running = {**host(), "host_tuning_due": ["sysctl a"], "vllm_service_due": []}
    running["gaudi_host"] = {"services": {"m": {"active": True, "digest": "a"}}}
    assert rollout_due({"h1": running}, ["h1"]) == {"h1": ["host: sysctl a"]}
