"""The demo's inventory is one that a user could write after the first page: it has no key that the page lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
# How Ansible reaches the containers, and what makes them.
OF_CONTAINERS = re.compile(r"ansible_|testhosts?_")
LISTS = ("vllm_models", "vllm_images", "vllm_model_defaults")


def groups(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the variables in an inventory file of groups."""
    for group in found.values():
        yield group.get("vars") or {}
        yield from (one or {} for one in (group.get("hosts") or {}).values())
        yield from groups(group.get("children") or {})


def keys() -> set[str]:
    """Return the variables and keys of models and images in the demo's inventory."""
    folder = ROOT / "inventory/demo"
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in folder.glob("*_vars/*.yml")]
    files += groups(yaml.safe_load((folder / "hosts.yml").read_text(encoding="utf-8")))
    found = {key for file in files for key in file if not OF_CONTAINERS.match(key)}
    for value in (file[name] for file in files for name in LISTS if name in file):
        found |= {key for one in (value if isinstance(value, list) else [value]) for key in one}
    return found


@pytest.mark.parametrize("page", ["docs/getting-started.md", "docs/zh/getting-started.md"])
def test_the_first_page_explains_every_key_of_the_demo(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    keyed = re.findall(r"^[ -]*(\w+): ", text, re.MULTILINE)
    explained = {*re.findall(r"`(?:-e )?(\w+)(?:(?:: |=)[^`]*)?`", text), *keyed}
    explained |= {*re.findall(r"^ *(\w+):$", text, re.MULTILINE)}
    assert keys() - explained == set()
    assert {"vllm_models", "name", "port"} <= keys()
