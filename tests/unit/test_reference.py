"""The reference lists everything that a user may write, and its schemas accept what runs accept."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import jsonschema
import pytest
import referencing
import yaml
from gaudi_serve.awx.settings import awx_refusal, awx_settings
from gaudi_serve.bench.ask import read_ask
from gaudi_serve.catalog.keys import CHECKS, OPTION_CHECKS, findings
from gaudi_serve.core.errors import InputError
from gaudi_serve.core.options import OPTIONS
from gaudi_serve.gateway.inputs import read_gateway
from gaudi_serve.inventory.facts import VARIABLES
from gaudi_serve.inventory.variables import INPUTS
from gaudi_serve.monitoring.settings import read_monitoring
from gaudi_serve.show.status import fleet_status
from gaudi_serve.stages.accelerator_network import network_problems
from gaudi_serve.stages.image import vllm_images
from gaudi_serve.tune.proposal import read_goal
from gaudi_serve.tune.trace_file import Columns

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from reference_lib import manual_map, mappings, models, outputs, playbooks, variables  # noqa: E402

EXAMPLES = sorted(path.name for path in ROOT.glob("inventory/examples/*"))


@functools.cache
def of_file(uri: str) -> referencing.Resource[Any]:
    """Return a schema by the address of its file, as an editor reads it."""
    text = Path(unquote(urlsplit(uri).path)).read_text(encoding="utf-8")
    jsonschema.Draft202012Validator.check_schema(json.loads(text))
    return referencing.Resource.from_contents(json.loads(text))


@functools.cache
def schema(name: str) -> jsonschema.Draft202012Validator:
    """Return a validator by one of the schemas. A reference to another file is relative to its own file."""
    uri = (ROOT / f"docs/reference/schemas/{name}.schema.json").as_uri()
    return jsonschema.Draft202012Validator({"$ref": uri}, registry=referencing.Registry(retrieve=of_file))


def complaints(name: str, value: Any) -> list[str]:
    """Return what a schema complains about."""
    return [error.message for error in schema(name).iter_errors(value)]


# Options of playbooks, which no inventory sets.
NO_VARIABLES = ("trace_columns", "tune_max_padding")
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\n"
CHECKED: dict[str, Callable[[Any], object]] = {
    "fleet_gateway": read_gateway,
    "fleet_monitoring": read_monitoring,
    "fleet_awx": awx_settings,
    "vllm_images": lambda value: vllm_images(value, "1.21.3"),
    "trace_columns": lambda value: Columns.of(value, None),
    "tune_max_padding": lambda value: read_goal({"tune_max_padding": value}),
}


def root_of(path: str) -> str:
    """Return the variable, key or option in which a mapping is."""
    return path.partition(".")[0].partition("[")[0]


def complete(path: str, keys: dict[str, Any], missing: str = "") -> Any:
    """Return the smallest valid value of a variable that has keys in the mapping of a path, and lacks one."""
    data, given = mappings.DATA[path], next(iter(keys))
    value: Any = {**data[given].get("beside", {}), **keys}
    for one in mappings.entries(path):
        others = {*re.findall(r"`(\w+)`", one.default)} if one.default.startswith("required without") else set()
        needed = one.default.startswith("required") and "beside" not in data[one.name] and not others & {*value}
        value = {**({one.name: yaml.safe_load(str(one.example))} if needed else {}), **value}
    value.pop(missing, None)
    while path.endswith("[]") or path.rpartition(".")[2].isupper():
        outer, _, name = path.rpartition(".") if not path.endswith("[]") else (path[:-2], "", "")
        # A registry's name has a dot or a port.
        key = "registry.site" if name == "REGISTRY" else name.lower()
        path, value = outer, {key: value} if name else [value]
    outer, _, name = path.rpartition(".")
    return complete(outer, {name: value}) if outer else value


def checked(root: str, value: Any) -> str:
    """Return the problem that the toolkit's checks find in a value of a variable, key or option; empty without one."""
    value = rendered(value)
    if root in CHECKED:
        try:
            CHECKED[root](value)
        except InputError as problem:
            return str(problem)
        return ""
    if root == "accelerator_network_ports":
        return "; ".join(network_problems({root: value, "accelerator_network_between": "ports"}, "gaudi01", None))
    if root in INPUTS:
        return "" if INPUTS[root].good(value) else INPUTS[root].allowed
    return str(findings({"name": "qwq", "weights": "/data/qwq", root: value}) or "")


