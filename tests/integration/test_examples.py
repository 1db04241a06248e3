"""The inventories of inventory/examples are planned, and docs/examples.md shows their plans."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema

ROOT = Path(__file__).parents[2]


def test_the_page_of_examples_shows_the_plans_of_today() -> None:
    command = [sys.executable, ROOT / "scripts/examples", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_plan_as_json_has_its_schema(tmp_path: Path) -> None:
    example = ROOT / "inventory/examples/two-hosts"
    program = Path(sys.executable).with_name("ansible-playbook")
    variables = json.dumps({"plan_facts_dir": str(example / "facts"), "plan_file": str(tmp_path / "plan.json")})
    command = [program, "-i", example, ROOT / "playbooks/plan.yml", "-e", variables]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    subprocess.run(command, env=environment, capture_output=True, check=True)
    schema = json.loads((ROOT / "docs/reference/schemas/plan.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(json.loads((tmp_path / "plan.json").read_text(encoding="utf-8")))
