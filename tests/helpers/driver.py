"""The observed state of a driver."""

from __future__ import annotations

from typing import Any

PACKAGES = ["habanalabs-dkms", "habanalabs-firmware"]
MODULES = ["habanalabs_cn", "habanalabs"]


def live(version: str | None = "1.21.3-57", **more: Any) -> dict[str, Any]:
    """Return a host's driver, complete and held."""
    packages = {name: {"version": version, "held": True, "whole": True} for name in PACKAGES} if version else {}
    loaded = version.partition("-")[0] if version else None
    base = {"available": ["1.22.0-100", "1.21.3-57", "1.21.3-9"], "broken": "", "ports": {}, "problem": None}
    return {**base, "packages": packages, "modules": MODULES, "driver_version": loaded, **more}
