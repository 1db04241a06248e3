"""An upgrade of the toolkit from its last release, while the models serve."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from runs import Run

PROJECT = Path(__file__).parents[3]
# Sends one request after the other to each model, and prints how many were answered and what failed.
LOAD = """
import json, os, sys, urllib.request
answered, failed = 0, []
print("begun", flush=True)
while not os.path.exists("/run/upgrade-done"):
    for port, model, key in ((30001, "qwq-32b", ""), (30002, "qwen2.5-7b", sys.argv[1])):
        body = {"model": model, "prompt": "The capital of France is", "max_tokens": 8}
        headers = {"Content-Type": "application/json", "Authorization": "Bearer " + key}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), headers)
        try:
            urllib.request.urlopen(request, timeout=60).read()
            answered += 1
        except Exception as problem:
            failed.append(f"{model}: {problem}")
print(json.dumps({"answered": answered, "failed": failed[:5]}), flush=True)
"""
KEY = "canary-5f2a"
MODELS = ("qwq-32b", "qwen2.5-7b")


def tree_of_last_release(folder: Path) -> Path:
    """Return a folder with the files of the last release, whose commit tests/last_release names."""
    commit = (PROJECT / "tests/last_release").read_text(encoding="utf-8").strip()
    archive = folder / "release.tar"
    argv = ["git", "archive", "--format=tar", f"--output={archive}", commit]
    shallow = ["git", "rev-parse", "--is-shallow-repository"]
    if subprocess.run(shallow, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.strip() == "true":
        pytest.skip("a shallow clone has no history, and so not the last release")
    subprocess.run(argv, cwd=PROJECT, check=True)
    tree = folder / "release"
    tree.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", tree], check=True)
    return tree


def test_an_upgrade_under_load_restarts_nothing(host: Any, playbook: Any, started: Any, tmp_path: Path) -> None:
    tree = tree_of_last_release(tmp_path)
    before = {model: started(model) for model in MODELS}
    argv = ["ansible-playbook", "-i", str(playbook.inventory), str(tree / "playbooks/models.yml")]
    environment = {**playbook.environment, "ANSIBLE_CONFIG": str(tree / "ansible.cfg")}
    done = subprocess.run(argv, cwd=tree, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout
    assert {model: started(model) for model in MODELS} == before, "the last release restarts nothing either"
    host.check_output("rm -f /run/upgrade-done")
    name = playbook.hosts[0]
    load = subprocess.Popen(["docker", "exec", name, "python3", "-c", LOAD, KEY], stdout=subprocess.PIPE, text=True)
    try:
        assert load.stdout is not None and load.stdout.readline().strip() == "begun"
        run: Run = playbook("playbooks/models.yml")
    finally:
        host.check_output("touch /run/upgrade-done")
        said, _ = load.communicate(timeout=120)
    assert run.status == 0, run.text
    found = json.loads(said)
    assert found["failed"] == [] and found["answered"] > 10
    assert {model: started(model) for model in MODELS} == before
    assert playbook("playbooks/models.yml").changed_nothing
