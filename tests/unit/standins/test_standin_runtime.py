"""habana-container-runtime and its hook, with the silences of the real ones, as of versions 1.15.0 and 1.16.0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.standin_runtime import behave_as, create, hooked

CONFIG = "etc/habana-container-runtime/config.toml"
SECTION = "[habana-container-runtime]\n"


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
        # Of two it takes the first, and ALL is not an index.
        (["HABANA_VISIBLE_DEVICES=4", "HABANA_VISIBLE_DEVICES=5"], ["4"]),
        (["HABANA_VISIBLE_DEVICES=ALL", "HABANA_VISIBLE_DEVICES=5"], []),
        (["HABANA_VISIBLE_DEVICES=2, 3"], ["2"]),
        # It looks at the last digit of what there is.
        (["HABANA_VISIBLE_DEVICES=12"], []),
    ],
)
def test_what_is_given_is_the_first_request_and_what_is_unknown_is_dropped_in_silence(
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
    ("version", "node", "what"),
    [
        ("1.15.0", "accel/accel1", "accelerator"),
        ("1.15.0", "accel/accel_controlD1", "accelerator"),
        ("1.15.0", "infiniband/uverbs1", "uverb"),
        ("1.16.0", "infiniband/uverbs1", "uverb"),
    ],
)
def test_without_one_of_its_nodes_no_container_is_made(
    host: Any, bundle: Path, version: str, node: str, what: str
) -> None:
    behave_as(host, version)
    log = host.root / "runtime.log"
    (host.root / CONFIG).write_text(f'{SECTION}debug = "{log}"\n', encoding="ascii")
    (host.root / "dev" / node).unlink()
    said = f"adding {what} devices: device info: no such file or directory"
    assert refused(host, bundle, "HABANA_VISIBLE_DEVICES=1") == f"ERROR: {said}\n"
    assert json.loads(log.read_text(encoding="utf-8"))["msg"] == said


@pytest.mark.parametrize(
    ("missing", "nodes"),
    [(["accel1"], ["accel_controlD1"]), (["accel_controlD1"], ["accel1"]), (["accel1", "accel_controlD1"], [])],
)
def test_since_1_16_a_missing_node_is_missing_without_a_word(
    host: Any, bundle: Path, missing: list[str], nodes: list[str]
) -> None:
    for name in missing:
        (host.root / "dev/accel" / name).unlink()
    result, spec = create(host, bundle, "HABANA_VISIBLE_DEVICES=1")
    assert (result.stdout[:11], result.stderr) == ("runc create", "")
    paths = [Path(device["path"]) for device in spec["linux"].get("devices", [])]
    assert [path.name for path in paths if path.parent.name == "accel"] == nodes
    told = [entry for entry in spec["process"]["env"] if entry.startswith("HABANA_RUNTIME_ERROR")]
    assert told == ([] if nodes else ['HABANA_RUNTIME_ERROR="no accelerators found"'])


@pytest.mark.parametrize(
    ("version", "environment"),
    [
        ("1.15.0", []),
        ("1.15.1-200", []),
        # Those of the cards, as texts in order, behind whatever was there.
        ("1.16.0", ["HABANA_VISIBLE_MODULES=2,3"]),
        ("1.21.3-57", ["HABANA_VISIBLE_MODULES=2,3"]),
    ],
)
def test_what_a_version_reports_the_container(host: Any, bundle: Path, version: str, environment: list[str]) -> None:
    behave_as(host, version)
    for index, module in ((4, 3), (5, 2)):
        path = host.root / f"sys/class/accel/accel{index}/device/module_id"
        path.write_text(f"{module}\n", encoding="ascii")
    asked = "HABANA_VISIBLE_DEVICES=4,5"
    assert create(host, bundle, asked)[1]["process"]["env"] == [asked, *environment]
    nobody = "HABANA_VISIBLE_DEVICES=99"
    told = ['HABANA_RUNTIME_ERROR="no accelerators found"'] if environment else []
    assert create(host, bundle, nobody)[1]["process"]["env"] == [nobody, *told]


@pytest.mark.parametrize(("version", "cards"), [("1.15.0", ["3"]), ("1.16.0", ["13", "3"])])
def test_a_card_of_the_same_last_digit_comes_along_since_1_16(
    host: Any, bundle: Path, version: str, cards: list[str]
) -> None:
    behave_as(host, version)
    host.add_node(13)
    assert given(create(host, bundle, "HABANA_VISIBLE_DEVICES=3")[1]) == cards
    assert given(create(host, bundle, "HABANA_VISIBLE_DEVICES=13")[1]) == []


@pytest.mark.parametrize(("version", "verbs"), [("1.15.0", "uverbs3"), ("1.16.0", "uverbs7")])
def test_ports_of_newer_drivers_come_first_since_1_16(host: Any, bundle: Path, version: str, verbs: str) -> None:
    behave_as(host, version)
    host.add_port("hbl_3", "uverbs7")
    _, spec = create(host, bundle, "HABANA_VISIBLE_DEVICES=3")
    assert [device["path"] for device in spec["linux"]["devices"]][2:] == [f"/dev/infiniband/{verbs}"]


def test_legacy_gives_cards_without_uverbs_and_reports_the_container_nothing(host: Any, bundle: Path) -> None:
    (host.root / CONFIG).write_text(f'{SECTION}Mode = "legacy"\n', encoding="ascii")
    host.add_node(13)
    _, spec = create(host, bundle, "HABANA_VISIBLE_DEVICES=3")
    assert [device["path"] for device in spec["linux"]["devices"]] == [
        "/dev/accel/accel3",
        "/dev/accel/accel_controlD3",
    ]
    assert spec["process"]["env"] == ["HABANA_VISIBLE_DEVICES=3"]
    assert [hook["args"][1] for hook in spec["hooks"]["prestart"]] == ["prestart"]
    assert create(host, bundle, "HABANA_VISIBLE_DEVICES=99")[1]["process"]["env"] == ["HABANA_VISIBLE_DEVICES=99"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        *[(f"{SECTION}log_level = {level}\n", True) for level in ('"debug"', '"WARN"', '"info+2"')],
        *[(f"{SECTION}log_level = {level}\n", False) for level in ('"warning"', '"trace"', '""', '"info "', "1")],
        ('[Habana-Container-Runtime]\nLog_Level = "trace"\n', False),
        (f'{SECTION}loglevel = "trace"\n', True),
        (f'{SECTION}mode = "other"\n', True),
        (f"{SECTION}mode = 1\n", False),
        (f'{SECTION}debug = ""\n', False),
        ("Mount_Uverbs = 0\n", False),
        ("binaries-dir = 1\n", False),
        ("disable-require = 1\n", True),
        ("network-layer-routes = 1\n", False),
        ("[network-layer-routes]\npath = 1\n", False),
        ("[habana-container-cli]\nenvironment = [1]\n", False),
        # Only the hook reads these.
        ("[habana-container-cli]\nmount_uverbs = 1\n", True),
    ],
)
def test_values_of_another_type_or_level_end_it(host: Any, bundle: Path, text: str, kept: bool) -> None:
    (host.root / CONFIG).write_text(text, encoding="ascii")
    result, _ = create(host, bundle)
    assert (result.returncode, bool(result.stdout)) == ((0, True) if kept else (1, False))
    assert kept or result.stderr.startswith("ERROR: ")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("", ""),
        ('root = "/run/habana/driver"', "unrecognized arguments: --root=/run/habana/driver"),
        ('Root = ""', "unrecognized arguments: --root="),
        ('debug = ""', "fail to open debug log file"),
        ('debug = "/nowhere/x"', "fail to open debug log file"),
        ('path = "/nowhere"', "No such file or directory: '/nowhere'"),
        ("mount_uverbs = 1", "mount_uverbs: incompatible types"),
        ("mount_uverbs = false", ""),
        ('environment = ["A=1"]', ""),
    ],
)
def test_hook_hands_its_settings_on(host: Any, bundle: Path, setting: str, said: str) -> None:
    create(host, bundle, "HABANA_VISIBLE_DEVICES=1")
    (host.root / CONFIG).write_text(f"[habana-container-cli]\n{setting}\n", encoding="ascii")
    result = hooked(host, bundle)
    assert result.returncode == (1 if said else 0)
    assert said in result.stderr


@pytest.mark.parametrize(("version", "status"), [("1.15.0", 1), ("1.16.0", 0)])
def test_ports_without_interfaces_stop_the_start_before_1_16(
    host: Any, bundle: Path, version: str, status: int
) -> None:
    behave_as(host, version)
    create(host, bundle, "HABANA_VISIBLE_DEVICES=1")
    assert hooked(host, bundle).returncode == 0
    (host.root / "sys/class/infiniband/hlib_1/device/net").rmdir()
    assert hooked(host, bundle).returncode == status


def test_what_a_container_is_not_reported_of_its_ports_stands_in_its_environment(host: Any, bundle: Path) -> None:
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


def test_hook_refuses_what_is_not_privileged_where_it_is_reported_to(host: Any, bundle: Path) -> None:
    text = "accept-habana-visible-devices-envvar-when-unprivileged = false\n"
    (host.root / CONFIG).write_text(text, encoding="ascii")
    create(host, bundle, "HABANA_VISIBLE_DEVICES=1")
    result = hooked(host, bundle)
    assert result.returncode == 1
    assert "insufficient privileges" in result.stderr
