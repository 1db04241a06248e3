"""Every variable of every role: one sentence with host, key, value and what is allowed, before a role begins."""

from __future__ import annotations

import re
from collections import UserDict
from typing import Any

import pytest
from gaudi_serve.inventory.facts import HIDDEN, VARIABLES
from gaudi_serve.inventory.variables import HANDED, INPUTS, KNOWN, PREFIXES, inventory_refusal
from gaudi_serve.plan.fleet import vllm_fleet_plan
from gaudi_serve.platforms import PLATFORMS
from helpers.inventories import DEFAULTS, ROOT, SPECS
from helpers.plans import known
from jinja2 import UndefinedError

# What the playbooks hand to the roles, from variables with names of their own.
GIVEN = {
    *("preflight_models", "preflight_images", "preflight_secrets", "preflight_catalog_dirs", "preflight_catalog"),
    *("preflight_model_defaults", "preflight_accelerator", "preflight_cards", "preflight_release"),
    *("preflight_cards_excluded", "preflight_cards_accepted"),
    *(
        "preflight_host_nics",
        "preflight_device_family",
        "preflight_move_allowed",
        "preflight_for",
        "vllm_image_images",
        "vllm_image_release",
        "model_weights_models",
    ),
    "model_weights_device",
    *(
        "vllm_service_plan",
        "vllm_service_secrets",
        "gateway_settings",
        "gateway_servers",
        "gateway_keys",
        "gateway_rank",
    ),
    *("monitoring_settings", "monitoring_fleet"),
}


