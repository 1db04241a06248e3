"""The container engine of a host: packages, configuration, and what the running daemon says of itself."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from ..core.redact import redacted
from .dpkg import packages
from .run import read_text, run, sha256_file

DAEMON_JSON = "/etc/docker/daemon.json"
HABANA_RUNTIME = "/usr/bin/habana-container-runtime"
PROGRAMS = ("habana-container-hook", "habana-container-cli")
PROGRAM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HABANA_CONFIG = "/etc/habana-container-runtime/config.toml"
PROXIES = "/etc/gaudi-serve/docker-proxy.env"
PROXIES_DROPIN = "/etc/systemd/system/docker.service.d/gaudi-serve-proxy.conf"
# Stands in the file of proxies: which version of it an engine was started with. No proxy is read, they may carry
# credentials; and a proxy that a user has set elsewhere is none of ours.
PROXIES_MARKER = "GAUDI_SERVE_PROXIES"
# The engine's, and those without which it does not start.
UNITS = ("docker.service", "docker.socket", "containerd.service")
PACKAGES = ("docker.io", "docker-ce", "containerd.io", "habanalabs-container-runtime")
NEEDED = ("containerd", "runc", "apparmor", "iptables", "ca-certificates", "docker-ce-cli")


def observe() -> dict[str, Any]:
    """Return everything that role container_runtime compares."""
    info, reason = daemon_info()
    daemon = Path(DAEMON_JSON)
    units = unit_states()
    unit = units.get(UNITS[0], {})
    return {
        **engine_packages(),
        "daemon_json": redacted(read_text(daemon)),
        "daemon_json_mode": f"{daemon.stat().st_mode & 0o7777:04o}" if daemon.exists() else None,
        "info": info,
        "reason": reason,
        "habana_config": read_text(HABANA_CONFIG),
        **habana_runtime(),
        "proxies_sha256": sha256_file(PROXIES),
        "proxies_dropin_sha256": sha256_file(PROXIES_DROPIN),
        "proxies_running": running_proxies(unit.get("MainPID", "0")),
        "enabled": unit.get("UnitFileState") == "enabled",
        "masked": [name for name, one in units.items() if one.get("LoadState") == "masked"],
    }


def habana_runtime() -> dict[str, Any]:
    """Return which of the habana runtime's programs are there, and what keeps it from running, or None."""
    # The hook finds its program as shells do; the runtime its hook beside itself too.
    programs = {name: bool(shutil.which(name, path=PROGRAM_PATH)) for name in PROGRAMS}
    if read_cli_path(read_text(HABANA_CONFIG) or ""):
        programs["habana-container-cli"] = True
    problem = None
    if Path(HABANA_RUNTIME).exists():
        # It reads its config.toml first, whatever it is asked for.
        told = run([HABANA_RUNTIME, "--version"])
        problem = (told.err.strip().splitlines() or ["no reason given"])[-1] if told.status else None
    return {"habana_programs": programs, "habana_problem": problem}


def read_cli_path(text: str) -> bool:
    """Tell whether a config.toml names habana-container-cli by its path; which one, is then its owner's to know."""
    section = re.search(r"^\s*\[\s*[\"']?habana-container-cli[\"']?\s*\]([^\[]*)", text, re.MULTILINE)
    return bool(section and re.search(r"^\s*path\s*=", section[1], re.MULTILINE))


def unit_states() -> dict[str, dict[str, str]]:
    """Return, by unit, whether those that the engine needs start at boot or are masked, and their processes."""
    shown = run(["systemctl", "show", *UNITS, "--property=Id,MainPID,UnitFileState,LoadState"])
    blocks = [dict(line.split("=", 1) for line in text.splitlines() if "=" in line) for text in shown.out.split("\n\n")]
    return {block["Id"]: block for block in blocks if "Id" in block}


def running_proxies(pid: str, root: str = "/") -> str | None:
    """Return the marker of the file of proxies that the running engine was started with."""
    words = (read_text(Path(root, "proc", pid or "0", "environ")) or "").split("\0")
    return next((word.partition("=")[2] for word in words if word.startswith(f"{PROXIES_MARKER}=")), None)


def engine_packages() -> dict[str, Any]:
    """Return ``packages`` of interest that are wholly installed, with versions, and those ``interrupted``."""
    known = packages(*PACKAGES, *NEEDED)
    return {
        "packages": {package.name: package.version for package in known if package.state == "installed"},
        "interrupted": [package.name for package in known if package.unfinished],
    }


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
        "containers_running": "ContainersRunning",
        "server_version": "ServerVersion",
        "default_runtime": "DefaultRuntime",
        "live_restore": "LiveRestoreEnabled",
        "data_root": "DockerRootDir",
    }
    return {
        "runtimes": runtimes,
        **{name: info.get(key) for name, key in keys.items()},
    }, None
