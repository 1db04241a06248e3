"""What awx.yml makes, changes, takes away and refuses, in Python, against the strict stand-in of AWX's API."""

from __future__ import annotations

import copy
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.awx.api import Api, AwxError, Login, Unfinished
from gaudi_serve.awx.approval import approval_text, seen_approvals
from gaudi_serve.awx.objects import defaults
from gaudi_serve.awx.run import Result, apply
from gaudi_serve.core.errors import InputError
from helpers.awx_api import TOKEN, Awx, serve
from helpers.awx_recorded import fields

ASK: dict[str, Any] = {
    "variable": "x",
    "question_name": "X",
    "question_description": "",
    "required": False,
    "type": "text",
    "min": 0,
    "max": 5,
    "default": "",
}
AROUND = {**ASK, "variable": "all_at_once", "unapproved": True}
PARTS: dict[str, Any] = {
    "templates": [
        {"name": "plan", "playbook": "plan.yml", "description": "Plans.", "team": "viewer", "timeout": 60},
        {
            **{"name": "reset", "playbook": "reset.yml", "description": "", "team": "admin", "timeout": 60},
            "survey": [ASK, AROUND],
        },
        {
            **{"name": "rollout", "playbook": "rollout.yml", "description": "", "team": "operator", "timeout": 60},
            **{"check": True, "unapproved": True},
        },
        {
            **{"name": "report", "playbook": "report.yml", "description": "", "team": "", "timeout": 60},
            **{"controller": True, "in_workflows_only": True},
        },
    ],
    "workflows": [
        {
            **{"name": "rollout with approvals", "description": "", "team": "operator", "limit": True},
            "nodes": [
                {"identifier": "waves to be", "template": "rollout", "check": True},
                {"identifier": "report the plan", "template": "report", "after": ["waves to be"]},
                {"identifier": "approve the plan", "approval": "See above.", "after": ["report the plan"]},
                {"identifier": "canary", "template": "rollout", "after": ["approve the plan"]},
            ],
        }
    ],
    "schedules": [
        {
            **{"name": "plan", "description": "", "template": "plan", "answers": {}},
            "rrule": "DTSTART:20260101T000700Z RRULE:FREQ=HOURLY;INTERVAL=1",
        }
    ],
    "messages": {
        "webhook": {"error": {"body": "{}"}, "workflow_approval": {"running": {"body": "{}"}}},
        "others": {"error": {"message": "{{ job.name }}"}},
    },
}
SETTINGS: dict[str, Any] = {
    **{"organization": "o", "prefix": "p "},
    "execution_environment": {"image": "ee:1"},
    "project": {"url": "https://git.example.net/x.git"},
    "inventory": {"path": "inventory/mine"},
    "machine": {"username": "ops"},
    "controller": {"host": "https://awx.example.net", "token": "of-the-controller"},
    "teams": {"viewer": ["anna"], "operator": ["bert"]},
}


class Site:
    """An AWX, and the settings for it."""

    def __init__(self, awx: Awx, address: str) -> None:
        self.awx, self.address = awx, address
        self.settings = copy.deepcopy(SETTINGS)

    @property
    def api(self) -> Api:
        """Return a client that waits for nothing."""
        return Api(Login(self.address, TOKEN), timeout_s=5, pause_s=0)

    def apply(self, **more: Any) -> Result:
        """Give it its settings, after a check whose lines are the same."""
        self.awx.writes.clear()
        found = apply(self.api, self.settings, PARTS, check=True, **more)
        assert self.awx.writes == []
        done = apply(self.api, self.settings, PARTS, **more)
        assert done == found and bool(self.awx.writes) == bool(found.lines)
        return done

    def named(self, kind: str) -> set[str]:
        """Return the names of all objects of a kind that begin with the prefix, without it."""
        found = (str(one["name"]) for one in self.awx.objects[kind].values())
        return {name.removeprefix("p ") for name in found if name.startswith("p ")}

    def roles(self, team: str) -> set[str]:
        """Return the roles that a team has, each with the object that it is about."""
        number = self.awx.named("teams", f"p {team}")["id"]
        found = set()
        for place, role in self.awx.roles.items():
            kind, of, name = place.split("/")
            if int(of) in self.awx.objects[kind] and number in self.awx.lists.get(f"roles/{role}/teams", []):
                found.add(f"{name} {self.awx.objects[kind][int(of)]['name'].removeprefix('p ')}")
        return found


@pytest.fixture
def bare() -> Iterator[Site]:
    """Return an AWX without anything."""
    awx = Awx(("plan.yml", "reset.yml", "rollout.yml", "report.yml"))
    with serve(awx) as address:
        yield Site(awx, address)


@pytest.fixture
def site(bare: Site) -> Site:
    """Return an AWX that has all."""
    assert bare.apply().refusal == []
    assert bare.apply() == Result([], [], [])
    return bare


