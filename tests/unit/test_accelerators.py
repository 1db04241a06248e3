"""Hosts with devices of several platforms, or of one that is not served: which is taken, and what must be set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.host.observe_host import system
from gaudi_serve.model.host import Host, live_models
from gaudi_serve.plan.refusal import host_findings
from gaudi_serve.platforms import PLATFORMS, platform_among, platforms_here
from helpers.plans import EMPTY, gaudi_host

REGISTERED = set(PLATFORMS)


@pytest.fixture(autouse=True)
def more() -> Iterator[None]:
    """Register a second platform with devices, and one that is not served, before the processors."""
    first, before = PLATFORMS["gaudi"], dict(PLATFORMS)
    second = replace(first, name="slate", devices="slate cards", here=lambda root: Path(root, "slate").exists())
    other = replace(second, name="abacus", here=lambda root: Path(root, "abacus").exists(), refused="abacus is old")
    PLATFORMS.clear()
    PLATFORMS.update({"gaudi": first, "slate": second, "abacus": other, "cpu": before["cpu"]})
    yield
    PLATFORMS.clear()
    PLATFORMS.update(before)


@pytest.mark.parametrize(
    ("here", "wanted", "all_of_them", "taken"),
    [
        ((), "auto", ["cpu"], "cpu"),
        ((), "slate", ["cpu"], "cpu"),
        (("slate",), "auto", ["slate"], "slate"),
        (("slate",), "cpu", ["slate"], "cpu"),
        (("abacus", "slate"), "auto", ["slate", "abacus"], "slate"),
        (("abacus",), "auto", ["abacus"], "abacus"),
        (("abacus",), "cpu", ["abacus"], "cpu"),
    ],
)
def test_the_platform_of_a_machine(
    here: tuple[str, ...], wanted: str, all_of_them: list[str], taken: str, tmp_path: Path
) -> None:
    for name in here:
        (tmp_path / name).touch()
    assert [one.name for one in platforms_here(str(tmp_path))] == all_of_them
    assert platform_among(platforms_here(str(tmp_path)), wanted).name == taken
    found = system(str(tmp_path), wanted)
    assert (found["accelerator"], found["accelerators"]) == (taken, all_of_them)


def told(host: dict[str, Any], wanted: str = "auto") -> list[str]:
    """Return what a host's accelerator is refused for."""
    found = host_findings(EMPTY, None, host, host_name="g", wanted=wanted, release="1.21.3")
    return [one.message for one in found if one.key == "accelerator"]


def served(*module_ids: int) -> dict[str, Any]:
    """Return a model that runs with these cards."""
    return {"m": {"module_ids": list(module_ids), "active": True}}


def test_of_two_platforms_an_inventory_reports_which_is_served() -> None:
    host = gaudi_host(driver_version="1.21.3", platforms=["gaudi", "slate", "abacus"])
    assert told(host) == [
        "g: it has Gaudi cards and slate cards; set accelerator to the one to serve with: gaudi or slate"
    ]
    assert told(host, "gaudi") == []
    assert told({**host, "platforms": ["gaudi", "abacus"]}) == []
    # A card for a screen, which a new version knows, does not stop a host that serves.
    assert told({**host, "services": served(0)}) == []


def test_a_platform_that_is_not_served_is_refused_with_its_reason() -> None:
    assert told({"accelerator": "abacus", "modules": [], "device_name": None}) == ["g: abacus is old"]


def test_models_do_not_leave_processors_because_more_devices_are_known() -> None:
    host = gaudi_host(driver_version="1.21.3", platforms=["gaudi"], services=served())
    assert told(host) == [
        "g: it has Gaudi cards, and m run on its processors; accelerator must be set: cpu keeps them there, "
        "gaudi restarts them on the cards"
    ]
    assert told(host, "gaudi") == []


def test_models_do_not_leave_their_cards_because_of_a_word() -> None:
    host = {"accelerator": "cpu", "modules": [], "device_name": None, "platforms": ["gaudi"], "services": served(0, 1)}
    assert told(host, "cpu") == [
        "g: accelerator is cpu, but m run on its Gaudi cards; it must be gaudi, or these models must be stopped first"
    ]
    assert told({**host, "services": {}}, "cpu") == []


def test_a_model_keeps_its_devices_when_a_boot_gives_them_other_numbers() -> None:
    launch = {"module_ids": [0, 1], "device_access": {"ids": ["GPU-b", "GPU-c"]}}
    modules = [{"module_id": number, "device_id": f"GPU-{name}"} for number, name in enumerate("abc")]
    host = {"modules": modules, "services": {"m": {"module_ids": [0, 1], "active": True, "launch": launch}}}
    assert live_models(host)["m"].module_ids == (1, 2)
    assert Host.of({**host, "device_name": "x"}).held == {1: "m", 2: "m"}
    # One that is gone is not another one.
    assert live_models({**host, "modules": modules[:2]})["m"].module_ids == (1,)


def test_the_page_of_accelerators_has_a_row_for_each() -> None:
    page = (Path(__file__).parents[2] / "docs/guides/platforms.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip(" `") for line in page.splitlines() if line.startswith("| `")}
    assert rows >= REGISTERED
