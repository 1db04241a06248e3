"""playbooks/awx.yml against a strict stand-in of AWX's API."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import forked
import pytest
import yaml
from helpers.awx_api import TOKEN, Awx, serve

ROOT = Path(__file__).parents[2]
PLAYBOOKS = ("site.yml", *(f"playbooks/{path.name}" for path in sorted((ROOT / "playbooks").glob("*.yml"))))
CANARIES = (
    "canary-key-1",
    "canary-token-2",
    "canary-gateway-secret-3-of-some-length",
    "canary-hook-4",
    "canary-word-5",
)
SETTINGS: dict[str, Any] = {
    "execution_environment": {
        "image": "registry.example.net/ee:1",
        "credential": {"host": "r", "password": CANARIES[4]},
    },
    "project": {
        "url": "https://git.example.net/gaudi-serve.git",
        "branch": "v1",
        "credential": {"password": CANARIES[4]},
    },
    "inventory": {"path": "inventory/mine", "hosts": {"gaudi09": {"accelerator_cards": 8}}},
    "machine": {
        "username": "ops",
        "ssh_key": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{CANARIES[4]}\n-----END OPENSSH PRIVATE KEY-----\n",
    },
    "vault": {"password": CANARIES[4]},
    "vllm_secrets": {"m": {"VLLM_API_KEY": CANARIES[0]}},
    "model_weights_tokens": {"hub": CANARIES[1]},
    "vllm_image_registries": {"registry.example.net": {"username": "robot", "password": CANARIES[4]}},
    "fleet_gateway_secret": CANARIES[2],
    "controller": {"host": "https://awx.example.net", "token": CANARIES[4]},
    "teams": {"operator": ["anna"]},
    "notifications": [
        {
            "name": "operations",
            "type": "webhook",
            "configuration": {"url": "http://127.0.0.1:1/", "http_method": "POST", "headers": {"X": CANARIES[3]}},
        }
    ],
}


class Site:
    """An AWX, and a folder with an inventory and settings for it."""

    def __init__(self, folder: Path, address: str, awx: Awx) -> None:
        self.folder, self.address, self.awx = folder, address, awx
        hosts: dict[str, Any] = {name: {"vllm_models": [{"name": "m"}, {"name": "n"}]} for name in ("h01", "h02")}
        said = {"host_tuning_reboot_allowed": True, "rollout_least_speed": 0.9}
        hosts["h01"]["rollout_drain_timeout"] = 60
        (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": said}}))

    def run(self, settings: dict[str, Any], *more: str) -> tuple[int, str]:
        """Run the playbook."""
        (self.folder / "awx.yml").write_text(yaml.safe_dump({"fleet_awx": settings}))
        return self.play("playbooks/awx.yml", "-e", f"@{self.folder}/awx.yml", *more)

    def play(self, playbook: str, *more: str) -> tuple[int, str]:
        """Run a playbook that talks to the AWX."""
        environment = {
            **os.environ,
            **{
                "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_STDOUT_CALLBACK": os.environ.get("GAUDI_SERVE_SHOWN", "default"),
            },
            **{"CONTROLLER_HOST": self.address, "CONTROLLER_OAUTH_TOKEN": TOKEN},
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml",
        }
        argv = ["ansible-playbook", "-i", str(self.folder / "hosts.yml"), playbook, *more]
        return forked.playbook(argv, ROOT, environment, 600)


def changes(text: str) -> list[str]:
    """Return the lines of what changes, as a run lists them."""
    return re.findall(r"^ *- '?([+~-] .*?)'?$", text, re.MULTILINE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return an AWX on which the playbook has run; the check before it listed what the run then changed."""
    awx = Awx(PLAYBOOKS)
    with serve(awx) as address:
        found = Site(tmp_path_factory.mktemp("awx"), address, awx)
        status, said = found.run(SETTINGS, "--check")
        assert status == 0 and awx.writes == [] and awx.syncs == [], said
        status, text = found.run(SETTINGS, "-vvvv", "--diff")
        assert status == 0, text
        assert [one for one in CANARIES if one in text] == []
        made = {f"+ {one}" for one in ("template gaudi-serve plan", "node gaudi-serve new host: site")}
        assert made < set(changes(said)) and set(changes(said)) <= set(text_lines(text))
        yield found


def text_lines(text: str) -> list[str]:
    """Return the lines of what changes out of a verbose run."""
    return [line.strip().removeprefix("- ").strip("'") for line in text.splitlines()]


