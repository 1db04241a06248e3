"""The state of monitoring on a host: packages, units, files, certificates, and the files that running programs use."""

from __future__ import annotations

import http.client
import re
import time
from pathlib import Path
from typing import Any

from ..core.paths import PLACES
from ..core.run import json_list, read_text, run, sha256_file
from . import certificate
from .dpkg import packages
from .observe_host import network, ports

PACKAGES = ("prometheus", "prometheus-alertmanager", "prometheus-node-exporter", "haproxy", "openssl")
FOLDER = Path("/etc/gaudi-monitoring")
HOST, CLIENT = FOLDER / "host.pem", FOLDER / "client.pem"
CERTIFICATES = {"host": HOST, "client": CLIENT}
COLLECTOR, SETTINGS = Path("/usr/local/lib/gaudi-serve/gaudi-metrics"), Path("/etc/gaudi-serve/metrics.json")
UNITS = (
    *("gaudi-metrics.timer", "gaudi-node-exporter.service", "gaudi-exporters.service"),
    *("gaudi-prometheus.service", "gaudi-alertmanager.service"),
)
UNIT_FOLDER = Path("/etc/systemd/system")
# Files elsewhere, in addition to those in FOLDER and the units.
FILES = (SETTINGS, COLLECTOR, UNIT_FOLDER / "gaudi-metrics.service")
# The files of programs that can read them again while they run.
READ = {
    "prometheus": ("prometheus.yml", "rules/*", "hosts.pem", "client.pem"),
    "alertmanager": ("alertmanager.yml",),
}
DATA = (Path("/var/lib/gaudi-prometheus"), Path("/var/lib/gaudi-alertmanager"))
# Counters of the collector.
STATE = Path("/var/lib/gaudi-serve/metrics")
# The packaged folder of node exporter's textfile collector.
COLLECTED = Path("/var/lib/prometheus/node-exporter")
WATCHED = FOLDER / "watched.json"
KEYS = "Id,LoadState,ActiveState,UnitFileState,NeedDaemonReload,MainPID,ActiveEnterTimestampMonotonic"
MOST = 500  # files of a folder to read at most
RELOADED = re.compile(
    r"^(prometheus|alertmanager)_config_last_reload_(success_timestamp_seconds|successful) (\S+)$", re.M
)


def observe() -> dict[str, Any]:
    """Return the values that role monitoring compares, without certificate keys and without texts of secret files."""
    units = _units()
    found = sorted(path for path in FOLDER.rglob("*") if path.is_file())[:MOST] if FOLDER.is_dir() else []
    found += [path for path in map(Path, json_list(PLACES)) if path.is_file()]
    found += [path for path in (*FILES, *(UNIT_FOLDER / name for name in UNITS)) if path.is_file()]
    return {
        "installed": sorted(one.name for one in packages(*PACKAGES) if one.state == "installed"),
        "address": network()["ip"],
        "units": units,
        "files": {str(path): _file(path) for path in found},
        "certificates": {kind: certificate.read(path) for kind, path in CERTIFICATES.items()},
        "clients": certificate.BLOCK.findall(read_text(FOLDER / "clients.pem") or ""),
        "watched": json_list(WATCHED),
        "read": {name: _read(units[f"gaudi-{name}.service"]["argv"]) for name in READ},
        "ports": ports(),
        # For a reset.
        "folder": FOLDER.is_dir(),
        "masked": [str(path) for path in _of_distribution() if str(path.resolve()) == "/dev/null"],
        "data": [str(path) for path in DATA if path.is_dir()],
        "collected": [*map(str, sorted(COLLECTED.glob("gaudi-*.prom"))), *([str(STATE)] if STATE.is_dir() else [])],
    }


def _file(path: Path) -> dict[str, Any]:
    return {"sha256": sha256_file(path), "changed": path.stat().st_mtime}


def is_here() -> bool:
    """Return whether the toolkit has installed monitoring on this host."""
    return (UNIT_FOLDER / "gaudi-metrics.timer").exists() or FOLDER.is_dir()


def _of_distribution() -> list[Path]:
    """Return the paths of the masks of packaged services."""
    return [UNIT_FOLDER / f"{name}.service" for name in PACKAGES if name != "openssl"]


def _units() -> dict[str, dict[str, Any]]:
    shown: dict[str, dict[str, str]] = {}
    for block in run(["systemctl", "show", f"--property={KEYS}", *UNITS]).out.split("\n\n"):
        values = dict(line.partition("=")[::2] for line in block.splitlines())
        shown[values.get("Id", "")] = values
    # systemd counts from the boot, as the kernel does.
    boot = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    return {name: _unit(shown.get(name, {}), boot) for name in UNITS}


def _unit(shown: dict[str, str], boot: float) -> dict[str, Any]:
    active = shown.get("ActiveState") == "active"
    begun = int(shown.get("ActiveEnterTimestampMonotonic") or 0)
    return {
        "there": shown.get("LoadState") == "loaded",
        "active": active,
        "enabled": shown.get("UnitFileState") == "enabled",
        "need_reload": shown.get("NeedDaemonReload") == "yes",
        # Unix time; later changes have not been read.
        "since": boot + begun / 10**6 if active and begun else None,
        "pid": (pid := int(shown.get("MainPID") or 0)),
        "argv": _argv(pid),
    }


def _argv(pid: int) -> list[str]:
    """Return the arguments of a running program."""
    return (read_text(f"/proc/{pid}/cmdline") or "").split("\0")[:-1] if pid else []


def changed_at(name: str) -> list[float]:
    """Return the modification times of the files that a program can read again while it runs."""
    return [path.stat().st_mtime for pattern in READ[name] for path in FOLDER.glob(pattern)]


def _read(argv: list[str]) -> dict[str, Any]:
    told = next((word.partition("=")[2] for word in argv if word.startswith("--web.listen-address=")), "")
    return reloaded(told) if told else {}


def _get(listens: str, page: str = "/metrics") -> str:
    connection = http.client.HTTPConnection(listens, timeout=5)
    try:
        connection.request("GET", page)
        answer = connection.getresponse()
        return answer.read().decode(errors="replace") if answer.status == 200 else ""
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def reloaded(listens: str) -> dict[str, Any]:
    """Return ``ok`` and ``at`` of a program's last reload; empty if it does not answer."""
    # Prometheus reads its configuration before its history, and its rules after it.
    if not _get(listens, "/-/ready"):
        return {}
    found = {key: float(value) for _, key, value in RELOADED.findall(_get(listens))}
    return {"ok": found["successful"] == 1, "at": found["success_timestamp_seconds"]} if len(found) == 2 else {}
