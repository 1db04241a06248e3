"""The differences between a host's driver and a release, and the reasons not to change the driver."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.checks import is_true
from ..model.host import Card
from ..platforms import platform_of
from ..platforms.driver import Driver, upstream
from ..platforms.releases import release_of
from .accelerator_network import ports_down
from .apt_access import apt_access
from .base import Given, Pending, Stage, drift_lines
from .driver_packages import NOTHING, package_changes, package_notes, package_refusal
from .reset import driver_reset

RELEASE = re.compile(r"\d+\.\d+\.\d+")
DKMS = "habanalabs-dkms"


def driver_refusal(
    driver: Mapping[str, Any],
    host: Mapping[str, Any],
    *,
    host_name: str,
    release: str,
    version: str = "",
    packages: Sequence[str] = (),
    upgrade_allowed: bool = False,
) -> list[str]:
    """Return why the driver must not be changed; empty if the release may be installed.

    Args:
        driver: ``gaudi_driver`` of the host.
        host: ``gaudi_host`` of the host, with the processes that use cards.
        host_name: name of the host in messages.
        release: desired release, such as 1.21.3.
        version: desired version of the packages, such as 1.21.3-57; empty selects the newest of the release.
        packages: the packages that belong together.
        upgrade_allowed: another release may be replaced.
    """
    if not RELEASE.fullmatch(release):
        return [f"{host_name}: driver_release {release!r}: must be a quoted release such as '1.24.1'"]
    if version and upstream(version) != release:
        return [f"{host_name}: driver_version {version}: does not belong to driver_release {release}"]
    changes = driver_changes(driver, release=release, version=version, packages=packages)
    found = driver["driver_version"]
    if changes["foreign"] and found != release:
        keep = f", or keep it with accelerator_release: '{found}'" if release_of(found) else ""
        return [
            f"{host_name}: driver {found} and release {release} differ, and apt cannot replace a driver that no "
            f"package {DKMS} installed; remove it as docs/guides/migrating.md shows, and run again{keep}"
        ]
    if changes["install"] and not changes["version"]:
        known = ", ".join(driver["available"]) or "none"
        return [
            f"{host_name}: apt knows no {DKMS} of release {release}; it knows {known}; set driver_repository to a "
            "package source that has it, and driver_version to its full version"
        ]
    return _upgrade_refusal(driver, host, host_name, changes, packages, upgrade_allowed)


def _upgrade_refusal(
    driver: Mapping[str, Any],
    host: Mapping[str, Any],
    host_name: str,
    changes: Mapping[str, Any],
    packages: Sequence[str],
    upgrade_allowed: bool,
) -> list[str]:
    """Return why the installed or loaded driver must not be replaced: not allowed, or a foreign program uses a card."""
    here = {_version(driver, name) for name in packages if changes["install"] and _version(driver, name)}
    others = sorted(here - {changes["version"]})
    if not others and not changes["reload"]:
        return []
    if not upgrade_allowed:
        models = drained(host)
        stopped = f" (it stops {', '.join(models)})" if models else ""
        return [
            f"{host_name}: {_pair(others, changes['version'], driver['driver_version'])} differ; "
            f"allow the change with driver_upgrade_allowed: true{stopped}"
        ]
    return [f"{host_name}: {text}" for text in _strangers(host)]


def driver_changes(
    driver: Mapping[str, Any],
    *,
    release: str,
    version: str = "",
    packages: Sequence[str] = (),
    modules: Sequence[str] = (),
    ports_may_be_down: Sequence[int] = (),
) -> dict[str, Any]:
    """Compare a host's driver with one release.

    Args:
        driver: ``gaudi_driver`` of the host.
        release: desired release.
        version: desired version of the packages; empty selects the newest of the release that apt offers.
        packages: the packages that belong together.
        modules: kernel modules, in the order of loading.
        ports_may_be_down: further ports that lead to no other card.

    Returns:
        ``foreign`` (a driver answers that no package installed), ``repair`` (dpkg was interrupted), ``version``,
        ``install`` (name=version), ``hold``, ``reload`` (the loaded driver differs from the installed one), ``load``
        (modules), ``down`` (ports, as sentences), ``due``.
    """
    here = {name: found["version"] for name in packages if (found := driver["packages"].get(name))}
    foreign = not here.get(DKMS) and driver["driver_version"] is not None
    target = version or _newest(driver, release, here)
    wrong = [name for name in packages if here.get(name) != target or not driver["packages"][name]["whole"]]
    loaded = driver["driver_version"]
    changes: dict[str, Any] = {
        "repair": bool(driver["broken"]),
        "install": [] if foreign else [f"{name}={target}" for name in wrong],
        "hold": [] if foreign else [name for name in packages if not driver["packages"].get(name, {}).get("held")],
        # Reload also if packages of another release are about to be replaced.
        "reload": bool(loaded) and not foreign and loaded != release,
        "load": [] if foreign else [name for name in modules if name not in driver["modules"]],
    }
    changes["due"] = any(changes.values())
    return {**changes, "foreign": foreign, "version": target, "down": _down(driver, ports_may_be_down)}


def drained(host: Mapping[str, Any]) -> list[str]:
    """Return the toolkit's own models that use cards."""
    return sorted(
        name for name, service in host.get("services", {}).items() if service.get("active") or service.get("holds")
    )


