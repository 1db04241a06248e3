"""What this toolkit runs on a host: units, their files, their containers, their last smoke test."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .run import Result, read_text, run, sha256_file
from .secret import secret_differs

UNITS = Path("/etc/systemd/system")
CONFIG = Path("/etc/gaudi-serve")
STATE = Path("/var/lib/gaudi-serve")
MARKER = "X-Gaudi-Serve="
SUPERVISOR = Path("/usr/local/lib/gaudi-serve/vllm-supervisor")
LAUNCH = ("image", "module_ids", "command", "mounts", "runtime", "cap_add", "ulimits", "read_only")
PROPERTIES = "Id,ActiveState,SubState,UnitFileState,StatusText,NRestarts,Job,NeedDaemonReload"


def observe(secrets: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return ``{units: {model: state}, orphans: [container], supervisor_sha256, images: {name: id}}``.

    Args:
        secrets: what filter vllm_secret_marks returned, to be compared with the secret files here.
    """
    marks = secrets or {}
    names = [name for path in sorted(UNITS.glob("vllm-*.service")) if (name := managed_name(path))]
    shown = _show_units(names)
    containers = _containers()
    units = {
        name: {
            **_unit(name, shown.get(name, {}), containers.get(f"vllm-{name}")),
            "secret_differs": secret_differs(CONFIG / f"{name}.secret", marks.get(name)),
        }
        for name in names
    }
    orphans = sorted(set(containers) - {f"vllm-{name}" for name in names})
    return {
        "units": units,
        "orphans": orphans,
        "supervisor_sha256": sha256_file(SUPERVISOR),
        "images": _images(),
    }


def holding(units: Mapping[str, Any]) -> set[str]:
    """Return the models whose containers run: those hold cards and a port before their units are active.

    Called after cards and ports were read. A server that came back meanwhile is asked for once more, lest it
    be taken for a stranger on its own port.
    """
    found = {name for name, unit in units.items() if (unit["container"] or {}).get("running")}
    if all(unit["active"] or name in found for name, unit in units.items()):
        return found
    listed = run(["docker", "ps", "--filter", "label=gaudi-serve.model", "--format", "{{.Names}}"])
    if listed.status != 0:
        # Without its engine, what a unit on its way has started may serve already.
        return found | {name for name, unit in units.items() if unit["state"] not in ("inactive", "failed")}
    return found | {name for name in units if f"vllm-{name}" in listed.out.split()}


def hccl_state() -> dict[str, Any]:
    """Return what the last measurement of the links between the cards left, or an empty mapping."""
    return _json(STATE / "hccl.json")


def managed_name(path: Path) -> str | None:
    """Return the model of a unit file that carries this toolkit's marker, else None."""
    text = read_text(path) or ""
    return path.name[len("vllm-") : -len(".service")] if MARKER in text else None


def _unit(name: str, shown: dict[str, str], container: dict[str, Any] | None) -> dict[str, Any]:
    launch = _json(CONFIG / f"{name}.json")
    secret = CONFIG / f"{name}.secret"
    smoke = _json(STATE / name / "smoke.json")
    started = container["started"] if container else None
    return {
        "unit_sha256": sha256_file(UNITS / f"vllm-{name}.service"),
        "env_sha256": sha256_file(CONFIG / f"{name}.env"),
        "launch_sha256": sha256_file(CONFIG / f"{name}.json"),
        "secret_mtime": secret.stat().st_mtime if secret.exists() else None,
        "digest": launch.get("digest"),
        # What a plan is compared with; secrets lie elsewhere.
        "launch": {key: launch[key] for key in LAUNCH if key in launch},
        "env": _environment(CONFIG / f"{name}.env"),
        "module_ids": launch.get("module_ids", []),
        "port": launch.get("port"),
        # With a job in the queue, an active unit is about to be stopped or restarted.
        "active": shown.get("ActiveState") == "active" and not int(shown.get("Job") or 0),
        "state": shown.get("ActiveState", "inactive"),
        "sub_state": shown.get("SubState", "dead"),
        "need_reload": shown.get("NeedDaemonReload") == "yes",
        "enabled": shown.get("UnitFileState") == "enabled",
        "status": shown.get("StatusText", ""),
        "restarts": int(shown.get("NRestarts") or 0),
        "container": container,
        "smoke": smoke if smoke and started and smoke.get("container_started") == started else None,
    }


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


def _containers() -> dict[str, dict[str, Any]]:
    ids = run(["docker", "ps", "-aq", "--filter", "label=gaudi-serve.model"])
    if not ids.out.split():
        return {}
    found = {}
    for entry in _json_text(run(["docker", "inspect", "--type", "container", *ids.out.split()])) or []:
        labels = entry["Config"]["Labels"]
        found[entry["Name"].lstrip("/")] = {
            "id": entry["Id"][:12],
            "running": entry["State"]["Running"],
            "started": entry["State"]["StartedAt"],
            "created": entry["Created"],
            "image": entry["Image"],
            "digest": labels.get("gaudi-serve.digest"),
            "secret_mtime": labels.get("gaudi-serve.secret-mtime"),
        }
    return found


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