def test_a_user_who_leaves_the_file_loses_the_team_and_what_was_given_by_hand(site: Site) -> None:
    site.awx.give("execute", "job_templates", "p reset", "users", "anna")
    site.awx.give("execute", "job_templates", "p reset", "teams", "p viewer")
    site.awx.give("admin", "teams", "p viewer", "users", "carl")
    site.awx.give("execute", "workflow_job_templates", "p rollout with approvals", "users", "dora")
    site.awx.give("execute", "organizations", "o", "users", "anna")
    # Who has made an object is its administrator.
    site.awx.give("admin", "job_templates", "p reset", "users", "admin")
    site.settings["teams"] = {"operator": ["bert"]}
    found = site.apply()
    assert sorted(found.lines) == [
        "- team p viewer: loses role execute of template p reset",
        "- user anna: loses role execute of template p reset",
        "- user anna: no longer a member of team p viewer",
        "- user carl: loses role admin of team p viewer",
    ]
    named = [
        "user anna has role execute of organization o, given by hand",
        "user dora has role execute of workflow p rollout with approvals, given by hand",
    ]
    assert sorted(found.notices) == named and sorted(site.apply().notices) == named
    assert site.roles("viewer") == {"execute plan", "read inventory"}
    # Who comes back has the team again, also in an AWX that keeps each role twice.
    site.settings["teams"] = {"viewer": ["anna"], "operator": ["bert"]}
    assert site.apply().lines == ["+ user anna: a member of team p viewer"]
    assert site.apply().lines == []


def test_who_launches_a_rollout_does_not_approve_it_where_the_file_names_others(site: Site) -> None:
    assert "approval rollout with approvals" in site.roles("operator") and "execute rollout" in site.roles("operator")
    site.settings["rollout_approvers"] = ["carl"]
    # Nor does a question let the others do the same without them.
    assert "~ template p reset: no longer asks for all_at_once" in site.apply().lines
    # The template that rolls out without any approval is gone; the workflow has its own, which nobody may start.
    assert site.named("job_templates") == {
        *("plan", "reset", "rollout with approvals: rollout", "rollout with approvals: report"),
    }
    assert site.roles("operator") == {
        *("execute plan", "execute rollout with approvals", "read inventory"),
        *("read rollout with approvals: rollout", "read rollout with approvals: report"),
    }
    assert site.roles("approver") == {
        *("approval rollout with approvals", "read inventory"),
        *("read rollout with approvals: rollout", "read rollout with approvals: report"),
    }
    del site.settings["rollout_approvers"]
    site.apply()
    assert "approver" not in site.named("teams") and "approval rollout with approvals" in site.roles("operator")


def test_what_leaves_the_file_is_removed_and_what_others_made_is_named(site: Site) -> None:
    site.settings["model_weights_tokens"] = {"hub": "x"}
    site.settings["inventory"]["hosts"] = {"h1": {}, "h2": {"a": 1}}
    hook = {"name": "one", "type": "webhook", "configuration": {"url": "http://x/", "headers": {}}}
    site.settings["notifications"] = [hook, {"name": "two", "type": "slack", "configuration": {}}]
    site.settings["notifications"][1]["configuration"] = {"token": "secret", "channels": ["x"]}
    lines = site.apply().lines
    assert {"+ notification p two", "+ host h1 of p inventory", "+ credential p tokens for weights"} < set(lines)
    # AWX answers null for messages that were not given, an empty password as it is, and hides one that is none.
    assert site.apply() == Result([], [], [])
    assert site.apply(update_secrets=True).lines == [
        "~ credential p hosts: its secrets are written again",
        "~ credential p approvals: its secrets are written again",
        "~ credential p tokens for weights: its secrets are written again",
        "~ notification p two: notification_configuration differs",
    ]
    site.settings["notifications"] = [{**hook, "name": "new"}]
    site.settings["inventory"]["hosts"] = {"h2": {"a": 2}}
    del site.settings["model_weights_tokens"]
    own = {"name": "p own", "organization": site.awx.named("organizations", "o")["id"]}
    site.awx.keep("teams", own)
    found = site.apply()
    (notice,) = found.notices
    assert notice.startswith("team p own has the prefix of this file, but not the mark of awx.yml: another user")
    assert {line for line in found.lines if line[0] == "-"} == {
        *("- notification p one", "- notification p two", "- host h1 of p inventory"),
        *("- host h1 of p rollout with approvals inventory", "- credential p tokens for weights"),
        "- credential type p tokens for weights",
    }
    assert "~ host h2 of p inventory: variables differs" in found.lines
    # Another file of the same organization has another prefix.
    site.settings["prefix"] = "q "
    assert not [line for line in site.apply().lines if line[0] == "-"]
    assert site.apply(absent=True).notices == ["organization o was not made with the prefix of this file"]
    assert "plan" in site.named("job_templates")


