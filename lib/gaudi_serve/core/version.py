"""The version of the toolkit."""

from __future__ import annotations

from pathlib import Path

VERSION = "1.0.0"  # galaxy.yml and CHANGELOG.md have the same
ROOT = Path(__file__).resolve().parents[3]
SHOWN = 7  # letters of a commit


def toolkit_version(root: Path = ROOT) -> str:
    """Return the version. In a Git checkout it has the first seven letters of the commit."""
    commit = _commit(root)
    return f"{VERSION} ({commit})" if commit else VERSION


def _commit(root: Path) -> str:
    """Return the first seven letters of the commit of a checkout, or an empty text for an installed collection."""
    try:
        folder = root / ".git"
        if folder.is_file():  # of a worktree
            folder = Path(folder.read_text(encoding="utf-8").removeprefix("gitdir: ").strip())
        head = (folder / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head[:SHOWN]
        common = folder / "commondir"
        shared = folder / common.read_text(encoding="utf-8").strip() if common.is_file() else folder
        name = head.removeprefix("ref: ")
        if (shared / name).is_file():
            return (shared / name).read_text(encoding="utf-8").strip()[:SHOWN]
        packed = (shared / "packed-refs").read_text(encoding="utf-8").splitlines()
        return next((line[:SHOWN] for line in packed if line.endswith(f" {name}")), "")
    except OSError:
        return ""
