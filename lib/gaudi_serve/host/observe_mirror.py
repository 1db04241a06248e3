"""What a host has of its site's mirror: the files that say where it is, and what apt last read of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.run import read_text, sha256_text

FOLDER = "/etc/gaudi-mirror"
AUTHORITY, KEY = f"{FOLDER}/ca.crt", f"{FOLDER}/key.asc"
# Programs that install packages are given this one as APT_CONFIG.
APT_CONFIG, APT_LIST = f"{FOLDER}/apt.conf", f"{FOLDER}/apt.list"
FILES = (AUTHORITY, KEY, APT_CONFIG, APT_LIST)
# The engine reads an authority at each pull.
ENGINE_CERTIFICATES = "/etc/docker/certs.d"
# Of folders there, only those with a file of this text beside the authority are the toolkit's.
MARK = "gaudi-serve"
STATE = "/var/lib/gaudi-mirror"
LISTS = f"{STATE}/lists"


def observe(root: str = "/") -> dict[str, Any]:
    """Return ``gaudi_mirror``.

    ``files``: SHA-256 of the files of role offline, None where one is missing. ``registries``: of each registry whose
    authority the role has written, SHA-256 of that. ``release``: SHA-256 of the repository's signed index that apt
    last read; empty where it has read none.
    """
    files = {path: read_text(Path(root, path.lstrip("/"))) for path in FILES}
    marks = sorted(Path(root, ENGINE_CERTIFICATES.lstrip("/")).glob(f"*/{MARK}"))
    read = sorted(Path(root, LISTS.lstrip("/")).glob("*InRelease"))
    return {
        "files": {path: None if text is None else sha256_text(text) for path, text in files.items()},
        "registries": {mark.parent.name: sha256_text(read_text(mark.parent / "ca.crt") or "") for mark in marks},
        "release": sha256_text(read_text(read[0]) or "") if len(read) == 1 else "",
    }
