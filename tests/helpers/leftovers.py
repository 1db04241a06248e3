"""The state of a host that a reset may remove."""

from __future__ import annotations

from typing import Any

from gaudi_serve.platforms.gaudi import RUNTIME
from gaudi_serve.stages.container_runtime import daemon_json

STATE = "/var/lib/gaudi-serve"


def left(**changes: Any) -> dict[str, Any]:
    """Return ``gaudi_left`` of a host that the toolkit has never changed, with changes."""
    return {
        "records": {},
        "traces": [],
        "files": [],
        "own": {"/etc/gaudi-serve": None, "/usr/local/lib/gaudi-serve": None, STATE: None},
        "states": [],
        "took_over": [],
        "dropins": [],
        "daemon_backup": None,
        "busy": [],
        "brought": {},
        "containers": [],
        **{"installed": [], "asked_for": [], "held": [], "unneeded": []},
        **changes,
    }


def runtime(text: str | None, **changes: Any) -> dict[str, Any]:
    """Return ``gaudi_runtime`` of a host whose engine has the toolkit's settings."""
    info = {"live_restore": True, "runtimes": {"habana": RUNTIME.entry, "runc": {}}, "containers_running": 1}
    return {
        **{"daemon_json": text, "daemon_json_mode": "0600", "habana_config": None, "info": info},
        **{"proxies_running": None, "enabled": True},
        **changes,
    }


def merged(before: str | None) -> str:
    """Return the daemon.json that the toolkit generates from an existing one."""
    return daemon_json(before, True, True, "", "host")


def services(**changes: Any) -> dict[str, Any]:
    """Return ``gaudi_services`` of a host without models."""
    return {"units": {}, "orphans": [], "images": {}, **changes}
