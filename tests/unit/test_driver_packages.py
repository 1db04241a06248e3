"""Drivers with packages of their own version: what is installed, held, started, replaced and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.core.run import Result
from gaudi_serve.host import dpkg, observe_driver
from gaudi_serve.platforms import PLATFORMS, cuda, rocm
from gaudi_serve.platforms.driver import Driver, begins, upstream
from gaudi_serve.stages.base import Given
from gaudi_serve.stages.driver import STAGE
from gaudi_serve.stages.driver_packages import Changes, Present, package_changes
from helpers.gpu_hosts import pci_device, put
from hypothesis import given
from hypothesis import strategies as st

# As Ubuntu 24.04 has them.
SERVER = {
    "nvidia-driver-580-server-open": "580.95.05-0ubuntu0.24.04.1",
    "nvidia-dkms-580-server-open": "580.95.05-0ubuntu0.24.04.1",
    "libnvidia-compute-580-server": "580.95.05-0ubuntu0.24.04.1",
}
OFFERED = {
    "nvidia-driver-580-server-open": ["580.105.08-0ubuntu0.24.04.1", "580.95.05-0ubuntu0.24.04.1"],
    "nvidia-driver-570-server-open": ["570.195.03-0ubuntu0.24.04.1"],
    "nvidia-open-580": ["580.95.05-1"],
    "cuda-drivers": ["590.44.01-1", "580.95.05-1"],
    "nvidia-fabricmanager-580": ["580.105.08-1", "580.95.05-1"],
}
RUNS = {"there": True, "runs": True, "enabled": True}
STAYS = {"nvidia-persistenced": RUNS, "nvidia-fabricmanager": {"there": False, "runs": False, "enabled": False}}


def packages(names: dict[str, str], held: bool = True) -> dict[str, Any]:
    """Return packages as facts have them."""
    return {name: {"version": version, "held": held, "whole": True} for name, version in names.items()}


def facts(names: dict[str, str] | None = None, loaded: str | None = "580.95.05", **more: Any) -> dict[str, Any]:
    """Return ``gaudi_driver`` of a host with NVIDIA's driver, whole, held, loaded and with its daemon."""
    found = {"packages": packages(SERVER if names is None else names), "offered": OFFERED, "available": []}
    found |= {"modules": ["nvidia", "nvidia_uvm"] if loaded else [], "driver_version": loaded, "services": STAYS}
    return {**found, "broken": "", "needs_companion": False, "ports": {}, "unread": {}, "problem": None, **more}


def changes(version: str = "", driver: Driver = cuda.DRIVER, **more: Any) -> Changes:
    """Compare such a host with a version."""
    return package_changes(driver, facts(**more), version)


def test_what_is_there_is_kept_whatever_apt_knows() -> None:
    for version in ("", "580", "580.95.05", "580.95.05-0ubuntu0.24.04.1"):
        found = changes(version)
        assert not found.due and found.missing == () and not found.replaces, version


def test_packages_are_held_together_and_nothing_else() -> None:
    loose = packages(SERVER) | packages({"libnvidia-compute-580-server": "580.95.05-0ubuntu0.24.04.1"}, held=False)
    found = changes(packages=loose)
    assert found.hold == ("libnvidia-compute-580-server",) and found.lines == [
        "libnvidia-compute-580-server is not held"
    ]
    own = [name for name in (*SERVER, "libnvidia-cfg1-580", "nvlsm", "cuda-drivers-580") if cuda.DRIVER.is_own(name)]
    assert len(own) == 6
    others = ("nvidia-container-toolkit", "libnvidia-container1", "nvidia-cuda-toolkit", "nvidia-docker2")
    assert not any(map(cuda.DRIVER.is_own, (*others, "linux-modules-nvidia-580-server-open-generic", "vim")))


