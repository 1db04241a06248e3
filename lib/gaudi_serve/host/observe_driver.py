"""The vendor's driver on a host: packages, kernel modules, ports of the cards."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.run import run
from ..platforms.hl_smi import hl_smi_cards, hl_smi_links
from .dpkg import interrupted_dpkg, packages, versions

MODULES = Path("/sys/module")
PACKAGE = "habanalabs-dkms"


def observe(modules: Path = MODULES) -> dict[str, Any]:
    """Return ``{packages, available, broken, modules, ports, unread, driver_version, problem}``.

    ``packages``: ``{name: {version, held, whole}}``; ``available``: versions of the driver that apt
    knows; ``broken``: what dpkg was cut off in; ``ports``: ``{module_id: [down ports]}``;
    ``unread``: ``{module_id: why its ports cannot be read}``.
    """
    return {
        "packages": {
            package.name: {
                "version": package.version,
                "held": package.want == "hold",
                "whole": package.state == "installed",
            }
            for package in packages("habanalabs-*")
            # Of a package that was removed, dpkg knows a version while its settings are left.
            if package.version and package.state != "config-files"
        },
        "available": versions(PACKAGE),
        "broken": interrupted_dpkg(),
        "modules": sorted(path.name for path in modules.glob("habanalabs*")),
        **_cards(),
    }


def _cards() -> dict[str, Any]:
    """Return what the loaded driver says: its version, and by card the ports that are down, or why nobody knows."""
    query = run(["hl-smi", "-Q", "index,module_id,bus_id,driver_version", "-f", "csv"])
    nothing: dict[str, Any] = {"driver_version": None, "ports": {}, "unread": {}}
    if query.status:
        return {**nothing, "problem": (query.err or query.out).strip()[-200:]}
    try:
        # A row that cannot be used is one bad card, and the driver of the others answers.
        cards, _ = hl_smi_cards(query.out)
    except InputError as problem:
        return {**nothing, "problem": str(problem)}
    # A call takes a part of a second, and there are as many as cards.
    with ThreadPoolExecutor(max_workers=max(1, len(cards))) as pool:
        links = dict(zip((str(card["module_id"]) for card in cards), pool.map(_down, cards), strict=True))
    versions = (re.match(r"\d[\d.]*", str(card.get("driver_version"))) for card in cards)
    version = next((one for one in versions if one), None)
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
