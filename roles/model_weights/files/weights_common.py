"""Shared code of fetching and converting: the manifest, checksums, disk space, renaming, locks, progress.

Standard library only: fetching from git or a path, and converting, need nothing else on the host.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hide import hidden, logins
from weights_names import MANIFEST, WORK, old_of
from whole import sync_folder, write_whole

GIB = 1 << 30
CHUNK = 1 << 22
# A file system must keep some free space, because other files than weights are written too.
SPARE = 16 << 20
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class WeightsError(Exception):
    """An error of a job. The text is for the user, and a retry does not help."""


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return a folder's manifest, or None without a readable one."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("files"), dict) else None


def write_manifest(folder: Path, source: dict[str, Any], revision: str | None, files: dict[str, Any]) -> None:
    """Write a folder's manifest next to its path and rename it.

    Args:
        folder: the folder that it describes.
        source: source of the files, as the user set it.
        revision: the resolved revision, such as a commit.
        files: ``{name: {size (bytes), sha256, mtime_ns}}``.
    """
    manifest = {
        "version": 1,
        "source": source,
        "revision": revision,
        "bytes": sum(file["size"] for file in files.values()),
        "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "files": dict(sorted(files.items())),
    }
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n", 0o644)


def digests(path: Path, blob: bool = False) -> tuple[str, str | None]:
    """Return a file's sha256 and, on request, the name that git gives its content."""
    sha256, total = hashlib.sha256(), path.stat().st_size
    sha1 = hashlib.sha1(b"blob %d\0" % total, usedforsecurity=False) if blob else None
    with path.open("rb") as handle:
        while chunk := handle.read(CHUNK):
            sha256.update(chunk)
            if sha1:
                sha1.update(chunk)
    return sha256.hexdigest(), sha1.hexdigest() if sha1 else None


def entry(path: Path, sha256: str | None) -> dict[str, Any]:
    """Return a file's entry of the manifest."""
    stat = path.stat()
    return {"size": stat.st_size, "sha256": sha256, "mtime_ns": stat.st_mtime_ns}


def untouched(path: Path, known: dict[str, Any]) -> bool:
    """Return, without reading it, whether a file is as in the manifest."""
    try:
        stat = path.stat()
    except OSError:
        return False
    return (stat.st_size, stat.st_mtime_ns) == (known["size"], known["mtime_ns"])


def files_below(folder: Path) -> dict[str, Path]:
    """Return the files of a model by name, without git's and the toolkit's own files, and links out of the folder."""
    return {name: path for name, path in _named(folder).items() if inside(path, folder)}


def links_out(folder: Path) -> list[str]:
    """Return the names that are links to files outside the folder, whose content is not part of it."""
    return [name for name, path in _named(folder).items() if not inside(path, folder)]


def inside(path: Path, folder: Path) -> bool:
    """Return whether a file, after following all links, is in the folder."""
    try:
        return path.resolve(strict=True).is_relative_to(folder.resolve(strict=True))
    except (OSError, RuntimeError):
        return False


def _named(folder: Path) -> dict[str, Path]:
    found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    hidden = (".git", WORK, ".cache")
    return {name: path for name, path in found.items() if name.split("/")[0] not in hidden and name != MANIFEST}


def safe_name(name: str) -> str:
    """Return a file's name if it stays inside its folder.

    Raises:
        WeightsError: if it would be outside, or has a name of the toolkit.
    """
    parts = name.split("/")
    if name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in parts) or parts[0] == WORK:
        raise WeightsError(f"the source has a file {name!r}, whose name is not allowed in a folder of weights")
    return name


def need_space(job: dict[str, Any], folder: Path, needed: int) -> None:
    """Check the free space before anything is written.

    Raises:
        WeightsError: with host, model, path, needed and free GiB.
    """
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed and needed + SPARE > free:
        raise WeightsError(
            f"{job['host']}: model {job['name']}: {folder} needs {needed / GIB:.2f} GiB"
            f"{job.get('space_reason', '')}, its file system has {free / GIB:.2f} GiB free; "
            "free some, or choose another folder"
        )


def put_in_place(partial: Path, target: Path) -> None:
    """Give a complete folder its final name. The previous folder is removed afterwards."""
    old = old_of(target)
    # The rename itself replaces an empty folder.
    if target.exists() and any(target.iterdir()):
        if old.exists():
            shutil.rmtree(old)
        target.rename(old)
    partial.rename(target)
    sync_folder(target.parent)
    if old.exists():
        shutil.rmtree(old)


@contextlib.contextmanager
def alone(state: Path, log: Log) -> Iterator[None]:
    """Let only one run at a time work on a model. A second one waits for the first."""
    with (state / "lock").open("w", encoding="ascii") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log("another run works on this model; waiting until it ends")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


class Log:
    """A log file with a time on each line, and without secrets."""

    def __init__(self, path: Path, secrets: list[str]) -> None:
        self.path, self.secrets = path, [secret for secret in secrets if secret]

    def __call__(self, text: str) -> None:
        """Append one line."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        with self.path.open("a", encoding="utf-8") as handle:
            handle.write(f"{now} {self.clean(text)}\n")

    def clean(self, text: str) -> str:
        """Return a text without secrets, whether they were given or are part of an address."""
        return hidden(text, self.secrets)


@contextlib.contextmanager
def progress(log: Log, done: Callable[[], int], total: int, every_s: float) -> Iterator[None]:
    """Log the progress, at most once in so many seconds."""
    end = threading.Event()

    def tell() -> None:
        before, begin = done(), time.monotonic()
        while not end.wait(every_s):
            now, seconds = done(), time.monotonic() - begin
            speed = max(now - before, 0) / seconds
            left = f", {(total - now) / speed / 60:.0f} min left" if speed else ""
            log(f"{now / GIB:.2f} of {total / GIB:.2f} GiB{left}")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def nothing_beside(job: dict[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Run nothing next to a job."""
    return contextlib.nullcontext()


def run_job(
    work: Callable[[dict[str, Any], Log], dict[str, Any]],
    log_name: str,
    beside: Callable[[dict[str, Any]], contextlib.AbstractContextManager[None]] = nothing_beside,
) -> int:
    """Read a job from standard input, run it, and print its result as one line of JSON.

    Args:
        work: runs the job.
        log_name: file of the job's ``state`` folder.
        beside: runs from start to end, also while the job waits for another run.
    """
    os.umask(0o022)
    job = json.load(sys.stdin)
    state = Path(job["state"])
    token = job.pop("token", None) or ""
    log = Log(state / log_name, [token, *logins(job.get("source"), job.get("proxies"))])
    job["secrets"] = [token] if token else []
    trace = ""
    try:
        state.mkdir(parents=True, exist_ok=True)
        with beside(job), alone(state, log):
            result = work(job, log)
    except WeightsError as problem:
        result = {"failed": True, "msg": str(problem)}
    except OSError as problem:
        full = "the file system is full" if problem.errno in FULL else str(problem)
        text = f"{job['host']}: model {job['name']}: {full}; fetched files stay for the next run"
        result = {"failed": True, "msg": text}
    except Exception as problem:  # any error: standard error of a task without log is not visible
        trace = traceback.format_exc()
        told = f"{type(problem).__name__}: {problem} (a bug of the toolkit; see {state / log_name})"
        result = {"failed": True, "msg": f"{job['host']}: model {job['name']}: {told}"}
    result["msg"] = log.clean(result["msg"])
    # A full disk must not hide the reason.
    with contextlib.suppress(OSError):
        log(trace + result["msg"])
    print(json.dumps(result))
    return 1 if result.get("failed") else 0
