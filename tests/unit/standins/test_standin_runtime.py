"""habana-container-runtime and its hook, with the silences of the real ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(__file__).resolve().parents[3] / "molecule" / "shared"


STANDINS = SHARED / "standins"
CONFIG = "etc/habana-container-runtime/config.toml"
SECTION = "[habana-container-runtime]\n"


@pytest.fixture
def bundle(host: Any) -> Path:
    """Give a container's bundle on a host where runtime, hook and a runc that tells its arguments are installed."""
    config = host.root / CONFIG
    config.parent.mkdir(parents=True)
    shutil.copy(SHARED / "hostimage" / "config.toml", config)
    programs = host.root / "usr/bin"
    programs.mkdir(parents=True)
    for name in ("habana-container-hook", "habana-container-cli"):
        shutil.copy(STANDINS / name, programs / name)
    runc = host.root / "bin/runc"
    runc.parent.mkdir()
    runc.write_text('#!/bin/sh\necho "runc $*"\n', encoding="ascii")
    runc.chmod(0o755)
    folder: Path = host.root / "bundle"
    (folder / "rootfs/etc").mkdir(parents=True)
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
    cards = [path for path in paths if path.startswith("/dev/accel/") and "control" not in path]
    return [path.removeprefix("/dev/accel/accel") for path in cards]


def refused(host: Any, bundle: Path, *environment: str) -> str:
    """Return what the runtime says where it ends as if all were well, and no runc runs."""
    result, _ = create(host, bundle, *environment)
    assert (result.returncode, result.stdout) == (0, "")
    return str(result.stderr)


def hooked(host: Any, bundle: Path) -> Any:
    """Run the hook for the bundle as the runtime has left it."""
    state = json.dumps({"bundle": str(bundle), "pid": 1})
    return host.run("habana-container-hook", "createRuntime", stdin=state)


def test_wanted_cards_with_nodes_rules_ports_and_hook(host: Any, bundle: Path) -> None:
    result, spec = create(host, bundle, "HABANA_VISIBLE_DEVICES=2,3")
    assert result.stdout == f"runc create --bundle {bundle} name\n"
    assert given(spec) == ["2", "3"]
    assert [device["path"] for device in spec["linux"]["devices"]][4:] == [
        "/dev/infiniband/uverbs2",
        "/dev/infiniband/uverbs3",
    ]
    assert {rule["access"] for rule in spec["linux"]["resources"]["devices"]} == {"rwm"}
    assert spec["hooks"]["createRuntime"][0]["args"][1:] == ["createRuntime"]
    assert spec["mounts"][0]["options"] == ["rbind", "ro"]
    told = bundle / "rootfs/etc/habanalabs"
    assert told.stat().st_mode & 0o777 == 0o750
    ports = json.loads((told / "macAddrInfo.json").read_text(encoding="utf-8"))["MAC_ADDR_INFO"]
    assert [len(port["MAC_ADDR_LIST"]) for port in ports] == [24, 24]


@pytest.mark.parametrize(
    ("environment", "cards"),
    [
        (["HABANA_VISIBLE_DEVICES=2,99"], ["2"]),
        (["HABANA_VISIBLE_DEVICES=99"], []),
        (["HABANA_VISIBLE_DEVICES=all"], [str(index) for index in range(8)]),
        ([], [str(index) for index in range(8)]),
        # Of two it takes the first, and ALL is no index.
        (["HABANA_VISIBLE_DEVICES=4", "HABANA_VISIBLE_DEVICES=5"], ["4"]),
        (["HABANA_VISIBLE_DEVICES=ALL", "HABANA_VISIBLE_DEVICES=5"], []),
        (["HABANA_VISIBLE_DEVICES=2, 3"], ["2"]),
        # It looks at the last digit of what there is.
        (["HABANA_VISIBLE_DEVICES=12"], []),
    ],
)
def test_what_is_given_is_the_first_wish_and_what_is_unknown_is_dropped_in_silence(
    host: Any, bundle: Path, environment: list[str], cards: list[str]
) -> None:
    result, spec = create(host, bundle, *environment)
    assert (result.returncode, result.stderr) == (0, "")
    assert given(spec) == cards


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        (f"{SECTION}visible_devices_all_as_default = false\n", 0),
        ("visible_devices_all_as_default = false\n", 8),
        ('[ "habana-container-runtime" ]\n"visible_devices_all_as_default" = false\n', 0),
        ("habana-container-runtime.visible_devices_all_as_default = false\n", 0),
        ("habana-container-runtime = {visible_devices_all_as_default = false}\n", 0),
        ("mount_accelerators = false\n", 0),
    ],
)
def test_configuration_is_toml_in_any_of_its_forms(host: Any, bundle: Path, text: str, cards: int) -> None:
    (host.root / CONFIG).write_text(text, encoding="ascii")
    result, spec = create(host, bundle)
    assert (result.returncode, result.stderr) == (0, "")
    assert len(given(spec)) == cards


