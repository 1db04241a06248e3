"""What playbooks/awx.yml is given, and whether what AWX asks is what the playbooks know."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from gaudi_serve.awx.objects import Ref, nodes, wanted
from gaudi_serve.awx.settings import (
    awx_default,
    awx_inputs,
    awx_models,
    awx_nothing_left,
    awx_refusal,
    awx_report,
    awx_settings,
)
from gaudi_serve.core.errors import InputError
from gaudi_serve.gateway.fleet import server_secrets
from gaudi_serve.host.secret import given_secrets
from gaudi_serve.inventory.variables import KNOWN, unknown_variables
from gaudi_serve.rollout.waves import SETTINGS
from gaudi_serve.stages.image import registry_login
from gaudi_serve.stages.service import secrets_refusal

ROOT = Path(__file__).parents[2]
SMALLEST: dict[str, Any] = {
    "execution_environment": {"image": "ee:1"},
    "project": {"url": "https://git.example.net/x.git"},
    "inventory": {"path": "inventory/mine"},
    "machine": {"username": "ops"},
}


class Unsafe(yaml.SafeLoader):
    """Reads what Ansible does not fill in as it stands."""


Unsafe.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))  # type: ignore[arg-type]
OBJECTS = yaml.load((ROOT / "playbooks/vars/awx.yml").read_text(encoding="utf-8"), Unsafe)  # noqa: S506 - a safe one
TEMPLATES = {one["name"]: one for one in OBJECTS["__awx_job_templates"]}


def said(playbook: str) -> str:
    """Return what a playbook reports, and all task files and variables that it may take."""
    beside = [*(ROOT / "playbooks").rglob("*.yml"), *(ROOT / "roles").rglob("*.yml")]
    roles = "\n".join(path.read_text(encoding="utf-8") for path in beside if path.name != "awx.yml")
    return (ROOT / playbook).read_text(encoding="utf-8") + roles


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_survey_asks_for_variables_that_the_playbook_has(name: str) -> None:
    one = TEMPLATES[name]
    assert (ROOT / one["playbook"]).is_file()
    text = said(one["playbook"])
    for question in one.get("survey", []):
        variable = question["variable"]
        assert variable in KNOWN or variable in SETTINGS or re.search(rf"\b{variable}\b", text), variable
        if question["type"] == "multiplechoice" and isinstance(question["choices"], list):
            assert all(isinstance(choice, str) for choice in question["choices"]), "YAML makes true and false of some"
            default = question["default"]
            assert default in ("", *question["choices"]) or f"awx_default('{variable}', '" in default


@pytest.mark.parametrize("name", TEMPLATES)
def test_nothing_is_an_answer_to_a_text_or_is_never_sent(name: str) -> None:
    # AWX's page sends an empty text for a field that someone has emptied.
    texts = [one for one in TEMPLATES[name].get("survey", []) if one["type"] == "text"]
    assert [one["variable"] for one in texts if one["min"] != 0] == []


def test_nobody_takes_models_down_everywhere_past_those_who_approve() -> None:
    given = {**SMALLEST, "rollout_approvers": ["carl"]}
    parts = {
        **{key: OBJECTS[f"__awx_{key}"] for key in ("workflows", "messages")},
        **{"templates": OBJECTS["__awx_job_templates"], "schedules": []},
    }
    asked = {
        item.ref.name.removeprefix("gaudi-serve ")
        for item in wanted(given, awx_settings(given), parts).items
        if any(ask["variable"] == "fleet_all_at_once" for ask in item.survey or [])
    }
    # These two change nothing on a host, and name one model.
    assert asked == {"restart", "stop"}


def test_what_a_job_leaves_is_no_misspelt_variable_of_the_next() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "playbooks").glob("*.yml")]
    left = {
        name for text in texts for name in re.findall(r"set_stats:[^-]+?data:[^-]*?(?:>-)?[^-]*?(gaudi_\w+)'?:", text)
    }
    assert {"gaudi_plan", "gaudi_status", "gaudi_tune", "gaudi_rollout", "gaudi_benchmark"} <= left
    assert unknown_variables([*left, "fleet_awx"], "h") == []


def test_workflows_use_templates_and_answers_that_there_are() -> None:
    for workflow in OBJECTS["__awx_workflows"]:
        asked = {one["variable"] for one in workflow["survey"]}
        identifiers = {node["identifier"] for node in workflow["nodes"]}
        for node in workflow["nodes"]:
            assert {*node.get("after", []), *node.get("after_failed", [])} <= identifiers
            if "template" in node:
                survey = TEMPLATES[node["template"]].get("survey", [])
                choices = {one["variable"]: one.get("choices") for one in survey}
                for variable, answer in node.get("answers", {}).items():
                    assert answer in choices[variable]
                    # The workflow's own answers win over those of a node.
                    assert variable not in asked
                assert not node.get("check") or TEMPLATES[node["template"]]["check"]


def test_the_guide_names_questions_as_the_surveys_do() -> None:
    guide = (ROOT / "docs/guides/awx.md").read_text(encoding="utf-8")
    asked = {one["variable"]: one["question_name"] for part in TEMPLATES.values() for one in part.get("survey", [])}
    named = re.findall(r"\*([A-Z][^*]+)\* ?\(`(\w+)`\)", guide.replace("\n", " "))
    assert ("Take over hosts that another run has locked", "fleet_lock_break") in named
    assert [(text, variable) for text, variable in named if asked[variable] != text] == []


def test_the_second_approval_names_the_waves_that_are_left() -> None:
    steps = ["Wave 1, the canary: h1, for a.", "Wave 2: h2, for a.", "Wave 3: h3, for a."]
    plan = {"waves": [["h1"], ["h2"], ["h3"]], "steps": steps, "hosts": {}}
    assert awx_report({}, plan) == "\n".join(steps)
    done = {**plan, "hosts": {"h1": {"text": "h1 is verified"}}}
    assert awx_report({}, done) == "\n".join(["h1 is verified.", "The waves:", *steps[1:]])


def test_the_example_is_whole() -> None:
    example = yaml.safe_load((ROOT / "inventory/examples/mixed/awx.yml").read_text(encoding="utf-8"))["fleet_awx"]
    # A template there, for the file of a key.
    example["machine"]["ssh_key"] = "-----BEGIN OPENSSH PRIVATE KEY-----\n-\n-----END OPENSSH PRIVATE KEY-----\n"
    found = awx_settings(example)
    assert found["runs"] == ["gaudi-serve hosts"]
    assert awx_settings(SMALLEST)["schedules"] == example["schedules"]


def test_secrets_are_in_the_inputs_alone() -> None:
    given = {**SMALLEST, "vllm_secrets": {"m": {"VLLM_API_KEY": "canary"}}, "model_weights_tokens": {"hub": "canary"}}
    assert "canary" not in json.dumps(awx_settings(given))
    text = awx_inputs(given, "vllm_secrets")["vllm_secrets"]
    assert given_secrets(text) == given["vllm_secrets"]
    assert awx_inputs(given, "model_weights_tokens") == {"hub": "canary"}
    logins = {"registry.example.net": {"username": "robot", "password": "canary"}}
    text = awx_inputs({"vllm_image_registries": logins}, "vllm_image_registries")["vllm_image_registries"]
    assert registry_login(text, "registry.example.net/vllm:1") == logins["registry.example.net"]


def test_jobs_check_the_certificate_of_their_awx() -> None:
    # AWX gives a job false for a box that nobody has ticked.
    login = {"host": "https://awx.example.net", "token": "t"}
    assert awx_inputs({"controller": login}, "controller")["verify_ssl"] is True
    assert awx_inputs({"controller": {**login, "verify_ssl": False}}, "controller")["verify_ssl"] is False


def test_secrets_as_the_text_of_a_credential() -> None:
    text = "m: {VLLM_API_KEY: abc}"
    assert secrets_refusal(text, "h") == []
    assert server_secrets(text, {"m": "m"}, [], "h") == {"m": {"VLLM_API_KEY": "abc"}}
    for wrong in ("canary: [", "canary", "", "m: {VLLM_API_KEY: 2026-13-01}"):
        reasons = secrets_refusal(wrong, "h")
        assert reasons == ["h: vllm_secrets: must be a mapping of models"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (None, "fleet_awx: is required: a mapping with project, inventory, machine and so on"),
        ({"machine": None}, "fleet_awx.machine: is required"),
        ({"machine": {"user": "ops"}}, "fleet_awx.machine: user: is not a known name; did you mean"),
        ({"machine": {}}, "fleet_awx.machine: is empty; leave it out, or set some of username, password, ssh_key"),
        ({"machine": {"ssh_key": "~/.ssh/id"}}, "fleet_awx.machine.ssh_key: (hidden) is not a private key: the text"),
        ({"vault": {"id": "site"}}, "fleet_awx.vault.password: is required"),
        ({"controller": {"token": "x"}}, "fleet_awx.controller.host: is required"),
        *(
            ({"controller": {"host": "a", "token": token}}, "fleet_awx.controller.token: (hidden) has a blank, the end")
            for token in ("canary\n", "“canary”", "can ary")
        ),
        ({"model_weights_tokens": {"hub": "canary\n"}}, "fleet_awx.model_weights_tokens.hub: (hidden) has a"),
        ({"controller": {"host": "u:canary@a", "token": "x"}}, "fleet_awx.controller.host: (hidden) is not an address"),
        ({"project": {"url": " "}}, "fleet_awx.project.url: ' ' is not a text of one line"),
        (
            {"inventory": {"hosts": {"h": {}}, "project": {"url": "https://x/y.git"}}},
            "fleet_awx.inventory.path: is required with a project",
        ),
        (
            {"inventory": {"hosts": {"h": {"ansible_become_password": "canary"}, "i": "canary"}}},
            "fleet_awx.inventory.hosts.i: (hidden) is not a mapping of variables",
        ),
        (
            {"inventory": {"hosts": ["canary"]}},
            "fleet_awx.inventory.hosts: (hidden) is not a mapping of hosts to their variables",
        ),
        (
            {"vllm_secrets": {"m": {"A": date(2026, 1, 1)}}},
            "fleet_awx.vllm_secrets: (hidden) has a value that is neither a text nor a number",
        ),
        ({"controller": {"host": "a"}}, "fleet_awx.controller.token: is required, or username and password"),
        ({"controller": {"host": "a", "username": "u"}}, "fleet_awx.controller.token: is required, or username and"),
        (
            {"fleet_gateway_secret": "canary"},
            "fleet_awx.fleet_gateway_secret: (hidden): it must be a quoted text of at least 32",
        ),
        (
            {"notifications": [{"name": "x", "type": "webhook", "configuration": {}}]},
            "fleet_awx.notifications[0].configuration.headers: is required: a mapping",
        ),
        (
            {"notifications": [{"name": "x", "type": "slack", "configuration": {"token": "t", "channels": "canary"}}]},
            "fleet_awx.notifications[0].configuration.channels: (hidden) is not a list",
        ),
        (
            {"notifications": [{"name": "x", "type": "irc", "configuration": {"port": True}}]},
            "fleet_awx.notifications[0].configuration.port: (hidden) is not an integer",
        ),
        ({"schedules": {"status": "DTSTART:20260101T000700Z RRULE:FREQ=SECONDLY;INTERVAL=1"}}, "is not a rule such as"),
        ({"schedules": {"status": "DTSTART:20260101T000700Z RRULE:FREQ=HOURLY;INTERVAL=0"}}, "is not a rule such as"),
        ({"project": {}}, "fleet_awx.project.url: is required: a text of one line"),
        ({"inventory": {}}, "fleet_awx.inventory.path: is required"),
        ({"approval_timeout": -1}, "fleet_awx.approval_timeout: -1 is not an integer from 0 to 2592000"),
        (
            {"notifications": [{"name": "x", "type": "pigeon", "configuration": {}}]},
            "notifications[0].type: 'pigeon' is none",
        ),
        ({"notifications": [{True: ["error"]}]}, "fleet_awx.notifications[0]: True: is not a known name"),
        (
            {"notifications": [{"name": "x", "type": "awssns", "configuration": {}}] * 2},
            "notifications: two of them have the name 'x'",
        ),
        ({"organization": "x "}, "fleet_awx.organization: 'x ' begins or ends with a blank, which AWX removes"),
        ({"prefix": " x"}, "fleet_awx.prefix: ' x' begins with a blank, which AWX removes"),
        (
            {"teams": {"operator": ["anna"]}, "rollout_approvers": ["anna"]},
            "fleet_awx.rollout_approvers: anna is in teams.operator too, and could approve a rollout of their own",
        ),
        (
            {"rollout_approvers": []},
            "fleet_awx.rollout_approvers: [] names no user; leave it out, or name at least one",
        ),
        ({"rollout_approvers": "anna"}, "fleet_awx.rollout_approvers: 'anna' is not a list of names"),
        ({"teams": {"viewer": "anna"}}, "fleet_awx.teams.viewer: 'anna' is not a list of names"),
        ({"execution_environment": {"image": "x", "pull": True}}, "execution_environment.pull: true is none of always"),
    ],
)
def test_every_mistake_has_its_sentence(given: Any, sentence: str) -> None:
    whole = given if given is None else {**SMALLEST, **given}
    assert any(sentence in reason for reason in awx_refusal(whole)), awx_refusal(whole)
    assert "canary" not in "".join(awx_refusal(whole))
    with pytest.raises(InputError):
        awx_settings(whole)


class Lazy(dict[str, Any]):
    """A mapping of Ansible, which fills in a value when it is read."""

    def __getitem__(self, key: str) -> Any:
        if key == "ssh_key":
            raise OSError("no file ~/.ssh/x\n")
        return super().__getitem__(key)


def test_what_cannot_be_read_is_named_with_all_else() -> None:
    lazy = Lazy(ssh_key="{{ lookup(...) }}", username="ops")
    assert awx_refusal({**SMALLEST, "machine": lazy, "notifications": [lazy], "forks": 0}) == [
        r"fleet_awx.machine.ssh_key: cannot be read: no file ~/.ssh/x\n",
        r"fleet_awx.notifications[0].ssh_key: cannot be read: no file ~/.ssh/x\n",
        "fleet_awx.forks: 0 is not an integer from 1 to 200",
        "fleet_awx.notifications[0]: username: is not a known name; did you mean name?",
    ]


def test_what_a_run_is_to_do_is_refused_with_all_else() -> None:
    assert awx_refusal({**SMALLEST, "forks": 0}, "gone", "maybe") == [
        "awx_state: 'gone' is none of present, absent",
        "awx_update_secrets: 'maybe' is not true or false",
        "fleet_awx.forks: 0 is not an integer from 1 to 200",
    ]
    for flag in (True, False, "true", "no", "1", 0):
        assert awx_refusal(SMALLEST, "absent", flag) == []


def test_models_of_all_hosts_each_once() -> None:
    of_hosts = [[{"name": "a"}, {"name": "b"}], "{{ nothing }}", [{"name": "b"}, {"weights": "/x"}], None]
    assert awx_models(of_hosts) == ["a", "b"]


@pytest.mark.parametrize(
    ("said", "otherwise", "answer"),
    [
        ([True, True], "false", "true"),
        (["yes", "yes"], "false", "true"),
        ([True, False], "false", "false"),
        ([None, True], "false", "true"),
        (["{{ nothing }}"], "false", "false"),
        ([2], "20%", "2"),
        ([0.9, 0.9], 0.8, 0.9),
        (["0.9"], 0.8, 0.8),
        ([300], 600, 300),
        ([True], 600, 600),
        ([], "quick", "quick"),
    ],
)
def test_a_survey_answers_what_all_hosts_report(said: list[Any], otherwise: Any, answer: Any) -> None:
    hosts: list[dict[str, Any]] = [{"x": value} for value in said]
    assert awx_default(hosts, "x", otherwise) == answer
    assert awx_default([*hosts, {}], "x", otherwise) == (answer if answer == otherwise else otherwise)


def test_the_approver_reads_the_waves_then_the_figures() -> None:
    plan = {"changes": {"h1": ["~ m: restart", "    + --max-num-seqs: 24", "! m is down for about 1 min"]}}
    rollout: dict[str, Any] = {"steps": ["Wave 1, the canary: h1."], "hosts": {}}
    due = "Pending changes:\nh1: ~ m: restart, + --max-num-seqs: 24, ! m is down for about 1 min."
    assert awx_report(plan, rollout) == f"Wave 1, the canary: h1.\n{due}"
    proven = {**rollout, "hosts": {"h1": {"text": "h1 passed its checks:\nm: fast"}}}
    assert awx_report(plan, proven) == "h1 passed its checks: m: fast.\nThe waves:\nWave 1, the canary: h1."
    assert awx_report("", "") == ""
    for one in (rollout, proven):
        linked = awx_report(plan, {**one, "page": "https://files.example/7.html"})
        assert linked == awx_report(plan, one) + "\nThe page: https://files.example/7.html"


def test_nobody_approves_where_no_host_is_left() -> None:
    canary, both = {"waves": [["h1"]]}, {"waves": [["h1"], ["h2"]]}
    assert awx_nothing_left({"waves": []}, "approve the plan").startswith(
        "No approval is needed: no host has pending changes."
    )
    assert awx_nothing_left(canary, "approve the plan") == ""
    assert "no host is left after the canary" in awx_nothing_left(canary, "approve the waves")
    assert awx_nothing_left(both, "approve the waves") == ""
    # Where no job has left its waves, a person decides.
    assert [awx_nothing_left(one, "approve the plan") for one in ({}, "", {"waves": "x"})] == ["", "", ""]


def test_a_workflow_begins_with_its_updates() -> None:
    given = [
        {"identifier": "a", "template": "a"},
        {"identifier": "b", "template": "b", "after": ["a"], "after_failed": ["a"]},
        {"identifier": "c", "template": "c", "after": ["b"], "after_failed": ["a"]},
    ]
    project, inventory = Ref("projects", "p"), Ref("inventory_sources", "i")
    found = {
        one["identifier"]: (one["success"], one["failure"], one["always"])
        for one in nodes(given, [project, project, inventory])
    }
    # AWX refuses a second edge between two nodes.
    assert found == {
        "update": (["update the inventory"], [], []),
        "update the inventory": (["read the inventory"], [], []),
        "read the inventory": (["a"], [], []),
        "a": ([], ["c"], ["b"]),
        "b": (["c"], [], []),
        "c": ([], [], []),
    }
