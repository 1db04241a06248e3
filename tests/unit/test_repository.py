"""The repository keeps its own rules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ROLES = sorted(path.name for path in ROOT.glob("roles/*") if path.is_dir())


def load(path: Path) -> Any:
    """Return a YAML file's content."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("role", ROLES)
def test_every_input_of_a_role_has_a_specification_and_a_default(role: str) -> None:
    options = load(ROOT / f"roles/{role}/meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    defaults = load(ROOT / f"roles/{role}/defaults/main.yml")
    assert set(options) == set(defaults)
    assert all(name.startswith(f"{role}_") for name in options)
    for name, option in options.items():
        assert option.get("default", defaults[name]) == defaults[name], name


def test_role_reference_is_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/role-docs", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_catalog_plans_on_an_eight_card_host() -> None:
    from gaudi_serve.plan import vllm_plan
    from test_plan import gaudi_host

    catalog = load(ROOT / "roles/preflight/files/catalog.yml")
    for entry in catalog:
        plan = vllm_plan([{"name": "x", "model": entry, "image": "i"}], gaudi_host(weights={}), catalog)
        assert plan["errors"] == [], entry


def test_example_inventory_plans() -> None:
    from gaudi_serve.plan import vllm_plan
    from test_plan import gaudi_host

    catalog = load(ROOT / "roles/preflight/files/catalog.yml")
    group = load(ROOT / "inventory/example/group_vars/gaudi2.yml")
    plan = vllm_plan(group["vllm_models"], gaudi_host(weights={}), catalog, defaults=group["vllm_model_defaults"])
    assert plan["errors"] == []
    assert [model["module_ids"] for model in plan["models"]] == [[0], [1, 2]]
