"""The folders of weights of a host, their records, and the requirements for fetching them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from ..core.run import read_text
from ..model.config_json import ADAPTER, CONFIGS
from .observe_host import network, shards
from .weights_names import MANIFEST, conflict, leftovers

# A folder with one of these files has weights or an adapter.
KNOWN = (*CONFIGS, ADAPTER)


def observe(folders: list[str], venv: str) -> dict[str, Any]:
    """Return ``folders`` by path, the installed ``tools``, and the host's ``address``."""
    found = {path: folder(Path(path)) for path in folders}
    return {"folders": found, "tools": tools(venv), "address": network()["ip"]}


def folder(path: Path) -> dict[str, Any]:
    """Return one folder's state without reading any weights.

    Returns:
        Among others ``free_bytes`` of its file system, ``leftovers`` of the toolkit next to it, and ``in_the_way``: a
        path of a user that conflicts with the partial folder, or None.
    """
    state: dict[str, Any] = {"exists": path.is_dir() and any(path.iterdir()), "free_bytes": free_bytes(path)}
    state["leftovers"] = [str(one) for one in leftovers(path)]
    state["in_the_way"] = str(foreign) if (foreign := conflict(path)) else None
    record = _object(path / MANIFEST)
    files = record.get("files") if record else None
    if record is None or not isinstance(files, dict):
        missing = sorted({name for name in shards(path) if not (path / name).is_file()})
        readable = any(_object(path / name) is not None for name in KNOWN)
        return {**state, "manifest": None, "config": readable, "damaged": missing}
    kept = {key: record.get(key) for key in ("source", "revision", "bytes")}
    damaged = sorted(name for name, known in files.items() if _differs(path / name, known))
    return {**state, "manifest": kept, "config": any((path / name).is_file() for name in KNOWN), "damaged": damaged}


def free_bytes(path: Path) -> int:
    """Return the bytes that an ordinary program can write in the folder, which may not exist yet."""
    while not path.exists():
        path = path.parent
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def tools(venv: str) -> dict[str, Any]:
    """Return whether git, git-lfs and Python's venv are installed, and which clients are."""
    # Debian's python3 has the module venv, but without ensurepip, which it needs.
    seed = f"/usr/lib/python{sys.version_info.major}.{sys.version_info.minor}/ensurepip/__init__.py"
    return {
        "git": shutil.which("git") is not None,
        "git_lfs": shutil.which("git-lfs") is not None,
        "venv_module": Path(seed).exists() or sys.prefix != "/usr",
        "clients": (read_text(Path(venv, ".complete")) or "").strip(),
    }


def _differs(path: Path, known: Any) -> bool:
    try:
        found = path.stat()
        return (found.st_size, found.st_mtime_ns) != (known["size"], known["mtime_ns"])
    except (OSError, LookupError, TypeError):
        return True


def _object(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