def rendered(value: Any, key: str = "") -> Any:
    """Return a value with other texts in place of templates."""
    if isinstance(value, dict):
        return {name: rendered(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [rendered(one) for one in value]
    template = isinstance(value, str) and "{{" in value
    return value if not template else KEY if key == "ssh_key" else f"a-text-of-enough-characters-{key}-0123456789"


def in_variables(root: str, value: Any) -> dict[str, Any]:
    """Return the variables of a host with a value; none for the option of a playbook."""
    if root in NO_VARIABLES:
        return {}
    return {"vllm_models": [{"name": "qwq", root: value}]} if root in models.data_of("model_keys") else {root: value}


def test_every_variable_is_documented_once() -> None:
    assert sorted(one.name for one in variables.every()) == sorted(variables.known())


def test_every_key_of_a_model_is_documented() -> None:
    assert {*CHECKS, *OPTION_CHECKS} <= {one.name for one in models.entries()}


@pytest.mark.parametrize("path", sorted({*mappings.CODE, *mappings.DATA}))
def test_every_key_that_the_code_knows_in_a_mapping_is_documented(path: str) -> None:
    assert {*mappings.DATA[path]} == {*mappings.CODE[path].names}


@pytest.mark.parametrize("path", mappings.DATA)
def test_the_code_accepts_every_documented_key_of_a_mapping(path: str) -> None:
    root = root_of(path)
    for one in mappings.entries(path):
        value = complete(path, {one.name: yaml.safe_load(one.example)})
        assert checked(root, value) == "", one.name
        assert complaints("variables", in_variables(root, value)) == [], one.name


@pytest.mark.parametrize("path", mappings.DATA)
def test_the_code_refuses_every_other_key_of_a_mapping(path: str) -> None:
    root, first = root_of(path), mappings.entries(path)[0]
    value = complete(path, {first.name: yaml.safe_load(first.example), "no_such_key": 1})
    assert checked(root, value) != ""
    assert root in NO_VARIABLES or complaints("variables", in_variables(root, value))


REQUIRED = [
    (path, one.name) for path in mappings.DATA for one in mappings.entries(path) if one.default.startswith("required")
]


@pytest.mark.parametrize(("path", "name"), REQUIRED)
def test_the_code_and_the_schemas_refuse_a_mapping_without_a_required_key(path: str, name: str) -> None:
    root = root_of(path)
    example = next(yaml.safe_load(str(one.example)) for one in mappings.entries(path) if one.name == name)
    value = complete(path, {name: example}, missing=name)
    # An empty value may mean none.
    refused = checked(root, value) != ""
    assert refused or value == {}
    assert root in NO_VARIABLES or bool(complaints("variables", in_variables(root, value))) == refused


@pytest.mark.parametrize("path", mappings.DATA)
def test_the_code_refuses_other_values_than_the_choices_of_a_key(path: str) -> None:
    for one in mappings.entries(path):
        if one.choices:
            wrong = "no_such_value"
            value = {"list": [wrong], "mapping of str": {"qwq-32b": wrong}}.get(one.kind, wrong)
            assert checked(root_of(path), complete(path, {one.name: value})) != "", one.name


@pytest.mark.parametrize("path", [path for path, one in mappings.CODE.items() if one.defaults])
def test_a_default_that_the_code_has_is_not_written_by_hand(path: str) -> None:
    by_hand = [name for name, one in mappings.DATA[path].items() if "default" in one]
    assert [name for name in by_hand if getattr(mappings.CODE[path].defaults, name, None)] == []


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
    for entry in [*variables.every(), *models.entries()]:
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


def test_the_schema_of_an_inventory_reads_the_one_of_variables_from_its_folder(tmp_path: Path) -> None:
    mistake = {"all": {"vars": {"vllm_modles": []}}}
    for name in ("inventory", "variables"):
        text = (ROOT / f"docs/reference/schemas/{name}.schema.json").read_text(encoding="utf-8")
        (tmp_path / f"{name}.schema.json").write_text(text, encoding="utf-8")
    uri = (tmp_path / "inventory.schema.json").as_uri()
    found = jsonschema.Draft202012Validator({"$ref": uri}, registry=referencing.Registry(retrieve=of_file))
    assert [*found.iter_errors(mistake)] and not [*found.iter_errors({"all": {"vars": {"accelerator": "gaudi"}}})]
    (tmp_path / "variables.schema.json").unlink()
    of_file.cache_clear()
    with pytest.raises(referencing.exceptions.Unresolvable, match=r"variables\.schema\.json"):
        [*found.iter_errors(mistake)]


@pytest.mark.parametrize(
    "right",
    [
        {"my_own_variable": 1, "ansible_user": "ops"},
        {"accelerator_cards": "{{ cards }}", "vllm_models": "{{ models }}"},
        {"vllm_models": ["{{ one_model }}", {"name": "a"}], "driver_repository": {"uris": "https://a.example/x"}},
        {
            "vllm_models": [
                {"name": "a", "enable_auto_tool_choice": True, "port": "{{ port }}", "recipe_cache_path": None}
            ]
        },
    ],
)
def test_the_schemas_accept_what_is_right(right: dict[str, Any]) -> None:
    assert complaints("variables", right) == []


def test_the_schemas_accept_a_file_without_variables_and_every_example() -> None:
    assert complaints("variables", None) == []
    assert complaints("inventory", {"all": {"hosts": {"a": None}, "vars": None}}) == []
    values = {one.name: yaml.safe_load(one.example) for one in variables.every() if one.example}
    assert {name: found for name, value in values.items() if (found := complaints("variables", {name: value}))} == {}


def test_every_playbook_describes_itself_and_its_options() -> None:
    found = [playbooks.read(path) for path in ROOT.glob("playbooks/*.yml")]
    for one in found:
        assert one.text.endswith("."), one.name
        assert all(meaning.endswith((".", ")")) for _, meaning in one.options), one.name
        assert not one.guide or (ROOT / f"docs/guides/{one.guide}.md").is_file(), one.name
    assert sum(len(one.options) for one in found) > 60


PLAYBOOKS = {path.stem: playbooks.read(path) for path in sorted(ROOT.glob("playbooks/*.yml"))}
FILE = re.compile(r"[\w/]+\.yml")


def reads(name: str) -> str:
    """Return what a playbook runs: its text, and that of the playbooks, tasks, variables and roles that it names."""
    texts: dict[Path, str] = {}
    left = [ROOT / f"playbooks/{name}.yml"]
    while left:
        path = left.pop()
        texts[path] = re.sub(r"^ *#.*", "", path.read_text(encoding="utf-8"), flags=re.M)
        near = [folder / found for found in FILE.findall(texts[path]) for folder in (path.parent, ROOT / "playbooks")]
        left += [one for one in near if one not in texts and one.is_file()]
    text = "\n".join(texts.values())
    for role in set(re.findall(r"(?:role|name): (\w+)", text)):
        files = [*ROOT.glob(f"roles/{role}/[dt]*/*.yml"), ROOT / f"lib/gaudi_serve/stages/{role}.py"]
        text += "".join(one.read_text(encoding="utf-8") for one in files if one.is_file())
    return text


@pytest.mark.parametrize("name", PLAYBOOKS)
def test_a_playbook_reads_every_option_at_its_top(name: str) -> None:
    text = reads(name)
    for option, _ in PLAYBOOKS[name].options:
        wanted = playbooks.name_of(option)
        assert wanted in playbooks.CHECKED.get(name, ()) or re.search(rf"\b{wanted}\b", text), wanted


@pytest.mark.parametrize("name", playbooks.CHECKED)
def test_the_top_of_a_playbook_has_every_option_that_the_code_checks(name: str) -> None:
    shown = {playbooks.name_of(option) for option, _ in PLAYBOOKS[name].options}
    assert {*playbooks.CHECKED[name]} - variables.known() <= shown


def test_every_option_has_a_type_and_the_choices_of_the_code() -> None:
    used = {(name, playbooks.name_of(option)) for name, one in PLAYBOOKS.items() for option, _ in one.options}
    assert {name for _, name in used} - variables.known() == {*models.data_of("options")}
    page = (ROOT / "docs/reference/playbooks.md").read_text(encoding="utf-8")
    for playbook, name in used:
        option = OPTIONS.get(name, {})
        choices = playbooks.CHOICES.get(name) or option.get("choices") or ()
        assert playbooks.entry(playbook, name).choices == tuple(map(str, choices)), name
        row = next(line for line in page.splitlines() if re.match(rf"\| `-e \W*{name}\W", line))
        assert all(f"`{one}`" in row for one in choices), name


def test_the_code_refuses_other_values_than_the_choices_of_an_option() -> None:
    wrong = "no_such_value"
    for name, beside in {"sweep": {"profile": "deepseek-1"}, "trace_time_unit": {"trace": "x"}}.items():
        assert any(text.startswith(f"{name}: ") for text in read_ask({name: wrong, "model": "qwq", **beside})[1]), name
    with pytest.raises(InputError, match=r"tune_like.*no_such_value"):
        read_goal({"tune_like": wrong})
    assert any(text.startswith("awx_state: ") for text in awx_refusal({}, wrong))


OUTPUTS = {name: jsonschema.Draft202012Validator(one) for name, (_, one) in outputs.ALL.items()}


def test_the_status_of_a_fleet_has_its_schema() -> None:
    hosts = {"a": {"status_problem": "cannot be read"}, "b": {"preflight_left_alone": True, "gaudi_host": {}}}
    status = {"schema_version": 1, **fleet_status(hosts, list(hosts))}
    OUTPUTS["status"].validate(status)
    for broken in ({**status, "drifted": None}, {key: value for key, value in status.items() if key != "hosts"}):
        assert list(OUTPUTS["status"].iter_errors(broken))


def test_every_test_that_the_manual_map_names_exists() -> None:
    assert list(manual_map.missing(ROOT)) == []
