"""The host's files for its site's mirror, and the state of apt's last read of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.paths import MARK
from ..core.run import read_text, sha256_text

FOLDER = "/etc/gaudi-mirror"
AUTHORITY, KEY = f"{FOLDER}/ca.crt", f"{FOLDER}/key.asc"
# Programs that install packages get this file as APT_CONFIG.
APT_CONFIG, APT_LIST = f"{FOLDER}/apt.conf", f"{FOLDER}/apt.list"
FILES = (AUTHORITY, KEY, APT_CONFIG, APT_LIST)
# The engine reads the CA certificates at each pull.
ENGINE_CERTIFICATES = "/etc/docker/certs.d"
STATE = "/var/lib/gaudi-mirror"
LISTS = f"{STATE}/lists"


def observe(root: str = "/") -> dict[str, Any]:
    """Return ``gaudi_mirror``.

    ``files``: SHA-256 of the files of role offline, None for a missing one. ``registries``: for each registry whose CA
    certificate the role has written, the SHA-256 of that. ``release``: SHA-256 of the repository's signed index that
    apt last read; empty if it has read none.
    """
    files = {path: read_text(Path(root, path.lstrip("/"))) for path in FILES}
    marks = sorted(Path(root, ENGINE_CERTIFICATES.lstrip("/")).glob(f"*/{MARK}"))
    read = sorted(Path(root, LISTS.lstrip("/")).glob("*InRelease"))
    return {
        "files": {path: None if text is None else sha256_text(text) for path, text in files.items()},
        "registries": {mark.parent.name: sha256_text(read_text(mark.parent / "ca.crt") or "") for mark in marks},
        "release": sha256_text(read_text(read[0]) or "") if len(read) == 1 else "",
    }