def _pair(others: Sequence[str], target: str, loaded: Any) -> str:
    """Return the present and the desired release; if they are equal, their versions."""
    releases = sorted({upstream(version) for version in others} - {upstream(target)})
    if releases:
        return f"driver packages of release {', '.join(releases)} and release {upstream(target)}"
    if others:
        return f"driver packages of version {', '.join(others)} and version {target}"
    return f"the loaded driver {loaded} and the installed release {upstream(target)}"


def _version(driver: Mapping[str, Any], name: str) -> str:
    return str(driver["packages"].get(name, {}).get("version", ""))


def _newest(driver: Mapping[str, Any], release: str, here: Mapping[str, str]) -> str:
    # An installed version of the release stays: builds of one release do not differ in anything relevant.
    if upstream(here.get(DKMS, "")) == release:
        return here[DKMS]
    # apt lists the newest version first.
    return next((version for version in driver["available"] if upstream(version) == release), "")


def _down(driver: Mapping[str, Any], may_be_down: Sequence[int]) -> list[str]:
    allowed = {int(port) for port in may_be_down}
    return [
        f"card {card}: ports {', '.join(map(str, left))} are down"
        for card, ports in sorted(driver["ports"].items(), key=lambda item: int(item[0]))
        if (left := [port for port in ports if port not in allowed])
    ] + [f"card {card}: {text}" for card, text in sorted(driver.get("unread", {}).items())]


def driver_notes(driver: Mapping[str, Any], changes: Mapping[str, Any], release: str) -> list[str]:
    """Return notes for users on a driver without errors."""
    notes = []
    if changes["foreign"]:
        notes.append(f"driver {driver['driver_version']}: no package {DKMS} installed it, so its release is not held")
    runtime = driver["packages"].get("habanalabs-container-runtime")
    if runtime and upstream(runtime["version"]) != release:
        notes.append(f"habanalabs-container-runtime {runtime['version']} is not of release {release}")
    return notes


def _pending(given: Given) -> Pending:
    known = given.known
    platform = platform_of(known["gaudi_system"]["accelerator"])
    if "gaudi_driver" not in known or platform.driver is None:
        return Pending(changes={"needed": False, "due": False})
    if not platform.driver.packages:
        return _by_version(given, platform.driver)
    driver, host, manage = known["gaudi_driver"], known["gaudi_host"], is_true(known["driver_manage"])
    changes, refusal = _compared(given, platform.driver)
    installs = [one.partition("=")[0] for one in changes["install"]]
    # Replacing packages or a loaded driver stops every server; adding missing packages stops none.
    replaces = bool(changes["reload"] or set(driver["packages"]) & set(installs))
    drain, lines = drained(host) if replaces else [], drift_lines(changes, ["foreign", "version"])
    due = changes["due"] and manage
    own = {"found": changes, "needed": True, "replaces": replaces, "drain": drain, "due": due}
    own |= {"holds": list(dict.fromkeys([*changes["hold"], *installs])), "unhold": []}
    own |= {key: [] for key in ("start", "stop", "again")}
    own |= {"modules": _modules(known, platform.driver), "unload": _modules(known, platform.driver)[::-1]}
    return Pending(
        changes={**changes, **own},
        due=[] if refusal else lines if manage else changes["down"],
        left=given.left(drift_lines(changes)) if due else [],
        refusal=refusal,
        drift=lines,
        stops=drain if manage and not refusal else [],
        notes=driver_notes(driver, changes, str(known["driver_release"])),
    )