def test_a_second_run_takes_back_what_is_no_more_and_changes_nothing_else(site: Site) -> None:
    workflow = site.awx.named("workflow_job_templates", "gaudi-serve new host")["id"]
    old = site.awx.keep("workflow_job_template_nodes", {"identifier": "old", "workflow_job_template": workflow})
    # A report that stands in an approval's text is not written over.
    approval = site.awx.named("workflow_approval_templates", "approve the plan")
    approval["description"] = "the waves"
    site.awx.writes.clear()
    site.awx.syncs.clear()
    status, text = site.run(SETTINGS)
    assert status == 0, text
    assert site.awx.writes == [f"DELETE workflow_job_template_nodes/{old['id']}"]
    assert "changed=1 " in text and approval["description"] == "the waves"
    # What a workflow that waits for an approval was approved with stays.
    assert site.awx.syncs == ["gaudi-serve toolkit", "gaudi-serve inventory source"]


def test_a_run_shows_its_changes_and_no_warnings(site: Site) -> None:
    site.awx.named("job_templates", "gaudi-serve plan")["timeout"] = 60
    os.environ["GAUDI_SERVE_SHOWN"] = "gaudi_serve_stages"
    try:
        status, text = site.run(SETTINGS)
    finally:
        del os.environ["GAUDI_SERVE_SHOWN"]
    assert status == 0 and "WARNING" not in text, text
    assert "~ template gaudi-serve plan: timeout 60 becomes 3600" in text
    assert site.run(SETTINGS, "--check")[1].count("the AWX has everything that the file lists") == 1


def test_templates_ask_and_start_what_they_should(site: Site) -> None:
    templates = {one["name"]: one for one in site.awx.objects["job_templates"].values()}
    assert {one["playbook"] for one in templates.values()} <= set(PLAYBOOKS)
    for name, one in templates.items():
        assert one["job_slice_count"] == 1 and not one["ask_job_slice_count_on_launch"], name
        assert not one["ask_variables_on_launch"], name
        assert 0 < one["timeout"] <= 3 * 86_400 and one["forks"] == 32, name
        credentials = [found["name"] for found in site.awx.of(f"job_templates/{one['id']}/credentials")]
        assert "gaudi-serve hosts" in credentials
        # Those that ask AWX for an approval, or write into its text.
        sees = name.endswith("report to the approver") or name == "gaudi-serve rollout with approvals: rollout"
        assert ("gaudi-serve approvals" in credentials) == sees
    own = {name.removeprefix("gaudi-serve "): one for name, one in templates.items() if ": " not in name}
    beside = {name for name, one in own.items() if one["allow_simultaneous"]}
    assert beside == {"plan", "status", "logs", "preflight"}
    asks = {
        name
        for name in own
        for one in site.awx.surveys.get(f"job_templates/{templates['gaudi-serve ' + name]['id']}", {}).get("spec", [])
        if one["variable"] == "fleet_lock_break"
    }
    assert asks == {
        *("restart", "stop", "start", "rollout", "site", "models", "images", "gateway", "monitoring"),
        *("validate", "qualify", "driver", "network", "bios", "offline", "reset"),
    }
    spec = site.awx.surveys[f"job_templates/{templates['gaudi-serve restart']['id']}"]["spec"]
    assert next(one for one in spec if one["variable"] == "model")["choices"] == ["m", "n"]
    spec = site.awx.surveys[f"job_templates/{templates['gaudi-serve rollout']['id']}"]["spec"]
    answers = {one["variable"]: one["default"] for one in spec}
    assert (answers["rollout_least_speed"], answers["rollout_drain_timeout"], answers["rollout_serial"]) == (
        0.9,
        600,
        "20%",
    )
    spec = site.awx.surveys[f"job_templates/{templates['gaudi-serve site']['id']}"]["spec"]
    assert {one["variable"]: one["default"] for one in spec}["host_tuning_reboot_allowed"] == "true"


def nodes_of(site: Site, name: str) -> dict[str, Any]:
    """Return the nodes of a workflow by their identifiers."""
    workflow = site.awx.named("workflow_job_templates", f"gaudi-serve {name}")["id"]
    found = site.awx.objects["workflow_job_template_nodes"].values()
    return {one["identifier"]: one for one in found if one["workflow_job_template"] == workflow}


def after(site: Site, node: Any, how: str = "success") -> list[str]:
    """Return the nodes that follow a node."""
    return [one["identifier"] for one in site.awx.of(f"workflow_job_template_nodes/{node['id']}/{how}_nodes")]


