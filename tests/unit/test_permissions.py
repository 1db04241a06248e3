"""Modes and owners of the files on a host: every kind is compared, repaired, and documented."""

from __future__ import annotations

import json
import os
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from gaudi_serve.core.paths import MARK, MARKER, PLACES, vllm_unit_paths
from gaudi_serve.gateway.objects import Gateway
from gaudi_serve.host import observe_metrics, observe_mirror, observe_network, observe_runtime, permissions
from gaudi_serve.host.permissions import PERMISSIONS, SHARED, Rule, make_folder, mode_of, observe, repair, rule_of
from gaudi_serve.stages.base import Given, Pending, Stage
from gaudi_serve.stages.registry import BY_ROLE
from helpers.plugins import load

ROOT = Path(__file__).parents[2]
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may change owners; make test runs as root")
KINDS = [pytest.param(role, rule, id=rule.pattern) for role, rules in PERMISSIONS.items() for rule in rules]
# What a rule needs beside its file to be the toolkit's.
BESIDE = {
    "/etc/docker/certs.d/": f"/etc/docker/certs.d/example/{MARK}",
    "/etc/habanalabs/": "/etc/gaudi-serve/ports.json",
}


@pytest.fixture(autouse=True)
def groups(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return the users and groups of a host: this machine need not have Prometheus."""
    numbers = {"root": 0, "prometheus": 0}
    monkeypatch.setattr(permissions, "_number", lambda kind, name: numbers.get(name))
    return numbers


def create(root: Path, *paths: str) -> None:
    """Create files, and folders if a path ends with a slash, with the permissions of the table."""
    for path in paths:
        place = root / path.strip("/")
        (place if path.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        if not place.is_dir():
            place.write_text(f"{MARKER}example\n", encoding="utf-8")
    for place in root.rglob("*"):
        rule = rule_of(f"/{place.relative_to(root)}", folder=place.is_dir())
        place.chmod(rule.mode if rule else 0o755 if place.is_dir() else 0o644)


def example(root: Path, rule: Rule) -> Path:
    """Create an example of a rule's files, and return its path."""
    beside = [file for start, file in BESIDE.items() if rule.pattern.startswith(start)]
    create(root, *beside, rule.pattern.replace("*", "example"))
    return root / rule.pattern.strip("/").replace("*", "example")


@pytest.mark.parametrize(("role", "rule"), KINDS)
def test_a_changed_mode_is_seen_by_its_stage_and_repaired(tmp_path: Path, role: str, rule: Rule) -> None:
    path = example(tmp_path, rule)
    name, wide, right = f"/{path.relative_to(tmp_path)}", 0o777 if rule.folder else 0o666, rule.mode
    right &= wide if rule.most else 0o777
    assert observe(str(tmp_path)) == {}
    path.chmod(wide)
    assert observe(str(tmp_path)) == {role: [f"{name}: mode 0{wide:o} instead of 0{right:o}"]}
    content = None if rule.folder else path.read_bytes()
    repair(role, str(tmp_path))
    assert (observe(str(tmp_path)), path.stat().st_mode & 0o7777) == ({}, right)
    assert content is None or path.read_bytes() == content


@NEEDS_ROOT
@pytest.mark.parametrize(("role", "rule"), KINDS)
def test_a_changed_owner_is_seen_by_its_stage_and_repaired(tmp_path: Path, role: str, rule: Rule) -> None:
    path = example(tmp_path, rule)
    os.chown(path, 65534, 0)
    if rule.owners is None:
        # The file is a user's, and so is its owner.
        assert observe(str(tmp_path)) == {}
        return
    (line,) = observe(str(tmp_path))[role]
    assert line.startswith(f"/{path.relative_to(tmp_path)}: owner nobody instead of root")
    repair(role, str(tmp_path))
    assert (observe(str(tmp_path)), path.stat().st_uid, path.stat().st_gid) == ({}, 0, 0)


@NEEDS_ROOT
def test_a_file_for_a_group_that_the_host_lacks_is_only_for_root(tmp_path: Path, groups: dict[str, int]) -> None:
    path, groups["prometheus"] = tmp_path / "etc/gaudi-monitoring/client.pem", 1234
    create(tmp_path, "/etc/gaudi-monitoring/client.pem")
    assert observe(str(tmp_path)) == {"monitoring": ["/etc/gaudi-monitoring/client.pem: group root instead of 1234"]}
    repair("monitoring", str(tmp_path))
    assert (path.stat().st_gid, path.stat().st_mode & 0o777) == (1234, 0o640)
    del groups["prometheus"]
    repair("monitoring", str(tmp_path))
    assert (path.stat().st_gid, path.stat().st_mode & 0o777) == (0, 0o600)


def test_a_folder_of_several_roles_belongs_to_the_first_one_with_a_file_in_it(tmp_path: Path) -> None:
    for rule in SHARED:
        (tmp_path / rule.pattern.strip("/")).mkdir(parents=True)
        (tmp_path / rule.pattern.strip("/")).chmod(0o777)
    assert observe(str(tmp_path)) == {}
    create(tmp_path, "/etc/gaudi-serve/metrics.json")
    (tmp_path / "etc/gaudi-serve").chmod(0o777)
    line = "/etc/gaudi-serve: mode 0777 instead of 0750"
    assert observe(str(tmp_path)) == {"monitoring": [line]}
    create(tmp_path, "/etc/gaudi-serve/m.env")
    (tmp_path / "etc/gaudi-serve").chmod(0o777)
    assert observe(str(tmp_path)) == {"vllm_service": [line]}


def test_what_is_not_the_toolkits_stays_as_it_is(tmp_path: Path) -> None:
    theirs = ("systemd/system/vllm-theirs.service", "docker/certs.d/site/ca.crt", "habanalabs/gaudinet.json", "passwd")
    for path in (tmp_path / "etc" / name for name in theirs):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.chmod(0o666)
    # Someone can put a link into an open folder.
    (tmp_path / "etc/gaudi-serve").mkdir(mode=0o750)
    (tmp_path / "etc/gaudi-serve/m.env").symlink_to(tmp_path / "etc/passwd")
    assert observe(str(tmp_path)) == {}
    for role in PERMISSIONS:
        repair(role, str(tmp_path))
    assert {(tmp_path / "etc" / name).stat().st_mode & 0o777 for name in theirs} == {0o666}


def test_files_for_programs_of_the_site_are_compared_where_they_are(tmp_path: Path) -> None:
    create(tmp_path, PLACES, "/srv/prometheus/rules/models.yml")
    (tmp_path / PLACES.lstrip("/")).write_text(json.dumps(["/srv/prometheus/rules/models.yml"]), encoding="utf-8")
    (tmp_path / "srv/prometheus/rules/models.yml").chmod(0o666)
    assert observe(str(tmp_path)) == {"monitoring": ["/srv/prometheus/rules/models.yml: mode 0666 instead of 0644"]}


def test_new_folders_get_their_modes_whatever_the_umask_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {str(tmp_path / "etc"): None, str(tmp_path / "etc/own"): Rule("/etc/own/", 0o750)}
    monkeypatch.setattr(permissions, "rule_of", lambda path, **_: names.get(path))
    before = os.umask(0o077)
    try:
        make_folder(tmp_path / "etc/own/deep")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {"etc": 0o755, "own": 0o750, "deep": 0o755}


def test_the_module_repairs_reports_and_changes_nothing_under_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    create(tmp_path, "/etc/gaudi-serve/m.env")
    path, line = tmp_path / "etc/gaudi-serve/m.env", "/etc/gaudi-serve/m.env: mode 0666 instead of 0640"
    path.chmod(0o666)
    module = load("library/gaudi_permissions.py")
    monkeypatch.setattr(module.permissions, "observe", lambda: observe(str(tmp_path)))
    monkeypatch.setattr(module.permissions, "repair", lambda role: repair(role, str(tmp_path)))
    for check, after in ((True, {"vllm_service": [line]}), (False, {})):
        with (
            patch_module_args({"role": "vllm_service", "_ansible_check_mode": check}),
            pytest.raises(SystemExit),
        ):
            module.main()
        said: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert (said["changed"], said["corrected"]) == (True, [line])
        assert said["ansible_facts"]["gaudi_permissions"] == after


def test_a_stage_reports_permissions_and_takes_no_model_down_for_them() -> None:
    stage = Stage("vllm_service", "models", pending=lambda _: Pending(changes={"due": False}, due=["start m"]))
    line = "/etc/gaudi-serve/m.env: mode 0666 instead of 0640"
    found = stage.compared(Given("h", {"gaudi_permissions": {"vllm_service": [line], "gateway": ["other"]}}))
    assert (found.changes, found.stops) == ({"due": False, "permissions": [line]}, ())
    assert (found.due, found.drift) == (["start m", f"correct {line}"], [line])
    assert found.left == [f"h: still to do after this run: correct {line}"]
    assert stage.compared(Given("h", {})).changes == {"due": False, "permissions": []}


def written_paths() -> set[str]:
    """Return every path that a role writes on a host, from its tasks and from the constants of its stage."""
    # The mirror is no host of the fleet.
    roles = [path for path in ROOT.glob("roles/*") if path.name != "site_mirror"]
    files = [path for role in roles for path in (*role.glob("tasks/*.yml"), *role.glob("vars/main.yml"))]
    texts = [path.read_text(encoding="utf-8") for path in files]
    named = {
        path.rstrip("/.")
        for text in texts
        for path in re.findall(r"(?<![\w/}])(/(?:etc|usr/local/lib|var/lib)/[\w./-]+)", text)
        if "." in path.rsplit("/", 1)[-1]
    }
    return {
        *named,
        *vllm_unit_paths(["m"]),
        *map(str, (*observe_metrics.FILES, *(observe_metrics.UNIT_FOLDER / name for name in observe_metrics.UNITS))),
        *map(str, (observe_metrics.HOST, observe_metrics.CLIENT, observe_metrics.WATCHED, PLACES)),
        *observe_mirror.FILES,
        *observe_network.FILES,
        *(observe_runtime.DAEMON_JSON, observe_runtime.PROXIES, observe_runtime.PROXIES_DROPIN),
        *(Gateway.state, f"{Gateway.folder}/0123/servers.map"),
    }


# Files that roles read, and those of the distribution.
READ = {"/etc/systemd/system/docker-registry.service"}


def test_every_file_that_a_role_writes_has_permissions_and_a_role_that_repairs_them() -> None:
    assert sorted(path for path in written_paths() - READ if rule_of(path) is None) == []
    for role in PERMISSIONS:
        assert role in BY_ROLE
        tasks = (ROOT / f"roles/{role}/tasks/main.yml").read_text(encoding="utf-8")
        assert f"  gaudi_permissions:\n    role: {role}\n  when: __{role}.changes.permissions | length > 0\n" in tasks


def documented() -> dict[str, str]:
    """Return the mode of each path on the page of files; empty for a path without one."""
    page = (ROOT / "docs/reference/host-files.md").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for names, said in re.findall(r"^\| (`/[^|]*) \| ([^|]*) \|", page, re.M):
        paths, modes = re.findall(r"`([^`]+)`", names), re.findall(r"\b0[0-7]{3}\b", said)
        folder = paths[0].rstrip("/").rsplit("/", 1)[0]
        modes = modes if len(modes) == len(paths) else (modes or [""]) * len(paths)
        found |= {path if path[0] == "/" else f"{folder}/{path}": mode for path, mode in zip(paths, modes, strict=True)}
    return found


def test_the_page_of_files_has_every_path_with_the_mode_of_the_table() -> None:
    page = documented()
    for path, mode in page.items():
        rule = rule_of(re.sub("NAME|[*]", "example", path).rstrip("/"), folder=path.endswith("/"))
        assert not mode or (rule and f"{rule.mode:04o}" == mode), path
    listed = [path.replace("NAME", "example") + "*" * path.endswith("/") for path in page]
    for rule in (*SHARED, *(rule for rules in PERMISSIONS.values() for rule in rules)):
        path = rule.pattern.replace("*", "example")
        assert any(fnmatch(path, one) for one in listed), path
    assert mode_of("/etc/gaudi-serve/m.secret") == "0600"


def test_the_first_file_in_a_shared_folder_sets_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, other = tmp_path / "gaudi-serve", tmp_path / "other"
    for folder in (shared, other):
        folder.mkdir(mode=0o755)
    rules = {str(shared): permissions.SHARED[0]}
    monkeypatch.setattr(permissions, "rule_of", lambda path, folder: folder and rules.get(path))
    for folder in (shared, other):
        permissions.make_folder(folder)
    assert [folder.stat().st_mode & 0o777 for folder in (shared, other)] == [0o750, 0o755]
