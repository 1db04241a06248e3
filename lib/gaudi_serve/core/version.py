"""The version of the toolkit, which only galaxy.yml states."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SHOWN = 7  # letters of a commit


def toolkit_version(root: Path = ROOT) -> str:
    """Return the version. In a Git checkout it has the first seven letters of the commit."""
    version, commit = _version(root), _commit(root)
    return f"{version} ({commit})" if commit else version


def _version(root: Path) -> str:
    # ansible-galaxy writes MANIFEST.json into a collection in place of galaxy.yml.
    for path in (root / "galaxy.yml", root / "MANIFEST.json"):
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if found := re.search(r'^ *"?version"?: "?([^\s",]+)', text, re.M):
            return found[1]
    return "unknown"


def _commit(root: Path) -> str:
    """Return the first seven letters of the commit of a checkout, or an empty text without Git."""
    try:
        folder = root / ".git"
        if folder.is_file():  # of a worktree or a submodule
            folder = root / folder.read_text(encoding="utf-8").removeprefix("gitdir: ").strip()
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
