"""The observed state of a container engine."""

from __future__ import annotations

import json
from typing import Any

from gaudi_serve.platforms.gaudi import RUNTIME

USERS = '{\n    "log-opts": {"max-size": "10m"},\n    "runtimes": {"other": {"path": "/usr/bin/other"}}\n}\n'
DAEMON = json.dumps({"live-restore": True, "runtimes": {"habana": RUNTIME.entry}})


def live(**more: Any) -> dict[str, Any]:
    """Return an engine in the desired state."""
    info = {"runtimes": {"habana": RUNTIME.entry}, "live_restore": True, "data_root": "/var/lib/docker"}
    base = {
        "packages": {"docker.io": "20", "habanalabs-container-runtime": "1.21.3-57"},
        "interrupted": [],
        "daemon_json": DAEMON,
        "habana_config": "c = 1",
        "proxies_sha256": None,
        "proxies_dropin_sha256": None,
        "proxies_running": None,
        "info": {**info, "default_runtime": "runc"},
        "reason": None,
        "enabled": True,
    }
    return {**base, **more}


def wanted(**more: Any) -> dict[str, Any]:
    """Return the settings that the role requests."""
    base = {"packages": ["docker.io"], "habana": True, "habana_version": "", "habana_repository": {}}
    base |= {"live_restore": True, "data_root": ""}
    texts = {"daemon_json": DAEMON, "habana_config": "c = 1", "proxies": "", "proxies_dropin": "", "proxies_marker": ""}
    return {**base, **texts, "http_proxy": "", "https_proxy": "", "no_proxy": "", **more}
