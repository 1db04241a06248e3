"""What every part needs: where things are kept, how commands run, how progress is shown."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SHARED = Path(__file__).resolve().parents[1]
REPOSITORY = SHARED.parents[1]
LABEL = "gaudi-serve.testhost"
# What tools leave behind in folders; neither part of a key nor of an image.
NO_INPUT = (".", "__pycache__")
# Images carry the key of what they were made from; only images with this label are ever removed.
KEY_LABEL = "gaudi-serve.key"
TICK_S = 15


class HostError(Exception):
    """Why the test hosts cannot be made; the text is for the user."""


def cache() -> Path:
    """Return the folder of everything that is made once and kept, and create it."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(os.environ.get("GAUDI_SERVE_CACHE") or Path(base) / "gaudi-serve")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def say(text: str) -> None:
    """Report progress; standard output is for results."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def ticking(current: Callable[[], tuple[str, float]]) -> Iterator[None]:
    """Report every few seconds what goes on: its text, and when it began (``time.monotonic``)."""
    over = threading.Event()

    def report() -> None:
        while not over.wait(TICK_S):
            text, begin = current()
            say(f"{text}: {time.monotonic() - begin:.0f} s so far")

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def step(text: str) -> Iterator[None]:
    """Report a long step: that it begins, that it goes on, and how long it took."""
    start, ended = time.monotonic(), "failed after "
    say(f"{text} ...")
    try:
        with ticking(lambda: (text, start)):
            yield
        ended = ""
    finally:
        say(f"{text}: {ended}{time.monotonic() - start:.0f} s")


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Let one process at a time do what the name stands for."""
    with (cache() / f"{name}.lock").open("w", encoding="ascii") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def run(
    *argv: str | Path, stdin: str | None = None, env: dict[str, str] | None = None, timeout: float | None = None
) -> str:
    """Run a command and return its output; its last lines are the message when it fails."""
    words = [str(word) for word in argv]
    environment = {**os.environ, **(env or {})}
    try:
        done = subprocess.run(
            words, input=stdin, capture_output=True, text=True, env=environment, timeout=timeout, check=False
        )
    except FileNotFoundError as problem:
        raise HostError(f"{words[0]} is not installed") from problem
    except subprocess.TimeoutExpired as problem:
        raise HostError(f"{' '.join(words[:4])}: no answer within {timeout:g} s") from problem
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise HostError(f"{' '.join(words[:6])}: status {done.returncode}\n{tail}")
    return done.stdout


def succeeds(*argv: str | Path, timeout: float = 30) -> bool:
    """Return whether a command succeeds, whatever it reports."""
    try:
        run(*argv, timeout=timeout)
    except HostError:
        return False
    return True


def digest(*inputs: Path | str) -> str:
    """Return a short key of files, folders and texts: their names below, modes and contents."""
    total = hashlib.sha256()
    for one in inputs:
        if isinstance(one, str):
            total.update(b"text\0" + one.encode() + b"\0")
            continue
        for path in [one] if one.is_file() else sorted(path for path in one.rglob("*") if path.is_file()):
            name = path.name if path == one else path.relative_to(one).as_posix()
            if any(part.startswith(NO_INPUT) for part in name.split("/")):
                continue
            executable = b"x" if path.stat().st_mode & 0o100 else b"-"
            total.update(name.encode() + b"\0" + executable + path.read_bytes() + b"\0")
    return total.hexdigest()[:16]


def remove_superseded(pattern: str, keep: Path) -> None:
    """Remove files of the same kind that were made from older inputs."""
    for path in cache().glob(pattern):
        if path == keep:
            continue
        # Docker makes a folder of a mount's source that was removed just before.
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()


def install(package: str, program: str) -> None:
    """Install a Debian or Ubuntu package where its program is missing."""
    if succeeds("sh", "-c", f"PATH=$PATH:/usr/sbin:/sbin command -v {program}"):
        return
    with step(f"Installing {package}"):
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        if not succeeds("apt-get", "install", "--yes", "--no-install-recommends", package, timeout=600):
            run("apt-get", "update", env=quiet)
            run("apt-get", "install", "--yes", "--no-install-recommends", package, env=quiet)
