"""The baseline of a host before a role's first change, and what the role installed: one record a role, on the host."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.atomic_write import write_whole
from ..core.redact import MARK, redacted, restored
from ..core.run import read_text
from ..platforms import runtimes
from .dpkg import packages
from .observe_runtime import DAEMON_JSON, PROXIES_DROPIN

DROPIN, SYSCTL = "/etc/default/grub.d/zz-gaudi-serve.cfg", "/etc/sysctl.d/zz-gaudi-serve.conf"
BACKUP = "/etc/docker/daemon.json.before-gaudi-serve"
RECORDS = Path("/var/lib/gaudi-serve/found")
# Paths that only this toolkit creates, by role.
TRACES = {
    DROPIN: "host_tuning",
    SYSCTL: "host_tuning",
    BACKUP: "container_runtime",
    PROXIES_DROPIN: "container_runtime",
    **{f"/etc/apt/sources.list.d/gaudi-serve-{one.name}.sources": "container_runtime" for one in runtimes()},
    "/etc/apt/sources.list.d/gaudi-serve-driver.sources": "gaudi_driver",
    "/usr/local/lib/gaudi-serve/vllm-supervisor": "vllm_service",
    "/usr/local/lib/gaudi-serve/weights": "model_weights",
    "/etc/systemd/system/gaudi-gateway.service": "gateway",
    "/etc/systemd/system/gaudi-metrics.timer": "monitoring",
}


def records(folder: Path = RECORDS) -> dict[str, dict[str, Any]]:
    """Return all records by role; an unreadable one is ``{"broken": True}``."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            value = None
        found[path.stem] = value if isinstance(value, dict) else {"broken": True}
    return found


def redacted_records() -> dict[str, dict[str, Any]]:
    """Return all records by role, without the passwords of a user's files."""
    return {role: _of_found(record, redacted) for role, record in records().items()}


def with_passwords(text: str) -> str:
    """Return a text with its password marks replaced by the passwords, read from the files with the engine's settings.

    Raises:
        ValueError: if a password is no longer in any of the files.
    """
    if not MARK.search(text):
        return text
    kept = (records().get("container_runtime", {}).get("found") or {}).get("daemon_json")
    return restored(text, [read_text(DAEMON_JSON), read_text(BACKUP), kept])


def _of_found(record: Mapping[str, Any], change: Callable[[str], str | None]) -> dict[str, Any]:
    if not isinstance(record.get("found"), Mapping):
        return dict(record)
    texts = {key: change(value) if isinstance(value, str) else value for key, value in record["found"].items()}
    return {**record, "found": texts}


def late(known: Mapping[str, Mapping[str, Any]], root: str = "/") -> bool:
    """Return whether the toolkit changed this host before it kept records.

    Then the present state may be its own work and must not be restored. A trace counts if its role has no record of the
    state before it.
    """
    return any(
        os.path.lexists(Path(root, path.lstrip("/")))
        for path, role in TRACES.items()
        if known.get(role, {}).get("found", {"late": True}).get("late")
    )


def first_missing(path: str) -> str | None:
    """Return the outermost missing folder of a path, the path itself included; None if nothing is missing."""
    missing = None
    for one in (Path(path), *Path(path).parents):
        if os.path.lexists(one):
            break
        missing = str(one)
    return missing


def package_states() -> dict[str, str]:
    """Return ``{name: state}`` of all packages in dpkg's database."""
    return {package.name: package.state for package in packages() if package.state != "not-installed"}


def extended(
    record: Mapping[str, Any], found: Mapping[str, Any] | None, brought: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return an extended record: the baseline is written once, installed things are added.

    Args:
        record: the present record; empty for a new one.
        found: the baseline; None if the role has nothing to restore.
        brought: installed things by kind (images, weights ...), with properties of each.
    """
    result = {**record, "brought": {kind: dict(values) for kind, values in record.get("brought", {}).items()}}
    if found is not None and "found" not in record:
        result["found"] = dict(found)
    for kind, values in brought.items():
        kept = result["brought"].setdefault(kind, {})
        kept.update({name: value for name, value in values.items() if name not in kept or kept[name] is None})
    return result


def absent(paths: Mapping[str, Sequence[str]]) -> dict[str, dict[str, str]]:
    """Return the missing paths by kind, each with its outermost missing folder.

    An existing empty folder for weights or recipes has an empty text: its later contents belong to the toolkit.
    """
    return {kind: {one: made for one in some if (made := _made(kind, one)) is not None} for kind, some in paths.items()}


def _made(kind: str, path: str) -> str | None:
    empty = kind in ("weights", "caches") and Path(path).is_dir() and not any(Path(path).iterdir())
    return "" if empty else first_missing(path)


def text_of(record: Mapping[str, Any]) -> str:
    """Return a record as text for its file."""
    return json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


@contextlib.contextmanager
def alone(folder: Path = RECORDS) -> Iterator[None]:
    """Lock the records: two concurrent writers would lose the changes of one."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    folder.chmod(0o700)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def write_record(path: Path, text: str) -> None:
    """Write a record of mode 0600, in a folder that only root can read."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    path.parent.chmod(0o700)
    write_whole(path, text, 0o600)


def keep(role: str, found: Mapping[str, Any] | None, **given: Any) -> str | None:
    """Return the text of a role's record if it differs from the present one, else None.

    Args:
        role: role of the record.
        found: as for extended; a host that was changed before there were records gets ``{"late": True}`` instead.
        given: ``brought`` and ``paths`` (as for extended and absent), ``packages`` (record the names of all installed
            ones), ``folder`` of the records.

    Raises:
        ValueError: if a password of the baseline is no longer in any file, or the present record cannot be read.
    """
    folder = Path(given.get("folder") or RECORDS)
    known = records(folder)
    record = known.get(role, {})
    if record.get("broken"):
        raise ValueError(
            "cannot be read, so the state before the first change is not known; restore it, or remove it: "
            "a reset then leaves what it does not know"
        )
    fresh = found is not None and "found" not in record
    if fresh and late(known):
        found = {"late": True}
    if found is not None:
        found = _of_found({"found": found}, with_passwords)["found"]
    lacking = extended(record, found, absent(given.get("paths") or {}))
    result = extended(lacking, None, given.get("brought") or {})
    if given.get("packages") and "installed" not in result and not result.get("found", {}).get("late"):
        result["installed"] = sorted(package_states())
    text = text_of(result)
    return None if text == read_text(folder / f"{role}.json") else text
