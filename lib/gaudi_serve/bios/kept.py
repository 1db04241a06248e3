"""BIOS values from before the toolkit's first change, in a file for each host on the control node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..core.atomic_write import write_whole
from .compare import compared

Known = Mapping[str, Any]


def kept_values(path: Path, serial: str = "") -> dict[str, Any]:
    """Return the earlier values by attribute; empty if there are none.

    Args:
        path: the file of the host.
        serial: serial number of the host's system; empty for the one that was written last.

    Raises:
        OSError: if the file exists and cannot be read.
        ValueError: if it is not such a file.
    """
    systems = _systems(path)
    name = serial if serial in systems else next(reversed(systems), "") if not serial else ""
    return dict(systems[name]["values"]) if name in systems else {}


def keep_values(path: Path, system: Known, before: Known) -> None:
    """Add current values to the file of a host, before they are changed; earlier values stay.

    Args:
        path: the file; its folder is created.
        system: the BMC's system: serial, model, bios.
        before: current values by attribute.

    Raises:
        OSError: if the file cannot be read or written.
        ValueError: if it is not such a file.
    """
    systems = _systems(path)
    serial = str(system.get("serial") or "")
    known = systems.pop(serial, {"values": {}})
    values = {**before, **known["values"]}
    if values != known["values"]:
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        known = {"model": system.get("model"), "bios": system.get("bios"), "saved": now, "values": values}
    # The last one is the host's system of today.
    systems[serial] = known
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"systems": systems}, indent=2) + "\n", 0o600)


def restoring(values: Known, seen: Known) -> dict[str, Any]:
    """Return what must be sent to restore earlier values.

    Args:
        values: earlier values by attribute.
        seen: the result of ``observed``, with the registry.

    Returns:
        ``patch`` (values to send), ``before`` (current values), ``lines`` (every difference), and ``left`` (why other
        values are not restored).
    """
    found = compared(values, seen)
    # One value that cannot be set must not keep the others.
    wrong = [name for name in values if compared({name: values[name]}, seen).refusals]
    found = compared({name: value for name, value in values.items() if name not in wrong}, seen) if wrong else found
    if found.refusals:
        return {"patch": {}, "before": {}, "lines": [], "left": list(found.refusals)}
    left = [text for name in wrong for text in compared({name: values[name]}, seen).refusals]
    left += [f"{name}: can be restored only after another reboot" for name in found.later]
    before = {row.name: row.current for row in found.rows if row.name in found.patch}
    return {"patch": dict(found.patch), "before": before, "lines": [one.line for one in found.differing], "left": left}


def _systems(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    systems = found.get("systems") if isinstance(found, dict) else None
    if not isinstance(systems, dict) or not all(isinstance(one.get("values"), dict) for one in systems.values()):
        raise ValueError("is not a file of earlier BIOS values")
    return systems
