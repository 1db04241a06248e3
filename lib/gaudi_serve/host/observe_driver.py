"""The vendor's driver on a host: packages, kernel modules, ports of the cards."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..platforms.hl_smi import hl_smi_links, hl_smi_modules
from .dpkg import interrupted_dpkg, packages, versions
from .run import run

MODULES = Path("/sys/module")
PACKAGE = "habanalabs-dkms"


def observe(modules: Path = MODULES) -> dict[str, Any]:
    """Return ``{packages, available, broken, modules, ports, driver_version, problem}``.

    ``packages``: ``{name: {version, held, whole}}``; ``available``: versions of the driver that apt
    knows; ``broken``: what dpkg was cut off in; ``ports``: ``{module_id: [down ports]}``.
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
    """Return what the loaded driver says: its version, and the ports that are down, by card."""
    query = run(["hl-smi", "-Q", "index,module_id,bus_id,driver_version", "-f", "csv"])
    if query.status:
        return {"driver_version": None, "ports": {}, "problem": (query.err or query.out).strip()[-200:]}
    try:
        cards = hl_smi_modules(query.out)
        # A call takes a part of a second, and there are as many as cards.
        with ThreadPoolExecutor(max_workers=max(1, len(cards))) as pool:
            links = pool.map(
                lambda card: hl_smi_links(run(["hl-smi", "-n", "link", "-i", str(card["bus_id"])]).out), cards
            )
            down = {
                str(card["module_id"]): [port for port, state in found.items() if state == "DOWN"]
                for card, found in zip(cards, links, strict=True)
            }
    except InputError as problem:
        return {"driver_version": None, "ports": {}, "problem": str(problem)}
    version = re.match(r"[\d.]+", str(cards[0].get("driver_version"))) if cards else None
    return {"driver_version": version[0] if version else None, "ports": down, "problem": None}
