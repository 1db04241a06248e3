"""The services of this toolkit on a host: units, their files, their containers, their last smoke test."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.paths import MARKER
from ..core.run import Result, read_text, run, sha256_file
from ..model.host import Host
from ..platforms import platform_here
from .observe_host import listeners
from .secret import secret_differs, secret_stale, stored_names

UNITS = Path("/etc/systemd/system")
CONFIG = Path("/etc/gaudi-serve")
STATE = Path("/var/lib/gaudi-serve")
GATEWAY_RUNS = Path("/run/gaudi-gateway")
SUPERVISOR = Path("/usr/local/lib/gaudi-serve/vllm-supervisor")
ROOT = "/"
LABEL = "gaudi-serve.model"
CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
UNKNOWN = "unknown"  # version of a supervisor that did not record its own
LAUNCH = (
    *("group", "launch_profile", "image", "module_ids", "command", "mounts", "runtime", "cap_add", "ulimits"),
    *("read_only", "start_timeout_s", "hang_timeout_s"),
)
# What docker update changes in a container that runs.
LIMITS = (
    *("Memory", "MemoryReservation", "MemorySwap", "NanoCpus", "CpuPeriod", "CpuQuota", "CpuShares"),
    *("CpusetCpus", "CpusetMems", "PidsLimit", "BlkioWeight"),
)
PROPERTIES = "Id,LoadState,ActiveState,SubState,UnitFileState,StatusText,NRestarts,Job,NeedDaemonReload,MainPID"


def observe(secrets: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return ``{units, without_unit, orphans: [container], supervisor_sha256, images: {name: id}}``.

    ``units`` and ``without_unit`` are ``{model: state}``: the second has models with only a container left, which its
    label identifies. Their containers are among the ``orphans`` too.

    Args:
        secrets: the result of filter vllm_secret_marks, to be compared with the secret files of this host.
    """
    marks = secrets or {}
    names = [name for path in sorted(UNITS.glob("vllm-*.service")) if (name := managed_name(path))]
    containers = _named_again(_containers(), names)
    orphans = sorted(set(containers) - {f"vllm-{name}" for name in names})
    lost = [
        name for box in orphans if (name := containers[box]["model"]) and box == f"vllm-{name}" and is_missing(name)
    ]
    shown = _show_units([*names, *lost])
    found = {name: _unit(name, shown.get(name, {}), containers.get(f"vllm-{name}")) for name in [*names, *lost]}
    return {
        "units": {
            name: {**found[name], "secret_differs": secret_differs(CONFIG / f"{name}.secret", marks.get(name))}
            for name in names
        },
        "without_unit": {name: found[name] for name in lost},
        "orphans": orphans,
        "supervisor_sha256": sha256_file(SUPERVISOR),
        "images": _images(),
        # The models before an interrupted rollout; see rollout.py.
        "kept": (STATE / "rollout/record.json").exists(),
        # The gateway runs, or will run after the next boot.
        "gateway": GATEWAY_RUNS.exists() or (UNITS / "multi-user.target.wants/gaudi-gateway.service").is_symlink(),
        "monitoring": (UNITS / "gaudi-metrics.timer").exists() or Path("/etc/gaudi-monitoring").is_dir(),
        "free": {str(path): _free(path) for path in (CONFIG, STATE)},
    }


def _free(path: Path) -> int:
    """Return the bytes that root can write below a path, which may not exist yet."""
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    found = os.statvfs(there)
    return found.f_bfree * found.f_frsize


def unit_states(names: list[str]) -> dict[str, dict[str, Any]]:
    """Return systemd's state of models' units, and why each last ended, without files and containers.

    Missing units are omitted.
    """
    shown = {name: unit for name, unit in _show_units(names).items() if unit.get("LoadState") == "loaded"}
    return {name: {**_state(shown[name]), "ended": _ended(name)} for name in names if name in shown}


def holding(units: Mapping[str, Any]) -> set[str]:
    """Return the models whose containers run: these use cards and a port before their units are active.

    Call it after reading cards and ports. Then servers that have restarted meanwhile are looked up again and not
    treated as foreign programs on their own port.
    """
    found = {name for name, unit in units.items() if (unit["container"] or {}).get("running")}
    if all(unit["active"] or name in found for name, unit in units.items()):
        return found
    listed = run(["docker", "ps", "--filter", "label=gaudi-serve.model", "--format", "{{.Names}}"])
    if listed.status != 0:
        # If the engine does not answer, activating units may already have a running server.
        return found | {name for name, unit in units.items() if unit["state"] not in ("inactive", "failed")}
    return found | {name for name in units if f"vllm-{name}" in listed.out.split()}


def hccl_state() -> dict[str, Any]:
    """Return the results of the last measurement of the links between the cards, or an empty mapping."""
    return _json(STATE / "hccl.json")


def managed_name(path: Path) -> str | None:
    """Return the model of a unit file that has this toolkit's marker, else None."""
    text = read_text(path) or ""
    return path.name[len("vllm-") : -len(".service")] if MARKER in text else None