def test_a_host_without_a_driver_gets_the_branch_that_images_need() -> None:
    bare = {"names": {}, "loaded": None, "services": {}}
    found = changes(**bare)
    assert found.install == ("nvidia-driver-580-server-open=580.105.08-0ubuntu0.24.04.1",)
    assert found.load == ("nvidia", "nvidia_uvm") and not found.replaces
    assert changes("570", **bare).install == ("nvidia-driver-570-server-open=570.195.03-0ubuntu0.24.04.1",)
    # NVIDIA's repository names no branch since 590.
    assert changes("590", **bare).install == ("cuda-drivers=590.44.01-1",)
    (text,) = changes("575", **bare).missing
    assert text.startswith("apt knows no driver of version 575 (nvidia-driver-575-server-open, nvidia-open-575 or ")
    assert "it knows cuda-drivers 590.44.01-1, nvidia-driver-570-server-open" in text


def test_another_version_replaces_what_is_there() -> None:
    found = changes("580.105.08")
    assert found.install == ("nvidia-driver-580-server-open=580.105.08-0ubuntu0.24.04.1",) and found.replaces
    # The packages are there, and the driver that is loaded is an older one: as after an upgrade without a reboot.
    found = changes(loaded="570.195.03")
    assert found.reload and found.replaces and found.install == ()
    assert "the loaded driver is not the planned one" in found.lines


def test_packages_that_need_each_other_are_replaced_together() -> None:
    """apt takes the newest of a part that another one needs in a certain version, and leaves what is held."""
    names = dict.fromkeys(("nvidia-open", "nvidia-driver-cuda", "nvidia-persistenced"), "580.95.05-1")
    offered = {name: ["590.44.01-1", "580.95.05-1", "570.195.03-1"] for name in names}
    offered["nvidia-persistenced"] = ["580.95.05-1", "570.195.03-1ubuntu1"]
    found = changes("570", names=names, offered=offered)
    assert found.install == (
        *("nvidia-open=570.195.03-1", "nvidia-driver-cuda=570.195.03-1"),
        "nvidia-persistenced=570.195.03-1ubuntu1",
    )
    assert found.unhold == tuple(names) and found.hold == tuple(one.partition("=")[0] for one in found.install)
    # What a repository does not have in that version follows the others, or goes.
    assert changes("590", names=names, offered=offered).install == (
        "nvidia-open=590.44.01-1",
        "nvidia-driver-cuda=590.44.01-1",
    )
    assert changes("580", names=names, offered=offered).unhold == ()


def test_a_driver_that_no_package_fetched_is_left_alone() -> None:
    found = changes(names={})
    assert found.foreign and not found.due
    assert changes("590", names={}).foreign and not changes("590", names={}).due
    # What the kernel itself has of AMD is not unmanaged.
    kernel = {"names": {}, "loaded": "", "modules": ["amdgpu"], "services": {}}
    assert changes(driver=rocm.DRIVER, **kernel) == Changes()


def test_amds_packages_are_held_and_fetched_where_a_version_is_reported() -> None:
    version = "1:6.14.14.30300100-2238411.24.04"
    kernel = {"names": {}, "loaded": "", "modules": ["amdgpu"], "services": {}, "offered": {"amdgpu-dkms": [version]}}
    assert changes("6.14.14", rocm.DRIVER, **kernel).install == (f"amdgpu-dkms={version}",)
    there = {**kernel, "packages": packages({"amdgpu-dkms": version, "amd-smi-lib": "26"}, held=False)}
    assert changes(driver=rocm.DRIVER, **there).hold == ("amdgpu-dkms", "amd-smi-lib")


def test_the_module_of_amds_package_has_a_shorter_version() -> None:
    version = "1:6.16.13.30300400-2341068.24.04"
    there = {"names": {"amdgpu-dkms": version}, "modules": ["amdgpu"], "services": {}, "offered": {}}
    assert not changes(driver=rocm.DRIVER, loaded="6.16.13", **there).due
    assert changes(driver=rocm.DRIVER, loaded="6.14.14", **there).reload
    assert changes(driver=rocm.DRIVER, loaded="6.16.1", **there).reload


UBUNTU = "580.95.05-0ubuntu0.24.04.1"