def _by_version(given: Given, driver: Driver) -> Pending:
    """Return the pending work on a driver whose packages have the driver's own version."""
    known = given.known
    facts, host, version = known["gaudi_driver"], known["gaudi_host"], str(known["driver_version"] or "")
    manage = is_true(known["driver_manage"])
    addresses = apt_access((known["driver_repository"] or {}).get("uris") or [])["uris"]
    found = package_changes(driver, facts, version, known["driver_optional_packages"] or (), addresses)
    stopped = drained(host) if found.replaces else []
    refusal = package_refusal(
        driver,
        facts,
        found,
        host_name=given.host,
        version=version,
        upgrade_allowed=is_true(known["driver_upgrade_allowed"]),
        stopped=stopped,
        strangers=[*_users(facts), *_strangers(host)],
    )
    lines, due = found.lines, found.due and manage
    own = {"needed": True, "due": due, "drain": stopped, "holds": list(found.hold), "down": []}
    own |= {"modules": list(known["driver_modules"] or driver.modules), "unload": list(driver.unload)}
    stop = [*driver.users, *driver.services] if found.replaces else []
    again = [unit for unit in stop if (facts.get("services") or {}).get(unit, NOTHING)["runs"]]
    own |= {"stop": again, "again": again[::-1], "start": list(found.start), "found": found.found}
    return Pending(
        changes={**_lists(dataclasses.asdict(found)), **own},
        due=lines if manage and not refusal else [],
        left=given.left(lines) if due else [],
        refusal=refusal if manage else [],
        drift=lines,
        stops=stopped if manage and not refusal else [],
        notes=package_notes(found, facts["driver_version"]),
    )


def _expected(given: Given) -> dict[str, Any]:
    """Return the driver version after the run, or that the devices are unavailable until the driver is installed."""
    if "gaudi_driver" not in given.known:
        return {}
    found = _pending(given)
    changes = found.changes
    if not changes["due"] or found.refusal:
        return {}
    loaded = given.known["gaudi_driver"]["driver_version"]
    if loaded is None:
        answers = not given.known["gaudi_host"].get("problem")
        return {} if answers or not (changes["load"] or changes.get("fetch")) else {"awaits_driver": True}
    return {"driver_version": upstream(changes["version"])} if changes["replaces"] else {}


def _users(facts: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each module that prevents unloading the driver's modules."""
    return [f"kernel module {name} uses the driver's modules; unload it first" for name in facts.get("used_by") or ()]


def _lists(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with lists for tuples: Jinja cannot add a tuple to a list."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _modules(known: Mapping[str, Any], driver: Driver) -> list[str]:
    return list(known["driver_modules"] or driver.modules)


def _strangers(host: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each card that a foreign program uses."""
    own = {int(number) for service in host.get("services", {}).values() for number in service.get("module_ids", [])}
    return [
        Card.of(module).end_first
        for module in host.get("modules", [])
        if module.get("in_use") and int(module["module_id"]) not in own
    ]


def _compared(given: Given, platform: Driver) -> tuple[dict[str, Any], list[str]]:
    """Return how the driver differs from the desired state, and why it must not be changed."""
    known = given.known
    driver, packages = {**known["gaudi_driver"], "ports": ports_down(known)}, _packages(known, platform)
    release, version = str(known["driver_release"]), str(known["driver_version"] or "")
    changes = driver_changes(
        driver,
        release=release,
        version=version,
        packages=packages,
        modules=_modules(known, platform),
        ports_may_be_down=known["driver_ports_may_be_down"],
    )
    refusal = driver_refusal(
        driver,
        known["gaudi_host"],
        host_name=given.host,
        release=release,
        version=version,
        packages=packages,
        upgrade_allowed=is_true(known["driver_upgrade_allowed"]),
    )
    return changes, refusal


def _packages(known: Mapping[str, Any], driver: Driver) -> list[str]:
    return [*(known["driver_packages"] or driver.packages), *known["driver_optional_packages"]]


def _reset(given: Given) -> dict[str, Any]:
    known = given.known
    facts = known.get("gaudi_driver", {})
    driver = platform_of(known["gaudi_system"]["accelerator"]).driver
    own = [*_packages(known, driver), *facts.get("packages", {})] if driver else []
    # All packages that the role may install.
    packages = [*dict.fromkeys(own), f"linux-headers-{known['gaudi_system']['kernel']}", "python3-debian"]
    unload = (driver.unload or _modules(known, driver)[::-1]) if driver else ()
    return driver_reset(facts, known["gaudi_left"], packages, unload, is_true(known["driver_reset_packages"]))


STAGE = Stage(
    role="driver",
    tag="driver",
    reads=("system", "host", "services", "driver", "network"),
    down=(5, "the driver is replaced"),
    reports=("brought",),
    noted=("report", "status"),
    taken=("reset_packages",),
    pending=_pending,
    expected=_expected,
    reset=_reset,
)
