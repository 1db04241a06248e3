"""Playbooks through ansible-runner, in the execution environment, as AWX runs them.

With process isolation, as another user than root, from a read-only project folder; the hosts are a file each.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ansible_runner
import jsonschema
import pytest
import yaml
from helpers.simulated.fleet import change, fleet, state_of
from testhosts_lib import execution_image

ROOT = Path(__file__).parents[2]
USER = 1234
IDENT = "one"  # of a run; every folder has one run
PLUGINS = "/runner/project/tests/helpers/simulated/connection"
ENVIRONMENT = {"ANSIBLE_CONNECTION_PLUGINS": PLUGINS, "GAUDI_SERVE_SIMULATED": "/runner/state", "ANSIBLE_NOCOLOR": "1"}
CANARY = "canary-7f3a-of-runs"
ONE = {"model": "m"}
# What each playbook is given, and how it ends: its exit status, and a word of what it reports.
RUNS: dict[str, tuple[dict[str, Any], int, str]] = {
    "site.yml": ({}, 0, ""),
    "playbooks/awx_approval.yml": ({"gaudi_rollout": {"steps": ["the waves"]}}, 0, "the waves"),
    "playbooks/benchmark.yml": ({}, 0, "h02 m"),
    "playbooks/bios.yml": ({}, 0, ""),
    "playbooks/bundle.yml": ({}, 0, "PROBLEMS"),
    "playbooks/driver.yml": ({}, 0, ""),
    "playbooks/gateway.yml": ({}, 0, ""),
    "playbooks/host.yml": ({}, 0, ""),
    "playbooks/images.yml": ({}, 0, ""),
    "playbooks/logs.yml": (ONE, 0, "out of cards"),
    "playbooks/mirror.yml": ({}, 3, "Group mirror of the inventory has no host"),
    "playbooks/models.yml": ({}, 0, ""),
    "playbooks/monitoring.yml": ({}, 0, ""),
    "playbooks/offline.yml": ({}, 0, ""),
    "playbooks/page.yml": ({"page": "/tmp/fleet.html"}, 0, "the page is /tmp/fleet.html"),
    "playbooks/plan.yml": ({}, 0, "h01"),
    "playbooks/preflight.yml": ({}, 0, ""),
    "playbooks/report.yml": ({}, 0, ""),
    "playbooks/qualify.yml": ({}, 3, "model m has cards [0]: acceptance tests never run on cards that serve"),
    "playbooks/reset.yml": ({"reset_confirm": "no"}, 2, "reset"),
    "playbooks/restart.yml": (ONE, 3, "model m serves on h01, h02 and would be down there at the same time"),
    "playbooks/rollout.yml": ({}, 0, "no host has pending changes"),
    "playbooks/start.yml": (ONE, 0, ""),
    "playbooks/stop.yml": (ONE, 3, "model m serves on h01, h02 and would be down there at the same time"),
    "playbooks/runtime.yml": ({}, 0, ""),
    "playbooks/status.yml": ({}, 0, "h01 m 0 active yes"),
    "playbooks/tune.yml": (ONE, 3, "its server chooses its own buckets"),
    "playbooks/network.yml": ({}, 0, ""),
    "playbooks/validate.yml": ({}, 2, "the measurement takes the cards of m; allow it"),
    "playbooks/weights.yml": ({}, 0, ""),
}


@pytest.fixture(scope="session")
def image() -> str:
    """Return the execution environment."""
    return execution_image.ensure()


class Folder:
    """A private data folder of ansible-runner, with hosts that are a file each."""

    def __init__(self, place: Path, image: str) -> None:
        self.place, self.state, self.image = place, place / "state", image
        for name in ("project", "inventory", "env", "state"):
            (place / name).mkdir()

    def hosts(self, count: int, state: dict[str, Any] | None = None, **variables: Any) -> None:
        """Write an inventory, and a file a host."""
        fleet(self.state, count, state, **variables)
        shutil.move(self.state / "hosts.json", self.place / "inventory/hosts.json")

    def options(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return what makes a run an isolated one, by a user who may write nothing but this folder."""
        (self.place / "env/extravars").write_text(json.dumps(given), encoding="utf-8")
        # ansible-runner is root here and makes folders for itself alone; elsewhere it is the user of the container.
        (self.place / "artifacts" / IDENT / "job_events").mkdir(parents=True, exist_ok=True)
        user = USER if os.getuid() == 0 else os.getuid()
        for path in [self.place, *self.place.rglob("*")]:
            os.chown(path, user, 0)
        return {
            **{"process_isolation": True, "process_isolation_executable": "docker", "container_image": self.image},
            "container_volume_mounts": [f"{ROOT}:/runner/project:ro"],
            "container_options": [f"--user={user}:0", "--network=none"],
            **{"envvars": ENVIRONMENT, "ident": IDENT, "timeout": 600},
        }

    def run(self, playbook: str, given: dict[str, Any]) -> Any:
        """Run a playbook."""
        options = self.options(given)
        return ansible_runner.run(private_data_dir=str(self.place), playbook=playbook, quiet=True, **options)


