"""Files that are written completely, or not at all.

Standard library only: the programs for weights on a host have a copy of this file.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: str | Path, text: str, mode: int) -> None:
    """Write a temporary file, sync it to the disk and rename it: a power failure leaves the old file or the new one.

    The owner of an existing file stays. The folder must exist. The next write removes the temporary file of a killed
    one.

    Raises:
        OSError: if the system refuses; the file is then unchanged, and there is no temporary file.
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
    """Sync the names of a folder to the disk, because later steps rely on them."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
