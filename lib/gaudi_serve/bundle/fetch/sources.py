"""Git repositories as complete mirrors that a plain web server can serve."""

from __future__ import annotations

import os
import re
import shutil
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

from ..items import Item
from .base import Bundle, FetchError, Got, Outcome, again, each, of_kind, size_of

SSH = re.compile(r"(?:[\w.-]+@)?([\w.-]+):(?!//)([\w./~-]+)")


def fetch(bundle: Bundle, items: Sequence[Item]) -> Outcome:
    """Download git repositories; one with its commit in the bundle is not queried again."""
    return each(of_kind(items, "source"), bundle, lambda bundle, item: _Mirror(bundle, item).got())


def place_of(address: str) -> str:
    """Return host and path of an address, which are its folders in the bundle.

    Raises:
        FetchError: if the path would leave its folder.
    """
    ssh = SSH.fullmatch(address)
    parts = urllib.parse.urlsplit(address)
    host, path = ssh.groups() if ssh else (parts.netloc.rpartition("@")[2] or "localhost", parts.path)
    path = path.strip("/")
    if not path or {"", ".", ".."} & set(path.split("/")):
        raise FetchError(f"{parts._replace(netloc=host, query='').geturl()}: has no path that a bundle can store")
    return f"{host}/{path}"


class _Mirror:
    """One git repository."""

    def __init__(self, bundle: Bundle, item: Item) -> None:
        self.bundle, self.item = bundle, item
        self.address = bundle.access.origin(item)
        self.path = f"sources/{place_of(self.address)}"
        self.folder = bundle.folder / self.path

    def got(self) -> Got:
        """Return the mirror; fetch into it first if it lacks the commit."""
        last = self.bundle.last(self.item)
        if last and (self.item.version or self.newest() == last.fetched):
            return again(last)
        stage = self.bundle.work / self.path
        if self.item.version and self.commit(self.folder):
            pass  # another item has fetched it
        else:
            self.bring(stage)
            if not self.commit(stage):
                raise FetchError(f"the repository has no commit {self.item.version or 'HEAD'}")
            self.bundle.swap(stage, self.path)
        fetched = "" if self.item.version else self.commit(self.folder)
        return Got(self.path, size_of(self.folder), fetched=fetched)

    def bring(self, stage: Path) -> None:
        """Clone the repository, or fetch its changes into a copy with linked files."""
        if self.folder.exists() and not stage.exists():
            shutil.copytree(self.folder, stage, copy_function=os.link)
        if (stage / "HEAD").exists():
            self.git(stage, "fetch", "--quiet", "--prune", "--force", "--no-write-fetch-head", "origin")
        else:
            shutil.rmtree(stage, ignore_errors=True)
            stage.mkdir(parents=True)
            self.git(stage, "init", "--quiet", "--bare", "--template=", ".")
            self.git(stage, "config", "remote.origin.url", self.shown)
            self.git(stage, "config", "remote.origin.fetch", "+refs/*:refs/*")
            self.git(stage, "config", "remote.origin.mirror", "true")
            self.git(stage, "fetch", "--quiet", "--no-write-fetch-head", "origin")
            self.point_head(stage)
        self.git(stage, "update-server-info")

    def point_head(self, stage: Path) -> None:
        """Point HEAD to the same branch as in the remote repository."""
        told = self.git(stage, "ls-remote", "--symref", "origin", "HEAD").splitlines()
        branch = next((line.split()[1] for line in told if line.startswith("ref: ")), "")
        if branch:
            self.git(stage, "symbolic-ref", "HEAD", branch)

    def newest(self) -> str:
        """Return the current commit of the remote HEAD."""
        told = self.git(self.bundle.folder, "ls-remote", self.shown, "HEAD").split()
        return told[0] if told else ""

    def commit(self, folder: Path) -> str:
        """Return the requested commit of a mirror; empty if the mirror lacks it."""
        if not (folder / "HEAD").exists():
            return ""
        try:
            return self.git(
                folder, "rev-parse", "--verify", "--quiet", f"{self.item.version or 'HEAD'}^{{commit}}"
            ).strip()
        except FetchError:
            return ""

    @property
    def shown(self) -> str:
        """Return the address without its login, for command lines."""
        parts = urllib.parse.urlsplit(self.address)
        if not parts.scheme or "@" not in parts.netloc:
            return self.address
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    def git(self, folder: Path, *words: str) -> str:
        """Run git; a login is only in its environment, which other users cannot read."""
        settings = {"safe.directory": "*", "gc.auto": "0"}
        if self.shown != self.address:
            settings[f"url.{self.address}.insteadOf"] = self.shown
        env = {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_COUNT": str(len(settings))}
        for number, (key, value) in enumerate(settings.items()):
            env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        return self.bundle.run(["git", *words], env, cwd=folder).stdout