def test_every_input_of_the_roles_is_checked_and_their_defaults_are_right() -> None:
    assert set(SPECS) - GIVEN == {key for key in INPUTS if key in SPECS}
    assert {key for key, option in SPECS.items() if option.get("no_log")} - GIVEN <= set(HIDDEN)
    for key, rule in INPUTS.items():
        value = DEFAULTS.get(key)
        assert key not in DEFAULTS or "{{" in str(value) or rule.good(value), key


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("accelerator_release", 1.21, "g: accelerator_release 1.21: must be a quoted release such as '1.24.1'"),
        # As a version of packages; the stage of the driver would refuse it with the name of its own variable.
        (
            "accelerator_release",
            "1.21.3-57",
            "g: accelerator_release '1.21.3-57': must be a quoted release such as '1.24.1'",
        ),
        ("accelerator_release", [1], "g: accelerator_release [1]: must be a quoted release such as '1.24.1'"),
        ("accelerator", "gpu", "g: accelerator 'gpu': must be auto, gaudi, cuda, rocm, xpu or cpu"),
        (
            "qualification_required",
            "short",
            "g: qualification_required 'short': must be '', quick or long, as a quoted text",
        ),
        ("container_runtime_http_proxy", False, "g: container_runtime_http_proxy false: must be a quoted text of one"),
        ("vllm_images", "x", "g: vllm_images 'x': must be a list of images"),
        ("vllm_images", [{"name": "a b"}], "g: vllm_images: name 'a b': must be the name of an image, such as reg"),
        ("vllm_images", [{"name": "a:1", "archve": "/x"}], "g: vllm_images: a:1: archve '/x': must be one of acc"),
        ("vllm_images", [{"name": "a:1", "archive": "a\nb"}], "g: vllm_images: a:1: archive 'a\\nb': must be a quo"),
        ("vllm_secrets", {"m": {"A": "s3cret\n"}}, "g: vllm_secrets: m: A must be one line of printable text"),
        ("vllm_model_defaults", [], "g: vllm_model_defaults []: must be a mapping of keys that every model takes, wi"),
        (
            "vllm_model_defaults",
            {"name": "x", "image": "i"},
            'g: vllm_model_defaults {"name": "x", "image": "i"}: must be a mapping of keys that every model takes, '
            "without hosts, model, name",
        ),
        (
            "vllm_images",
            [{"name": "a:1"}, {"name": "docker.io/a:1", "archive": "/x"}],
            "g: vllm_images: name 'docker.io/a:1': has another entry; leave one of them out",
        ),
        ("vllm_catalog_dirs", ["/nowhere"], "g: vllm_catalog_dirs: /nowhere: no such folder"),
        ("rollout_drain_timeout", "ten", "g: rollout_drain_timeout 'ten': must be an integer of seconds from 1 to"),
        ("link_validation_env", {"A": "b\nc"}, 'g: link_validation_env {"A": "b\\nc"}: must be a mapping of environ'),
        ("model_weights_calibrate_endpoint", "hub", "g: model_weights_calibrate_endpoint 'hub': must be an address su"),
        ("fleet_stop_on_errors", "y", "g: fleet_stop_on_errors 'y': must be true or false"),
        ("host_tuning_iommu", True, "g: host_tuning_iommu true: must be auto, on or off, as a quoted text"),
        ("host_tuning_hugepages", "many", "g: host_tuning_hugepages 'many': must be an integer of pages from 0"),
        ("host_tuning_governor", "a\nb", "g: host_tuning_governor 'a\\nb': must be a governor such as performance"),
        ("container_runtime_data_root", "data", "g: container_runtime_data_root 'data': must be an absolute path of"),
        ("container_runtime_data_root", None, "g: container_runtime_data_root (empty): must be an absolute path of"),
        ("container_runtime_http_proxy", "s3cret\nx", "g: container_runtime_http_proxy (hidden): must be a quoted te"),
        ("model_weights_tokens", {"hub": "s3cret\n"}, "g: model_weights_tokens (hidden): must be a mapping of hub, m"),
        ("model_weights_parallel", 0, "g: model_weights_parallel 0: must be an integer of files from 1 to 256"),
        ("vllm_weights_endpoints", {"hub": "http://[x"}, 'g: vllm_weights_endpoints {"hub": "http://[x"}: must be'),
        ("vllm_secrets", {"x" * 999: 1}, "g: vllm_secrets: " + "'" + "x" * 79 + "...: must"),
        (
            "vllm_image_pip_index_url",
            "https://u:s3cret@p.example",
            "g: vllm_image_pip_index_url 'https://***@p.example'",
        ),
        (
            "link_validation_hccl_options",
            {"loop": "x"},
            'g: link_validation_hccl_options {"loop": "x"}: must be a mapping',
        ),
        ("link_validation_thresholds", {"all": "x"}, 'g: link_validation_thresholds {"all": "x"}: must be a ma'),
    ],
)
def test_one_sentence_with_host_key_value_and_what_is_allowed(key: str, value: Any, sentence: str) -> None:
    (found,) = inventory_refusal({key: value}, "g")
    assert found.startswith(sentence)
    assert "s3cret" not in found
    # The plan of a fleet reports the same.
    messages = [error["message"] for error in vllm_fleet_plan({"g": known(**{key: value})}, ["g"], [])["errors"]]
    assert found in messages


