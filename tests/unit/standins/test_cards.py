"""Cards as they are on real hosts: full, opened by others, on the bus alone, with a row that nobody can read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.host import observe_driver
from gaudi_serve.model.host import Host
from gaudi_serve.platforms import PLATFORMS
from gaudi_serve.platforms.device_holders import device_holders
from gaudi_serve.platforms.gaudi import DRIVER, NODE, WATCHERS, _observe
from helpers.standin_host import STANDINS


@pytest.fixture
def seen(host: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what is observed on a host of the stand-ins, whose PCI bus and processes are below its root too."""
    monkeypatch.setenv("GAUDI_SIM_ROOT", str(host.root))
    monkeypatch.setenv("PATH", f"{STANDINS}:/usr/bin:/bin")
    (host.root / "proc").mkdir()
    for card in host.state["cards"]:
        on_bus(host.root, card["bus_id"])

    def observe() -> Host:
        host.save()
        return Host.of({"accelerator": "gaudi", **_observe(str(host.root))})

    return observe


def on_bus(root: Path, bus_id: str, vendor: str = "0x1da3", kind: str = "0x120000", device: str = "0x1020") -> None:
    """Put a device on the PCI bus of a made-up root."""
    folder = root / "sys/bus/pci/devices" / bus_id
    folder.mkdir(parents=True)
    for name, text in (("vendor", vendor), ("class", kind), ("device", device)):
        (folder / name).write_text(f"{text}\n", encoding="ascii")


def opened(root: Path, pid: int, name: str, *paths: str) -> None:
    """Let a process have files open."""
    folder = root / f"proc/{pid}/fd"
    folder.mkdir(parents=True)
    (folder.parent / "comm").write_text(f"{name}\n", encoding="ascii")
    for number, path in enumerate(paths):
        (folder / str(number)).symlink_to(path)


def test_on_a_sound_host_nothing_is_reported(seen: Any) -> None:
    found = seen()
    assert (len(found.cards), found.unused_cards, found.bad_cards) == (8, [], [])


@pytest.mark.parametrize(("modules", "missing"), [(("cn", "en", "ib"), False), (("cn", "en"), True)])
def test_a_driver_without_its_module_for_verbs_is_reported(
    modules: tuple[str, ...], missing: bool, host: Any, seen: Any
) -> None:
    """hl-smi shows eight sound cards then, and a server with several fails: no matching Habana IB device."""
    for name in ("habanalabs", *(f"habanalabs_{one}" for one in modules)):
        (host.root / "sys/module" / name).mkdir(parents=True)
    seen()
    notes = _observe(str(host.root))["notes"]
    assert [note for note in notes if note.startswith("kernel module habanalabs_ib is not loaded")] == notes
    assert bool(notes) == missing


def test_a_card_that_is_full_without_a_process_is_held(host: Any, seen: Any) -> None:
    host.state["cards"][5]["used_mib"] = 96564
    module = host.state["cards"][5]["module_id"]
    held = "a program that hl-smi does not show (96564 of its 98304 MiB are used)"
    assert seen().unused_cards == [f"card {module} is not used: it is used by {held}"]
    # What driver and firmware keep is not a model.
    host.state["cards"][5]["used_mib"] = 2048
    assert seen().unused_cards == []


def test_a_card_that_another_program_has_open_is_held(host: Any, seen: Any) -> None:
    opened(host.root, 4711, "python3", "/dev/null", "/dev/accel/accel_controlD3", "/dev/accel/accel3")
    opened(host.root, 4712, "metric-exporter", "/dev/accel/accel_controlD4")
    module = host.state["cards"][3]["module_id"]
    held = "python3 (pid 4711), which has /dev/accel/accel3 open"
    assert device_holders(NODE, WATCHERS, str(host.root)) == {3: held}
    found = seen()
    assert found.unused_cards == [f"card {module} is not used: it is used by {held}"]
    # The toolkit's own models have their cards open too.
    own = Host.of({"modules": [], "services": {"qwq": {"module_ids": [module], "holds": True}}})
    assert Host(**{**vars(found), "services": own.services}).unused_cards == []


def test_a_card_on_the_bus_that_hl_smi_does_not_show_is_named(host: Any, seen: Any) -> None:
    host.state["cards"][2]["missing"] = True
    bus_id, text = host.state["cards"][2]["bus_id"], "it is on the PCI bus, and hl-smi does not show it"
    found = seen()
    assert (len(found.cards), found.unused_cards) == (7, [f"card {bus_id} is not used: {text}"])
    # Where the driver still knows its slot, it has its own name.
    (host.root / "sys/class/accel/accel2/device/module_id").write_text("3\n", encoding="ascii")
    found = seen()
    assert (len(found.cards), found.unused_cards) == (8, [f"card 3 is not used: {text}"])
    assert "accelerator_cards is 8, but hl-smi shows 7: module_ids [0, 1, 2, 4, 5, 6, 7]; card 3: " + text in str(
        PLATFORMS["gaudi"].reasons(found, "g", 8, "1.21.3")
    )


