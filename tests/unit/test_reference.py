"""The reference lists everything that a user may write, and its schemas accept what runs accept."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from gaudi_serve.catalog.keys import CHECKS, OPTION_CHECKS
from gaudi_serve.core.version import VERSION
from gaudi_serve.inventory.facts import VARIABLES
from gaudi_serve.inventory.variables import INPUTS
from gaudi_serve.show.status import fleet_status

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from reference_lib import manual_map, models, outputs, playbooks, variables  # noqa: E402

EXAMPLES = sorted(path.name for path in ROOT.glob("inventory/examples/*"))


def schema(name: str) -> jsonschema.Draft202012Validator:
    """Return a validator by one of the schemas."""
    text = (ROOT / f"docs/reference/schemas/{name}.schema.json").read_text(encoding="utf-8")
    jsonschema.Draft202012Validator.check_schema(json.loads(text))
    return jsonschema.Draft202012Validator(json.loads(text))


def complaints(name: str, value: Any) -> list[str]:
    """Return what a schema complains about."""
    return [error.message for error in schema(name).iter_errors(value)]


def test_every_variable_is_documented_once() -> None:
    assert variables.documented() == variables.known()


def test_every_key_of_a_model_is_documented() -> None:
    assert {*CHECKS, *OPTION_CHECKS} <= {one.name for one in models.entries()}


def test_every_example_is_accepted() -> None:
    rules = {**VARIABLES, **INPUTS}
    for entry in variables.own():
        value = yaml.safe_load(entry.example)
        assert value is not None, entry.name
        if entry.name in rules and "{{" not in entry.example:
            assert rules[entry.name].good(value), entry.name
    for entry in models.entries():
        value = yaml.safe_load(entry.example)
        check = CHECKS.get(entry.name) or OPTION_CHECKS.get(entry.name)
        if check and entry.name != "hosts":
            assert check(value) is None, entry.name


def test_every_entry_has_a_sentence_and_what_is_allowed() -> None:
    rules = {**VARIABLES, **INPUTS}
    entries = variables.own() + [one for found in variables.of_roles().values() for one in found]
    for entry in [*entries, *models.entries()]:
        assert entry.help.endswith("."), entry.name
        assert entry.allowed or entry.name not in rules, entry.name


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_schemas_accept_the_example_inventories(name: str) -> None:
    folder = ROOT / "inventory/examples" / name
    assert complaints("inventory", yaml.safe_load((folder / "hosts.yml").read_text(encoding="utf-8"))) == []
    for path in folder.glob("group_vars/*.yml"):
        assert complaints("variables", yaml.safe_load(path.read_text(encoding="utf-8"))) == [], path


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        ({"vllm_modles": []}, "vllm_modles"),
        ({"accelerator": "tpu"}, "tpu"),
        ({"accelerator_cards": "eight"}, "eight"),
        ({"vllm_models": [{"name": "a", "tensor_paralel_size": 2}]}, "tensor_paralel_size"),
        ({"vllm_models": [{"name": "a", "port": "x"}]}, "x"),
        ({"vllm_model_defaults": {"smoke": ["song"]}}, "song"),
    ],
)
def test_the_schemas_refuse_mistakes(wrong: dict[str, Any], part: str) -> None:
    assert any(part in message for message in complaints("variables", wrong))
    inventory = {"all": {"children": {"g": {"hosts": {"a": wrong}}}}}
    assert complaints("inventory", inventory)


@pytest.mark.parametrize(
    "right",
    [
        {"my_own_variable": 1, "ansible_user": "ops"},
        {"accelerator_cards": "{{ cards }}", "vllm_models": "{{ models }}"},
        {
            "vllm_models": [
                {"name": "a", "enable_auto_tool_choice": True, "port": "{{ port }}", "recipe_cache_path": None}
            ]
        },
        {"gaudi_cards": 8},
    ],
)
def test_the_schemas_accept_what_is_right(right: dict[str, Any]) -> None:
    assert complaints("variables", right) == []


def test_every_playbook_describes_itself_and_its_options() -> None:
    found = [playbooks.read(path) for path in ROOT.glob("playbooks/*.yml")]
    for one in found:
        assert one.text.endswith("."), one.name
        assert all(meaning.endswith((".", ")")) for _, meaning in one.options), one.name
        assert not one.guide or (ROOT / f"docs/guides/{one.guide}.md").is_file(), one.name
    assert sum(len(one.options) for one in found) > 60


OUTPUTS = {name: jsonschema.Draft202012Validator(one) for name, (_, one) in outputs.ALL.items()}


def test_the_status_of_a_fleet_has_its_schema() -> None:
    hosts = {"a": {"status_problem": "cannot be read"}, "b": {"preflight_left_alone": True, "gaudi_host": {}}}
    status = {"schema_version": 1, **fleet_status(hosts, list(hosts))}
    OUTPUTS["status"].validate(status)
    for broken in ({**status, "drifted": None}, {key: value for key, value in status.items() if key != "hosts"}):
        assert list(OUTPUTS["status"].iter_errors(broken))


def test_every_test_that_the_manual_map_names_exists() -> None:
    assert list(manual_map.missing(ROOT)) == []


def test_one_version_stands_everywhere() -> None:
    settings = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))
    latest = re.findall(r"^## \[?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)[0]
    assert settings["version"] == VERSION == latest
