"""Small readers for the state of a host, none of which raises on what is missing, and one writer."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple


class Result(NamedTuple):
    """What a command gave: exit status, standard output, standard error."""

    status: int
    out: str
    err: str


def run(argv: list[str], timeout: float = 20.0) -> Result:
    """Run a command without a shell. A missing or hanging one gives status 127 or 124."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=timeout, check=False)
    except FileNotFoundError:
        return Result(127, "", f"{argv[0]}: not found")
    except PermissionError:
        return Result(126, "", f"{argv[0]}: not allowed")
    except subprocess.TimeoutExpired:
        return Result(124, "", f"{argv[0]}: no answer within {timeout:g} s")
    return Result(done.returncode, done.stdout, done.stderr)


def read_text(path: str | Path) -> str | None:
    """Return a file's text, or None where there is no readable file."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def sha256_file(path: str | Path) -> str | None:
    """Return the hex digest of a file's content, or None where there is no readable file."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


def interrupted_dpkg() -> str:
    """Return what dpkg says of packages that are not wholly installed; empty where it was not cut off."""
    audit = run(["dpkg", "--audit"], timeout=120).out.strip()
    # Its own journal of a run: apt refuses to work while there is one, whatever it says.
    journal = [path.name for path in Path("/var/lib/dpkg/updates").glob("[0-9]*")]
    return audit or ("dpkg's journal was not taken over" if journal else "")


def write_whole(path: str | Path, text: str, mode: int) -> None:
    """Write a file beside its name, bring it to the disk and rename it: a power cut leaves the old one or the new one.

    The owner of a file that is there already stays; the folder must be there.

    Raises:
        OSError: where the system refuses; the file is as it was then, and nothing lies beside it.
    """
    target = Path(path)
    with tempfile.NamedTemporaryFile(
        "w", dir=target.parent, prefix=f".{target.name}.", encoding="utf-8", delete=False
    ) as beside:
        try:
            beside.write(text)
            beside.flush()
            if target.exists():
                os.fchown(beside.fileno(), target.stat().st_uid, target.stat().st_gid)
            os.fchmod(beside.fileno(), mode)
            os.fsync(beside.fileno())
            Path(beside.name).replace(target)
        except OSError:
            Path(beside.name).unlink()
            raise
    sync_folder(target.parent)


def sync_folder(path: Path) -> None:
    """Bring a folder's names to the disk, where later steps rely on what is there and what is gone."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: str | Path, content: Any) -> None:
    """Write a JSON file of mode 0640, and its folder."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(content, indent=2, sort_keys=True) + "\n", 0o640)


def since_boot() -> float:
    """Return the seconds since the boot of this machine; no change of the clock moves them."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
