"""Readers for the state of a host, which do not raise if something is missing, and one writer."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

from .atomic_write import write_whole


class Result(NamedTuple):
    """The result of a command: exit status, standard output, standard error."""

    status: int
    out: str
    err: str


def run(argv: list[str], timeout: float = 20.0) -> Result:
    """Run a command without a shell. The status is 127 if it is missing and 124 if it hangs."""
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
    """Return a file's text, or None if the file cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def sha256_text(text: str) -> str:
    """Return the SHA-256 of a text in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: str | Path) -> str | None:
    """Return the SHA-256 of a file's content in hexadecimal, or None if the file cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


def json_list(path: str | Path) -> list[Any]:
    """Return the list in a JSON file; empty if the file has none."""
    try:
        found = json.loads(read_text(path) or "[]")
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def write_json(path: str | Path, content: Any) -> None:
    """Write a JSON file of mode 0640, and create its folder."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(content, indent=2, sort_keys=True) + "\n", 0o640)


def since_boot() -> float:
    """Return the seconds since the boot of this machine. A change of the clock does not affect them."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def boot_id() -> str:
    """Return the id of this boot of the machine."""
    return (read_text("/proc/sys/kernel/random/boot_id") or "").strip()
