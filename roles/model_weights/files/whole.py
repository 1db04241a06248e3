"""Files that are written whole, or not at all.

Standard library only: the programs that bring weights to a host import it too, from a folder of their own.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: str | Path, text: str, mode: int) -> None:
    """Write a file beside its name, bring it to the disk and rename it: a power cut leaves the old one or the new one.

    The owner of a file that is there already stays; the folder must be there. What a writer that was killed has left
    beside it goes with the next write.

    Raises:
        OSError: where the system refuses; the file is as it was then, and nothing lies beside it.
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
    """Bring a folder's names to the disk, where later steps rely on what is there and what is gone."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