def is_missing(name: str) -> bool:
    """Return whether a model's unit file is missing or empty; one with other content is unmanaged."""
    path = UNITS / f"vllm-{name}.service"
    return not (read_text(path) or "").strip() and not path.is_dir()


def _unit(name: str, shown: dict[str, str], container: dict[str, Any] | None) -> dict[str, Any]:
    launch = _json(CONFIG / f"{name}.json")
    # A running server uses the launch of its container: the launch file may be missing or newer.
    runs = container if container and container["running"] else {}
    live = {key: runs[key] for key in ("digest", "command", "module_ids", "port") if runs.get(key)}
    told = {**(container or {}), **launch, **live}
    secret = CONFIG / f"{name}.secret"
    smoke = _json(STATE / name / "smoke.json")
    started = container["started"] if container else None
    return {
        "unit_sha256": sha256_file(UNITS / f"vllm-{name}.service"),
        "env_sha256": sha256_file(CONFIG / f"{name}.env"),
        "launch_sha256": sha256_file(CONFIG / f"{name}.json"),
        "buckets_sha256": sha256_file(CONFIG / f"{name}.buckets"),
        "ray_sha256": sha256_file(CONFIG / f"{name}.ray"),
        "token_sha256": sha256_file(CONFIG / f"{name}.token"),
        "secret_mtime": secret.stat().st_mtime if secret.exists() else None,
        "secret_names": stored_names(secret),
        "secret_stale": secret_stale(secret, (container or {}).pop("secret", None), STATE / name / "label.key"),
        "digest": told.get("digest"),
        # The values that a plan compares; secrets are stored elsewhere.
        "launch": {key: value for key, value in {**launch, **live}.items() if key in LAUNCH},
        "env": _environment(CONFIG / f"{name}.env"),
        "module_ids": told.get("module_ids") or [],
        "port": told.get("port"),
        "lost": _missing(name),
        "supervisor": _supervisor(name, int(shown.get("MainPID") or 0)),
        **_state(shown),
        "need_reload": shown.get("NeedDaemonReload") == "yes",
        "enabled": shown.get("UnitFileState") == "enabled",
        "stopped": _stopped(name) if shown.get("ActiveState") == "inactive" else "",
        "container": container,
        "ended": _ended(name),
        "smoke": smoke if smoke and started and smoke.get("container_started") == started else None,
    }


def _ended(name: str) -> dict[str, Any] | None:
    """Return why and when a model last ended by itself: ``{reason, text, at}``, as its supervisor has recorded it."""
    return _json(STATE / name / "ends.json").get("last")


def _stopped(name: str) -> str:
    """Return by which action a model was stopped, and when; empty if not recorded."""
    record = _json(STATE / name / "stopped.json")
    return f"stopped by {record['by']} at {record['at']}" if {"by", "at"} <= record.keys() else ""


def _state(shown: dict[str, str]) -> dict[str, Any]:
    return {
        # An active unit with a job in the queue is about to be stopped or restarted.
        "active": shown.get("ActiveState") == "active" and not int(shown.get("Job") or 0),
        "state": shown.get("ActiveState", "inactive"),
        "sub_state": shown.get("SubState", "dead"),
        "status": shown.get("StatusText", ""),
        "restarts": int(shown.get("NRestarts") or 0),
    }


def _missing(name: str) -> list[str]:
    """Return the files of a model with a container that are missing or empty."""
    files = {
        "unit": UNITS / f"vllm-{name}.service",
        "environment": CONFIG / f"{name}.env",
        "launch": CONFIG / f"{name}.json",
    }
    launch = read_text(files["launch"]) or ""
    files |= {kind: path for kind in ("buckets", "ray") if str(path := CONFIG / f"{name}.{kind}") in launch}
    return [kind for kind, path in files.items() if not (read_text(path) or "").strip()]


def _supervisor(name: str, pid: int) -> str | None:
    """Return the digest that the running supervisor has recorded for itself; None if none runs."""
    if not pid:
        return None
    record = _json(STATE / name / "supervisor.json")
    return str(record.get("sha256")) if record.get("pid") == pid else UNKNOWN


def supervisors(names: Sequence[str]) -> dict[str, tuple[int, str | None]]:
    """Return ``{model: (process, digest)}`` of the supervisors of these models; process 0 if none runs."""
    shown = _show_units(list(names))
    pids = {name: int(shown.get(name, {}).get("MainPID") or 0) for name in names}
    return {name: (pid, _supervisor(name, pid)) for name, pid in pids.items()}


def _environment(path: Path) -> dict[str, str]:
    lines = (line.partition("=") for line in (read_text(path) or "").splitlines())
    return {name: value for name, sign, value in lines if sign}


def _show_units(names: list[str]) -> dict[str, dict[str, str]]:
    if not names:
        return {}
    shown = {}
    result = run(["systemctl", "show", f"--property={PROPERTIES}", *[f"vllm-{name}.service" for name in names]])
    for block in result.out.split("\n\n"):
        values = dict(line.partition("=")[::2] for line in block.splitlines())
        match = re.fullmatch(r"vllm-(.+)\.service", values.get("Id", ""))
        if match:
            shown[match[1]] = values
    return shown