def test_other_commands_pass_through(host: Any, bundle: Path) -> None:
    result = host.run("habana-container-runtime", "kill", "name", "15", PATH=f"{host.root}/bin:/usr/bin:/bin")
    assert result.stdout == "runc kill name 15\n"


@pytest.mark.parametrize(
    "content",
    [
        None,
        "no toml\n",
        f"{SECTION}{SECTION}",
        f"{SECTION}visible_devices_all_as_default = 1\n",
        f'{SECTION}debug = "/nowhere/x"\n',
    ],
)
def test_needs_its_configuration(host: Any, bundle: Path, content: str | None) -> None:
    config = host.root / CONFIG
    config.unlink()
    if content:
        config.write_text(content, encoding="ascii")
    for words in (["create", "--bundle", str(bundle)], ["--version"]):
        result = host.run("habana-container-runtime", *words, PATH=f"{host.root}/bin:/usr/bin:/bin")
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.startswith("ERROR: ")


def test_without_the_hook_no_container_is_made(host: Any, bundle: Path) -> None:
    (host.root / "usr/bin/habana-container-hook").unlink()
    assert "ERROR: adding createRuntime hook" in refused(host, bundle)


@pytest.mark.parametrize(
    ("node", "what"),
    [("accel/accel1", "accelerator"), ("accel/accel_controlD1", "accelerator"), ("infiniband/uverbs1", "uverb")],
)
def test_without_one_of_its_nodes_no_container_is_made(host: Any, bundle: Path, node: str, what: str) -> None:
    log = host.root / "runtime.log"
    (host.root / CONFIG).write_text(f'{SECTION}debug = "{log}"\n', encoding="ascii")
    (host.root / "dev" / node).unlink()
    said = f"adding {what} devices: device info: no such file or directory"
    assert refused(host, bundle, "HABANA_VISIBLE_DEVICES=1") == f"ERROR: {said}\n"
    assert json.loads(log.read_text(encoding="utf-8"))["msg"] == said


def test_what_a_container_is_not_told_of_its_ports_stands_in_its_environment(host: Any, bundle: Path) -> None:
    (host.root / "sys/class/accel/accel1/device/device_type").unlink()
    result, spec = create(host, bundle, "HABANA_VISIBLE_DEVICES=1")
    assert result.stdout.startswith("runc create")
    assert given(spec) == ["1"]
    assert spec["process"]["env"][-1].startswith('HABANA_RUNTIME_ERROR="netConfig: deviceType: open ')
    assert not (bundle / "rootfs/etc/habanalabs/macAddrInfo.json").exists()


def test_hook_needs_every_address_and_its_own_program(host: Any, bundle: Path) -> None:
    create(host, bundle, "HABANA_VISIBLE_DEVICES=1")
    assert hooked(host, bundle).returncode == 0
    (host.root / "sys/class/accel/accel1/device/pci_addr").unlink()
    result = hooked(host, bundle)
    assert result.returncode == 1
    assert "pci_addr: no such file or directory" in result.stderr
    (host.root / "usr/bin/habana-container-cli").unlink()
    result = hooked(host, bundle)
    assert result.returncode == 1
    assert "couldn't find binary habana-container-cli" in result.stderr


@pytest.mark.parametrize(
    ("environment", "refusal"),
    [
        (["HABANA_VISIBLE_DEVICES=ALL"], "device value must be a number. invalid value: ALL"),
        (["HABANA_VISIBLE_DEVICES=2, 3"], "device value must be a number. invalid value:  3"),
        # Of two it takes the last, unlike the runtime.
        (["HABANA_VISIBLE_DEVICES=1", "HABANA_VISIBLE_DEVICES=x"], "device value must be a number. invalid value: x"),
        (["HABANA_VISIBLE_DEVICES=x", "HABANA_VISIBLE_DEVICES=1"], ""),
    ],
)
def test_hook_knows_all_and_numbers(host: Any, bundle: Path, environment: list[str], refusal: str) -> None:
    create(host, bundle, *environment)
    result = hooked(host, bundle)
    assert (result.returncode, result.stderr.strip()) == (1 if refusal else 0, refusal)


def test_hook_refuses_what_is_not_privileged_where_it_is_told_to(host: Any, bundle: Path) -> None:
    text = "accept-habana-visible-devices-envvar-when-unprivileged = false\n"
    (host.root / CONFIG).write_text(text, encoding="ascii")
    create(host, bundle, "HABANA_VISIBLE_DEVICES=1")
    result = hooked(host, bundle)
    assert result.returncode == 1
    assert "insufficient privileges" in result.stderr
