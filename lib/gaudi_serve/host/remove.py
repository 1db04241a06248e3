"""Removes what the toolkit has created: whole paths, weights according to their record, empty folders."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from .weights_names import MANIFEST, WORK, remove_own


def remove_all(
    paths: Sequence[Path] = (),
    weights: Sequence[Path] = (),
    empty: Sequence[Path] = (),
    stay: Sequence[Path] = (),
    dry: bool = False,
) -> list[Path]:
    """Remove those of the given paths that exist, and return them.

    Args:
        paths: files, and folders with all their contents.
        weights: folders of weights; files that are not in their record stay.
        empty: folders to remove if they are empty.
        stay: those of the paths and weights that are only emptied, since a user has created them.
        dry: remove nothing.

    Raises:
        OSError: if the system refuses.
    """
    inside = [one for path in paths for one in (inner(path) if path in stay else [path])]
    gone = [path for path in dict.fromkeys(inside) if os.path.lexists(path)]
    for path in [] if dry else gone:
        # It may have been removed together with an earlier folder.
        if os.path.lexists(path):
            remove(path)
    for folder in weights:
        gone += remove_weights(folder, folder in stay, dry)
    for folder in [one for one in empty if one not in gone]:
        left = set(folder.iterdir()) - set(gone) if folder.is_dir() and not folder.is_symlink() else None
        # The removal checks the contents again: a file may have been added meanwhile.
        if left == set() and (dry or removed_folder(folder)):
            gone.append(folder)
    return gone


def inner(folder: Path) -> list[Path]:
    """Return the contents of a folder; empty if it does not exist."""
    return sorted(folder.iterdir()) if folder.is_dir() else []


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder, unless a file system is mounted in it."""
    if path.is_dir() and not path.is_symlink():
        if mounted := [one for one in mounts() if one == path or path in one.parents]:
            raise OSError(errno.EBUSY, "a file system is mounted there", str(mounted[0]))
        # The mark of weights that are being fetched is removed last.
        remove_own(path) if (path / WORK).is_dir() else shutil.rmtree(path)
    else:
        path.unlink()


def mounts() -> list[Path]:
    """Return the mount points of file systems."""
    text = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    return [Path(line.split()[1].replace("\\040", " ")) for line in text.splitlines()]


def removed_folder(folder: Path) -> bool:
    """Remove an empty folder; return whether it was removed."""
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


def listed(folder: Path) -> list[Path] | None:
    """Return the files of a folder of weights that its record lists; None without a record."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    whole = folder.resolve()
    # A link to another folder leads to files of a user.
    inside = [folder / name for name in files if ".." not in Path(name).parts]
    return [path for path in inside if os.path.lexists(path) and whole in (path.parent.resolve() / "x").parents]


def remove_weights(folder: Path, stays: bool, dry: bool) -> list[Path]:
    """Remove the files that a folder's record lists, the record last, then empty folders."""
    files = listed(folder)
    if files is None:
        return []
    for path in [] if dry else [*files, folder / MANIFEST]:
        path.unlink()
    if not dry:
        below = sorted((path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink()), reverse=True)
        for path in [*below, *([] if stays else [folder])]:
            removed_folder(path)
    return [folder]
