"""habana-container-runtime and its hook, with the silences of the real ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(__file__).resolve().parents[3] / "molecule" / "shared"


@pytest.fixture
def bundle(host: Any) -> Path:
    """Give a container's bundle on a host where runtime, hook and a runc that tells its arguments are installed."""
    config = host.root / "etc/habana-container-runtime/config.toml"
    config.parent.mkdir(parents=True)
    shutil.copy(SHARED / "hostimage" / "config.toml", config)
    hook = host.root / "usr/bin/habana-container-hook"
    hook.parent.mkdir(parents=True)
    hook.touch()
    runc = host.root / "bin/runc"
    runc.parent.mkdir()
    runc.write_text('#!/bin/sh\necho "runc $*"\n', encoding="ascii")
    runc.chmod(0o755)
    folder: Path = host.root / "bundle"
    (folder / "rootfs").mkdir(parents=True)
    return folder


def create(host: Any, bundle: Path, *environment: str) -> tuple[Any, dict[str, Any]]:
    """Run the runtime's create for a container with this environment; return result and edited specification."""
    spec = {"process": {"env": list(environment)}, "root": {"path": "rootfs"}, "linux": {}}
    (bundle / "config.json").write_text(json.dumps(spec), encoding="utf-8")
    path = f"{host.root}/bin:/usr/bin:/bin"
    result = host.run("habana-container-runtime", "create", "--bundle", str(bundle), "name", PATH=path)
    return result, json.loads((bundle / "config.json").read_text(encoding="utf-8"))


def given(spec: dict[str, Any]) -> list[str]:
    """Return the card nodes that the container gets."""
    paths = [device["path"] for device in spec["linux"].get("devices", [])]
    return [path.removeprefix("/dev/accel/accel") for path in paths if "control" not in path]


def test_wanted_cards_with_nodes_rules_and_hook(host: Any, bundle: Path) -> None:
    result, spec = create(host, bundle, "HABANA_VISIBLE_DEVICES=2,3")
    assert result.stdout == f"runc create --bundle {bundle} name\n"
    assert given(spec) == ["2", "3"]
    assert len(spec["linux"]["devices"]) == 4
    assert {rule["access"] for rule in spec["linux"]["resources"]["devices"]} == {"rwm"}
    assert len(spec["hooks"]["createRuntime"]) == 1
    assert spec["mounts"][0]["options"] == ["rbind", "ro"]


@pytest.mark.parametrize(
    ("environment", "cards"),
    [
        (["HABANA_VISIBLE_DEVICES=2,99"], ["2"]),
        (["HABANA_VISIBLE_DEVICES=99"], []),
        (["HABANA_VISIBLE_DEVICES=all"], [str(index) for index in range(8)]),
        ([], [str(index) for index in range(8)]),
    ],
)
def test_unknown_indices_are_dropped_in_silence(
    host: Any, bundle: Path, environment: list[str], cards: list[str]
) -> None:
    result, spec = create(host, bundle, *environment)
    assert (result.returncode, result.stderr) == (0, "")
    assert given(spec) == cards


@pytest.mark.parametrize(("section", "cards"), [("[habana-container-runtime]\n", 0), ("", 8)])
def test_cards_for_all_can_be_turned_off_in_its_section_only(host: Any, bundle: Path, section: str, cards: int) -> None:
    config = host.root / "etc/habana-container-runtime/config.toml"
    config.write_text(f"{section}visible_devices_all_as_default = false\n", encoding="ascii")
    assert len(given(create(host, bundle)[1])) == cards


def test_other_commands_pass_through(host: Any, bundle: Path) -> None:
    result = host.run("habana-container-runtime", "kill", "name", "15", PATH=f"{host.root}/bin:/usr/bin:/bin")
    assert result.stdout == "runc kill name 15\n"


@pytest.mark.parametrize("content", [None, "no toml\n"])
def test_needs_its_configuration(host: Any, bundle: Path, content: str | None) -> None:
    config = host.root / "etc/habana-container-runtime/config.toml"
    config.unlink()
    if content:
        config.write_text(content, encoding="ascii")
    assert create(host, bundle)[0].returncode == 1


def test_without_the_hook_no_container_is_made(host: Any, bundle: Path) -> None:
    (host.root / "usr/bin/habana-container-hook").unlink()
    result, spec = create(host, bundle)
    assert result.returncode == 0
    assert "runc" not in result.stdout
    assert "ERROR: adding createRuntime hook" in result.stderr
    assert given(spec) == []


def test_hook_needs_every_address(host: Any, bundle: Path) -> None:
    create(host, bundle, "HABANA_VISIBLE_DEVICES=1")
    state = json.dumps({"bundle": str(bundle)})
    assert host.run("habana-container-hook", stdin=state).returncode == 0
    assert (bundle / "rootfs/etc/habanalabs").is_dir()
    (host.root / "sys/class/accel/accel1/device/pci_addr").unlink()
    result = host.run("habana-container-hook", stdin=state)
    assert result.returncode == 1
    assert "pci_addr: no such file or directory" in result.stderr