def test_a_copy_that_someone_made_stays_and_is_named(site: Site) -> None:
    site.settings["inventory"]["hosts"] = {"h1": {}}
    site.apply()

    def copied(kind: str, name: str, to: str, **more: Any) -> Any:
        one = site.awx.named(kind, name)
        return site.awx.keep(kind, {**{key: value for key, value in one.items() if key != "id"}, "name": to, **more})

    copied("job_templates", "p plan", "night plan of anna")
    inventory = copied("inventories", "p inventory", "p inventory of anna")
    copied("hosts", "h1", "h1", inventory=inventory["id"])
    text = "has the mark of awx.yml for another name, since it is a copy or was renamed; remove it if it"
    names = ["inventory p inventory of anna", "template night plan of anna"]
    expected = [f"{name} {text} is not needed" for name in names]
    assert site.apply() == Result([], expected, [])
    found = site.apply(absent=True)
    assert found.notices == [*expected, "organization o also has " + ", ".join(names)]
    assert [one["name"] for one in site.awx.objects["job_templates"].values()] == ["night plan of anna"]
    assert [one["inventory"] for one in site.awx.objects["hosts"].values()] == [inventory["id"]]


def test_an_organization_stays_with_what_others_have_in_it(site: Site) -> None:
    organization = site.awx.named("organizations", "o")["id"]
    label = site.awx.keep("labels", {"name": "night", "organization": organization})
    application = site.awx.keep("applications", {"name": "portal", "organization": organization})
    found = site.apply(absent=True)
    assert found.notices == ["organization o also has application portal, label night"]
    site.awx.drop("labels", label["id"])
    site.awx.drop("applications", application["id"])
    assert site.apply(absent=True).lines == ["- organization o"]


def test_a_workflow_updates_what_it_runs_once(site: Site) -> None:
    for one in (*site.awx.objects["projects"].values(), *site.awx.objects["inventory_sources"].values()):
        within = "rollout with approvals" in one["name"]
        assert (one.get("scm_update_on_launch") or one.get("update_on_launch") or False) is not within
    site.awx.syncs.clear()
    site.apply()
    assert site.awx.syncs == ["p toolkit", "p inventory source"]
    # Its templates need a playbook that its project may not have yet.
    site.awx.named("job_templates", "p rollout with approvals: rollout")["playbook"] = "plan.yml"
    site.awx.syncs.clear()
    site.apply()
    assert "p rollout with approvals toolkit" in site.awx.syncs
    site.settings["inventory"]["project"] = {"url": "https://git.example.net/inventory.git"}
    lines = site.apply().lines
    assert "+ node p rollout with approvals: update the inventory" in lines


def test_an_update_that_fails_shows_its_reason(bare: Site) -> None:
    bare.awx.failing = {"p inventory source": "\n".join(["1", *["..."] * 30, "\x1b[0;31mERROR! no such plugin\x1b[0m"])}
    with pytest.raises(AwxError, match=r"(?s)update of inventory source p inventory source: failed.*ERROR! no such"):
        apply(bare.api, bare.settings, PARTS)
    bare.awx.failing = {}
    assert "+ template p plan" in bare.apply().lines


def refused(site: Site, **more: Any) -> str:
    """Return why nothing is done."""
    site.awx.writes.clear()
    try:
        found = apply(Api(Login(site.address, **{"token": TOKEN, **more}), 5, 0), site.settings, PARTS)
        text = "\n".join(found.refusal)
    except AwxError as problem:
        text = str(problem)
    assert site.awx.writes == []
    return text.replace(site.address, "A")


def test_a_login_that_cannot_do_it_gets_one_sentence(site: Site) -> None:
    assert refused(site, token="wrong") == "A: AWX does not accept CONTROLLER_OAUTH_TOKEN: it is wrong or has expired"
    site.awx.scope = "read"
    assert refused(site) == "A: user admin: the token has scope read; make one with scope write"
    site.awx.scope, site.awx.me = "write", "anna"
    assert refused(site) == "A: user anna is not an administrator of organization o; use a token of one"
    site.settings["organization"] = "other"
    assert refused(site).startswith(
        "A: user anna is not a system administrator and cannot make organization other; use"
    )
    site.awx.me, site.settings["organization"] = "admin", "o"
    site.settings["teams"]["viewer"] = ["nobody"]
    assert refused(site) == "fleet_awx.teams.viewer: nobody is not a user of this AWX that user admin may see"
    site.settings["teams"]["viewer"], site.settings["collections"] = [], ["Galaxy"]
    assert refused(site).startswith("fleet_awx.collections: Galaxy is not a credential of this AWX")
    site.awx.version = "23.9.0"
    assert refused(site) == "A: AWX 23.9.0 is too old; 24.0 or later is needed"


def test_an_administrator_of_the_organization_may_do_all_but_credential_types(site: Site) -> None:
    site.awx.named("users", "bert")["edits"] = True
    site.awx.me = "bert"
    site.settings["forks"] = 5
    assert site.apply().lines[0] == "~ template p plan: forks 32 becomes 5"
    site.settings["model_weights_tokens"] = {"hub": "x"}
    assert refused(site).startswith(
        "user bert is not a system administrator of this AWX, and only such a user may make"
    )


