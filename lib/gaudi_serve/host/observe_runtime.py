"""The container engine of a host: packages, configuration, and the state of the running daemon."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..core.redact import redacted
from ..core.run import read_text, run, sha256_file
from ..platforms import Runtime, runtimes
from .dpkg import packages

DAEMON_JSON = "/etc/docker/daemon.json"
PROGRAM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROXIES = "/etc/gaudi-serve/docker-proxy.env"
PROXIES_DROPIN = "/etc/systemd/system/docker.service.d/gaudi-serve-proxy.conf"
# Stands in the file of proxies and identifies the version with which an engine was started. The proxies are not read,
# since they may contain credentials; a user's proxies elsewhere are not managed.
PROXIES_MARKER = "GAUDI_SERVE_PROXIES"
# The engine's units, and those that it needs to start.
UNITS = ("docker.service", "docker.socket", "containerd.service")
PACKAGES = ("docker.io", "docker-ce", "containerd.io")
NEEDED = ("containerd", "runc", "apparmor", "iptables", "ca-certificates", "docker-ce-cli", "docker-cli")
# Options of the engine's command line that affect the daemon.json keys of role container_runtime.
OPTIONS = ("live-restore", "data-root", "add-runtime", "config-file")
CDI_SINCE = 25
UNIT = (
    "Id",
    "LoadState",
    "MainPID",
    "UnitFileState",
    "ExecStart",
    "Environment",
    "EnvironmentFiles",
    "FragmentPath",
    "DropInPaths",
)
VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)\}")


def observe() -> dict[str, Any]:
    """Return all values that role container_runtime compares."""
    info, reason = daemon_info()
    known, takes = engine_packages(), takes_cdi(str((info or {}).get("server_version") or ""))
    daemon = Path(DAEMON_JSON)
    units = unit_states()
    unit = units.get(UNITS[0], {})
    return {
        **known,
        "cdi": takes and keeps_cdi_files(known["packages"]),
        "engine_cdi": takes,
        "daemon_json": redacted(read_text(daemon)),
        "daemon_json_mode": f"{daemon.stat().st_mode & 0o7777:04o}" if daemon.exists() else None,
        "info": info,
        "reason": reason,
        "swarm": swarm_state(info, read_text(daemon)),
        "options": engine_options(unit),
        **{key: value for one in runtimes() for key, value in device_runtime(one, read_text(daemon)).items()},
        "proxies_sha256": sha256_file(PROXIES),
        "proxies_dropin_sha256": sha256_file(PROXIES_DROPIN),
        "proxies_running": running_proxies("".join(unit.get("MainPID", ["0"]))),
        "enabled": unit.get("UnitFileState") == ["enabled"],
        "masked": [name for name, one in units.items() if one.get("LoadState") == ["masked"]],
    }


def takes_cdi(server: str = "", root: str = "/") -> bool:
    """Return whether the engine accepts device names of CDI: Docker since 25, with a feature that the stage enables.

    Without an engine, the answer is for the one of the distribution.

    Args:
        server: the version of the running engine; empty reads it from the client.
        root: root of the host's file system.
    """
    version = re.search(r"version (\d+)", f"version {server}" if server else run(["docker", "--version"]).out)
    release = read_text(Path(root, "etc/os-release")) or ""
    return int(version[1]) >= CDI_SINCE if version else not re.search(r"^VERSION_CODENAME=\"?bookworm", release, re.M)


def keeps_cdi_files(installed: Mapping[str, str]) -> bool:
    """Return whether the installed runtimes keep their CDI files up to date; runtimes that will be installed do."""
    return all(one.keeps_cdi_file(installed[one.package]) for one in runtimes() if one.package in installed)


def device_runtime(runtime: Runtime, daemon: str | None = None, root: str = "/") -> dict[str, Any]:
    """Return the settings of a runtime for devices, its existing programs, and why it does not run.

    Returns:
        For runtime habana ``habana_config`` (text, or None), ``habana_programs`` and ``habana_problem`` (None if it
        runs or is not installed).

    Args:
        runtime: a platform's.
        daemon: text of daemon.json, in which a user may set another path than the package's.
        root: root of the host's file system.
    """
    settings = runtime.settings
    text = read_text(Path(root, settings.path.removeprefix("/"))) if settings else None
    # The hook finds its program in PATH as shells do. The runtime also looks for the hook in its own folder.
    folders = ":".join(str(Path(root, one.removeprefix("/"))) for one in PROGRAM_PATH.split(":"))
    programs = {name: bool(shutil.which(name, path=folders)) for name in runtime.programs}
    programs |= dict.fromkeys(settings.given(text or "") if settings else (), True)
    own, problem = _runtime_path(runtime, daemon), None
    path = own or str(Path(root, runtime.path.removeprefix("/")))
    if own or Path(path).exists():
        # It reads its settings first, whatever the arguments.
        told = run([path, "--version"])
        problem = (told.err.strip().splitlines() or ["no reason given"])[-1] if told.status else None
    found = {"config": text, "programs": programs, "problem": problem}
    return {f"{runtime.name}_{key}": value for key, value in found.items()}


def _runtime_path(runtime: Runtime, daemon: str | None) -> str:
    """Return the path of a runtime in daemon.json; empty if it is the package's."""
    found: Any = _daemon(daemon).get("runtimes")
    entry = found.get(runtime.name) if isinstance(found, dict) else None
    path = entry.get("path") if isinstance(entry, dict) else None
    return path if isinstance(path, str) and path != runtime.path else ""


