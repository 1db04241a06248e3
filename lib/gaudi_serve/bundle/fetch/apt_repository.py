"""A signed apt repository in a folder: packages, their index, and its signature."""

from __future__ import annotations

import lzma
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from .base import Bundle
from .signing import Signer, fingerprint_of

INDEXES = ("Packages", "Packages.xz", "Release", "InRelease")


class Repository:
    """The repository of one system."""

    def __init__(self, bundle: Bundle, path: str, architecture: str, signer: Signer) -> None:
        self.bundle, self.path, self.architecture, self.signer = bundle, path, architecture, signer
        self.folder = bundle.folder / path

    def write(self, names: Sequence[str]) -> set[str]:
        """Write the index of some packages, unless it exists as signed; return all paths of the repository.

        Args:
            names: files in its folder ``pool``.
        """
        if not self._is_of(names):
            self._index(names)
        return {f"{self.path}/{name}" for name in (*INDEXES, *(f"pool/{one}" for one in names))}

    def _is_of(self, names: Sequence[str]) -> bool:
        """Return whether the index lists exactly these packages with their checksums, signed with the current key."""
        sums = self.bundle.sums
        if not all(f"{self.path}/{one}" in sums for one in (*INDEXES, *(f"pool/{name}" for name in names))):
            return False
        text = (self.folder / "Packages").read_text(encoding="utf-8")
        listed = [line.removeprefix("Filename: ") for line in text.splitlines() if line.startswith("Filename: ")]
        known = {line.removeprefix("SHA256: ") for line in text.splitlines() if line.startswith("SHA256: ")}
        same = {sums[f"{self.path}/pool/{name}"] for name in names} == known
        return same and sorted(listed) == sorted(f"pool/{one}" for one in names) and self._is_signed()

    def _is_signed(self) -> bool:
        return fingerprint_of(self.bundle.folder) == self.signer.fingerprint

    def _index(self, names: Sequence[str]) -> None:
        stage = self.bundle.work / f"{self.path}/index"
        shutil.rmtree(stage, ignore_errors=True)
        (stage / "pool").mkdir(parents=True)
        for name in names:
            os.link(self.folder / "pool" / name, stage / "pool" / name)
        text = self.bundle.run(["apt-ftparchive", "packages", "pool"], cwd=stage).stdout
        (stage / "Packages").write_text(text, encoding="utf-8")
        (stage / "Packages.xz").write_bytes(lzma.compress(text.encode()))
        self._sign(stage)
        for name in INDEXES:
            (stage / name).replace(self.folder / name)

    def _sign(self, stage: Path) -> None:
        values = {"Origin": "gaudi-serve bundle", "Label": "gaudi-serve bundle", "Architectures": self.architecture}
        options = [word for key, value in values.items() for word in ("-o", f"APT::FTPArchive::Release::{key}={value}")]
        text = self.bundle.run(["apt-ftparchive", *options, "release", "."], cwd=stage).stdout
        (stage / "Release").write_text(text, encoding="utf-8")
        self.signer.clear(stage / "Release", stage / "InRelease")