@pytest.mark.parametrize(
    "names",
    [
        ("nvidia-headless-580-server-open", "nvidia-dkms-580-server-open", "libnvidia-compute-580-server"),
        ("nvidia-headless-no-dkms-580-server", "nvidia-kernel-common-580-server", "nvidia-utils-580-server"),
        ("nvidia-dkms-open", "libnvidia-compute"),
        ("nvidia-driver-cuda", "nvidia-kernel-open-dkms"),
        ("nvidia-tesla-580-driver", "nvidia-tesla-580-kernel-dkms"),
    ],
)
def test_a_driver_without_a_desktop_is_held_as_any(names: tuple[str, ...]) -> None:
    loose = {"packages": packages(dict.fromkeys(names, UBUNTU), held=False)}
    found = changes(**loose)
    assert sorted(found.hold) == sorted(names) and not found.foreign and not found.install and not found.replaces
    assert changes("580", **loose).install == ()
    other = changes("570", **loose)
    assert other.replaces and other.install == ("nvidia-driver-570-server-open=570.195.03-0ubuntu0.24.04.1",)
    # It is none of a driver that an installer has installed later, nor is it gone where nothing is loaded.
    assert changes(**loose, loaded="590.44.01").foreign
    assert changes("570", **loose, loaded=None).replaces


def test_another_version_comes_from_where_the_driver_came_from() -> None:
    offered = {"nvidia-driver-590-server-open": ["590.44.01-0ubuntu1"], "cuda-drivers": ["590.44.01-1", "580.95.05-1"]}
    there = {"names": {"cuda-drivers": "580.95.05-1", "nvidia-dkms-open": "580.95.05-1"}, "offered": offered}
    assert changes("590", **there).install == ("cuda-drivers=590.44.01-1",)
    assert changes("590", names={}, loaded=None, offered=offered).install[0].startswith("nvidia-driver-590-server-open")
    # Where that has none of the version, any other will do.
    assert changes("570", names={"cuda-drivers": "580.95.05-1"}).install[0].startswith("nvidia-driver-570-server-open")


def test_tasks_get_lists() -> None:
    """Jinja adds no tuple to a list."""
    for driver in (facts(), facts({}, None, modules=[], services={}), facts(needs_companion=True)):
        given = asked(driver=driver).changes
        assert json.loads(json.dumps(given)) == given


def test_services_that_are_stopped_for_the_driver_are_started_again() -> None:
    newer = packages(dict.fromkeys(SERVER, "580.105.08-0ubuntu0.24.04.1"))
    found = asked(driver=facts(packages=newer), driver_upgrade_allowed=True)
    assert found.changes["reload"] and found.changes["install"] == []
    # Those that run, and those alone; what uses the driver goes first.
    assert found.changes["stop"] == ["nvidia-persistenced"] == found.changes["again"]
    assert found.changes["start"] == [] and not [line for line in found.due if "service" in line]
    watched = STAYS | {"nvidia-dcgm": RUNS}
    found = asked(driver=facts(packages=newer, services=watched), driver_upgrade_allowed=True)
    assert found.changes["stop"] == ["nvidia-dcgm", "nvidia-persistenced"] == found.changes["again"][::-1]
    assert asked(driver=facts(services=watched)).changes["stop"] == []


def test_a_module_that_uses_the_drivers_is_refused_before_a_model_stops() -> None:
    used = facts(used_by=["gdrdrv"])
    assert asked(driver=used).refusal == []
    found = asked(driver=used, driver_version="580.105.08", driver_upgrade_allowed=True)
    assert found.refusal == ["g: kernel module gdrdrv uses the driver's modules; unload it first"] and found.stops == []


REPOSITORY = {"uris": ["https://user:secret@mirror.example/cuda"], "suites": ["/"]}
ADDED = ["https://mirror.example/cuda"]


