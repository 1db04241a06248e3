"""The driver of a host's devices: packages, kernel modules, services, and on Gaudi the ports of the cards."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.run import read_text, run
from ..platforms.driver import Driver
from ..platforms.hl_smi import hl_smi_cards, hl_smi_links
from .dpkg import interrupted_dpkg, offered, packages, versions

PACKAGE = "habanalabs-dkms"
SOURCE = "etc/apt/sources.list.d/gaudi-serve-driver.sources"
NO_CARDS: dict[str, Any] = {"driver_version": None, "ports": {}, "unread": {}}


def observe(driver: Driver, root: str = "/") -> dict[str, Any]:
    """Return ``gaudi_driver``; ``driver_version`` is the loaded version, ``problem`` the reason if it is unknown.

    ``packages``: ``{name: {version, held, whole}}`` of the driver's packages; ``available``: versions of Gaudi's driver
    that apt offers; ``offered``: for other drivers ``{package: versions}``, the newest first; ``source``: the addresses
    of the package source that the role has added; ``broken``: the packages in which dpkg was interrupted; ``modules``:
    the loaded modules of the driver and its rivals; ``used_by``: further modules that use it; ``services``: ``{unit:
    {there, runs, enabled}}`` of the driver and its users; ``needs_companion``: the machine needs the companion package
    of exactly its version; ``ports``: ``{module_id: [down ports]}``; ``unread``: ``{module_id: why its ports cannot be
    read}``.
    """
    modules = Path(root, "sys/module")
    together = bool(driver.packages)
    here = {
        package.name: {
            "version": package.version,
            "held": package.want == "hold",
            "whole": package.state == "installed",
        }
        for package in packages(*driver.listed)
        # dpkg still lists a version of a removed package while its configuration files exist.
        if package.version and package.state != "config-files" and driver.is_own(package.name)
    }
    return {
        "packages": here,
        "available": versions(PACKAGE) if together else [],
        "offered": {} if together else _offered(driver, here),
        "source": _addresses(read_text(Path(root, SOURCE)) or ""),
        "broken": interrupted_dpkg(),
        "modules": sorted(
            path.name
            for pattern in (driver.module, f"{driver.module}_*", *driver.rivals)
            for path in modules.glob(pattern)
        ),
        "services": {unit: _service(unit) for unit in (*driver.services, *driver.users)},
        "used_by": _users(driver, root),
        "needs_companion": bool(driver.companion and driver.companion.wanted(root)),
        **(_cards() if together else {**NO_CARDS, "driver_version": _loaded(driver, root), "problem": None}),
    }


def _offered(driver: Driver, here: Iterable[str]) -> dict[str, list[str]]:
    """Return the versions that apt offers of the driver's possible sources, its companion, and its present packages."""
    wanted = (*driver.sources, *(driver.companion.names if driver.companion else ()))
    begin = sorted({name.partition("{branch}")[0] for name in wanted})
    names = {name for text in begin for name in run(["apt-cache", "pkgnames", text]).out.split()}
    return offered(sorted({*here, *(one for one in names if driver.rank(one) is not None or driver.is_companion(one))}))


def _addresses(text: str) -> list[str]:
    """Return the addresses of a package source in the form of deb822."""
    lines = (line.partition(":") for line in text.splitlines())
    return [uri for key, _, value in lines if key.lower() == "uris" for uri in value.split()]


def _loaded(driver: Driver, root: str) -> str | None:
    """Return the version of the loaded driver; empty if its module has none, like the kernel's own."""
    folder = Path(root, "sys/module", driver.module)
    return (read_text(folder / "version") or "").strip() if folder.is_dir() else None


def _users(driver: Driver, root: str) -> list[str]:
    """Return the modules that use the driver's modules, except those that are unloaded with it."""
    found = {path.name for name in driver.unload for path in Path(root, "sys/module", name, "holders").glob("*")}
    return sorted(found - {*driver.unload})


def _service(unit: str) -> dict[str, bool]:
    """Return whether a unit exists, runs, and starts at boot."""
    shown = run(["systemctl", "show", "--property=LoadState,ActiveState,UnitFileState", f"{unit}.service"]).out
    state = dict(line.partition("=")[::2] for line in shown.splitlines())
    return {
        "there": state.get("LoadState") == "loaded",
        "runs": state.get("ActiveState") in ("active", "activating", "reloading"),
        # Some units are started by another one and cannot be enabled.
        "enabled": state.get("UnitFileState") in ("enabled", "static", "indirect", "generated", "alias"),
    }


def _cards() -> dict[str, Any]:
    """Return the version of Gaudi's driver and, by card, the ports that are down or why they are unknown."""
    query = run(["hl-smi", "-Q", "index,module_id,bus_id,driver_version", "-f", "csv"])
    if query.status:
        return {**NO_CARDS, "problem": (query.err or query.out).strip()[-200:]}
    try:
        # An unusable row is one bad card; the driver still answers for the others.
        cards, _ = hl_smi_cards(query.out)
    except InputError as problem:
        return {**NO_CARDS, "problem": str(problem)}
    # Each call takes a fraction of a second, and each card needs one.
    with ThreadPoolExecutor(max_workers=max(1, len(cards))) as pool:
        links = dict(zip((str(card["module_id"]) for card in cards), pool.map(_down, cards), strict=True))
    found = (re.match(r"\d[\d.]*", str(card.get("driver_version"))) for card in cards)
    version = next((one for one in found if one), None)
    return {
        "driver_version": version[0] if version else None,
        "ports": {number: found for number, found in links.items() if isinstance(found, list)},
        "unread": {number: found for number, found in links.items() if isinstance(found, str)},
        "problem": None,
    }


def _down(card: Mapping[str, Any]) -> list[int] | str:
    """Return the ports of a card that are down, or why they cannot be read."""
    try:
        links = hl_smi_links(run(["hl-smi", "-n", "link", "-i", str(card["bus_id"])]).out)
    except InputError as problem:
        return str(problem)
    return [port for port, state in links.items() if state == "DOWN"]