def test_what_is_no_card_on_the_bus_is_none(host: Any, seen: Any) -> None:
    on_bus(host.root, "0000:ff:00.0", kind="0x020000")
    on_bus(host.root, "0000:ff:00.1", vendor="0x8086")
    on_bus(host.root, "0000:ff:00.2")
    (host.root / "sys/bus/pci/devices/0000:ff:00.2/physfn").symlink_to("/dev/null")
    assert seen().unused_cards == []


@pytest.mark.parametrize("row", ["7, N/A, N/A, N/A", "AIP 7: Failed to get info", "N/A, N/A, N/A, N/A, N/A, N/A, N/A"])
def test_an_unreadable_row_is_one_bad_card(host: Any, seen: Any, row: str) -> None:
    host.state["cards"][7]["row"] = row
    found = seen()
    assert not found.problem
    assert sorted(card.module_id for card in found.cards if not card.in_use) == sorted(
        card["module_id"] for card in host.state["cards"][:7]
    )
    (sentence,) = found.unused_cards
    assert "hl-smi's row of it cannot be used: not a line of index, module_id" in sentence
    assert sentence.endswith(f": {row!r}")
    # Its driver answers all the same.
    assert observe_driver.observe(DRIVER)["driver_version"] == "1.21.3"


def test_a_card_that_hl_smi_knows_but_cannot_read_is_bad(host: Any, seen: Any) -> None:
    first = host.state["cards"][0]
    first["row"] = f"0, {first['module_id']}, {first['bus_id']}, N/A, N/A, N/A, N/A"
    found = seen()
    assert found.unused_cards == [
        f"card {first['module_id']} is not used: hl-smi cannot read its name and memory.total and memory.used"
    ]
    assert (found.device_name, found.driver_version) == ("HL-225", "1.21.3-57e3f5d")
    assert observe_driver.observe(DRIVER)["driver_version"] == "1.21.3"


def test_one_card_is_named_once_beside_another_that_is_missing(host: Any, seen: Any) -> None:
    host.state["cards"][6]["row"], host.state["cards"][7]["missing"] = "6, N/A", True
    six, seven = (host.state["cards"][index]["bus_id"] for index in (6, 7))
    row, missing = seen().unused_cards
    assert row.startswith(f"card {six} is not used: hl-smi's row of it")
    assert missing == f"card {seven} is not used: it is on the PCI bus, and hl-smi does not show it"


def test_no_good_card_is_a_problem_of_the_host(host: Any, seen: Any) -> None:
    for card in host.state["cards"]:
        card["row"] = "N/A"
    assert len(seen().problem) == 8


def test_two_rows_of_one_card_are_both_bad(host: Any, seen: Any) -> None:
    bus_id = host.state["cards"][7]["bus_id"]
    host.state["cards"][7]["row"] = f"7, 2, {bus_id}, HL-225, 1.21.3, 98304 MiB, 768 MiB"
    assert host.state["cards"][0]["module_id"] == 2
    found = seen()
    assert len([card for card in found.cards if not card.in_use]) == 6
    assert all("an index or module_id that another row has too" in text for text in found.unused_cards)
    assert len(found.unused_cards) == 2


def test_links_that_cannot_be_read_are_of_one_card(host: Any, seen: Any) -> None:
    host.state["cards"][0]["links"] = ["MAYBE"]
    host.save()
    driver = observe_driver.observe(DRIVER)
    assert (driver["driver_version"], len(driver["ports"])) == ("1.21.3", 7)
    assert "MAYBE" in driver["unread"]["2"]


def test_without_hl_smi_the_bus_reports_what_is_there(host: Any, seen: Any) -> None:
    host.state["driver_loaded"] = False
    on_bus(host.root, "0000:fe:00.0", device="0x1063")
    on_bus(host.root, "0000:fe:00.1", device="0x1000")
    (sentence,) = seen().problem[1:]
    assert sentence == "; on the PCI bus: 8 Gaudi2 (1da3:1020), 1 Gaudi3 (1da3:1063), 1 of an unknown kind (1da3:1000)"


def test_a_card_whose_class_cannot_be_read_counts_by_its_vendor(tmp_path: Path) -> None:
    on_bus(tmp_path, "0000:19:00.0")
    on_bus(tmp_path, "0000:1a:00.0")
    (tmp_path / "sys/bus/pci/devices/0000:1a:00.0/class").unlink()
    assert [*PLATFORMS["gaudi"].pci(str(tmp_path))] == ["0000:19:00.0", "0000:1a:00.0"]
