"""Plan and run judge alike: hosts that are a file each, with what keeps a run from them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import forked
import pytest

sys.path.insert(0, str(Path(__file__).with_name("simulated")))
from fleet import ROOT, change, fleet, state_of

ALONE = "left alone: the inventory gives it no models, no gateway and no other task"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what a host has on which site.yml has run."""
    folder = tmp_path_factory.mktemp("served")
    status, text = play(folder, fleet(folder, 1), "site.yml")
    assert status == 0, text
    return state_of(folder, "h01")


def play(folder: Path, environment: dict[str, str], playbook: str, **given: Any) -> tuple[int, str]:
    """Run a playbook on the hosts of a folder; return its status and its output on one line a host."""
    argv = ["ansible-playbook", "-i", str(folder / "hosts.json"), playbook, "-e", json.dumps(given)]
    return forked.playbook(argv, ROOT, environment, 300)


def inventory(folder: Path, **hosts: dict[str, Any]) -> None:
    """Give hosts variables of their own."""
    path = folder / "hosts.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    for name, variables in hosts.items():
        found["all"]["hosts"][name].update(variables)
    path.write_text(json.dumps(found), encoding="utf-8")


def files_of(folder: Path, name: str) -> Any:
    """Return what would show that a host was changed."""
    state = state_of(folder, name)
    return {key: state.get(key) for key in ("files", "units", "images", "sysctl", "governor", "entries")}


def test_hosts_without_a_task_are_left_alone_and_said_to_be(tmp_path: Path, served: dict[str, Any]) -> None:
    environment = fleet(tmp_path, 3, served)
    # One says nothing of models, and one that it has none; as file servers they have nothing of the toolkit's.
    for name, models in (("h02", None), ("h03", [])):
        inventory(tmp_path, **{name: {"vllm_models": models}})
        (tmp_path / f"{name}.json").write_text("{}")
    for playbook in ("playbooks/plan.yml", "site.yml", "playbooks/rollout.yml", "playbooks/status.yml"):
        status, text = play(tmp_path, environment, playbook)
        assert status == 0, text
        assert [text.count(f"{name}: {ALONE}") for name in ("h01", "h02", "h03")] == [0, 1, 1], text
    for name in ("h02", "h03"):
        assert state_of(tmp_path, name)["files"] == {}
        assert state_of(tmp_path, name)["governor"] == "powersave"


def test_a_host_that_still_serves_is_cleaned_or_refused_and_one_with_another_task_is_prepared(
    tmp_path: Path, served: dict[str, Any]
) -> None:
    environment = fleet(tmp_path, 3, served)
    inventory(
        tmp_path,
        h01={"vllm_models": [], "hccl_validation_nodes": []},
        h02={"vllm_models": None},
        h03={"vllm_models": None, "vllm_image_from_host": "h03"},
    )
    change(tmp_path, "h03", units={}, sysctl={"kernel.numa_balancing": "1", "vm.nr_hugepages": "0"})
    for playbook in ("playbooks/plan.yml", "site.yml"):
        status, text = play(tmp_path, environment, playbook)
        assert status == (2 if "plan" in playbook else 3), text
        assert "h02: vllm_models is not set, but this host serves m" in text
        assert "- m: stop and remove" in text
        assert "host: kernel.numa_balancing" in text
        assert ALONE not in text
