"""The repository keeps its own rules."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from gaudi_serve.catalog.files import model_catalog
from gaudi_serve.core.version import toolkit_version
from gaudi_serve.plan.host import vllm_plan
from helpers.plans import gaudi_host
from helpers.plugins import load

ROOT = Path(__file__).parents[2]
ROLES = sorted(path.name for path in ROOT.glob("roles/*") if path.is_dir())


def read(path: Path) -> Any:
    """Return a YAML file's content."""
    return yaml.safe_load(path.read_text(encoding="utf-8").replace("!unsafe", ""))


@pytest.mark.parametrize("role", ROLES)
def test_every_input_of_a_role_has_a_specification_and_a_default(role: str) -> None:
    options = read(ROOT / f"roles/{role}/meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    defaults = read(ROOT / f"roles/{role}/defaults/main.yml")
    assert set(options) == set(defaults)
    assert all(name.startswith(f"{role}_") for name in options)
    for name, option in options.items():
        default = defaults[name]
        assert option.get("default", default) == default, name


def test_what_tune_writes_beside_an_inventory_is_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("all: {hosts: {g1: }}\n")
    (tmp_path / "buckets").mkdir()
    for name, text in (("m.svg", "<svg>\n</svg>\n"), ("m.buckets", "(1, 256, 0)\n"), ("n.env.yml", "A: '1'\n")):
        (tmp_path / "buckets" / name).write_text(text)
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-inventory"), "-i", tmp_path, "--list"],
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ungrouped"]["hosts"] == ["g1"]
    assert "Unable to parse" not in done.stderr


def test_the_generated_reference_is_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/reference", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_no_task_ends_the_play_of_all_hosts_when_what_it_asks_is_unreachable() -> None:
    """With run_once, ansible-core 2.19 ends the play in spite of ignore_unreachable."""

    def tasks(found: Any) -> Iterator[dict[str, Any]]:
        for one in found if isinstance(found, list) else []:
            if isinstance(one, dict):
                yield one
                for key in ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks"):
                    yield from tasks(one.get(key))

    paths = [*ROOT.glob("playbooks/**/*.yml"), *ROOT.glob("roles/*/tasks/*.yml"), ROOT / "site.yml"]
    every = [(path.name, one) for path in paths for one in tasks(read(path))]
    assert [one for one in every if {"run_once", "ignore_unreachable"} <= one[1].keys()] == []
    assert len(every) > 500


def test_nothing_writes_a_repository_before_its_library_is_installed() -> None:
    """deb822_repository needs python3-debian on the host, and fails on a bare one."""
    for path in ROOT.glob("roles/*/tasks/*.yml"):
        text = path.read_text(encoding="utf-8")
        if "deb822_repository" in text:
            assert 0 < text.find("python3-debian") < text.index("ansible.builtin.deb822_repository"), path


def test_example_inventory_plans() -> None:
    catalog = model_catalog([str(ROOT / "roles/preflight/files/catalog")])
    group = read(ROOT / "inventory/examples/mixed/group_vars/gaudi2.yml")
    plan = vllm_plan(group["vllm_models"], gaudi_host(weights={}), catalog, defaults=group["vllm_model_defaults"])
    assert plan["errors"] == []
    assert [model["module_ids"] for model in plan["models"]] == [[0], [1, 2]]


# What others build on; the other filters are the playbooks' own.
CONTRACT = {
    *("vllm_launch", "vllm_plan", "hpu_buckets", "hpu_padded_shape", "hpu_plugin_buckets", "hpu_plugin_padded_shape"),
    *("hpu_bucket_plan", "hpu_memory", "hl_smi_modules", "hl_smi_topology", "hl_smi_links", "hccl_benchmark"),
}


def test_every_filter_of_the_contract_has_a_page_that_ansible_doc_shows() -> None:
    import inspect
    import json

    filters = load("filter_plugins/gaudi_serve.py").FILTERS
    names = {function.__name__: function for function in filters if function.__name__ in CONTRACT}
    assert names.keys() == CONTRACT == {path.stem for path in ROOT.glob("filter_plugins/*.yml")}
    assert [function.__name__ for function in filters if not function.__doc__] == []
    command = [Path(sys.executable).with_name("ansible-doc"), "-t", "filter", "--json", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name, page in json.loads(done.stdout).items():
        options = page["doc"]["options"]
        parameters = list(inspect.signature(names[name]).parameters.values())[1:]
        named = [one.name for one in parameters]
        assert set(named) == options.keys() - {"_input"}, name
        assert page["examples"].strip() and page["return"]["_value"]["description"], name
        for parameter in parameters:
            default = parameter.default
            if default not in (parameter.empty, None, (), ""):
                assert options[parameter.name]["default"] == default, (name, parameter.name)


def test_no_function_is_longer_than_a_screen() -> None:
    import ast

    long = []
    for folder in ("lib", "library", "filter_plugins", "action_plugins", "molecule", "tests", "scripts", "roles"):
        for path in (ROOT / folder).rglob("*"):
            if not path.is_file() or "golden" in path.parts or path.suffix in (".gz", ".pyc"):
                continue
            text = path.read_text(encoding="utf-8", errors="replace")
            if path.suffix != ".py" and not text.startswith("#!/usr/bin/env python3"):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef) and node.end_lineno and node.end_lineno - node.lineno >= 40:
                    long.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert long == []


def running_tests(path: Path) -> set[str]:
    """Return a file's tests that pytest runs, none that is skipped or inside of a function."""
    import ast

    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = [ast.unparse(mark) for mark in node.decorator_list]
            if not any(mark.startswith(("pytest.mark.skip(", "pytest.mark.xfail")) for mark in marks):
                found.add(node.name)
    return found


def test_a_skipped_or_inner_test_shows_nothing(tmp_path: Path) -> None:
    path = tmp_path / "test_x.py"
    path.write_text(
        "@pytest.mark.skip(reason='')\ndef test_a(): pass\ndef helper():\n  def test_b(): pass\ndef test_c(): pass\n"
    )
    assert running_tests(path) == {"test_c"}


def test_every_row_of_the_reliability_page_has_its_test() -> None:
    import re

    page = (ROOT / "docs/maintainers/reliability.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| fault")]
    assert len(rows) >= 25
    for row in rows:
        named = re.findall(r"\b([MIRUV])/([\w./]+)::(test_\w+)", row)
        assert named, row
        for kind, place, test in named:
            folders = {"I": "tests/integration", "R": "tests/runner", "U": "tests/unit", "V": "tests/vm"}
            folder = folders.get(kind, f"molecule/{place}/tests")
            files = (ROOT / folder).glob("*.py") if kind == "M" else [ROOT / folder / place]
            assert sum(test in running_tests(path) for path in files) == 1, (place, test)


def test_the_version_has_a_section_in_the_changelog() -> None:
    released = re.findall(r"^## (\d\S*) - ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert toolkit_version().partition(" ")[0] == released[0]
