"""What the toolkit puts into and beside folders of weights, and how it tells that from what users put there.

Standard library only: the programs that bring weights to a host import it too, from a folder of their own.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MANIFEST = ".gaudi-serve-weights.json"
# Folder of the toolkit and of the clients inside weights that are being brought; never part of a model.
WORK = ".gaudi-serve-work"
# What is being brought. The name is one that a user may have too: the toolkit's carries a mark, WORK or MANIFEST.
PARTIAL = ".partial"
# What is being replaced, between two renames. Nobody else has such a name.
OLD = ".gaudi-serve-old"


def partial_of(folder: Path) -> Path:
    """Return the folder beside a folder of weights that has its files until all of them are there."""
    return folder.with_name(f"{folder.name}{PARTIAL}")


def old_of(folder: Path) -> Path:
    """Return what a folder is called while another one takes its place."""
    return folder.with_name(f"{folder.name}{OLD}")


def is_own(partial: Path) -> bool:
    """Tell whether a folder that is there is the toolkit's: it has the mark, or nothing at all in it."""
    if partial.is_symlink() or not partial.is_dir():
        return False
    return (partial / WORK).is_dir() or (partial / MANIFEST).is_file() or not any(partial.iterdir())


def leftovers(folder: Path) -> list[Path]:
    """Return what a run that was cut off has left beside a folder."""
    partial, old = partial_of(folder), old_of(folder)
    return [partial] * is_own(partial) + [old] * os.path.lexists(old)


def conflict(folder: Path) -> Path | None:
    """Return what a user has in the place of that folder; None where nothing of a user's is there."""
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

    Its mark goes last: what a run that is cut off here leaves, the next one still knows.

    Raises:
        OSError: where the system refuses; the mark is there then.
    """
    if not is_own(partial):
        return
    for path in sorted(partial.iterdir(), key=lambda path: (path.name == MANIFEST, path.name == WORK)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    partial.rmdir()