@pytest.fixture
def folder(image: str) -> Iterator[Folder]:
    """Return an empty one; not below pytest's own, which is closed to other users."""
    with tempfile.TemporaryDirectory(prefix="gaudi-serve-") as name:
        yield Folder(Path(name), image)


@pytest.fixture(scope="session")
def served(image: str) -> dict[str, Any]:
    """Return what a host has on which site.yml has run."""
    with tempfile.TemporaryDirectory(prefix="gaudi-serve-") as name:
        one = Folder(Path(name), image)
        one.hosts(1)
        run = one.run("site.yml", {})
        assert (run.status, run.rc) == ("successful", 0), run.stdout.read()
        return state_of(one.state, "h01")


def test_every_playbook_has_its_run() -> None:
    found = {"site.yml", *(f"playbooks/{path.name}" for path in (ROOT / "playbooks").glob("*.yml"))}
    # It reaches no host; its own test has an API to talk to.
    assert found - {"playbooks/awx.yml"} == set(RUNS)


@pytest.mark.parametrize("playbook", RUNS)
def test_playbooks_run_isolated(playbook: str, folder: Folder, served: dict[str, Any]) -> None:
    given, status, said = RUNS[playbook]
    folder.hosts(2, served, vllm_secrets={"m": {"VLLM_API_KEY": CANARY}} if playbook == "playbooks/plan.yml" else {})
    run = folder.run(playbook, given)
    text = run.stdout.read()
    assert run.rc == status, text
    assert said in " ".join(text.split()), text
    events = [event["event"] for event in run.events]
    assert events[0] in ("playbook_on_start", "warning", "verbose") and "playbook_on_stats" in events
    alone = playbook in ("playbooks/awx_approval.yml", "playbooks/mirror.yml")
    assert set(run.stats["processed"]) >= {"localhost" if alone else "h01"}
    files = [path for path in (folder.place / "artifacts").rglob("*") if path.is_file()]
    assert [path for path in files if CANARY in path.read_text(encoding="utf-8", errors="replace")] == []


# In podman's containers without root the container's root is the caller; the image's own user is someone else.
PODMAN = """#!/bin/sh
for word; do
  shift
  case "$word" in
    --quiet | --group-add=* | --ipc=*) ;;
    --user=root) set -- "$@" "--user=$(id -u):0" ;;
    *) set -- "$@" "$word" ;;
  esac
done
exec docker "$@"
"""


def page_command(place: Path, image: str) -> list[str]:
    """Return the command of docs/guides/runner.md, for a folder and an image of this test."""
    page = (ROOT / "docs/guides/runner.md").read_text(encoding="utf-8")
    found = re.search(r"```\n(ansible-runner run fleet .*?)\n```", page, re.DOTALL)
    assert found
    words = shlex.split(found[1].replace("\\\n", " "))
    words = [str(place) if word == "fleet" else word for word in words]
    words[words.index("--container-image") + 1] = image
    return [str(Path(sys.executable).with_name("ansible-runner")), *words[1:]]


def as_user(place: Path) -> list[str]:
    """Return how a command is started as a user who is neither root nor the image's own."""
    if os.getuid() != 0:
        return []
    for path in [place, *place.rglob("*")]:
        os.chown(path, USER, USER)
    # The virtual environment may be below root's home; nothing else of this user's rights is more than another's.
    groups = Path("/var/run/docker.sock").stat().st_gid
    who = [f"--reuid={USER}", f"--regid={USER}", f"--groups={groups}"]
    return ["setpriv", *who, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]


