"""Common parts of all downloads: the folder of a bundle, running programs, and the results of items."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...host.bundle_verify import WORK, checksum
from ..access import Access
from ..items import Item
from .settings import Settings

LINES = 3  # last lines of a program's output
Stat = tuple[int, int, int]


class FetchError(Exception):
    """Why an item could not be downloaded; the text is for the user and contains no secret."""


@dataclass(frozen=True)
class Got:
    """The downloaded files of an item; the fields are those of Item. keeps: further files or folders of the item."""

    path: str
    bytes: int | None = None
    sha256: str = ""
    digest: str = ""
    fetched: str = ""
    licence: str = ""
    keeps: tuple[str, ...] = ()


@dataclass
class Outcome:
    """The results of downloading some items.

    got: results by identity. failed: reasons by identity. keeps: files and folders to keep, in addition to the items'.
    """

    got: dict[tuple[str, ...], Got] = field(default_factory=dict)
    failed: dict[tuple[str, ...], str] = field(default_factory=dict)
    keeps: set[str] = field(default_factory=set)

    def join(self, other: Outcome) -> None:
        """Add the results of another outcome."""
        self.got |= other.got
        self.failed |= other.failed
        self.keeps |= other.keeps


@dataclass(frozen=True)
class Bundle:
    """A bundle whose items are downloaded.

    folder: of the bundle. sums: checksums of the files that are unchanged since they were signed. stats: file status,
    to detect files that were replaced since. broken: signed files that are missing or changed. said: the items of the
    last manifest by identity. tell: function that shows a line to the user.
    """

    folder: Path
    settings: Settings
    access: Access
    sums: Mapping[str, str] = field(default_factory=dict)
    stats: Mapping[str, Stat] = field(default_factory=dict)
    broken: frozenset[str] = frozenset()
    said: Mapping[tuple[str, ...], Item] = field(default_factory=dict)
    tell: Callable[[str], None] = print

    @property
    def work(self) -> Path:
        """Return the folder for unfinished downloads, on the same file system."""
        return self.folder / WORK

    def has(self, path: str) -> bool:
        """Return whether a file, or a folder with all its files, is unchanged since it was signed."""
        if not path or path in self.broken:
            return False
        if path in self.sums:
            return True
        start = f"{path}/"
        return any(one.startswith(start) for one in self.sums) and not any(one.startswith(start) for one in self.broken)

    def last(self, item: Item) -> Item | None:
        """Return an item as the last manifest records it; None if its files are gone."""
        found = self.said.get(item.identity)
        return found if found and self.has(found.path) else None

    def place(self, source: Path, path: str) -> None:
        """Move a finished file or folder from the work folder to its final path, without replacing anything."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)

    def swap(self, source: Path, path: str) -> None:
        """Move a finished folder from the work folder to its final path, and replace an older one."""
        old = self.work / "replaced"
        shutil.rmtree(old, ignore_errors=True)
        if (self.folder / path).exists():
            (self.folder / path).rename(old)
        self.place(source, path)
        shutil.rmtree(old, ignore_errors=True)

    def sum(self, path: str) -> str:
        """Return the SHA-256 of a file of the bundle; an unchanged file is not read again."""
        same = path in self.sums and self.stats.get(path) == stat_of(self.folder / path)
        return self.sums[path] if same else checksum(self.folder / path)

    def run(
        self, argv: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program and return its result.

        Raises:
            FetchError: with the last lines of output, if the program fails.
        """
        words = [str(word) for word in argv]
        environment = {**os.environ, "LC_ALL": "C.UTF-8", **(env or {})}
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", env=environment, cwd=cwd, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode != 0:
            raise FetchError(self.reason(Path(words[0]).name, done))
        return done

    def reason(self, program: str, done: subprocess.CompletedProcess[str]) -> str:
        """Return why a program failed: its error lines, or its last lines of output."""
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("E:", "ERROR:", "fatal:", "error:"))]
        text = "; ".join((errors or lines)[-LINES:]) or f"status {done.returncode}"
        return f"{program}: {self.access.cleaned(text, [self.settings.apt_sources])}"


def stat_of(path: Path) -> Stat | None:
    """Return the values that change when a file is replaced; None without a file."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())


def each(
    items: Iterable[Item], bundle: Bundle, fetch: Callable[[Bundle, Item], Got], outcome: Outcome | None = None
) -> Outcome:
    """Download items one by one; a failure does not stop the others."""
    result = outcome or Outcome()
    for item in items:
        try:
            got = fetch(bundle, item)
        except (FetchError, OSError) as problem:
            result.failed[item.identity] = bundle.access.cleaned(str(problem))
            bundle.tell(f"{item.label}: failed: {result.failed[item.identity]}")
            continue
        if not bundle.last(item):
            bundle.tell(f"{item.label}: {told_size(got.bytes)}")
        result.got[item.identity] = got
        result.keeps |= {got.path, *got.keeps}
    return result


def told_size(size: int | None) -> str:
    """Return a size as text."""
    if size is None:
        return "there"
    return f"{size / 1e9:,.1f} GB" if size >= 10**9 else f"{size / 1e6:,.1f} MB"


def again(item: Item) -> Got:
    """Return the recorded result of an item that is already in the bundle."""
    return Got(item.path, item.bytes, item.sha256, item.digest, item.fetched, item.licence)


def of_kind(items: Iterable[Item], *kinds: str) -> list[Item]:
    """Return the items of some kinds."""
    return [one for one in items if one.kind in kinds]


Fetcher = Callable[[Bundle, Sequence[Item]], Outcome]
Values = Mapping[str, Any]
