"""A host before the toolkit, and after playbooks/reset.yml: the same, file by file."""

from __future__ import annotations

import json
from typing import Any

import pytest
from runs import tear

RECORDS = "/var/lib/gaudi-serve/found"
ALL = {"reset_weights": True, "reset_images": True, "reset_caches": True, "reset_packages": True}
CACHE = "/data/recipes/qwen"
# By part of the picture, what may differ after a reset with all flags, and why.
EXCEPTIONS = {
    "files": {
        "/root/.ansible_async": "where Ansible itself keeps the results of long tasks",
    },
}


def picture(host: Any, name: str = "after") -> dict[str, Any]:
    """Take a picture of the host."""
    host.check_output(f"python3 /run/picture /run/{name}.json")
    taken: dict[str, Any] = json.loads(host.file(f"/run/{name}.json").content_string)
    return taken


@pytest.fixture
def before(host: Any) -> dict[str, Any]:
    """Return the picture that was taken before the toolkit came."""
    taken: dict[str, Any] = json.loads(host.file("/run/before.json").content_string)
    return taken


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return what differs between two pictures, but for the exceptions."""
    found = []
    for part in sorted(one):
        if not isinstance(one[part], dict):
            found += [f"{part}: {line}" for line in sorted(set(one[part]) ^ set(other[part]))]
            continue
        for key in sorted(set(one[part]) | set(other[part])):
            if one[part].get(key) != other[part].get(key) and key not in EXCEPTIONS.get(part, {}):
                found.append(f"{part}: {key}: {one[part].get(key)} -> {other[part].get(key)}")
    return found


def test_a_site_has_written_down_what_it_found(host: Any, before: dict[str, Any]) -> None:
    folder = host.file(RECORDS)
    assert folder.mode == 0o700
    tuning = json.loads(host.file(f"{RECORDS}/host_tuning.json").content_string)
    assert host.file(f"{RECORDS}/host_tuning.json").mode == 0o600
    assert {key.replace(".", "/"): value for key, value in tuning["found"]["sysctl"].items()} == before["sysctl"]
    assert tuning["found"]["governors"] == before["governors"]
    engine = json.loads(host.file(f"{RECORDS}/container_runtime.json").content_string)
    assert '"max-size": "10m"' in engine["found"]["daemon_json"]


def test_nothing_is_changed_without_the_word(host: Any, playbook: Any) -> None:
    now = picture(host, "now")
    run = playbook("playbooks/reset.yml")
    assert run.status != 0
    assert "type reset, or set -e reset_confirm=reset" in run.flat
    run = playbook("playbooks/reset.yml", "-e", "reset_weights=perhaps", reset_confirm="yes")
    assert run.status != 0
    assert "reset_weights: 'perhaps' is neither true nor false" in run.flat
    assert differences(now, picture(host)) == []


def test_a_check_reports_what_would_go_and_changes_nothing(host: Any, playbook: Any) -> None:
    now = picture(host, "now")
    run = playbook("playbooks/reset.yml", "--check", "--diff")
    assert run.status == 0, run.text
    assert "would undo: model qwen2.5-7b: unit, settings, secrets, container" in run.flat
    assert "+vm.nr_hugepages=12" in run.text
    assert "canary-5f2b" not in run.text
    assert differences(now, picture(host)) == []


def test_a_reset_that_was_cut_off_is_finished_by_the_next(host: Any, playbook: Any, before: dict[str, Any]) -> None:
    unit = "/etc/systemd/system/vllm-qwen2.5-7b.service"
    playbook("playbooks/reset.yml", reset_confirm="reset", until=lambda: not host.file(unit).exists)
    assert host.file(f"{RECORDS}/host_tuning.json").exists
    run = playbook("playbooks/reset.yml", reset_confirm="reset")
    assert run.status == 0, run.text
    for part in (
        "stays: weights /srv/weights/qwen: kept (reset_weights)",
        f"stays: recipe cache {CACHE}/qwen2.5-7b",
        "stays: packages habanalabs-container-runtime",
    ):
        assert part in run.flat, run.text
    now = picture(host)
    for part in ("sysctl", "governors", "holds", "engine", "runtimes", "containers", "started", "failed"):
        assert now[part] == before[part], part
    assert now["files"]["/etc/docker/daemon.json"] == before["files"]["/etc/docker/daemon.json"]
    assert host.file("/srv/weights/qwen/config.json").exists
    assert playbook("playbooks/reset.yml", reset_confirm="reset").changed_nothing


def test_with_all_flags_the_host_is_as_it_was(host: Any, playbook: Any, before: dict[str, Any]) -> None:
    tear(host, "habanalabs-container-runtime", "purge")
    run = playbook("playbooks/reset.yml", reset_confirm="reset", **ALL)
    assert run.status == 0, run.text
    assert differences(before, picture(host)) == []
    run = playbook("playbooks/reset.yml", reset_confirm="reset", **ALL)
    assert run.changed_nothing, run.text


def test_the_toolkit_may_come_back(host: Any, playbook: Any) -> None:
    run = playbook("playbooks/driver.yml")
    assert run.status == 0, run.text
    run = playbook("site.yml", "--check")
    assert run.status == 0, run.text
