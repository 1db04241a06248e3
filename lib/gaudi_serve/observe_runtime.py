"""The container engine of a host: packages, configuration, and what the running daemon says of itself."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from .run import read_text, run, sha256_file

DAEMON_JSON = "/etc/docker/daemon.json"
HABANA_CONFIG = "/etc/habana-container-runtime/config.toml"
PROXIES = "/etc/gaudi-serve/docker-proxy.env"
PACKAGES = ("docker.io", "docker-ce", "containerd.io", "habanalabs-container-runtime")


def observe() -> dict[str, Any]:
    """Return everything that role container_runtime compares."""
    info, reason = daemon_info()
    daemon = Path(DAEMON_JSON)
    return {
        "packages": packages(),
        "daemon_json": read_text(daemon),
        "daemon_json_mode": f"{daemon.stat().st_mode & 0o7777:04o}" if daemon.exists() else None,
        "info": info,
        "reason": reason,
        "habana_config": read_text(HABANA_CONFIG),
        "proxies_sha256": sha256_file(PROXIES),
        "proxies_newer": proxies_newer(),
        "enabled": run(["systemctl", "is-enabled", "docker"]).out.strip() == "enabled",
    }


def proxies_newer() -> bool:
    """Tell whether the file with the proxies has changed since the engine was started."""
    shown = run(["systemctl", "show", "docker", "--property=ActiveEnterTimestampMonotonic", "--value"]).out.strip()
    uptime = (read_text("/proc/uptime") or "0").split()[0]
    file = Path(PROXIES)
    if not file.exists() or not shown.isdigit() or shown == "0":
        return False
    started = time.time() - float(uptime) + int(shown) / 1e6
    return file.stat().st_mtime > started


def packages() -> dict[str, str]:
    """Return ``{package: version}`` of those of interest that are wholly installed."""
    shown = run(["dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Status}\\n", *PACKAGES])
    rows = [line.split() for line in shown.out.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2] == "installed"}


def daemon_info() -> tuple[dict[str, Any] | None, str | None]:
    """Return what the running daemon says of itself, or None and the reason."""
    result = run(["docker", "info", "--format", "{{json .}}"])
    try:
        info = json.loads(result.out)
    except ValueError:
        return None, (result.err.strip().splitlines() or ["no answer"])[-1]
    if info.get("ServerErrors") or not info.get("ServerVersion"):
        return None, "; ".join(info.get("ServerErrors") or ["no server"])
    runtimes = {
        name: {"path": runtime.get("path"), "runtimeArgs": runtime.get("runtimeArgs") or []}
        for name, runtime in (info.get("Runtimes") or {}).items()
    }
    keys = {
        "server_version": "ServerVersion",
        "default_runtime": "DefaultRuntime",
        "live_restore": "LiveRestoreEnabled",
        "data_root": "DockerRootDir",
    }
    return {
        "runtimes": runtimes,
        **{name: info.get(key) for name, key in keys.items()},
    }, None