@pytest.mark.parametrize(("engine", "key"), [("podman", True), ("podman", False), ("docker", True)])
def test_the_command_of_the_page_runs_as_it_stands(
    engine: str, key: bool, folder: Folder, image: str, served: dict[str, Any]
) -> None:
    folder.hosts(1, served)
    copied = ("playbooks", "roles", "lib", "library", "filter_plugins", "action_plugins")
    for name in (*copied, "callback_plugins", "tests/helpers/simulated"):
        shutil.copytree(ROOT / name, folder.place / "project" / name, symlinks=True)
    for name in ("ansible.cfg", "site.yml"):
        shutil.copy(ROOT / name, folder.place / "project" / name)
    (folder.place / "env/envvars").write_text(json.dumps(ENVIRONMENT), encoding="utf-8")
    if key:
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder.place / "env/ssh_key")]
        subprocess.run(make, check=True)
    programs = folder.place / "programs"
    programs.mkdir()
    (programs / "podman").write_text(PODMAN, encoding="utf-8")
    (programs / "podman").chmod(0o755)
    command = page_command(folder.place, image)
    if engine == "docker":
        command = [engine if word == "podman" else word for word in command if word != "--container-option=--user=root"]
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder.place)}
    options: dict[str, Any] = {"env": environment, "cwd": folder.place, "capture_output": True, "text": True}
    ended = subprocess.run([*as_user(folder.place), *command], timeout=600, check=False, **options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "h01" in ended.stdout and "awx_display" not in ended.stdout
    assert ("Identity added" in ended.stdout) is key, ended.stdout
    assert list((folder.place / "artifacts/plan-1/job_events").glob("*.json"))


def example() -> Any:
    """Return the example of embedding."""
    spec = importlib.util.spec_from_file_location("rollout_example", ROOT / "docs/guides/rollout.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "given",
    [{"rollout_approved": True}, {}, {"slow": True}],
    ids=["approved", "not asked", "slow"],
)
def test_the_example_follows_a_rollout(given: dict[str, Any], folder: Folder, served: dict[str, Any]) -> None:
    slow = "slow" in given
    given = {name: value for name, value in given.items() if name != "slow"}
    folder.hosts(3, served)
    inventory = json.loads((folder.place / "inventory/hosts.json").read_text(encoding="utf-8"))
    inventory["all"]["vars"]["vllm_models"][0]["max_num_seqs"] = 24
    inventory["all"]["vars"]["vllm_models"][0]["min_available"] = 2
    (folder.place / "inventory/hosts.json").write_text(json.dumps(inventory), encoding="utf-8")
    if slow:
        change(folder.state, "h01", fault="slow")
    said: list[str] = []
    outcome = example().rollout(folder.place, said.append, **folder.options(given))
    schema = json.loads((ROOT / "docs/reference/schemas/rollout.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(outcome.hosts, schema["properties"]["hosts"])
    launch = {name: state_of(folder.state, name)["files"]["/etc/gaudi-serve/m.json"] for name in ("h01", "h02", "h03")}
    changed = [name for name, text in launch.items() if '"24"' in text]
    assert any("Verify" in line for line in said)
    if slow:
        assert not outcome.succeeded and changed == []
        assert "h01 failed its checks" in outcome.failures["h01"]
        assert outcome.hosts["h01"]["outcome"] == "rolled_back"
        assert outcome.hosts["h01"]["text"] == outcome.failures["h01"]
    elif given:
        assert outcome.succeeded and outcome.changed == changed == ["h01", "h02", "h03"], outcome
    else:
        # Nobody sits at the terminal that ansible-runner makes.
        assert outcome.succeeded and outcome.changed == changed == ["h01"], outcome
        assert "h01 serves with the change, and passed its checks:\nm: " in outcome.hosts["h01"]["text"]


def test_the_definition_takes_what_requirements_report(tmp_path: Path) -> None:
    execution_image.recipe(tmp_path / "context")
    definition = yaml.safe_load((ROOT / "execution-environment.yml").read_text(encoding="utf-8"))
    assert definition["dependencies"]["python"] == "requirements.txt"
    assert "galaxy" not in definition["dependencies"], "the package `ansible` has the collections"
    copied = (tmp_path / "context/_build/requirements.txt").read_text(encoding="utf-8").split("\n")
    pins = [line for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").split("\n") if "==" in line]
    assert [line for line in copied if "==" in line] == pins
    assert {pin.partition("==")[0] for pin in pins} >= {"ansible-core", "ansible-runner", "ansible"}
