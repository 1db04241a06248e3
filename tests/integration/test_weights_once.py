"""The role on two hosts of this machine, one of which is to fetch the weights for both: what it reports beforehand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.weights_programs import ROOT, model

PLAY = [
    {
        "hosts": "all",
        "gather_facts": False,
        "tasks": [{"name": "Bring", "ansible.builtin.include_role": {"name": "model_weights"}}],
    }
]


class Fleet:
    """Hosts a and b, each with a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts = {name: self.variables(name) for name in ("a", "b")}
        (folder / "play.yml").write_text(json.dumps(PLAY))

    def variables(self, name: str) -> dict[str, Any]:
        """Return a host's variables."""
        source = {"kind": "hub", "repo": "Qwen/QwQ-32B", "endpoint": f"https://{name}.example.net"}
        planned = {"name": "qwq", "weights": f"{self.folder}/{name}/QwQ-32B", "image": None, "source": source}
        known = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        return {**known, "model_weights_from_host": "a", "model_weights_models": [planned]}

    def check(self, *arguments: str) -> tuple[int, str]:
        """Run the role in check mode, and return its status and what it reports in one line."""
        (self.folder / "hosts.json").write_text(json.dumps({"all": {"hosts": self.hosts}}))
        environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
        environment["ANSIBLE_STDOUT_CALLBACK"] = "default"
        environment["ANSIBLE_LOCAL_TEMP"] = environment["ANSIBLE_REMOTE_TEMP"] = str(self.folder / "ansible")
        argv = ["ansible-playbook", "-i", str(self.folder / "hosts.json"), str(self.folder / "play.yml"), "--check"]
        done = subprocess.run([*argv, *arguments], env=environment, capture_output=True, text=True, check=False)
        return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """Two hosts."""
    return Fleet(tmp_path)


def test_check_reports_who_fetches_and_who_takes(fleet: Fleet) -> None:
    status, said = fleet.check()
    assert status == 0, said
    assert f"a: model qwq: fetch Qwen/QwQ-32B (hub) as {fleet.folder}/a/QwQ-32B: it is not there" in said
    assert f"b: model qwq: copy {fleet.folder}/a/QwQ-32B from a as {fleet.folder}/b/QwQ-32B: it is not there" in said


def test_model_that_the_host_does_not_have_comes_from_its_source(fleet: Fleet) -> None:
    fleet.hosts["b"]["model_weights_models"][0]["source"]["revision"] = "v2"
    status, said = fleet.check()
    assert status == 0, said
    assert "b: model qwq: fetch Qwen/QwQ-32B at v2 (hub)" in said


def test_host_without_a_model_with_a_source_has_nothing_to_give(fleet: Fleet) -> None:
    fleet.hosts["a"]["model_weights_models"] = []
    status, said = fleet.check()
    assert status == 0, said
    assert "b: model qwq: fetch Qwen/QwQ-32B (hub)" in said


def test_gits_token_is_not_sent_over_an_open_line(fleet: Fleet) -> None:
    fleet.hosts["b"] |= {"model_weights_from_host": "", "model_weights_tokens": {"git": "canary-9d2f", "hub": ""}}
    source = {"kind": "git", "url": "http://git.example.net/a.git"}
    fleet.hosts["b"]["model_weights_models"][0]["source"] = source
    status, said = fleet.check("--limit", "b")
    assert status != 0
    assert "b: model qwq: source.url 'http://git.example.net/a.git': model_weights_tokens.git is set" in said
    assert "canary-9d2f" not in said


def test_host_that_is_not_in_the_inventory(fleet: Fleet) -> None:
    fleet.hosts["b"]["model_weights_from_host"] = "c"
    status, said = fleet.check()
    assert status != 0
    assert "b: model_weights_from_host c: is not a host of the inventory, which has a, b" in said


def test_host_that_fails_or_cannot_be_reached(fleet: Fleet) -> None:
    fleet.hosts["a"] |= {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}
    status, said = fleet.check()
    assert status != 0
    assert "b: model_weights_from_host a: has fetched no weights in this run: it failed, cannot be reached," in said
    status, said = fleet.check("--limit", "b")
    assert status != 0
    assert "b: model qwq: model_weights_from_host 'a': is not part of this run (--limit)" in said


def test_host_outside_the_run_gives_what_it_has(fleet: Fleet) -> None:
    # Both names are this machine: a has what is not whole on b, once it is.
    planned = fleet.hosts["b"]["model_weights_models"][0]
    status, said = fleet.check("--limit", "b")
    assert status != 0
    assert f"and has no complete folder {planned['weights']}, or cannot be reached; include it" in said
    folder = model(Path(planned["weights"]))
    files = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "mtime_ns": path.stat().st_mtime_ns}
        for path in folder.rglob("*")
        if path.is_file()
    }
    record = {"source": {**planned["source"], "endpoint": "https://a.example.net"}, "revision": "v", "files": files}
    (folder / ".gaudi-serve-weights.json").write_text(json.dumps(record))
    status, said = fleet.check("--limit", "b")
    assert status == 0, said
    assert f"b: model qwq: copy {folder} from a as {folder}: it comes from another source or revision" in said
