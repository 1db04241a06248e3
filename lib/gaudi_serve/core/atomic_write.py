"""Atomic writes of files.

It uses the standard library only: the programs that download weights on a host import it from their own folder.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: str | Path, text: str, mode: int) -> None:
    """Write a file atomically: after a power cut the file has the old or the new text.

    The file keeps its owner. Its folder must exist. The next write removes what a killed writer left.

    Raises:
        OSError: The system refuses the write. The file is unchanged and no temporary file is left.
    """
    target = Path(path)
    beside = target.with_name(f".{target.name}.new")
    beside.unlink(missing_ok=True)
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if target.exists():
                os.fchown(handle, target.stat().st_uid, target.stat().st_gid)
            os.fchmod(handle, mode)
            os.fsync(handle)
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to the disk, so that later steps can rely on them."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