def test_a_type_that_is_in_use_learns_how_it_sets_its_variable(site: Site) -> None:
    site.settings["fleet_gateway_secret"] = "x" * 32
    site.apply()
    kind = site.awx.named("credential_types", "p secret of the gateways")
    wanted, kind["injectors"] = kind["injectors"], {"extra_vars": {"other": "{{ fleet_gateway_secret }}"}}
    assert len(site.apply().lines) == 1
    assert kind["injectors"] == wanted == {"extra_vars": {"fleet_gateway_secret": "{{ fleet_gateway_secret }}"}}
    assert site.apply().lines == []


def test_a_redirect_is_named_and_nothing_follows_it(bare: Site) -> None:
    with serve(Awx()) as other:
        bare.awx.redirect = other.replace("127.0.0.1", "user:canary@localhost")
        target = other.replace("127.0.0.1", "localhost")
        text = f"A: answers GET /api/v2/ping with a redirect to {target}; export CONTROLLER_HOST={target}"
        assert refused(bare) == text
    with serve(elsewhere := Awx()) as other:
        bare.awx.redirect = other
        with pytest.raises(AwxError, match=r"answers POST /api/v2/teams with a redirect to http://127.0.0.1:\d+; ex"):
            bare.api.send("POST", "teams", {"name": "x"})
        assert elsewhere.heard == set()
    # To a page of its own, such as one where people log in.
    bare.awx.redirect = "/login?next="
    assert refused(bare) == "A: answers GET /api/v2/ping with a redirect"


@pytest.mark.parametrize(
    ("request_", "answer", "named"),
    [
        ("GET ping", b"[]", "GET ping"),
        ("GET ping", b"", "GET ping"),
        ("GET ping", b"null", "GET ping"),
        ("GET me", b'{"count": 0, "results": []}', "GET me"),
        ("GET me", b'{"detail": "x"}', "GET me"),
        ("GET organizations", b"null", "GET organizations"),
        ("GET organizations", b'{"results": null}', "GET organizations"),
        ("GET organizations", b'{"results": [1]}', "GET organizations"),
        ("GET organizations", b'{"results": [], "next": "/api/v2/ping"}', "GET organizations"),
        ("GET role_definitions", b'"x"', "GET role_definitions"),
    ],
)
def test_an_answer_of_another_shape_gets_one_sentence(site: Site, request_: str, answer: bytes, named: str) -> None:
    site.awx.odd = {request_: answer}
    assert refused(site) == f"A: the answer to {named} is not one of AWX; is this an AWX?"


def test_a_change_that_is_answered_oddly_gets_one_sentence(bare: Site) -> None:
    bare.awx.odd = {"POST credentials": b""}
    with pytest.raises(AwxError, match="the answer to POST credentials is not one of AWX; is this an AWX"):
        apply(bare.api, bare.settings, PARTS)
    bare.awx.odd = {"POST projects/": b"[]"}
    with pytest.raises(AwxError, match="update of project p toolkit: AWX has not started it"):
        apply(bare.api, bare.settings, PARTS)
    bare.awx.odd = {"GET project_updates/": b'{"finished": true}'}
    bare.awx.failing = {"p toolkit": "x"}
    with pytest.raises(AwxError):
        apply(bare.api, bare.settings, PARTS)


def test_lists_of_several_pages_are_read_whole(bare: Site) -> None:
    organization = bare.awx.keep("organizations", {"name": "other"})["id"]
    for number in range(70):
        bare.awx.keep("teams", {"name": f"t{number:02}", "organization": organization})
    assert [one["name"] for one in bare.api.list("teams")] == [f"t{number:02}" for number in range(70)]
    # Also those of what is joined to an object: a run takes out what is beyond its first page.
    bare.apply()
    template = bare.awx.named("job_templates", "p plan")["id"]
    kind = bare.awx.named("credential_types", "Machine")["id"]
    joined = bare.awx.lists[f"job_templates/{template}/credentials"]
    for number in range(70):
        joined.append(bare.awx.keep("credentials", {"name": f"c{number}", "credential_type": kind, "inputs": {}})["id"])
    assert len(bare.apply().lines) == 70 and bare.apply().lines == []


def test_a_busy_awx_is_waited_for(site: Site) -> None:
    site.awx.busy = 4
    assert site.apply().lines == []
    site.awx.busy = 9
    assert refused(site) == "AWX answers GET /api/v2/ping with 502: a page of HTML, as from a proxy"
    site.awx.busy, site.awx.slow_s = 0, 0.3
    assert site.api.get("ping")["version"] == "24.6.1"
    with pytest.raises(AwxError, match="did not answer within 0 s"):
        apply(Api(Login(site.address, TOKEN), 0.1, 0), site.settings, PARTS)
    site.awx.slow_s = 0


