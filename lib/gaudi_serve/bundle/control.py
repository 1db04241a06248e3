"""The items of the control node: Python packages, collections, and the execution environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.yaml_text import load
from .images import NO_DIGEST, image_item
from .items import Item, Need
from .roles import ROOT, pins

INDEX, GALAXY = "package index of pip", "Ansible Galaxy"
NEED = Need(why=("control node",))


def control_node(environment: Mapping[str, Any] | None = None) -> list[Item]:
    """Return all items that the control node needs; they do not depend on the inventory.

    Args:
        environment: ``name`` of an existing execution environment, and its ``archive`` if it is a file; None lists
            the parts from which one is built.
    """
    python = [Item("python", *pin, INDEX, need=NEED, pinned=bool(pin[1])) for pin in pins("requirements.txt")]
    return [*python, *_collections(), *(_built(environment) if environment else _environment())]


def _built(environment: Mapping[str, Any]) -> list[Item]:
    archive = environment.get("archive")
    origin = f"archive {archive} on the control node" if archive else ""
    return [image_item(str(environment["name"]), Need(why=("execution environment",)), origin)]


def _collections() -> list[Item]:
    found = _read("collections/requirements.yml")["collections"]
    return [
        Item("collection", one["name"], str(one.get("version") or ""), GALAXY, need=NEED, pinned="version" in one)
        for one in found
    ]


def _environment() -> list[Item]:
    """Return the base image of the execution environment, and the packages that its build installs."""
    known = _read("execution-environment.yml")
    name, _, tag = known["images"]["base_image"]["name"].rpartition(":")
    need = Need(why=("execution environment",))
    system = f"{name.rpartition('/')[2]} {tag}"
    found = [Item("image", name, tag, name.partition("/")[0], need=need, problem=NO_DIGEST)]
    lines = [line.partition("[")[0].strip() for line in known["dependencies"]["system"]]
    steps = known["additional_build_steps"]["prepend_base"]
    words = [word for step in steps for word in step.partition("install ")[2].split() if not word.startswith("-")]
    return found + [Item("package", name, "", system, system, need) for name in [*lines, *words]]


def _read(path: str) -> Any:
    return load((ROOT / path).read_text(encoding="utf-8"), quick=True)
