"""Files of the toolkit in and next to folders of weights, and how it recognizes them.

Standard library only: the programs for weights on a host have a copy of this file.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MANIFEST = ".gaudi-serve-weights.json"
# Folder of the toolkit and of the clients inside weights that are being fetched; never part of a model.
WORK = ".gaudi-serve-work"
# A folder that is being fetched. A user may use this name too, so the toolkit's folder has a mark, WORK or MANIFEST.
PARTIAL = ".partial"
# A folder that is being replaced, between two renames. Only the toolkit uses this name.
OLD = ".gaudi-serve-old"


def partial_of(folder: Path) -> Path:
    """Return the folder next to a folder of weights that has the files until they are complete."""
    return folder.with_name(f"{folder.name}{PARTIAL}")


def old_of(folder: Path) -> Path:
    """Return the path of a folder while another one replaces it."""
    return folder.with_name(f"{folder.name}{OLD}")


def is_own(partial: Path) -> bool:
    """Return whether an existing folder is the toolkit's: it has the mark, or is empty."""
    if partial.is_symlink() or not partial.is_dir():
        return False
    return (partial / WORK).is_dir() or (partial / MANIFEST).is_file() or not any(partial.iterdir())


def leftovers(folder: Path) -> list[Path]:
    """Return the folders that an interrupted run has left next to a folder."""
    partial, old = partial_of(folder), old_of(folder)
    return [partial] * is_own(partial) + [old] * os.path.lexists(old)


def conflict(folder: Path) -> Path | None:
    """Return a user's file or folder with the name of the partial folder; None without one."""
    partial = partial_of(folder)
    return partial if os.path.lexists(partial) and not is_own(partial) else None


def refused(label: str, path: Path | str) -> str:
    """Return the sentence for such a conflict; ``label`` names host and model."""
    return (
        f"{label}: {path}: is not managed by the toolkit, and is where it would store incomplete weights; move it away"
        ", or remove it"
    )


def remove_own(partial: Path) -> None:
    """Remove a partial folder if it is the toolkit's.

    The mark is removed last, so that the next run still recognizes the folder after an interruption.

    Raises:
        OSError: if the system refuses; the mark then still exists.
    """
    if not is_own(partial):
        return
    for path in sorted(partial.iterdir(), key=lambda path: (path.name == MANIFEST, path.name == WORK)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    partial.rmdir()
