"""Small readers for the state of a host, none of which raises on what is missing, and one writer."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
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


def write_json(path: str | Path, content: Any) -> None:
    """Write a file of mode 0640 beside its final name, then rename it: it is never there in half."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(target.name + ".new")
    with beside.open("w", encoding="utf-8") as handle:
        handle.write(json.dumps(content, indent=2, sort_keys=True) + "\n")
        handle.flush()
        os.fsync(handle.fileno())  # a power cut must not leave the new name with nothing in it
    beside.chmod(0o640)
    beside.replace(target)


def since_boot() -> float:
    """Return the seconds since the boot of this machine; no change of the clock moves them."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
