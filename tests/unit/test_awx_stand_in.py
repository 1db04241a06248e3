"""The stand-in of AWX refuses what the recorded AWX refuses, and its objects have the same fields."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from gaudi_serve.awx.live import Live, ref_of, role_of
from gaudi_serve.awx.objects import KINDS, Item, Ref, defaults
from helpers import awx_recorded as recorded
from helpers.awx_api import TOKEN, WORKFLOW_PROMPTS, Awx, serve

# Fields that a run does not compare with a default, and why.
OTHERWISE = {
    ("credentials", "team"): "only at creation, and AWX does not show it",
    ("credentials", "user"): "only at creation, and AWX does not show it",
    ("projects", "local_path"): "AWX sets it for a repository",
    ("inventories", "variables"): "set where no source writes them",
}
# What awx.yml itself sets in every object of a kind.
ALWAYS = {
    "credential_types": {"kind", "inputs", "injectors"},
    "credentials": {"credential_type", "inputs"},
    "execution_environments": {"image", "pull", "credential"},
    "projects": {"scm_type", "scm_url", "scm_branch", "scm_clean", "scm_update_on_launch", "credential"},
    "inventories": {"kind"},
    "inventory_sources": {
        *("inventory", "source", "source_project", "source_path", "overwrite", "overwrite_vars", "update_on_launch"),
        "execution_environment",
    },
    "hosts": {"inventory", "variables"},
    "notification_templates": {"notification_type", "notification_configuration", "messages"},
    "job_templates": {
        *("project", "playbook", "inventory", "execution_environment", "forks", "timeout", "extra_vars"),
        *("survey_enabled", "allow_simultaneous", "ask_limit_on_launch", "ask_job_type_on_launch"),
        "ask_diff_mode_on_launch",
    },
    "workflow_job_templates": {"allow_simultaneous", "ask_limit_on_launch", "survey_enabled"},
    "workflow_job_template_nodes": {"identifier", "workflow_job_template", "unified_job_template", "extra_data"},
    "schedules": {"unified_job_template", "rrule", "extra_data", "enabled"},
}
EVERYWHERE = {"name", "description", "organization"}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Return the address of a stand-in that has an organization and a project."""
    awx = Awx()
    organization = awx.keep("organizations", {"name": "Default"})
    awx.keep("projects", {"name": "p", "organization": organization["id"], "scm_type": "git"})
    with serve(awx) as found:
        yield found


