"""What playbooks read from an inventory for the roles, and the names of 1.0, which are refused."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import trust_as_template
from gaudi_serve.awx.settings import awx_refusal
from gaudi_serve.core.options import OPTIONS
from gaudi_serve.inventory.rendered import Variables
from gaudi_serve.inventory.variables import HANDED, INPUTS, inventory_refusal, misplaced_keys
from helpers.inventories import ROOT
from helpers.plans import gaudi_host
from helpers.plugins import acting, load

# Names that were removed, and what a user meant.
REMOVED = {
    "gaudi_accelerator": "accelerator",
    **{f"gaudi_{name}": f"accelerator_{name}" for name in ("cards", "cards_excluded", "release")},
    **{
        f"gaudi_{name}": f"fleet_{name}" for name in ("acknowledged", "all_at_once", "awx", "gateway", "gateway_secret")
    },
    **{f"gaudi_{name}": f"fleet_{name}" for name in ("lock_break", "lock_lease_s", "move_allowed", "stop_on_errors")},
    "gaudi_fleet_address": "fleet_address",
    **{f"gaudi_driver_{name}": f"driver_{name}" for name in ("release", "version", "packages", "optional_packages")},
    **{f"gaudi_driver_{name}": f"driver_{name}" for name in ("modules", "kernel_headers", "upgrade_allowed", "manage")},
    **{f"gaudi_driver_{name}": f"driver_{name}" for name in ("repository", "ports_may_be_down")},
    **{f"hccl_validation_{name}": f"link_validation_{name}" for name in ("image", "asked", "drain", "max_age_days")},
    **{f"hccl_validation_{name}": f"link_validation_{name}" for name in ("thresholds", "nodes", "port", "timeout")},
    **{f"hccl_validation_{name}": f"link_validation_hccl_{name}" for name in ("options", "checkout", "repository")},
    "hccl_validation_commit": "link_validation_hccl_commit",
}


def of_task(**given: Any) -> dict[str, Any]:
    """Return the variables of a task of a playbook with stages."""
    files = (yaml.safe_load((ROOT / f"playbooks/vars/{name}.yml").read_text()) for name in ("preflight", "stages"))
    text = {key: trust_as_template(value) for one in files for key, value in one.items()}
    facts = {"preflight_gateways": ["gw"], "inventory_hostname": "g", "gaudi_host": gaudi_host()}
    return {**text, **facts, **given}


@pytest.mark.parametrize(("name", "now"), REMOVED.items())
def test_a_removed_name_is_refused_with_the_present_one(name: str, now: str) -> None:
    (found,) = inventory_refusal({name: None}, "g")
    assert found.startswith(f"g: {name} is not a variable of this toolkit; did you mean {now}?")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("driver_versoin", "did you mean driver_version?"),
        ("driver_manged", "did you mean driver_manage?"),
        ("site_mirror_prt", "did you mean site_mirror_port?"),
        ("fleet_awxx", "did you mean fleet_awx?"),
        ("vllm_tensor_parallel_size", "tensor_parallel_size is a key of a model in vllm_models"),
    ],
)
def test_a_misspelt_name_of_any_role_is_refused(name: str, part: str) -> None:
    (found,) = inventory_refusal({name: None}, "g")
    assert part in found


def test_removed_names_in_values_are_refused() -> None:
    (found,) = inventory_refusal({"fleet_acknowledged": ["hccl_validation"]}, "g")
    assert found.startswith('g: fleet_acknowledged ["hccl_validation"]: must be a list of link_validation, driver_held')
    assert any("gaudi_gateway_secret" in text for text in awx_refusal({"gaudi_gateway_secret": "x" * 32}))


@pytest.mark.parametrize("name", ["accelerator", "accelerator_cards", "accelerator_release", "fleet_gateway"])
def test_an_empty_variable_means_the_same_as_a_missing_one(name: str) -> None:
    read = ("preflight_accelerator", "preflight_cards", "preflight_release", "driver_release", "gateway_settings")
    empty, missing = (Variables(of_task(**given), DataLoader()) for given in ({name: None}, {}))
    assert [empty[one] for one in read] == [missing[one] for one in read]


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
    plugin = load("action_plugins/gaudi_ignored_options.py")
    monkeypatch.setattr(plugin, "load_extra_vars", lambda loader: {"model_weights_device": "HL-325"})
    hosts = {"a": {"model_weights_device": "HL-325", "preflight_cards": 8}, "b": {"gateway_rank": 1, "my_own": 2}}
    hosts["a"] |= {"accelerator_cards": 8, "driver_release": "1.22.0", "preflight_catalog": {}}
    action = acting(plugin, lambda name, arguments: {})
    result = action.run(task_vars={"hostvars": hosts, "groups": {"all": [*hosts]}})
    assert result["warnings"] == [
        "Playbooks set these options of roles and ignore the inventory's values: preflight_cards (from "
        "accelerator_cards), gateway_rank (from the order of the gateways)"
    ]
    pages = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("roles/*/README.md"))
    for name, source in HANDED.items():
        (row,) = (line for line in pages.splitlines() if line.startswith(f"| `{name}` |"))
        assert f"Playbooks set it from {source}." in row


def test_keys_of_a_model_beside_its_entry_are_warned_of() -> None:
    one: dict[str, Any] = {"vllm_models": [], "max_num_seqs": 8, "env": {"A": "1"}, "image": "vllm:1"}
    other = {"vllm_models": [], "max_num_seqs": 8, "env": "production", "image": "debian", "vllm_images": None}
    hosts = {
        "a": {**one, "vllm_images": [{"name": "vllm:1"}]},
        "b": {**other, "log_level": "debug", "dtype": "auto", "extra_args": []},
        "gateway": {"max_num_seqs": 8},
    }
    assert misplaced_keys(hosts) == [
        "a, b: variable max_num_seqs is a key of a model: put it into the entry of vllm_models",
        "a: variable env is a key of a model: put it into the entry of vllm_models",
        "a: variable image is a key of a model: put it into the entry of vllm_models",
    ]


@pytest.mark.parametrize(
    ("given", "accelerator"),
    [
        ({"accelerator": "rocm"}, "rocm"),
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
