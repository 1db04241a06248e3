"""Every variable and key has one tier, first pages use everyday ones only, and suggestions name everyday ones first."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from gaudi_serve.catalog.keys import findings
from gaudi_serve.core.errors import near
from gaudi_serve.core.tiers import NAMES, TIERS, rank, tier_of
from gaudi_serve.inventory.variables import unknown_variables

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from reference_lib import mappings, models, variables  # noqa: E402

KEYS = {one.name for one in models.entries()}
VARIABLES = {one.name for one in variables.every()}
NESTED = {one.path for path in mappings.DATA for one in mappings.entries(path)}
FIRST = ("README.md", "README.zh-CN.md", "docs/getting-started.md", "docs/zh/getting-started.md")
BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.M | re.S)
ROW = re.compile(r"^\| `(\w+)` \|", re.M)


def test_a_tier_names_only_what_exists_and_each_once() -> None:
    named = [*chain.from_iterable(NAMES.values())]
    assert len(named) == len({*named})
    assert {*named} <= KEYS | VARIABLES | NESTED
    assert {*NAMES} < {*TIERS}


def test_few_names_are_for_every_day() -> None:
    assert len(NAMES["everyday"]) <= 15
    assert len(NAMES["site"]) <= 55
    assert len(KEYS | VARIABLES | NESTED) > 400


def test_every_variable_and_key_of_a_model_is_on_the_page_of_its_tier_alone() -> None:
    rows = {tier: ROW.findall((ROOT / f"docs/reference/{tier}.md").read_text(encoding="utf-8")) for tier in TIERS}
    for tier, names in rows.items():
        assert {tier_of(name) for name in names} == {tier}
    assert sorted(chain.from_iterable(rows.values())) == sorted([*VARIABLES, *KEYS])


def test_the_table_of_a_mapping_has_the_tier_of_each_key() -> None:
    for path in mappings.DATA:
        table = mappings.tables(path)
        for one in mappings.entries(path):
            assert re.search(rf"^\| `{one.name}` \|.*\| {one.tier} \|", table, re.M), one.path


def test_a_key_for_every_day_is_in_a_mapping_for_every_day() -> None:
    for path in NESTED & {*chain.from_iterable(NAMES.values())}:
        outer = re.split(r"[.\[]", path)[0]
        assert rank(outer) <= rank(path), path


def used(value: Any, path: str = "") -> Iterator[str]:
    """Yield the variables, keys of models and keys in mappings that a part of an inventory sets."""
    if isinstance(value, list):
        for entry in value:
            yield from used(entry, path)
    if not isinstance(value, dict):
        return
    for name, inner in value.items():
        key = f"{path}.{name}" if path else name
        if key in VARIABLES | NESTED or path == "vllm_models":
            found = name if path == "vllm_models" else key
            yield found
            yield from used(inner, found)
        elif not path:
            yield from used(inner)  # such as all, hosts, vars


@pytest.mark.parametrize("name", FIRST)
def test_the_first_pages_use_only_everyday_names(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    # The demo's simulated host needs keys of other tiers, and one paragraph explains them.
    text = "\n\n".join(part for part in text.split("\n\n") if "`inventory/demo`" not in part)
    found = {*chain.from_iterable(used(yaml.safe_load(block)) for block in BLOCK.findall(text))}
    assert {"vllm_models", "accelerator", "name", "model", "port"} <= found
    # Options of commands, and names in sentences.
    found |= {*re.findall(r"-e (\w+)=", text)}
    found |= {*re.findall(r"`(\w+)\b[^`\n]*`", re.sub(r"```.*?```", "", text, flags=re.S))} & (VARIABLES | KEYS)
    assert {one: tier_of(one) for one in found if tier_of(one) != "everyday"} == {}


def test_what_an_inventory_uses_is_seen() -> None:
    inventory = {
        "all": {
            "hosts": {"a": {"driver_repository": {"uris": []}}},
            "vars": {"vllm_models": [{"name": "x", "source": {"kind": "hub"}, "seed": 1}], "ansible_user": "ops"},
        }
    }
    assert {*used(inventory)} == {
        *("driver_repository", "driver_repository.uris"),
        *("vllm_models", "name", "source", "source.kind", "seed"),
    }


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("max_len", "max_model_len or max_log_len"),
        ("parallel_size", "tensor_parallel_size or data_parallel_size"),
        ("gpu_memory", "gpu_memory_utilization or mm_ipc_gpu_memory_gb"),
    ],
)
def test_a_suggestion_names_everyday_keys_first(word: str, names: str) -> None:
    (problem,) = findings({"name": "a", "weights": "/data/a", word: 1})
    assert f"did you mean {names}" in problem[2]


def test_a_suggestion_names_an_everyday_variable_first() -> None:
    (text,) = unknown_variables(["host_tuning_reboot"], "a")
    assert "did you mean host_tuning_reboot_allowed?" in text
    # A typing error has one remedy.
    (text,) = unknown_variables(["container_runtime_http_proxi"], "a")
    assert "did you mean container_runtime_http_proxy?" in text


def test_names_of_one_tier_are_suggested_by_their_likeness() -> None:
    assert near("gaudi3", ["gaudi03", "gaudi13", "gaudi30"]) == "; did you mean gaudi30 or gaudi13 or gaudi03?"