def ask(address: str, method: str, path: str, body: Any = None, token: str = TOKEN) -> tuple[int, Any, str]:
    """Send a request as any client does; return status, body and the target of a redirect."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/api/v2/{path}", data, headers, method=method)  # noqa: S310 - loopback
    try:
        with urllib.request.build_opener(Stay).open(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read() or "null"), ""
    except urllib.error.HTTPError as problem:
        text = problem.read()
        return problem.code, json.loads(text or "null"), problem.headers.get("Location") or ""


# Those of another user than an administrator need his rights, which the stand-in does not have.
@pytest.mark.parametrize("request_", [one for one in recorded.ERRORS if " as viewer1" not in one])
def test_a_wrong_request_gets_the_recorded_answer(address: str, request_: str) -> None:
    found = re.fullmatch(r"(\w+) (\S+) as (\w+) ?(.*)", request_)
    assert found
    method, path, who, body = found.groups()
    given = json.loads(body) if body else None
    for name, kind in (("organization", "organizations"), ("unified_job_template", "projects")):
        if given and name in given:  # there it has another number
            given[name] = ask(address, "GET", f"{kind}/")[1]["results"][0]["id"]
    status, answer, _ = ask(address, method, path, given, TOKEN if who == "admin" else "wrong")
    wanted = recorded.ERRORS[request_]
    assert status == wanted["status"]
    # The stand-in names all that is wrong, AWX in some cases the first.
    assert set(wanted["body"]) <= set(answer), answer
    same = [name for name, said in wanted["body"].items() if answer[name] == said]
    assert same, answer


@pytest.mark.parametrize("path", ["me?page_size=200", "ping", "job_templates", "organizations?name=x"])
def test_a_path_without_its_last_slash_is_redirected_and_loses_the_body(address: str, path: str) -> None:
    status, _, target = ask(address, "GET", path)
    place, mark, query = path.partition("?")
    assert (status, target) == (301, f"/api/v2/{place}/{mark}{query}")


@pytest.mark.parametrize("path", ["nothing/", "job_templates/1/nothing/", "workflow_approval_templates/"])
def test_an_address_that_awx_does_not_have_is_not_found(address: str, path: str) -> None:
    assert ask(address, "GET", path)[0] == 404


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("forks", "5", "A valid integer is required."),
        ("forks", -1, "Ensure this value is greater than or equal to 0."),
        ("name", "x" * 513, "Ensure this field has no more than 512 characters."),
        ("name", "", "This field may not be blank."),
        ("limit", None, "This field may not be null."),
        ("become_enabled", "yes", "Must be a valid boolean."),
        ("job_type", "scan", '"scan" is not a valid choice.'),
        ("inventory", "1", "Incorrect type. Expected pk value, received str."),
        ("inventory", 999, 'Invalid pk "999" - object does not exist.'),
        ("limits", "x", "is not a field of it"),
    ],
)
def test_a_wrong_value_is_refused_in_words_of_awx(address: str, field: str, value: Any, said: str) -> None:
    status, answer, _ = ask(address, "POST", "job_templates/", {"name": "x", field: value})
    assert (status, answer[field]) == (400, [said])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if recorded.objects(kind)])
def test_objects_have_the_recorded_fields(kind: str) -> None:
    awx = Awx()
    real = recorded.objects(kind)[0]
    if kind == "credentials":  # which have a type
        real = {**real, "credential_type": awx.named("credential_types", "Machine")["id"], "inputs": {}}
    mine = awx.shown(kind, awx.keep(kind, {name: real[name] for name in recorded.fields(kind) if name in real}))
    assert set(real) <= set(mine)
    for name in recorded.fields(kind):
        assert name not in real or mine[name] == real[name], name


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_that_can_be_written_is_compared(kind: str) -> None:
    table = defaults()["fields"].get(kind, {})
    named = ALWAYS.get(kind, set()) | EVERYWHERE | {name for of, name in OTHERWISE if of == kind}
    if kind == "organizations":  # it may have been there before, and stays as it is
        return
    for name, rule in recorded.fields(kind).items():
        assert name in table or name in named, name
        # AWX ignores a request to set these to null.
        default = "" if kind == "workflow_job_templates" and name in WORKFLOW_PROMPTS else recorded.default(rule)
        assert name not in table or table[name] == default, name
    assert set(table) <= set(recorded.fields(kind))


def test_what_a_real_awx_made_of_our_requests_has_these_defaults() -> None:
    counted = 0
    for kind, table in defaults()["fields"].items():
        for one in recorded.objects(kind):
            if "[made by awx.yml" not in json.dumps(one):
                continue
            counted += 1
            wrong = {name: one[name] for name, value in table.items() if one[name] != value and (one[name] or value)}
            assert set(wrong) <= {"default_environment"}, one["name"]
    assert counted > 10


def test_recorded_objects_are_read_as_ours() -> None:
    live = Live()
    for kind in ("organizations", "inventories", "workflow_job_templates"):
        live.objects |= {ref_of(kind, one, live): one for one in recorded.objects(kind)}
    (node, *_) = recorded.objects("workflow_job_template_nodes")
    assert str(ref_of("workflow_job_template_nodes", node, live)) == "node gaudi-serve new host: status"
    (source, *_) = recorded.objects("inventory_sources")
    assert ref_of("inventory_sources", source, live).parent == "gaudi-serve new host inventory"
    assert role_of({"name": "x", "permissions": ["awx.execute_jobtemplate", "awx.view_jobtemplate"]}) == "execute"
    assert Item(Ref("schedules", "x"), {"limit": "a"}).compared["limit"] == "a"