def test_right_values_pass_also_as_the_texts_of_extra_variables() -> None:
    right = {
        "rollout_drain_timeout": "",
        "host_tuning_hugepages": "64",
        "link_validation_drain": "true",
        "host_tuning_hugepages_max_fraction": "0.5",
    }
    assert (
        inventory_refusal({**right, "vllm_models": [], "accelerator_cards": "8", "accelerator_release": None}, "g")
        == []
    )
    assert set(VARIABLES) & set(INPUTS) == set()


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("host_tuning_hugepage", "host_tuning_hugepages"),
        ("gaudi_cards_excluded", "accelerator_cards_excluded"),
        ("vllm_model", "vllm_models"),
        ("vllm_secret", "vllm_secrets"),
        ("container_runtime_http_proxi", "container_runtime_http_proxy"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_nearest_one(name: str, near: str) -> None:
    prefix = next(one for one in PREFIXES if name.startswith(one))
    sentence = (
        f"g: {name} is not a variable of this toolkit; did you mean {near}?; names that begin with {prefix} are its own"
    )
    assert inventory_refusal({name: 1, "my_own": 2, "__vllm_x": 3}, "g") == [sentence]
    fleet = vllm_fleet_plan({"g": known(**{name: 1})}, ["g"], [])
    assert sentence in [error["message"] for error in fleet["errors"]]


def test_every_variable_of_roles_and_playbooks_is_known() -> None:
    folders = (ROOT / "roles", ROOT / "playbooks", ROOT / "inventory", ROOT / "molecule")
    names = set(SPECS)
    for path in [ROOT / "site.yml", *(path for folder in folders for path in folder.rglob("*.yml"))]:
        if "argument_specs" not in path.name and "catalog" not in path.parts:
            names |= set(re.findall(r"^\s*(?:- )?([a-z]\w+):(?:\s|$)", path.read_text(), re.MULTILINE))
            names |= set(re.findall(r"register: (\w+)", path.read_text()))
    modules = {path.stem for path in (*ROOT.glob("library/*.py"), *ROOT.glob("action_plugins/*.py"))}
    roles = {path.name for path in ROOT.glob("roles/*")}
    named = {name for name in names if name.startswith(PREFIXES)} - modules - roles
    assert named - KNOWN == set()
    assert {*HANDED, "preflight_catalog"} == GIVEN


class Model(UserDict[str, Any]):
    """A model with a key whose template cannot be rendered, as a filter sees it."""

    def __getitem__(self, key: str) -> Any:
        if key == "name":
            raise UndefinedError("'nobody' is undefined")
        return super().__getitem__(key)


UNDEFINED = "h: vllm_models[0].name: 'nobody' is undefined; set it for this host, or write the value itself"


def of_two_hosts(**variables: Any) -> list[str]:
    """Return what is wrong with host g, beside host h, a model of which cannot be read, and i, whose models can."""
    hosts = {"g": variables, "h": {"vllm_models": [Model(name="q")]}, "i": {"vllm_models": [{"name": "phi"}]}}
    return inventory_refusal({**variables, "hostvars": hosts}, "g")


def test_secrets_of_no_model_are_reported_although_another_hosts_models_cannot_be_read() -> None:
    own = {"vllm_models": [{"name": "qwq"}]}
    assert of_two_hosts(**own, vllm_secrets={"qwq": {}, "phi": {}}) == []
    assert of_two_hosts(**own, vllm_secrets={"qwp": {}}) == [
        f"g: vllm_secrets: qwp is not a model of any host; did you mean qwq?; these could not be read: {UNDEFINED}"
    ]


def test_of_many_hosts_that_cannot_be_read_three_are_named() -> None:
    hosts = {f"h{number}": {"vllm_models": [Model(name="q")]} for number in range(9)}
    (text,) = inventory_refusal({"vllm_models": [], "vllm_secrets": {"qwq": {}}, "hostvars": hosts}, "g")
    assert text.count("'nobody' is undefined") == 3 and text.endswith("; and 6 more")


def test_models_of_clients_are_checked_although_another_hosts_models_cannot_be_read() -> None:
    def clients(*models: str) -> dict[str, Any]:
        return {"clients": {"a": {"key": "k" * 20, "models": list(models)}}}

    assert of_two_hosts(fleet_gateway=clients("phi")) == []
    assert of_two_hosts(fleet_gateway=clients("phj")) == [
        "g: fleet_gateway.clients.a.models: 'phj' is not a model of any host of this inventory; did you mean "
        "phi?; these "
        f"could not be read: {UNDEFINED}"
    ]
    assert of_two_hosts(fleet_gateway={"balance": {"zz": "least"}}) == [
        "g: fleet_gateway.balance: 'zz' is not a model of any host of this inventory; there are phi; these could "
        "not be "
        f"read: {UNDEFINED}"
    ]


def test_choices_of_options_that_a_registry_decides_are_those_of_the_registry() -> None:
    assert SPECS["preflight_accelerator"]["choices"] == ["auto", *PLATFORMS]
    assert SPECS["vllm_image_images"]["options"]["accelerator"]["choices"] == [*PLATFORMS]