def _named_again(containers: dict[str, dict[str, Any]], names: list[str]) -> dict[str, dict[str, Any]]:
    """Return containers by name, with a running one that was renamed (``renamed``) under its model's name."""
    missing = {f"vllm-{name}" for name in names} - set(containers)
    found = dict(containers)
    for box, one in containers.items():
        if one["running"] and not one["trial"] and (own := f"vllm-{one['model']}") in missing:
            found[own] = {**found.pop(box), "renamed": box}
    return found


def _containers() -> dict[str, dict[str, Any]]:
    ids = run(["docker", "ps", "-aq", "--filter", "label=gaudi-serve.model"])
    if not ids.out.split():
        return {}
    found = {}
    sockets = _sockets()
    for entry in _json_text(run(["docker", "inspect", "--type", "container", *ids.out.split()])) or []:
        labels = entry["Config"]["Labels"]
        found[entry["Name"].lstrip("/")] = {
            "model": labels.get(LABEL),
            "port": _port(entry["Config"].get("Cmd") or []),
            "command": entry["Config"].get("Cmd") or [],
            "module_ids": _module_ids(labels.get("gaudi-serve.module-ids"), entry["Config"].get("Env") or []),
            "id": entry["Id"][:12],
            "listens": None if sockets is None else sorted(sockets.get(entry["Id"], [])),
            "running": entry["State"]["Running"],
            "paused": entry["State"].get("Paused", False),
            "limits": _limits(entry.get("HostConfig") or {}),
            "trial": "gaudi-serve.trial" in labels,
            "started": entry["State"]["StartedAt"],
            "created": entry["Created"],
            "stale": _stale(entry),
            "image": entry["Image"],
            "digest": labels.get("gaudi-serve.digest"),
            "secret_mtime": labels.get("gaudi-serve.secret-mtime"),
            "secret": labels.get("gaudi-serve.secret"),
            "env_sha256": labels.get("gaudi-serve.env"),
        }
    return found


def _limits(settings: dict[str, Any]) -> list[str]:
    """Return the limits that someone has set with ``docker update``; the supervisor sets none."""
    found = [name for name in LIMITS if settings.get(name) not in (None, 0, -1, "")]
    policy = (settings.get("RestartPolicy") or {}).get("Name") or "no"
    return found + ([f"RestartPolicy {policy}"] if policy != "no" else [])


def _stale(entry: dict[str, Any]) -> list[str]:
    """Return the folders of a container that have been replaced on the host since its start."""
    pid, found = entry["State"].get("Pid"), []
    for mount in (entry.get("Mounts") or []) if pid else []:
        try:
            inside, here = Path(f"/proc/{pid}/root{mount['Destination']}").stat(), Path(mount["Source"]).stat()
        except (OSError, KeyError):
            continue
        # Compare inodes only: the device of the same folder changes when a network disk is mounted again.
        other = inside.st_ino != here.st_ino
        if other and stat.S_ISDIR(inside.st_mode) and not mount.get("RW"):
            found.append(str(mount["Source"]))
    return sorted(found)


def _sockets() -> dict[str, list[str]] | None:
    """Return ``{container id: [address:port]}`` of listening TCP sockets, by the control group of each program.

    None if it cannot be determined.
    """
    found: dict[str, list[str]] = {}
    listening = listeners()
    if listening is None:
        return None
    for one in listening:
        ids = CONTAINER_ID.findall(read_text(Path(f"/proc/{one.pid}/cgroup")) or "") if one.pid else []
        if ids:
            found.setdefault(ids[-1], []).append(f"{one.address}:{one.port}")
    return found


def _port(command: list[str]) -> int | None:
    """Return the port in a server's command."""
    for place, word in enumerate(command):
        name, sign, value = word.partition("=")
        if name == "--port":
            text = value if sign else "".join(command[place + 1 : place + 2])
            return int(text) if text.isdigit() else None
    return None


def _module_ids(label: str | None, environment: list[str]) -> list[int]:
    """Return the cards of a container from its label; for older containers without the label, from its variables.

    These may have indices of cards, which do not change before the next boot.
    """
    if label is not None:
        texts = label.split(",")
    else:
        access = platform_here(ROOT).access(Host())
        texts = access.ids_of(environment, ROOT) if access else []
    return [int(text) for text in texts if text.isdecimal()]


def _images() -> dict[str, str]:
    columns = "{{.Repository}} {{.Tag}} {{.Digest}} {{.ID}}"
    listed = run(["docker", "image", "ls", "--digests", "--no-trunc", "--format", columns])
    images = {}
    for row in [line.split() for line in listed.out.splitlines()]:
        if len(row) == 4:
            images[f"{row[0]}:{row[1]}"] = row[3]
            if row[2] != "<none>":
                images[f"{row[0]}@{row[2]}"] = row[3]
    return images


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_text(path) or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _json_text(result: Result) -> Any:
    try:
        return json.loads(result.out)
    except ValueError:
        return None