def _daemon(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def unit_states() -> dict[str, dict[str, list[str]]]:
    """Return the units that the engine needs: whether they start at boot or are masked, command lines, files."""
    shown = run(["systemctl", "show", *UNITS, f"--property={','.join(UNIT)}"])
    found: dict[str, dict[str, list[str]]] = {}
    for block in shown.out.split("\n\n"):
        values: dict[str, list[str]] = {}
        for line in block.splitlines():
            key, _, value = line.partition("=")
            values.setdefault(key, []).append(value)
        if "Id" in values:
            found[values["Id"][0]] = values
    return found


def engine_options(unit: dict[str, list[str]]) -> list[dict[str, str]]:
    """Return ``{option, value, file}`` of each option of the engine's command line that affects the role."""
    variables: dict[str, str] = {}
    files = [*unit.get("FragmentPath", []), *_words(" ".join(unit.get("DropInPaths", [])))]
    for word in _words(" ".join(unit.get("Environment", []))):
        key, _, variables[key] = word.partition("=")
    for entry in unit.get("EnvironmentFiles", []):
        path = entry.rpartition(" (")[0]
        files.append(path)
        for line in (read_text(path) or "").splitlines():
            key, equals, value = line.strip().partition("=")
            if equals and not key.startswith(("#", ";")):
                variables[key] = " ".join(_words(value))
    command = re.search(r"argv\[\]=(.*?) ; ignore_errors=", " ".join(unit.get("ExecStart", [])))
    words = _words(VARIABLE.sub(lambda name: variables.get(name[1] or name[2], ""), command[1] if command else ""))
    found = []
    for word, following in pairwise([*words, ""]):
        option, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and option in OPTIONS:
            flag = option == "live-restore"
            value = value if equals else "true" if flag else following
            found.append({"option": option, "value": value, "file": _file_of(f"--{option}", files)})
    return found


def _file_of(option: str, files: list[str]) -> str:
    """Return the last of some files that has an option outside of comments."""
    for path in reversed(files):
        lines = (read_text(path) or "").splitlines()
        if any(option in line and not line.lstrip().startswith(("#", ";")) for line in lines):
            return path
    return "docker.service"


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def swarm_state(info: dict[str, Any] | None, daemon: str | None) -> Any:
    """Return the swarm state of the engine in its own words or, if it does not run, according to its folder."""
    if info is not None:
        return info["swarm"]
    folder = _daemon(daemon).get("data-root") or "/var/lib/docker"
    return "not running" if Path(str(folder), "swarm", "docker-state.json").exists() else None


def running_proxies(pid: str, root: str = "/") -> str | None:
    """Return the marker in the proxies file with which the running engine was started."""
    words = (read_text(Path(root, "proc", pid or "0", "environ")) or "").split("\0")
    return next((word.partition("=")[2] for word in words if word.startswith(f"{PROXIES_MARKER}=")), None)


def engine_packages() -> dict[str, Any]:
    """Return ``packages`` of interest that are completely installed, with versions, and those ``interrupted``."""
    known = packages(*PACKAGES, *(name for one in runtimes() for name in one.packages), *NEEDED)
    return {
        "packages": {package.name: package.version for package in known if package.state == "installed"},
        "interrupted": [package.name for package in known if package.unfinished],
    }


def daemon_info() -> tuple[dict[str, Any] | None, str | None]:
    """Return the state of the running daemon according to docker info, or None and the reason."""
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
        "swarm": (info.get("Swarm") or {}).get("LocalNodeState"),
        # Docker since 25 reports its folders for CDI files if the feature is on.
        "cdi": bool(info.get("CDISpecDirs")),
    }, None
