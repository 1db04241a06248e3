"""playbooks/plan.yml at a desk: no host is reached, and everything wrong is said at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from test_plan import gaudi_host, model

ROOT = Path(__file__).parents[2]


def plan(folder: Path, models: Any, *arguments: str, **more: Any) -> tuple[int, str]:
    """Run the playbook on two hosts that do not exist; return its status and what it printed."""
    (folder / "facts").mkdir(exist_ok=True)
    host = gaudi_host(driver_version="1.21.3-57")
    for name in ("g1", "g2"):
        (folder / f"facts/{name}.json").write_text(json.dumps({"gaudi_host": host}))
    hosts = {name: {"ansible_host": "192.0.2.1"} for name in ("g1", "g2")}
    inventory = {"all": {"hosts": hosts, "vars": {"vllm_models": models, **more}}}
    (folder / "hosts.yml").write_text(yaml.safe_dump(inventory))
    return run(folder, *arguments)


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run the playbook on an inventory and facts that are there."""
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("ansible-playbook"), "-i", folder / "hosts.yml", "playbooks/plan.yml"),
            *("-e", f"plan_facts_dir={folder}/facts", *arguments),
        ],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_good_plan_is_shown_and_written(tmp_path: Path) -> None:
    secrets = {"qwq": {"VLLM_API_KEY": "s3cret"}}
    path = tmp_path / "plan.json"
    status, text = plan(tmp_path, [model()], "--check", "-e", f"plan_file={path}", vllm_secrets=secrets)
    assert status == 0, text
    assert "2 hosts, 2 models, 2 hosts would change, 0 errors" in text
    written = json.loads(path.read_text())
    assert written["hosts"]["g2"]["models"][0]["module_ids"] == [0, 1]
    assert path.stat().st_mode & 0o777 == 0o640
    assert "s3cret" not in text + path.read_text()


def test_every_mistake_of_every_host_ends_the_run_with_its_sentence(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    wrong = [model(port=0), model(name="b", port=2, dtype="int8")]
    status, text = plan(tmp_path, wrong, "-e", f"plan_file={path}")
    assert status == 2
    errors = json.loads(path.read_text())["errors"]
    assert [(error["host"], error["key"]) for error in errors] == [
        *(("g1", "port"), ("g1", "dtype"), ("g2", "port"), ("g2", "dtype"))
    ]
    for error in errors:
        assert error["message"] in " ".join(text.split())
    assert "Traceback" not in text


def test_the_purchase_of_the_documentation(tmp_path: Path) -> None:
    page = (ROOT / "docs/planning.md").read_text(encoding="utf-8")
    (tmp_path / "facts").mkdir()
    (tmp_path / "facts/new01.json").write_text(page.partition("```json\n")[2].partition("```")[0])
    (tmp_path / "hosts.yml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
    status, text = run(tmp_path)
    assert status == 2
    assert "8 cards HL-288 on 2 NUMA nodes" in text
    assert "1 hosts, 1 models, 1 hosts would change, 1 errors" in text
    assert "no group of four has so many, and only host NICs connect the groups" in " ".join(text.split())
    assert "FAILED" in text
    status, text = run(
        tmp_path, "-e", '{"gaudi_host_nics": true, "gaudi_cards": 8}', "-e", '{"vllm_catalog_dirs": "x"}'
    )
    assert "vllm_catalog_dirs" in text
    assert "Traceback" not in text
