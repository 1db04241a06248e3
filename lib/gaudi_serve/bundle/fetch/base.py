"""What all fetchers share: the folder of a bundle, running programs, and what fetching an item gave."""

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

LINES = 3  # of what a program said last
Stat = tuple[int, int, int]


class FetchError(Exception):
    """Why an item could not be fetched; the text is for the user and has no secret."""


@dataclass(frozen=True)
class Got:
    """What fetching an item gave; the fields are those of Item. keeps: further files or folders that belong to it."""

    path: str
    bytes: int | None = None
    sha256: str = ""
    digest: str = ""
    fetched: str = ""
    licence: str = ""
    keeps: tuple[str, ...] = ()


@dataclass
class Outcome:
    """What fetching some items gave.

    got: by identity. failed: the reason, by identity. keeps: files and folders that stay, beside the paths of items.
    """

    got: dict[tuple[str, ...], Got] = field(default_factory=dict)
    failed: dict[tuple[str, ...], str] = field(default_factory=dict)
    keeps: set[str] = field(default_factory=set)

    def join(self, other: Outcome) -> None:
        """Take over what others gave."""
        self.got |= other.got
        self.failed |= other.failed
        self.keeps |= other.keeps


@dataclass(frozen=True)
class Bundle:
    """A bundle that is being fetched.

    folder: of the bundle. sums: the checksums of files that are there and as they were signed. stats: by which a file
    that was replaced since is known. broken: files that were signed and are missing or changed. said: the items of the
    last manifest by identity. tell: takes a line for the reader.
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
        """Return the folder of what is not finished, on the same file system."""
        return self.folder / WORK

    def has(self, path: str) -> bool:
        """Tell whether a file, or a folder with all of its files, is there as it was signed."""
        if not path or path in self.broken:
            return False
        if path in self.sums:
            return True
        start = f"{path}/"
        return any(one.startswith(start) for one in self.sums) and not any(one.startswith(start) for one in self.broken)

    def last(self, item: Item) -> Item | None:
        """Return what the last manifest says of an item whose files are still there."""
        found = self.said.get(item.identity)
        return found if found and self.has(found.path) else None

    def place(self, source: Path, path: str) -> None:
        """Give a finished file or folder of the work folder its final name; nothing that is there is replaced."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)

    def swap(self, source: Path, path: str) -> None:
        """Give a finished folder of the work folder its final name, in place of an older one."""
        old = self.work / "replaced"
        shutil.rmtree(old, ignore_errors=True)
        if (self.folder / path).exists():
            (self.folder / path).rename(old)
        self.place(source, path)
        shutil.rmtree(old, ignore_errors=True)

    def sum(self, path: str) -> str:
        """Return the SHA-256 of a file of the bundle; it is read only where it is another file than at the begin."""
        same = path in self.sums and self.stats.get(path) == stat_of(self.folder / path)
        return self.sums[path] if same else checksum(self.folder / path)

    def run(
        self, argv: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program, and return what it said.

        Raises:
            FetchError: with the last lines of a program that failed.
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
        """Return why a program failed: its errors, or the last lines that it said."""
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("E:", "ERROR:", "fatal:", "error:"))]
        text = "; ".join((errors or lines)[-LINES:]) or f"status {done.returncode}"
        return f"{program}: {self.access.cleaned(text, [self.settings.apt_sources])}"


def stat_of(path: Path) -> Stat | None:
    """Return by what a file is known to be the same as before; None where there is none."""
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
    """Fetch items one after the other; one that fails keeps none of the others."""
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
    """Return bytes for a reader."""
    if size is None:
        return "there"
    return f"{size / 1e9:,.1f} GB" if size >= 10**9 else f"{size / 1e6:,.1f} MB"


def again(item: Item) -> Got:
    """Return what an item that is there gave when it was fetched."""
    return Got(item.path, item.bytes, item.sha256, item.digest, item.fetched, item.licence)


def of_kind(items: Iterable[Item], *kinds: str) -> list[Item]:
    """Return the items of some kinds."""
    return [one for one in items if one.kind in kinds]


Fetcher = Callable[[Bundle, Sequence[Item]], Outcome]
Values = Mapping[str, Any]
