"""What fetching and converting share: the manifest, checksums, disk space, renaming, locks, progress.

Standard library only: fetching from git or a path, and converting, need nothing else on the host.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from weights_names import MANIFEST, WORK, old_of
from whole import sync_folder, write_whole

GIB = 1 << 30
CHUNK = 1 << 22
# A file system that is full to the last byte serves nobody; what is written besides the weights needs some too.
SPARE = 16 << 20
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class WeightsError(Exception):
    """Why it cannot be done; the text is for the user, and trying again does not help."""


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return a folder's manifest, or None where there is no readable one."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("files"), dict) else None


def write_manifest(folder: Path, source: dict[str, Any], revision: str | None, files: dict[str, Any]) -> None:
    """Write a folder's manifest beside its place and rename it.

    Args:
        folder: the folder that it describes.
        source: where the files came from, as the user said it.
        revision: what was resolved from it, such as a commit.
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
    """Return a file's sha256 and, where asked for, the name that git gives its content."""
    sha256, total = hashlib.sha256(), path.stat().st_size
    sha1 = hashlib.sha1(b"blob %d\0" % total, usedforsecurity=False) if blob else None
    with path.open("rb") as handle:
        while chunk := handle.read(CHUNK):
            sha256.update(chunk)
            if sha1:
                sha1.update(chunk)
    return sha256.hexdigest(), sha1.hexdigest() if sha1 else None


def entry(path: Path, sha256: str | None) -> dict[str, Any]:
    """Return a file's line of the manifest."""
    stat = path.stat()
    return {"size": stat.st_size, "sha256": sha256, "mtime_ns": stat.st_mtime_ns}


def untouched(path: Path, known: dict[str, Any]) -> bool:
    """Tell, without reading it, whether a file is as the manifest has it."""
    try:
        stat = path.stat()
    except OSError:
        return False
    return (stat.st_size, stat.st_mtime_ns) == (known["size"], known["mtime_ns"])


def files_below(folder: Path) -> dict[str, Path]:
    """Return the files of a model by name; neither git's nor the toolkit's own, and no links out of the folder."""
    return {name: path for name, path in _named(folder).items() if inside(path, folder)}


def links_out(folder: Path) -> list[str]:
    """Return the names that are links to files elsewhere: what such a file holds was not put into the folder."""
    return [name for name, path in _named(folder).items() if not inside(path, folder)]


def inside(path: Path, folder: Path) -> bool:
    """Tell whether a file, all links followed, is one of a folder's own."""
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
        WeightsError: where it would leave it, or be taken for the toolkit's own.
    """
    parts = name.split("/")
    if name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in parts) or parts[0] == WORK:
        raise WeightsError(f"the source names a file {name!r}, which has no place in a folder of weights")
    return name


def need_space(job: dict[str, Any], folder: Path, needed: int) -> None:
    """Look at the free space before anything is written.

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
    """Give a whole folder its final name; what had it is removed afterwards."""
    old = old_of(target)
    # An empty folder is taken the place of by the rename itself.
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
    """Let one run at a time work on a model; a second one waits for the first."""
    with (state / "lock").open("w", encoding="ascii") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log("another run works on this model; waiting for its end")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


class Log:
    """Lines with the time, in a file that is kept; no secret gets through."""

    def __init__(self, path: Path, secrets: list[str]) -> None:
        self.path, self.secrets = path, [secret for secret in secrets if secret]

    def __call__(self, text: str) -> None:
        """Append one line."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        with self.path.open("a", encoding="utf-8") as handle:
            handle.write(f"{now} {self.clean(text)}\n")

    def clean(self, text: str) -> str:
        """Return a text without secrets, be they given ones or part of an address."""
        for secret in self.secrets:
            text = text.replace(secret, "(hidden)")
        return re.sub(r"(\w://)[^/@\s]+@", r"\1(hidden)@", text)


@contextlib.contextmanager
def progress(log: Log, done: Callable[[], int], total: int, every_s: float) -> Iterator[None]:
    """Log how much is there, at most once in so many seconds."""
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
    """Let nothing go on beside a job."""
    return contextlib.nullcontext()


def run_job(
    work: Callable[[dict[str, Any], Log], dict[str, Any]],
    log_name: str,
    beside: Callable[[dict[str, Any]], contextlib.AbstractContextManager[None]] = nothing_beside,
) -> int:
    """Read a job from standard input, do it, and print its result as one line of JSON.

    Args:
        work: does the job.
        log_name: file of the job's ``state`` folder.
        beside: what goes on from the first moment to the last, also while another run is waited for.
    """
    os.umask(0o022)
    job = json.load(sys.stdin)
    state = Path(job["state"])
    log = Log(state / log_name, [job.pop("token", None) or ""])
    job["secrets"] = log.secrets
    trace = ""
    try:
        state.mkdir(parents=True, exist_ok=True)
        with beside(job), alone(state, log):
            result = work(job, log)
    except WeightsError as problem:
        result = {"failed": True, "msg": str(problem)}
    except OSError as problem:
        full = "the file system is full" if problem.errno in FULL else str(problem)
        result = {"failed": True, "msg": f"{job['host']}: model {job['name']}: {full}; what is there stays for a rerun"}
    except Exception as problem:  # whatever it is: nobody sees the standard error of a task without log
        trace = traceback.format_exc()
        told = f"{type(problem).__name__}: {problem} (a mistake of the toolkit's; see {state / log_name})"
        result = {"failed": True, "msg": f"{job['host']}: model {job['name']}: {told}"}
    result["msg"] = log.clean(result["msg"])
    # A disk that is full must not keep the reason from being told.
    with contextlib.suppress(OSError):
        log(trace + result["msg"])
    print(json.dumps(result))
    return 1 if result.get("failed") else 0