def test_an_address_without_an_awx_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(AwxError, match=r"http://127.0.0.1:1: cannot be reached: .*refused"):
        Api(Login("http://127.0.0.1:1", "x"), 5, 0).get("ping")
    key, pem = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(pem)]
    subprocess.run(make, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    with serve(Awx(), context) as address:
        with pytest.raises(AwxError, match=r"certificate is not valid here: self.signed certificate; name the file"):
            Api(Login(address, TOKEN), 5, 0).get("ping")
        assert Api(Login(address, TOKEN, verify=False), 5, 0).get("ping")["version"] == "24.6.1"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SSL_CERT_FILE", str(pem))
            assert Api(Login(address, TOKEN), 5, 0).get("ping")["version"] == "24.6.1"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "CONTROLLER_HOST: is not set"),
        ({"CONTROLLER_HOST": "a"}, "CONTROLLER_OAUTH_TOKEN: is not set"),
        *(
            ({"CONTROLLER_HOST": host, "CONTROLLER_OAUTH_TOKEN": "x"}, "CONTROLLER_HOST: is not an address such as")
            for host in ("http://", "http://a:port", "http://[", "a b", "a\n", "https://ä", "https://a/#/login")
        ),
        *(
            ({"CONTROLLER_HOST": host, "CONTROLLER_OAUTH_TOKEN": "x"}, r"CONTROLLER_HOST: \(hidden\) has a user or")
            for host in ("https://u:canary@a", "canary@a", "https://u:1/canary@a")
        ),
        *(
            ({"CONTROLLER_HOST": "a", "CONTROLLER_OAUTH_TOKEN": token}, r"CONTROLLER_OAUTH_TOKEN: \(hidden\) has a")
            for token in ("canary\n", "canary\r", "“canary”", "can ary", " ", "canary\udcff")
        ),
        (
            {"CONTROLLER_HOST": "a", "CONTROLLER_OAUTH_TOKEN": "x", "CONTROLLER_VERIFY_SSL": "maybe"},
            "CONTROLLER_VERIFY_SSL: 'maybe' is not true or false",
        ),
    ],
)
def test_the_environment_names_the_awx(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as raised:
        Login.of(given)
    assert "canary" not in str(raised.value)


def test_a_login_reaches_awx_whole_or_not_at_all() -> None:
    whole = {"CONTROLLER_HOST": "awx.example.net/", "CONTROLLER_USERNAME": "u", "CONTROLLER_PASSWORD": "p"}
    found = Login.of({**whole, "CONTROLLER_VERIFY_SSL": "False"})
    assert (found.host, found.verify, found.header()) == ("https://awx.example.net", False, "Basic dTpw")
    assert "'p'" not in repr(found)
    # What no header takes is named nowhere, whatever it is; a password may have any bytes.
    with pytest.raises(AwxError, match=r"^http://127.0.0.1:1: GET /api/v2/ping cannot be sent$"):
        Api(Login("http://127.0.0.1:1", "“canary”"), 5, 0).get("ping")
    assert Login("http://a", username="u", password="\udcff").header() == "Basic dTr/"


def test_the_plan_stands_in_the_text_of_an_approval(site: Site) -> None:
    names = {"organization": "o", "workflow": "p rollout with approvals", "node": "approve the plan"}
    assert approval_text(site.api, text="the waves", **names) is True
    assert approval_text(site.api, text="the waves", **names) is False
    assert site.awx.named("workflow_approval_templates", "approve the plan")["description"] == "the waves"
    assert site.apply() == Result([], [], [])
    with pytest.raises(AwxError, match="has no approval other"):
        approval_text(site.api, text="x", **{**names, "node": "other"})


def test_what_awx_reports_of_a_credential_is_hidden(site: Site) -> None:
    # Of a key that it cannot read, AWX's answer has the first hundred characters.
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\ncanary\n-----END OPENSSH PRIVATE KEY-----"
    site.settings["machine"] = {"ssh_key": key}
    site.awx.echoes = True
    with pytest.raises(AwxError) as raised:
        apply(site.api, site.settings, PARTS)
    assert "canary" not in str(raised.value)
    assert "credential p hosts" in str(raised.value) and "with 400: inputs.ssh_key_data (hidden)" in str(raised.value)


def test_a_run_that_fails_reports_how_far_it_came(site: Site) -> None:
    site.settings["forks"] = 5
    site.awx.playbooks = ("plan.yml",)
    site.awx.named("job_templates", "p reset")["timeout"] = 5
    with pytest.raises(
        AwxError, match=r"(?s)template p reset.*Playbook not found.*\ndone before this failed: 1 of 5 requests;"
    ):
        apply(site.api, site.settings, PARTS)
    started = time.monotonic()
    site.awx.playbooks = ("plan.yml", "reset.yml", "rollout.yml", "report.yml")
    assert "~ template p plan" not in "".join(site.apply().lines) and time.monotonic() - started < 60


# By kind: an object of the settings, of which the test changes every field that the settings do not set.
CHANGED = {
    "projects": "p rollout with approvals toolkit",
    "inventory_sources": "p inventory source",
    "job_templates": "p plan",
    "workflow_job_templates": "p rollout with approvals",
    "workflow_job_template_nodes": "canary",
    "schedules": "p plan",
    "hosts": "h1",
    "inventories": "p inventory",
}


def another(kind: str, name: str, value: Any) -> Any:
    """Return a value of a field that a person could set, and that is not AWX's default."""
    choices = [one for (one, _) in fields(kind)[name].get("choices", []) if one not in (value, None, "")]
    if choices:
        return choices[0]
    match fields(kind)[name]["type"]:
        case "boolean":
            return not value
        case "integer" | "id":
            return 7
    return "by hand"


@pytest.mark.parametrize("kind", CHANGED)
def test_every_field_that_was_changed_by_hand_is_seen_and_set_back(site: Site, kind: str) -> None:
    site.settings["inventory"]["hosts"] = {"h1": {}}
    site.apply()
    of_nodes = kind == "workflow_job_template_nodes"
    found = site.awx.objects[kind].values()
    one = next(one for one in found if one.get("identifier" if of_nodes else "name") == CHANGED[kind])
    before = dict(one)
    table = defaults()["fields"][kind]
    for name, value in table.items():
        one[name] = another(kind, name, value)
    text = "\n".join(site.apply().lines)
    assert [name for name in table if f" {name} " not in text] == []
    # An empty text and null mean the same.
    assert {name: one[name] or None for name in table} == {name: before[name] or None for name in table}
    assert site.apply() == Result([], [], [])


def test_variables_that_approve_by_themselves_are_seen(site: Site) -> None:
    workflow = site.awx.named("workflow_job_templates", "p rollout with approvals")
    workflow["extra_vars"] = '{"rollout_approved": true}'
    # An inventory without a source has no variables of its own.
    site.settings["inventory"] = {"hosts": {"h1": {}}}
    site.apply()
    workflow["extra_vars"] = "rollout_approved: true"
    site.awx.named("inventories", "p inventory")["variables"] = '{"fleet_all_at_once": true}'
    assert site.apply().lines == [
        "~ inventory p inventory: variables differs",
        "~ workflow p rollout with approvals: extra_vars differs",
    ]
    assert (workflow["extra_vars"], site.apply().lines) == ("", [])


@pytest.mark.parametrize("kind", ["inventories", "job_templates", "workflow_job_template_nodes", "schedules"])
def test_lists_that_were_changed_by_hand_are_seen_and_emptied(site: Site, kind: str) -> None:
    own = {"organization": site.awx.named("organizations", "o")["id"]}
    label = site.awx.keep("labels", {"name": "night", **own})
    group = site.awx.keep("instance_groups", {"name": "elsewhere"})
    number = next(iter(site.awx.objects[kind]))
    site.awx.lists[f"{kind}/{number}/labels"] = [label["id"]]
    site.awx.lists[f"{kind}/{number}/instance_groups"] = [group["id"]]
    lines = site.apply().lines
    assert [line[line.index(" without ") :] for line in lines] == [" without elsewhere", " without night"]
    assert site.apply().lines == []


@pytest.mark.parametrize("kind", ["workflow_job_template_nodes", "schedules"])
def test_lists_are_emptied_before_a_saved_launch_changes(site: Site, kind: str) -> None:
    # AWX refuses every change of a launch that has something for which its template does not ask.
    label = site.awx.keep("labels", {"name": "night", "organization": site.awx.named("organizations", "o")["id"]})
    key = "identifier" if kind == "workflow_job_template_nodes" else "name"
    one = next(one for one in site.awx.objects[kind].values() if one[key] in ("canary", "p plan"))
    site.awx.lists[f"{kind}/{one['id']}/labels"] = [label["id"]]
    one["limit"] = "h1"
    assert len(site.apply().lines) == 2
    assert site.apply().lines == [] and one["limit"] is None


def test_a_branch_of_ones_own_is_taken_from_templates_before_the_project_forbids_it(site: Site) -> None:
    site.awx.named("projects", "p toolkit")["allow_override"] = True
    site.awx.named("job_templates", "p plan")["scm_branch"] = "mine"
    assert site.apply().lines == [
        "~ template p plan: scm_branch mine becomes nothing",
        "~ project p toolkit: allow_override true becomes false",
    ]
    assert site.apply().lines == []


def test_edges_of_a_workflow_that_were_turned_by_hand_are_turned_back(site: Site) -> None:
    # AWX refuses a second edge between two nodes, and a circle.
    nodes = {one["identifier"]: one["id"] for one in site.awx.objects["workflow_job_template_nodes"].values()}
    lists, approve, canary = site.awx.lists, nodes["approve the plan"], nodes["canary"]
    lists[f"workflow_job_template_nodes/{approve}/success_nodes"].clear()
    lists[f"workflow_job_template_nodes/{canary}/always_nodes"] = [approve]
    assert site.apply().lines == [
        "~ node p rollout with approvals: canary: always_nodes without approve the plan",
        "~ node p rollout with approvals: approve the plan: success_nodes with canary",
    ]
    assert site.apply().lines == []


def test_one_limit_of_a_workflow_is_emptied(site: Site) -> None:
    workflow = site.awx.named("workflow_job_templates", "p rollout with approvals")
    workflow["limit"] = "h1"
    assert site.apply().lines == ["~ workflow p rollout with approvals: limit h1 becomes nothing"]
    assert site.apply().lines == [] and not workflow["limit"]


def test_a_schedule_of_another_template_with_the_same_name_stays(site: Site) -> None:
    # Names of schedules are unique for a template alone.
    ours = site.awx.named("schedules", "p plan")
    other = {**ours, "unified_job_template": site.awx.named("job_templates", "p reset")["id"], "description": "mine"}
    before = dict(site.awx.keep("schedules", {name: other[name] for name in other if name != "id"}))
    assert site.apply() == Result([], [], [])
    assert site.awx.objects["schedules"][before["id"]] == before


def test_a_schedule_that_someone_made_for_a_template_is_named(site: Site) -> None:
    rule = site.awx.named("schedules", "p plan")["rrule"]
    template = site.awx.named("job_templates", "p rollout")["id"]
    site.awx.keep("schedules", {"name": "nightly", "unified_job_template": template, "rrule": rule})
    assert site.apply().notices == [
        "schedule nightly starts template p rollout: another user made it; remove it if it is not needed"
    ]


def test_schedules_of_others_that_go_with_a_template_are_named_before(site: Site) -> None:
    rule = site.awx.named("schedules", "p plan")["rrule"]
    template = site.awx.named("job_templates", "p rollout")["id"]
    site.awx.keep("schedules", {"name": "nightly", "unified_job_template": template, "rrule": rule})
    found = site.apply(absent=True)
    assert found.notices == [
        "schedule nightly starts template p rollout: another user made it, and AWX removes it with what it starts"
    ]
    assert found.lines[-1] == "- organization o" and not site.awx.objects["schedules"]


@pytest.mark.parametrize(("before", "after"), [("site", "other"), ("", "other"), ("site", "")])
def test_the_id_of_a_vault_is_refused_before_awx_refuses_it(site: Site, before: str, after: str) -> None:
    def vault(name: str) -> dict[str, str]:
        return {"password": "word", **({"id": name} if name else {})}

    site.settings["vault"] = vault(before)
    site.apply()
    site.settings["vault"] = vault(after)
    (reason,) = site.apply().refusal
    assert reason == (
        f"fleet_awx.vault.id: {after!r} is not {before!r}, which credential p vault has, and AWX changes the ID of no "
        "vault; remove this credential in AWX, and run again"
    )
    site.awx.drop("credentials", site.awx.named("credentials", "p vault")["id"])
    assert "+ credential p vault" in site.apply().lines
    assert site.apply() == Result([], [], [])


def test_what_was_added_to_a_notification_by_hand_is_seen_and_emptied(site: Site) -> None:
    hook = {"name": "one", "type": "webhook", "configuration": {"url": "http://x/", "headers": {}}}
    site.settings["notifications"] = [hook]
    site.apply()
    one = site.awx.named("notification_templates", "p one")
    one["notification_configuration"] |= {"disable_ssl_verification": True, "password": "word"}
    one["messages"] = {
        **one["messages"],
        "success": {"body": "{}", "message": "mine"},
        "workflow_approval": {**one["messages"]["workflow_approval"], "denied": {"body": '{"denied": 1}'}},
    }
    assert site.apply().lines == ["~ notification p one: notification_configuration differs, messages differs"]
    assert site.apply().lines == []
    assert one["notification_configuration"]["disable_ssl_verification"] is False
    assert one["messages"]["success"] == {"message": "", "body": ""}
    assert one["messages"]["workflow_approval"]["denied"] == {"body": ""}


def test_a_notification_of_another_organization_is_taken_out(site: Site) -> None:
    hook = {"name": "one", "type": "webhook", "configuration": {"url": "http://x/", "headers": {}}}
    site.settings["notifications"] = [hook]
    site.apply()
    other = site.awx.keep("organizations", {"name": "other"})["id"]
    kept = {"name": "foreign", "organization": other, "notification_type": "webhook"}
    foreign = site.awx.keep("notification_templates", {**kept, "notification_configuration": hook["configuration"]})
    number = site.awx.named("job_templates", "p plan")["id"]
    site.awx.lists[f"job_templates/{number}/notification_templates_error"].append(foreign["id"])
    assert site.apply().lines == ["~ template p plan: notification_templates_error without foreign"]
    # Another name is one line for all, and what AWX empties itself is no change.
    site.settings["notifications"] = [{**hook, "name": "two"}]
    assert site.apply().lines == [
        "+ notification p two",
        "~ 4 templates: notification_templates_error with p two",
        "~ template p rollout with approvals: report: notification_templates_success with p two",
        "~ workflow p rollout with approvals: notification_templates_error with p two",
        "~ workflow p rollout with approvals: notification_templates_approvals with p two",
        "- notification p one",
    ]
    assert site.apply().lines == []


def test_a_run_that_changes_nothing_asks_once_for_each_kind(site: Site) -> None:
    site.awx.asked.clear()
    apply(site.api, site.settings, PARTS, check=True)
    single = [one for one in site.awx.asked if "/" in one]
    # Surveys and texts of approvals are in no list.
    assert {one.split("/")[0] for one in single} == {"job_templates", "workflow_approval_templates", "organizations"}
    assert all("survey_spec" in one or "approval" in one or "galaxy" in one for one in single)
    assert len(site.awx.asked) < 60


def test_who_made_the_objects_is_named_once(site: Site) -> None:
    site.awx.keep("users", {"username": "former", "is_superuser": True})
    number = site.awx.named("users", "former")["id"]
    for kind, name in (("job_templates", "p plan"), ("job_templates", "p reset")):
        site.awx.give("admin", kind, name, "users", "former")
        site.awx.named(kind, name)["made_by"] = number
    assert site.apply().notices == [
        "user former has made 2 of these objects, and so AWX lets this user administer them"
    ]


def test_an_update_that_fails_shows_no_login(bare: Site) -> None:
    # AWX hides the login of an address of http alone.
    bare.settings["project"]["credential"] = {"username": "ops", "password": "canary-1"}
    bare.awx.failing = {"p toolkit": "fatal: git://ops:canary-2@git.example.net/x: canary-1 is no branch"}
    with pytest.raises(AwxError) as raised:
        apply(bare.api, bare.settings, PARTS)
    assert "canary" not in str(raised.value) and "git.example.net/x" in str(raised.value)
    assert isinstance(raised.value, Unfinished)


def nodes_of(awx: Awx, granted: dict[str, str]) -> dict[str, int]:
    """Give the stand-in a running workflow; return the numbers of its jobs by node."""
    names = ["waves to be", "approve the plan", "canary", "approve the waves", "waves"]
    for number, name in enumerate(names, 1):
        approval = name.startswith("approve")
        kind = "workflow_approval" if approval else "job"
        status = granted.get(name, "") if approval else "running"
        awx.job_nodes.append(
            {
                **{"id": number, "identifier": name, "workflow_job": 50, "job": 100 + number if status else None},
                **{
                    "success_nodes": [number + 1][: number < len(names)],
                    "failure_nodes": [],
                    "always_nodes": [],
                },
                "summary_fields": {
                    "unified_job_template": {"unified_job_type": kind},
                    **({"job": {"id": 100 + number, "status": status, "type": kind}} if status else {}),
                },
            }
        )
    return {name: 101 + number for number, name in enumerate(names)}


@pytest.mark.parametrize(
    ("node", "granted", "reasons", "continues"),
    [
        ("canary", {"approve the plan": "successful"}, [], False),
        (
            "canary",
            {"approve the plan": "pending"},
            ["the plan is not granted: its status in AWX is pending"],
            False,
        ),
        ("canary", {}, ["approve the plan is not granted: its status in AWX is not begun"], False),
        ("waves", {"approve the plan": "successful", "approve the waves": "successful"}, [], True),
        (
            "waves",
            {"approve the plan": "successful", "approve the waves": "failed"},
            ["in AWX is failed"],
            False,
        ),
        ("waves to be", {}, ["no approval stands before this job"], False),
    ],
)
def test_awx_itself_reports_whether_a_job_was_approved(
    bare: Site, node: str, granted: dict[str, str], reasons: list[str], continues: bool
) -> None:
    jobs = nodes_of(bare.awx, granted)
    login = {"CONTROLLER_HOST": bare.address, "CONTROLLER_OAUTH_TOKEN": TOKEN}
    found, blind = seen_approvals({**login, "JOB_ID": str(jobs[node])}, True)
    assert found is not None and blind == [] and found.all_granted is continues
    assert len(found.reasons) == len(reasons)
    assert all(reason in line for reason, line in zip(reasons, found.reasons, strict=True))


def test_a_job_that_cannot_see_its_approvals_reports_it(bare: Site) -> None:
    login = {"CONTROLLER_HOST": bare.address, "CONTROLLER_OAUTH_TOKEN": TOKEN}
    assert seen_approvals({}, True) == (None, [])
    assert seen_approvals({"JOB_ID": "7"}, False) == (None, [])
    assert "set fleet_awx.controller" in seen_approvals({"JOB_ID": "7"}, True)[1][0]
    # No workflow has started this job, or one without approvals.
    assert seen_approvals({**login, "JOB_ID": "7"}, False) == (None, [])
    # A workflow that the user may not read may have approvals, whatever the variables are.
    (unread,) = seen_approvals({**login, "JOB_ID": "7"}, False, True)[1]
    assert unread.endswith("the user of fleet_awx.controller may not read the workflow that has started it")
    (reason,) = seen_approvals({**login, "JOB_ID": "7"}, True)[1]
    assert "must be an administrator of the workflow" in reason and "launch the workflow" in reason
    wrong = {**login, "CONTROLLER_OAUTH_TOKEN": "wrong", "JOB_ID": "7"}
    assert "AWX does not accept CONTROLLER_OAUTH_TOKEN" in seen_approvals(wrong, False)[1][0]
