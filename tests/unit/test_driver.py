"""What is left to do to a driver, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from gaudi_serve.core.run import Result
from gaudi_serve.host import dpkg, observe_driver
from gaudi_serve.platforms.gaudi import DRIVER
from gaudi_serve.stages.driver import drained, driver_changes, driver_notes, driver_refusal
from helpers.driver import MODULES, PACKAGES, live
from helpers.plans import gaudi_host


def changes(driver: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return what is left to do for release 1.21.3."""
    return driver_changes(driver, **{"release": "1.21.3", "packages": PACKAGES, "modules": MODULES, **more})


def refused(driver: dict[str, Any], host: dict[str, Any] | None = None, **more: Any) -> list[str]:
    """Return why the driver is left alone."""
    requested = {"host_name": "g", "release": "1.21.3", "packages": PACKAGES, **more}
    return driver_refusal(driver, host or gaudi_host(), **requested)


def test_a_whole_driver_is_left_alone() -> None:
    found = changes(live())
    assert not found["due"]
    assert refused(live()) == driver_notes(live(), found, "1.21.3") == []


def test_a_bare_host_gets_the_newest_of_the_release() -> None:
    bare = live(None, modules=[])
    found = changes(bare)
    assert found["install"] == ["habanalabs-dkms=1.21.3-57", "habanalabs-firmware=1.21.3-57"]
    assert (found["hold"], found["load"], found["reload"]) == (PACKAGES, MODULES, False)
    assert refused(bare) == []
    assert changes(bare, version="1.21.3-9")["install"][0] == "habanalabs-dkms=1.21.3-9"


def test_only_what_is_missing_is_done() -> None:
    packages = live()["packages"]
    loose = {**packages, "habanalabs-firmware": {**packages["habanalabs-firmware"], "held": False}}
    assert changes(live(packages=loose))["hold"] == ["habanalabs-firmware"]
    half = {**packages, "habanalabs-firmware": {**packages["habanalabs-firmware"], "whole": False}}
    found = changes(live(packages=half, broken="The following packages are only half configured"))
    assert (found["repair"], found["install"]) == (True, ["habanalabs-firmware=1.21.3-57"])
    assert changes(live(modules=["habanalabs_cn"]))["load"] == ["habanalabs"]
    # A build of the release that is there stays, though apt has a newer one.
    assert changes(live("1.21.3-9"))["install"] == []
    assert changes(live(driver_version="1.20.1"))["reload"]


def test_another_release_needs_leave_and_free_cards() -> None:
    host = gaudi_host(services={"qwq": {"module_ids": [0], "active": True}, "idle": {"module_ids": [1]}})
    assert drained(host) == ["qwq"]
    host["modules"][0].update(in_use=True, held_by="python3 (pid 1)")
    assert refused(live("1.20.1-97"), host) == [
        "g: driver packages of release 1.20.1 and release 1.21.3 differ; allow the change with "
        "driver_upgrade_allowed: true (it stops qwq)"
    ]
    assert refused(live("1.20.1-97"), host, upgrade_allowed=True) == []
    host["modules"][5].update(in_use=True, held_by="python3 (pid 2)")
    assert refused(live("1.20.1-97"), host, upgrade_allowed=True) == [
        "g: card 5 is used by python3 (pid 2); end it first"
    ]


def test_a_reload_and_another_build_need_leave_and_free_cards_too() -> None:
    host = gaudi_host(services={"qwq": {"module_ids": [0], "active": True}})
    loaded = live(driver_version="1.20.1")
    assert refused(loaded, host) == [
        "g: the loaded driver 1.20.1 and the installed release 1.21.3 differ; allow the change with "
        "driver_upgrade_allowed: true (it stops qwq)"
    ]
    assert refused(loaded, host, upgrade_allowed=True) == []
    build = refused(live("1.21.3-9"), host, version="1.21.3-57")
    assert build[0].startswith("g: driver packages of version 1.21.3-9 and version 1.21.3-57 differ; allow")
    host["modules"][3].update(in_use=True, held_by="python3 (pid 2)")
    held = ["g: card 3 is used by python3 (pid 2); end it first"]
    assert refused(loaded, host, upgrade_allowed=True) == held
    assert refused(live("1.21.3-9"), host, version="1.21.3-57", upgrade_allowed=True) == held
    # Nothing is replaced where something is only missing.
    assert refused(live(None, driver_version=None, modules=[]), host) == []


