"""Old names of variables: each means what the new one means, in the plan of a fleet and in what playbooks read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import trust_as_template
from gaudi_serve.awx.settings import TYPES, awx_default, awx_inputs, awx_refusal
from gaudi_serve.core.aliases import ALIASES, OLD, current, old_names
from gaudi_serve.core.options import OPTIONS
from gaudi_serve.gateway.fleet import fleet_entries, fleet_gateways
from gaudi_serve.inventory.rendered import Variables
from gaudi_serve.inventory.variables import HANDED, INPUTS, inventory_refusal
from gaudi_serve.plan.fleet import vllm_fleet_plan
from gaudi_serve.plan.judged import reasons
from gaudi_serve.show.notes import STANDING
from gaudi_serve.show.report import endpoint_table, gateway_of
from gaudi_serve.show.status import fleet_status
from gaudi_serve.stages.base import Pending
from helpers.inventories import ROOT
from helpers.plans import gaudi_host, known, model, planned
from helpers.plugins import acting, load

SECRET, GATEWAY = "0123456789abcdef0123456789abcdef", {"clients": {"a": {"key": "k" * 32}}}
# By the new name: a value, and another one of which the plan has something else.
VALUES: dict[str, tuple[Any, Any]] = {
    "accelerator": ("gaudi", "cpu"),
    "accelerator_cards": (8, 7),
    "accelerator_cards_excluded": (["AM1"], ["AM2"]),
    "accelerator_release": ("1.21.3", "1.22.0"),
    "fleet_acknowledged": ([*STANDING], ["none"]),
    "fleet_address": ("10.9.9.9", "10.8.8.8"),
    "fleet_all_at_once": (True, "y"),
    "fleet_gateway": (GATEWAY, {"port": 0}),
    "fleet_gateway_secret": (SECRET, "short"),
    "fleet_lock_break": (True, "y"),
    "fleet_lock_lease_s": (60, 0),
    "fleet_move_allowed": (True, False),
    "fleet_stop_on_errors": (False, "n"),
}
# What gaudi_plan and the roles read of each, by playbooks/vars.
READ = {
    "accelerator": ("preflight_accelerator",),
    "accelerator_cards": ("preflight_cards",),
    "accelerator_cards_excluded": ("preflight_cards_excluded",),
    "accelerator_release": ("preflight_release", "__playbook_release", "driver_release"),
    "fleet_address": ("__playbook_defaults",),
    "fleet_gateway": ("gateway_settings",),
    "fleet_gateway_secret": ("__playbook_gateway_secret",),
    "fleet_move_allowed": ("preflight_move_allowed",),
}


def fleet(**more: Any) -> dict[str, Any]:
    """Plan a host of a fleet with a gateway elsewhere, where a new model names the card of one that runs."""
    live = {"old": {"module_ids": [0], "port": 30002, "active": True}}
    models = [model(name="old", tensor_parallel_size=1, port=30002), model(module_ids=[0, 1])]
    usual = {"vllm_models": models, "fleet_gateway_secret": SECRET, "gaudi_host": gaudi_host(services=live)}
    usual = {key: value for key, value in usual.items() if OLD.get(key) not in more}
    if OLD["accelerator_release"] in more:
        more["accelerator_release"] = None
    facts = {key: value for key, value in known(**{**usual, **more}).items() if value is not None}
    return vllm_fleet_plan({"g": facts, "gw": {"fleet_gateway": GATEWAY, "vllm_models": None}}, ["g"], [])


def test_every_alias_is_tested_here() -> None:
    ours = {new for new in ALIASES.values() if new.startswith(("accelerator", "fleet_"))}
    assert ours == {*VALUES, "fleet_awx"}
    assert len(OLD) == len(ALIASES)


def test_the_documentation_lists_every_old_name() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| `(\w+)` \|$", (ROOT / "docs/reference/inventory.md").read_text(encoding="utf-8"), re.M
    )
    assert dict(rows) == ALIASES


@pytest.mark.parametrize("new", VALUES)
def test_an_old_name_does_what_the_new_one_does(new: str) -> None:
    plans = [fleet(**{new: value}) for value in VALUES[new]]
    assert plans[0] != plans[1]
    for value, plan in zip(VALUES[new], plans, strict=True):
        assert json.loads(current(json.dumps(fleet(**{OLD[new]: value})))) == plan


def of_task(**given: Any) -> dict[str, Any]:
    """Return the variables of a task of a playbook with stages."""
    files = (yaml.safe_load((ROOT / f"playbooks/vars/{name}.yml").read_text()) for name in ("preflight", "stages"))
    text = {key: trust_as_template(value) for one in files for key, value in one.items()}
    facts = {"preflight_gateways": ["gw"], "inventory_hostname": "g", "gaudi_host": gaudi_host()}
    return {**text, **facts, **given}


@pytest.mark.parametrize("new", READ)
def test_playbooks_read_old_names_as_new_ones(new: str) -> None:
    def read(**given: Any) -> list[Any]:
        variables = Variables(of_task(**given), DataLoader())
        return [variables[name] for name in READ[new]]

    one, other = VALUES[new]
    assert read(**{new: one}) == read(**{OLD[new]: one}) != read(**{new: other})
    assert read(**{OLD[new]: other}) == read(**{new: other})
    # What is empty is as what is missing.
    assert read(**{new: None}) == read(**{OLD[new]: None}) == read()


def test_what_a_run_is_reported_of_by_an_old_name_wins_over_what_follows_from_others() -> None:
    plan = {"models": [{"image": "vllm:1", "env": {}}]}
    given = {"accelerator_release": "1.24.1", "preflight_plan": plan}
    told = {"gaudi_driver_release": "1.22.0", "hccl_validation_image": "other:2"}
    for more, expected in (({}, ["1.24.1", "vllm:1"]), (told, ["1.22.0", "other:2"])):
        variables = Variables(of_task(**given, **more), DataLoader())
        assert [variables[name] for name in ("driver_release", "link_validation_image")] == expected


def test_an_inventory_decides_what_playbooks_take_from_other_variables() -> None:
    plan = {"models": [{"image": "vllm:1", "env": {"NCCL_A": "1", "NCCL_B": "1"}}]}
    given = {"preflight_plan": plan, "accelerator_release": "1.24.1", "vllm_weights_endpoints": {"hub": "https://a"}}
    own = {
        "driver_release": ("1.24.1", "1.22.0", "1.22.0"),
        "link_validation_image": ("vllm:1", "other:2", "other:2"),
        "link_validation_env": ({"NCCL_A": "1", "NCCL_B": "1"}, {"NCCL_B": "2"}, {"NCCL_A": "1", "NCCL_B": "2"}),
        "model_weights_calibrate_endpoint": ("https://a", "https://b", "https://b"),
    }
    for name, (usual, value, expected) in own.items():
        for inventory, result in (({}, usual), ({name: None}, usual), ({name: value}, expected)):
            variables = Variables(of_task(**given, hostvars={"g": inventory}), DataLoader())
            assert variables[name] == result, name
    # Nobody may set the others; a run and the roles' documentation name where their values come from.
    assert {name for name in of_task() if name in OPTIONS} == {*HANDED, *own}
    assert {*own} <= {*INPUTS}


def test_a_run_warns_of_options_that_playbooks_set_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = load("action_plugins/gaudi_old_names.py")
    monkeypatch.setattr(plugin, "load_extra_vars", lambda loader: {"model_weights_device": "HL-325"})
    hosts = {"a": {"model_weights_device": "HL-325", "preflight_cards": 8}, "b": {"gateway_rank": 1, "my_own": 2}}
    hosts["a"] |= {"accelerator_cards": 8, "driver_release": "1.22.0", "preflight_catalog": {}}
    action = acting(plugin, lambda name, arguments: {})
    result = action.run(task_vars={"hostvars": hosts, "groups": {"all": [*hosts]}})
    assert result["warnings"] == [
        "Playbooks set these options of roles and ignore the inventory's values: preflight_cards (from "
        "accelerator_cards), gateway_rank (from the order of the gateways)"
    ]
    page = (ROOT / "docs/reference/roles.md").read_text(encoding="utf-8")
    for name, source in HANDED.items():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert f"Playbooks set it from {source}." in row


def test_a_run_refuses_a_host_by_the_names_that_are_written() -> None:
    given = {
        "gaudi_accelerator": "cpu",
        "gaudi_cards": 7,
        "gaudi_gateway": {"port": 30001, "clients": GATEWAY["clients"]},
    }
    usual = {
        **known(vllm_models=[model(port=30001)]),
        "preflight_for": ["vllm_service"],
        "gaudi_observed_at": "now",
        "gaudi_release": "1.21.3",
    }
    del usual["accelerator_release"]
    action = acting(load("action_plugins/gaudi_plan.py"), lambda name, arguments: {}, judge=True)
    action._loader = DataLoader()
    refusal = action.run(task_vars=of_task(**usual, **given))["ansible_facts"]["preflight_refusal"]
    assert "g: gaudi_accelerator is cpu, but this is a gaudi host" in refusal
    assert "g: gaudi_cards is 7, but hl-smi shows 8: module_ids [0, 1, 2, 3, 4, 5, 6, 7]" in refusal
    assert any(text.startswith("g: gaudi_gateway.port: 30001: model ") for text in refusal)


def test_a_stage_is_refused_by_the_names_that_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = load("action_plugins/gaudi_stage.py")
    found = Pending(refusal=("g: accelerator_release 1.99.0 is not known",))
    stage = SimpleNamespace(role="host_tuning", asked=lambda given, look: found, facts=lambda pending: {})
    monkeypatch.setattr(plugin, "BY_ROLE", {"host_tuning": stage})
    action = acting(plugin, lambda name, arguments: {}, stage="host_tuning", step="pending")
    action._loader = DataLoader()
    result = action.run(task_vars={"inventory_hostname": "g", "gaudi_release": "1.99.0"})
    assert result["msg"][1:] == ["g: gaudi_release 1.99.0 is not known"]
    facts = {"gaudi_release": "1.99.0", "driver_refusal": list(found.refusal)}
    assert reasons(facts, [], [], "g") == ["g: gaudi_release 1.99.0 is not known"]


def test_no_template_reads_a_new_name_alone() -> None:
    def lines() -> Iterator[str]:
        for path in [ROOT / "site.yml", *(ROOT / "playbooks").rglob("*.yml"), *(ROOT / "roles").rglob("tasks/*.yml")]:
            yield from path.read_text(encoding="utf-8").splitlines()

    reads = [line for line in lines() if re.search(rf"\b({'|'.join(VALUES)}) *\| *default", line)]
    assert len(reads) > 10
    for line in reads:
        for name in re.findall(rf"\b({'|'.join(VALUES)}) *\| *default", line):
            assert re.search(rf"\b{name} \| default\((hostvars\[\w+\]\.)?{OLD[name]}\b", line), line


@pytest.mark.parametrize(
    ("given", "accelerator"),
    [
        ({"accelerator": "rocm"}, "rocm"),
        ({"gaudi_accelerator": "cpu"}, "cpu"),
        ({"accelerator": "{{ kind }}", "kind": "xpu"}, "xpu"),
        ({"accelerator": "{{ kind }}"}, "auto"),
        ({"accelerator": None}, "auto"),
        ({}, "auto"),
    ],
)
def test_every_look_at_a_host_is_for_the_accelerator_of_its_inventory(
    given: dict[str, Any], accelerator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = load("action_plugins/gaudi_facts.py")
    monkeypatch.setattr(plugin.Normal, "run", lambda self, tmp, variables: dict(self._task.args))
    variables = {name: trust_as_template(value) for name, value in given.items() if value} or given

    def look(**arguments: Any) -> dict[str, Any]:
        action = acting(plugin, lambda name, arguments: {}, **arguments)
        action._task.delegate_to = None
        return dict(action.run(task_vars=variables))

    assert look(gather=["host"]) == {"gather": ["host"], "accelerator": accelerator}
    assert look(accelerator="cuda")["accelerator"] == "cuda"


def test_gateways_are_found_by_either_name() -> None:
    live = {"unit": {"active": True}, "states": [], "servers": []}
    for name in ("fleet_gateway", "gaudi_gateway"):
        hosts = {"gw": {name: GATEWAY, "gaudi_haproxy": live}, "h": {name: None}}
        assert fleet_gateways(hosts, hosts) == ["gw"]
        assert gateway_of("gw", hosts["gw"]) is not None


def test_a_gateway_reaches_a_host_at_the_address_of_either_name() -> None:
    plan = planned(model(host="0.0.0.0"))
    for name in ("fleet_address", "gaudi_fleet_address"):
        (entry,) = fleet_entries({"h": {"preflight_plan": plan, name: "10.9.9.9"}}, ["h"], "gw")
        assert entry["address"] == "10.9.9.9"


def test_notes_are_acknowledged_by_either_name() -> None:
    facts = {"gateway_status": [], "link_validation_notes": ["HCCL validation pending (never measured)"]}
    for name in ("fleet_acknowledged", "gaudi_acknowledged"):
        assert fleet_status({"h": {**facts, name: ["hccl_validation"]}}, ["h"])["hosts"]["h"]["notes"] == []
        assert endpoint_table({"h": {**facts, name: ["hccl_validation"]}}, ["h"])[2:] == []
    assert endpoint_table({"h": facts}, ["h"])[2:] != []
    assert fleet_status({"h": facts}, ["h"])["hosts"]["h"]["notes"] != []


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"gaudi_cards": 4, "accelerator_cards": 8}, "gaudi_cards 4 and accelerator_cards 8"),
        ({"gaudi_cards": 4, "accelerator_cards": None}, "gaudi_cards 4 and accelerator_cards (empty)"),
        ({"gaudi_accelerator": "auto", "accelerator": "gaudi"}, "gaudi_accelerator 'auto' and accelerator 'gaudi'"),
        ({"gaudi_lock_break": "true", "fleet_lock_break": False}, "gaudi_lock_break 'true' and fleet_lock_break false"),
        (
            {"gaudi_gateway_secret": SECRET, "fleet_gateway_secret": SECRET[::-1]},
            "gaudi_gateway_secret (hidden) and fleet_gateway_secret (hidden)",
        ),
    ],
)
def test_two_names_with_different_values_are_refused(given: dict[str, Any], shown: str) -> None:
    old = next(iter(given))
    sentence = (
        f"g: {shown} are two names of one variable, and differ; remove {old}, the old name. If one of them is set "
        "with -e, use the same name with -e as in the inventory"
    )
    assert inventory_refusal(given, "g") == [sentence]
    assert sentence in [error["message"] for error in vllm_fleet_plan({"g": known(**given)}, ["g"], [])["errors"]]


@pytest.mark.parametrize(
    "given",
    [
        {"gaudi_cards": "8", "accelerator_cards": 8},
        {"gaudi_lock_break": "yes", "fleet_lock_break": True},
        {"gaudi_fleet_address": None, "fleet_address": ""},
        {"gaudi_gateway": GATEWAY, "fleet_gateway": GATEWAY},
    ],
)
def test_two_names_with_one_value_are_fine(given: dict[str, Any]) -> None:
    assert inventory_refusal(given, "g") == []


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"gaudi_cards": -1}, "g: gaudi_cards -1: must be the number of cards that the host must have"),
        ({"gaudi_accelerator": "gpu"}, "g: gaudi_accelerator 'gpu': must be auto, gaudi"),
        ({"gaudi_gateway": {"port": 0}}, "g: gaudi_gateway.port: 0 is not an integer from 1 to 65535"),
        ({"gaudi_gateway": "k3y"}, "g: gaudi_gateway: (hidden): must be a mapping"),
        ({"gaudi_lock_lease_s": "x"}, "g: gaudi_lock_lease_s 'x': must be"),
    ],
)
def test_a_bad_value_is_refused_under_the_name_that_is_written(given: dict[str, Any], sentence: str) -> None:
    (found,) = inventory_refusal(given, "g")
    assert found.startswith(sentence)
    errors = vllm_fleet_plan({"g": known(**given)}, ["g"], [])["errors"]
    assert found in [error["message"] for error in errors]


@pytest.mark.parametrize(
    ("more", "key", "text"),
    [
        ({"gaudi_cards": 9}, "gaudi_cards", "g: gaudi_cards is 9, but hl-smi shows 8: "),
        ({"gaudi_accelerator": "cpu"}, "gaudi_accelerator", "g: gaudi_accelerator is cpu, but this is a gaudi host"),
        ({"gaudi_accelerator": "openvino"}, "gaudi_accelerator", "; gaudi_accelerator: cpu serves on the processors"),
    ],
)
def test_what_a_host_is_refused_for_is_named_as_it_is_written(more: dict[str, Any], key: str, text: str) -> None:
    errors = vllm_fleet_plan({"g": known(**more)}, ["g"], [])["errors"]
    assert key in [error["key"] for error in errors if text in error["message"]]


def test_a_mistake_in_an_old_name_is_reported_the_new_one() -> None:
    (found,) = inventory_refusal({"gaudi_accelarator": "cpu"}, "g")
    assert found.startswith("g: gaudi_accelarator is not a variable of this toolkit; did you mean accelerator?")
    (found,) = inventory_refusal({"fleet_gatewy": {}}, "g")
    assert "did you mean fleet_gateway?; names that begin with fleet_ are its own" in found
    (found,) = inventory_refusal({"accelerator_card": 8}, "g")
    assert "did you mean accelerator_cards?" in found


def test_old_names_of_all_hosts_are_one_sentence() -> None:
    hosts: list[dict[str, Any]] = [{"gaudi_gateway": {}}, {"gaudi_cards": 8, "vllm_models": []}, {"gaudi_cards": 4}]
    assert old_names(hosts) == [
        "Variables have new names; the next release does not read the old ones: gaudi_cards (now accelerator_cards), "
        "gaudi_gateway (now fleet_gateway)"
    ]
    assert old_names([{"accelerator_cards": 8}, {}]) == []


def test_the_settings_of_an_awx_have_either_name() -> None:
    wrong = {"forks": 0}
    new, old = awx_refusal(wrong), awx_refusal(None, old=wrong)
    assert [text.replace("fleet_awx", "gaudi_awx") for text in new] == old != new
    assert any(text.startswith("gaudi_awx.forks: 0 is not") for text in old)
    assert awx_refusal(wrong, old=wrong) == awx_refusal(wrong)
    (both,) = awx_refusal(wrong, old={"forks": 1})
    assert both.startswith("gaudi_awx (hidden) and fleet_awx (hidden) are two names of one variable, and differ")


def test_the_secret_of_gateways_in_an_awx_has_either_name_and_its_type_keeps_its_fields() -> None:
    for name in ("fleet_gateway_secret", "gaudi_gateway_secret"):
        assert awx_inputs({name: SECRET}, "fleet_gateway_secret") == {"gaudi_gateway_secret": SECRET}
    both = {"fleet_gateway_secret": SECRET, "gaudi_gateway_secret": SECRET[::-1]}
    assert any("are two names of one variable" in text and SECRET not in text for text in awx_refusal(both))
    kind = TYPES["fleet_gateway_secret"]
    assert [field["id"] for field in kind["inputs"]["fields"]] == ["gaudi_gateway_secret"]
    assert kind["injectors"] == {"extra_vars": {"fleet_gateway_secret": "{{ gaudi_gateway_secret }}"}}


def test_a_survey_answers_what_hosts_report_under_either_name() -> None:
    assert (
        awx_default([{"gaudi_all_at_once": True}, {"fleet_all_at_once": True}], "fleet_all_at_once", "false") == "true"
    )