def test_the_rollout_asks_for_two_approvals(site: Site) -> None:
    nodes = nodes_of(site, "rollout with approvals")
    order = ["update"]
    while following := [*after(site, nodes[order[-1]]), *after(site, nodes[order[-1]], "always")]:
        assert len(following) == 1
        order += following
    assert order == [
        *("update", "read the inventory", "plan", "waves to be", "report the plan", "approve the plan", "canary"),
        *("report the canary", "approve the waves", "waves", "status"),
    ]
    # A report fails where no host is left to change. After a denial or a failure the state is shown.
    failed = {name: after(site, node, "failure") for name, node in nodes.items()}
    assert {name: to for name, to in failed.items() if to} == {
        name: ["status"]
        for name in ("report the plan", "approve the plan", "canary", "report the canary", "approve the waves")
    }
    assert {one["identifier"]: one["extra_data"].get("rollout_approved") for one in nodes.values()}.items() >= {
        ("canary", "false"),
        ("waves", "true"),
    }
    assert nodes["waves to be"]["job_type"] == "check"
    approvals = [
        name for name, one in nodes.items() if site.awx.kind_of(one["unified_job_template"]).startswith("workflow_")
    ]
    assert approvals == ["approve the plan", "approve the waves"]


def test_a_workflow_runs_the_revision_that_it_began_with(site: Site) -> None:
    # What runs within a workflow comes from a project and an inventory that only its first nodes update.
    for name in ("rollout with approvals", "new host"):
        for node in nodes_of(site, name).values():
            template = site.awx.objects["job_templates"].get(node["unified_job_template"])
            if template is None:
                continue
            project = site.awx.objects["projects"][template["project"]]
            assert project["name"] == f"gaudi-serve {name} toolkit" and not project["scm_update_on_launch"]
            inventory = site.awx.objects["inventories"][template["inventory"]]["name"]
            assert inventory == f"gaudi-serve {name} inventory"
            assert not site.awx.named("inventory_sources", f"{inventory} source")["update_on_launch"]
    rollout = site.awx.named("job_templates", "gaudi-serve rollout with approvals: rollout")
    assert json.loads(rollout["extra_vars"]) == {"rollout_as_approved": True}


def test_teams_may_what_is_theirs(site: Site) -> None:
    may: dict[str, set[str]] = {}
    for place, role in site.awx.roles.items():
        kind, number, name = place.split("/")
        for team in site.awx.lists.get(f"roles/{role}/teams", []):
            if name in ("execute", "approval"):
                what = site.awx.objects[kind][int(number)]["name"].removeprefix("gaudi-serve ")
                may.setdefault(site.awx.objects["teams"][team]["name"].removeprefix("gaudi-serve "), set()).add(what)
    assert may["viewer"] == {"plan", "status"}
    assert {"rollout", "restart", "logs", "rollout with approvals"} < may["operator"]
    assert not may["operator"] & {"reset", "driver", "site"}
    assert may["admin"] > may["operator"] | {"reset", "driver", "site", "new host"}
    member = site.awx.roles[f"teams/{site.awx.named('teams', 'gaudi-serve operator')['id']}/member"]
    assert site.awx.lists[f"roles/{member}/users"] == [site.awx.named("users", "anna")["id"]]


def test_a_check_of_an_awx_that_has_a_part_lists_what_a_run_does(site: Site) -> None:
    number = site.awx.named("job_templates", "gaudi-serve logs")["id"]
    site.awx.drop("job_templates", number)
    site.awx.drop("workflow_job_template_nodes", nodes_of(site, "new host")["gateway"]["id"])
    site.awx.named("job_templates", "gaudi-serve status")["forks"] = 5
    site.awx.give("member", "teams", "gaudi-serve viewer", "users", "bert")
    site.awx.give("execute", "job_templates", "gaudi-serve reset", "teams", "gaudi-serve viewer")
    site.awx.writes.clear()
    status, said = site.run(SETTINGS, "--check")
    assert status == 0 and site.awx.writes == [], said
    assert changes(said) == [
        "~ template gaudi-serve status: forks 5 becomes 32",
        "+ template gaudi-serve logs",
        "+ node gaudi-serve new host: gateway",
        "~ node gaudi-serve new host: status: success_nodes with gateway",
        "- user bert: no longer a member of team gaudi-serve viewer",
        "- team gaudi-serve viewer: loses role execute of template gaudi-serve reset",
        "+ team gaudi-serve operator: has role execute of template gaudi-serve logs",
        "+ team gaudi-serve admin: has role execute of template gaudi-serve logs",
    ]
    status, text = site.run(SETTINGS)
    assert status == 0 and changes(text) == changes(said), text
    assert changes(site.run(SETTINGS, "--check")[1]) == []


def test_a_user_that_is_none_is_reported_before_anything_is_made(site: Site) -> None:
    site.awx.writes.clear()
    status, text = site.run({**SETTINGS, "organization": "other", "teams": {"viewer": ["anna", "nobody"]}})
    assert status != 0 and site.awx.writes == []
    assert "fleet_awx.teams.viewer: nobody is not a user of this AWX that user admin may see" in " ".join(text.split())