def test_a_bare_host_gets_the_repository_before_anybody_knows_what_it_has() -> None:
    bare = facts({}, None, modules=[], services={}, offered={})
    found = asked(driver=bare, driver_repository=REPOSITORY)
    assert found.refusal == [] and found.due == ["the package source of driver 580 is missing"]
    assert found.changes["fetch"] and found.changes["install"] == [] and found.stops == []
    # When it is there, it is asked as any.
    known = asked(driver={**bare, "source": ADDED, "offered": OFFERED}, driver_repository=REPOSITORY)
    assert not known.changes["fetch"] and known.changes["install"][0].startswith("nvidia-driver-580-server-open=")
    (text,) = asked(driver={**bare, "source": ADDED}, driver_repository=REPOSITORY).refusal
    assert text.endswith("it knows none; https://mirror.example/cuda of driver_repository has none")
    # Another address is another source.
    other = {**REPOSITORY, "uris": ["https://other.example/cuda"]}
    assert asked(driver={**bare, "source": ADDED}, driver_repository=other).changes["fetch"]


def test_a_repository_is_added_for_what_is_missing_alone() -> None:
    assert not asked(driver=facts(), driver_repository=REPOSITORY).changes["due"]
    manager = asked(driver=facts(needs_companion=True, offered={}), driver_repository=REPOSITORY)
    assert manager.refusal == [] and manager.stops == []
    assert manager.due == ["the package source of driver 580.95.05 is missing"]
    nouveau = facts({}, None, modules=["nouveau"], services={}, offered={})
    (text,) = asked(driver=nouveau, driver_repository=REPOSITORY).refusal
    assert text.startswith("g: module nouveau uses the cards")


def test_a_repository_for_another_version_is_added_with_leave_alone() -> None:
    more = {"driver_repository": REPOSITORY, "driver_version": "600"}
    assert asked(driver=facts(), **more).refusal == [
        "g: driver 580.95.05 would become 600; allow the change with driver_upgrade_allowed: true (it stops qwq)"
    ]
    allowed = asked(driver=facts(), **more, driver_upgrade_allowed=True)
    assert allowed.refusal == [] and allowed.stops == ["qwq"] and allowed.changes["fetch"]


def test_switches_get_the_manager_of_exactly_the_drivers_version() -> None:
    found = changes(needs_companion=True)
    assert found.install == ("nvidia-fabricmanager-580=580.95.05-1",) and not found.replaces
    assert found.start == ("nvidia-fabricmanager",)
    there = SERVER | {"nvidia-fabricmanager-580": "580.95.05-1"}
    stopped = STAYS | {"nvidia-fabricmanager": {"there": True, "runs": False, "enabled": True}}
    assert changes(names=there, needs_companion=True, services=stopped).start == ("nvidia-fabricmanager",)
    assert changes(names=there, services=stopped).start == ()
    # It follows the driver, in the same run.
    assert changes("580.105.08", names=there, needs_companion=True).install == (
        "nvidia-driver-580-server-open=580.105.08-0ubuntu0.24.04.1",
        "nvidia-fabricmanager-580=580.105.08-1",
    )
    (text,) = changes(needs_companion=True, offered={}).missing
    assert text == (
        "nvidia-fabricmanager-580 of version 580.95.05 is needed, without it CUDA fails on a machine with NVSwitch; "
        "apt knows none"
    )


def test_the_daemon_runs_where_it_is_there() -> None:
    idle = STAYS | {"nvidia-persistenced": {"there": True, "runs": False, "enabled": True}}
    assert changes(services=idle).lines == ["service nvidia-persistenced does not run, or does not start at boot"]
    assert changes(services={}).start == ()


def asked(name: str = "cuda", driver: dict[str, Any] | None = None, **known: Any) -> Any:
    """Ask the stage."""
    host = {"accelerator": name, "modules": [{"module_id": 0, "in_use": True}, {"module_id": 1}], "services": {}}
    host["services"] = {"qwq": {"module_ids": [0], "active": True}}
    given: dict[str, Any] = {"gaudi_system": {"accelerator": name}, "gaudi_host": host, "gaudi_driver": driver}
    given |= {"driver_version": "", "driver_packages": [], "driver_optional_packages": [], "driver_modules": []}
    given |= {"driver_repository": {}}
    given |= {"driver_upgrade_allowed": False, "driver_manage": True, "driver_release": "1.24.1"}
    return STAGE.pending(Given("g", {**given, "driver_ports_may_be_down": [], **known}))