def test_a_driver_of_other_means_is_accepted_or_refused_as_it_is() -> None:
    foreign = live(None, driver_version="1.21.3", modules=[])
    found = changes(foreign)
    assert (found["foreign"], found["due"]) == (True, False)
    assert refused(foreign) == []
    assert driver_notes(foreign, found, "1.21.3") == [
        "driver 1.21.3: no package habanalabs-dkms installed it, so its release is not held"
    ]
    for version, keep in (("1.20.0", ""), ("1.22.1", ", or keep it with accelerator_release: '1.22.1'")):
        expected = [
            f"g: driver {version} and release 1.21.3 differ, and apt cannot replace a driver that no package "
            f"habanalabs-dkms installed; remove it as docs/guides/migrating.md shows, and run again{keep}"
        ]
        assert refused(live(None, driver_version=version)) == expected
        # The same with the leave for an upgrade, which the refusal of a plan names.
        assert refused(live(None, driver_version=version), upgrade_allowed=True) == expected
    # Once it is removed, the host is a bare one.
    assert refused(live(None, driver_version=None, modules=[])) == []


def test_a_package_of_which_only_the_settings_are_left_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As apt-get remove leaves it."""
    rows = [
        "habanalabs-dkms\thabanalabs-dkms\t1.20.0-1\tdeinstall\tok\tconfig-files",
        "habanalabs-thunk\thabanalabs-thunk\t1.20.0-1\tdeinstall\tok\thalf-installed",
        "habanalabs-graph\thabanalabs-graph\t1.20.0-1\thold\tok\tinstalled",
    ]
    answers = {"dpkg-query": Result(0, "\n".join(rows) + "\n", "")}
    for module in (dpkg, observe_driver):
        monkeypatch.setattr(module, "run", lambda argv, **_: answers.get(argv[0], Result(1, "", "no driver")))
    assert observe_driver.observe(DRIVER)["packages"] == {
        "habanalabs-thunk": {"version": "1.20.0-1", "held": False, "whole": False},
        "habanalabs-graph": {"version": "1.20.0-1", "held": True, "whole": True},
    }


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ({"release": "1.21"}, "g: driver_release '1.21': must be a quoted release such as '1.24.1'"),
        ({"version": "1.22.0-1"}, "g: driver_version 1.22.0-1: does not belong to driver_release 1.21.3"),
        (
            {"release": "1.23.0"},
            "g: apt knows no habanalabs-dkms of release 1.23.0; it knows 1.22.0-100, 1.21.3-57, 1.21.3-9; set "
            "driver_repository to a package source that has it, and driver_version to its full version",
        ),
    ],
)
def test_requests_that_cannot_be(requested: dict[str, Any], message: str) -> None:
    assert refused(live(None), **requested) == [message]


def test_ports_that_are_down_are_named_by_card() -> None:
    ports = {"10": [3], "2": [8, 22], "0": []}
    assert changes(live(ports=ports))["down"] == ["card 2: ports 8, 22 are down", "card 10: ports 3 are down"]
    assert changes(live(ports=ports), ports_may_be_down=[8, 22, 3])["down"] == []
    assert changes(live(unread={"4": "hl-smi -n link: no line with a port"}))["down"] == [
        "card 4: hl-smi -n link: no line with a port"
    ]


def test_a_runtime_of_another_release_is_noted() -> None:
    packages = {**live()["packages"], "habanalabs-container-runtime": {"version": "1.22.0-100"}}
    driver = live(packages=packages)
    assert driver_notes(driver, changes(driver), "1.21.3") == [
        "habanalabs-container-runtime 1.22.0-100 is not of release 1.21.3"
    ]