def test_a_canary_may_be_a_host_beside_the_inventory(site: Site) -> None:
    number = site.awx.named("job_templates", "gaudi-serve rollout")["id"]
    spec = site.awx.surveys[f"job_templates/{number}"]["spec"]
    assert next(one for one in spec if one["variable"] == "rollout_canary")["choices"] == ["", "h01", "h02", "gaudi09"]


def test_what_is_wrong_is_reported_at_once_and_without_secrets(site: Site) -> None:
    site.awx.writes.clear()
    wrong = {
        **SETTINGS,
        **{"organisation": "x", "forks": 0, "machine": {"username": "ops", "ssh_key": ["canary-key-1"]}},
        **{"project": {"url": "https://me:canary-word-5@git.example.net/x.git"}, "inventory": {"path": "/etc"}},
        **{"teams": {"viewers": []}, "vllm_secrets": "canary-key-1", "schedules": {"status": "hourly"}},
        **{"vllm_image_registries": {"registry.example.net": "canary-key-1"}, "fleet_gateway_secret": "canary-key-1"},
        "notifications": [{"name": "x", "type": "webhook", "configuration": {}}],
        "vault": {"password": "{{ lookup('ansible.builtin.file', '/nowhere/word') }}"},
    }
    status, text = site.run(wrong, "-e", "awx_update_secrets=maybe")
    flat = " ".join(text.split())
    assert status == 3 and site.awx.writes == []
    for sentence in (
        "organisation: is not a known name; did you mean organization?",
        "fleet_awx.forks: 0 is not an integer from 1 to 200",
        "fleet_awx.machine.ssh_key: (hidden) is not a text",
        "fleet_awx.project.url: (hidden) has a user or password",
        "is not a path inside the repository",
        "viewers: is not a known name; did you mean viewer?",
        "fleet_awx.vllm_secrets: (hidden) is not a mapping of models",
        "fleet_awx.vllm_image_registries: (hidden) is not a mapping of registries",
        "'hourly' is not a rule such as DTSTART",
        "fleet_awx.notifications[0].configuration.url: is required: a text",
        "fleet_awx.fleet_gateway_secret: (hidden): it must be a quoted text of at least 32",
        "fleet_awx.vault.password: cannot be read: ",
        "'/nowhere/word'",
        "awx_update_secrets: 'maybe' is not true or false",
    ):
        assert sentence in flat, text
    assert [one for one in CANARIES if one in text] == []


def test_an_approver_reads_the_plan_and_is_not_asked_where_no_host_is_left(site: Site) -> None:
    plan = {"steps": ["Wave 1, the canary: h01."], "waves": [["h01"]], "hosts": {}}
    given: dict[str, Any] = {
        **{"approval_node": "approve the plan", "approval_workflow": "gaudi-serve rollout with approvals"},
        **{"approval_organization": "gaudi-serve", "gaudi_rollout": plan},
    }

    def report() -> tuple[int, str]:
        return site.play("playbooks/awx_approval.yml", "-e", json.dumps(given))

    status, text = report()
    assert status == 0, text
    approval = site.awx.named("workflow_approval_templates", "approve the plan")
    assert approval["description"] == "Wave 1, the canary: h01."
    # What cannot be written stands in the output, and the rollout continues.
    given["approval_workflow"] = "other"
    status, text = report()
    assert status == 0 and "workflow other has no approval approve the plan" in " ".join(text.split()), text
    given["approval_node"] = "approve the waves"
    status, text = report()
    assert status == 2 and "No approval is needed: no host is left after the canary" in text, text


def test_all_that_was_made_is_removed_and_nothing_else(site: Site) -> None:
    own = site.awx.keep(
        "teams", {"name": "gaudi-serve friends", "organization": site.awx.named("organizations", "gaudi-serve")["id"]}
    )
    status, said = site.run(SETTINGS, "--check", "-e", "awx_state=absent")
    status, text = site.run(SETTINGS, "-e", "awx_state=absent")
    assert status == 0 and changes(said) == changes(text), text
    left = {kind: [one.get("name") for one in found.values()] for kind, found in site.awx.objects.items()}
    assert left["teams"] == [own["name"]] and left["organizations"] == ["gaudi-serve"]
    for kind in ("projects", "inventories", "job_templates", "workflow_job_templates", "schedules", "hosts"):
        assert left[kind] == [], kind
    assert "Ansible Galaxy" in left["credentials"] and "Machine" in left["credential_types"]
    flat = " ".join(text.split())
    assert "team gaudi-serve friends has the prefix of this file, but not the mark of awx.yml" in flat
    assert "organization gaudi-serve also has team gaudi-serve friends" in flat
    # Other tests may come after this one.
    del site.awx.objects["teams"][own["id"]]
    assert site.run(SETTINGS)[0] == 0