def test_replacing_a_driver_needs_leave_and_announces_what_stops() -> None:
    refused = asked(driver=facts(), driver_version="580.105.08")
    assert refused.refusal == [
        "g: driver 580.95.05 would become 580.105.08; allow the change with driver_upgrade_allowed: true (it stops qwq)"
    ]
    assert refused.due == [] and refused.stops == []
    allowed = asked(driver=facts(), driver_version="580.105.08", driver_upgrade_allowed=True)
    assert allowed.refusal == [] and allowed.stops == ["qwq"] and allowed.changes["drain"] == ["qwq"]
    assert allowed.changes["stop"] == ["nvidia-persistenced"]
    assert allowed.changes["unload"][-1] == "nvidia"
    # To hold packages, or to start a daemon, stops nothing.
    loose = asked(driver=facts(packages=packages(SERVER, held=False)))
    assert loose.stops == [] and loose.refusal == [] and len(loose.due) == 3


def test_a_foreign_program_on_a_card_is_in_the_way() -> None:
    host = {"accelerator": "cuda", "services": {}}
    host["modules"] = [{"module_id": 1, "in_use": True, "held_by": "python3 (pid 7)"}]
    found = asked(driver=facts(), driver_version="580.105.08", driver_upgrade_allowed=True, gaudi_host=host)
    assert found.refusal == ["g: card 1 is used by python3 (pid 7); end it first"]


def test_another_driver_than_the_installers_is_refused_with_the_way_out() -> None:
    (text,) = asked(driver=facts(names={}), driver_version="590").refusal
    assert text.startswith("g: no package installed the loaded driver 580.95.05, and driver_version is 590: remove")
    kept = asked(driver=facts(names={}))
    assert kept.refusal == [] and kept.notes == [
        "driver 580.95.05: no package installed it, so its version is not held"
    ]


def test_nouveau_on_the_cards_needs_a_reboot() -> None:
    bare = facts({}, None, modules=["nouveau"], services={})
    (text,) = asked(driver=bare).refusal
    assert text.startswith("g: module nouveau uses the cards, and only a reboot removes it: add modprobe.blacklist=nou")


def test_a_host_that_is_not_managed_is_only_looked_at() -> None:
    found = asked(driver=facts({}, None, services={}), driver_manage=False)
    assert found.due == [] and found.refusal == [] and not found.changes["due"]
    assert found.drift == [
        "nvidia-driver-580-server-open=580.105.08-0ubuntu0.24.04.1 is not installed",
        "nvidia-driver-580-server-open is not held",
        "module nvidia is not loaded",
        "module nvidia_uvm is not loaded",
    ]


@pytest.mark.parametrize("name", [name for name, one in PLATFORMS.items() if one.driver is None])
def test_platforms_without_a_driver_have_no_such_stage(name: str) -> None:
    assert asked(name).changes == {"needed": False, "due": False}
    assert "driver" not in PLATFORMS[name].needs


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("580.95.05-0ubuntu1", "580", True),
        ("580.95.05-0ubuntu1", "580.95", True),
        ("580.95.05-0ubuntu1", "580.9", False),
        ("580.95.05-0ubuntu1", "58", False),
        ("1:6.14.14.30300100-1", "6.14.14", True),
        ("1:6.14.14.30300100-1", "1:6.14.14", True),
        ("580.95.05-1", "580.95.05-1", True),
    ],
)
def test_a_version_begins_as_it_is_written(version: str, wanted: str, fits: bool) -> None:
    assert begins(version, wanted) is fits
    assert upstream(version) in version


@given(
    installed=st.dictionaries(
        st.sampled_from([*SERVER, "nvidia-open", "nvidia-fabricmanager-580"]), st.just("580.1-1")
    ),
    loaded=st.sampled_from([None, "", "580.1", "570.2"]),
    version=st.sampled_from(["", "580", "570", "580.95.05"]),
    switches=st.booleans(),
)
def test_what_is_done_leaves_nothing_to_do(
    installed: dict[str, str], loaded: str | None, version: str, switches: bool
) -> None:
    before = facts(installed, loaded, needs_companion=switches, services={})
    found = package_changes(cuda.DRIVER, before, version)
    if found.missing or found.foreign:
        return
    after = installed | {name: exact for name, _, exact in (one.partition("=") for one in found.install)}
    source = Present.of(facts(after)).source(cuda.DRIVER)
    runs = dict.fromkeys(found.start, RUNS)
    loads = upstream(source.version) if source else loaded
    done = facts(after, loads, needs_companion=switches, services=runs, modules=["nvidia", "nvidia_uvm"])
    again = package_changes(cuda.DRIVER, done, version)
    assert not again.due and not again.missing, again


def loaded(root: Path) -> None:
    """Make a machine with NVSwitch on which NVIDIA's driver is loaded, and apt has the source of the role."""
    put(root, "sys/module/nvidia/version", "580.95.05\n")
    source = f"X-Repolib-Name: a\nTypes: deb\nURIs: {ADDED[0]} https://b.example\nSuites: /\n"
    put(root, "etc/apt/sources.list.d/gaudi-serve-driver.sources", source)
    for name in ("nvidia_uvm", "gdrdrv"):
        put(root, f"sys/module/nvidia/holders/{name}/refcnt", "0")
    for name in ("nvidia_uvm", "nouveau", "habanalabs"):
        put(root, f"sys/module/{name}/refcnt", "0")
    pci_device(root, "0000:05:00.0", "0x10de", "22a3", "0x068000")


def test_a_driver_is_read_from_dpkg_apt_the_kernel_and_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(tmp_path)
    rows = {
        "dpkg-query": "\n".join(
            "\t".join((name, name, version, want, "ok", "installed"))
            for name, version, want in (
                ("nvidia-open-580", "580.95.05-1", "hold"),
                ("nvidia-container-toolkit", "1.20.0-1", "install"),
            )
        ),
        "pkgnames": "nvidia-open-580\nnvidia-open-570\nnvidia-openjdk-8-jre\nnvidia-fabricmanager-580\n",
        "madison": " nvidia-open-580 | 580.95.05-1 | https://x Packages\n nvidia-fabricmanager-580 | 580.95.05-1 | https://x",
        "systemctl": "LoadState=loaded\nActiveState=inactive\nUnitFileState=disabled\n",
    }
    told: list[list[str]] = []

    def run(argv: list[str], *_: Any, **__: Any) -> Result:
        told.append(argv)
        return Result(0, rows.get(argv[0]) or rows.get(argv[1]) or "", "")

    for module in (dpkg, observe_driver):
        monkeypatch.setattr(module, "run", run)
    found = observe_driver.observe(cuda.DRIVER, str(tmp_path))
    assert found["packages"] == {"nvidia-open-580": {"version": "580.95.05-1", "held": True, "whole": True}}
    assert found["driver_version"] == "580.95.05" and found["modules"] == ["nouveau", "nvidia", "nvidia_uvm"]
    assert found["offered"] == {"nvidia-open-580": ["580.95.05-1"], "nvidia-fabricmanager-580": ["580.95.05-1"]}
    (asked_of,) = [argv for argv in told if "madison" in argv]
    assert asked_of[2:] == ["nvidia-fabricmanager-580", "nvidia-open-570", "nvidia-open-580"]
    assert found["needs_companion"] is True and found["used_by"] == ["gdrdrv"]
    assert found["source"] == [*ADDED, "https://b.example"]
    assert found["services"]["nvidia-persistenced"] == {"there": True, "runs": False, "enabled": False}
    # AMD's module of the kernel is there without a version.
    put(tmp_path, "sys/module/amdgpu/refcnt", "0")
    assert observe_driver.observe(rocm.DRIVER, str(tmp_path))["driver_version"] == ""
