"""Images by digest: skopeo copies them unchanged from the registry."""

from __future__ import annotations

import base64
import bz2
import gzip
import hashlib
import json
import lzma
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...core.images import split_registry
from ...core.words import short_digest
from ...host.bundle_verify import CHUNK, checksum
from ...host.pull import full_name
from ...stages.image import registry_login
from ..items import Item
from .base import Bundle, FetchError, Got, Outcome, again, each, of_kind, size_of

ARCHIVE = re.compile(r"archive (?P<path>.+) on the control node")
ON_HOST = re.compile(r"archive .+ on the host")
# The first bytes of compressed archives, and the function that reads them.
PACKED: Mapping[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
BLOB = re.compile(r"[0-9a-f]{64}")
LICENCES = "org.opencontainers.image.licenses"
POLICIES = (Path("~/.config/containers/policy.json").expanduser(), Path("/etc/containers/policy.json"))


def fetch(bundle: Bundle, items: Sequence[Item]) -> Outcome:
    """Download images; blobs that several images share are one file on disk."""
    with _logged_in(bundle) as options:
        return each(of_kind(items, "image"), bundle, lambda bundle, item: _Image(bundle, item, options).got())


def repository_of(item: Item) -> str:
    """Return the complete name of an image without tag and digest, such as docker.io/library/debian."""
    return full_name(item.name)


@contextmanager
def _logged_in(bundle: Bundle) -> Iterator[list[str]]:
    """Yield the option for a temporary file with the logins of the inventory."""
    if not bundle.access.logins:
        yield []
        return
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "auth.json"
        path.touch(0o600)
        names = {split_registry(f"{key}/x")[0] for key in bundle.access.logins}
        logins = {key: registry_login(bundle.access.logins, f"{key}/x") for key in names}
        words = {key: f"{one['username']}:{one['password']}".encode() for key, one in logins.items()}
        auths = {key: {"auth": base64.b64encode(one).decode()} for key, one in words.items()}
        path.write_text(json.dumps({"auths": auths}), encoding="utf-8")
        yield ["--authfile", str(path)]


class _Image:
    """One image."""

    def __init__(self, bundle: Bundle, item: Item, login: Sequence[str]) -> None:
        self.bundle, self.item = bundle, item
        self.repository = repository_of(item)
        known = registry_login(bundle.access.logins, self.repository)
        # For other registries, skopeo uses this user's own logins.
        self.login = list(login) if known else []

    def got(self) -> Got:
        """Return the image; it is copied if it is missing."""
        archive = ARCHIVE.fullmatch(self.item.origin)
        if archive:
            return self.of_archive(Path(archive["path"]))
        digest = self.item.version if self.item.version.startswith("sha256:") else self.asked()
        # An interrupted run may have copied it already; file names contain the digest of their content.
        if not self.bundle.has(self.path(digest)) and not is_whole(self.bundle.folder / self.path(digest), digest):
            self.copied(f"docker://{self.repository}@{digest}", digest)
        return self.told(digest)

    def of_archive(self, archive: Path) -> Got:
        """Return the image of a local archive; it is converted again only if the archive's checksum has changed."""
        if not archive.is_file():
            raise FetchError(f"{archive}: is not a file on this machine")
        with archive.open("rb") as handle:
            made = f"archive sha256:{hashlib.file_digest(handle, 'sha256').hexdigest()}"
        last = self.bundle.last(self.item)
        if last and last.fetched == made:
            return again(last)
        with self.unpacked(archive) as plain:
            digest = self.copied(f"docker-archive:{plain}", "")
        return Got(**{**vars(self.told(digest)), "fetched": made})

    @contextmanager
    def unpacked(self, archive: Path) -> Iterator[Path]:
        """Yield an uncompressed archive, because skopeo 1.9 (Debian 12) does not read compressed ones."""
        with archive.open("rb") as handle:
            start = handle.read(len(max(PACKED, key=len)))
        opener = next((one for magic, one in PACKED.items() if start.startswith(magic)), None)
        if opener is None:
            yield archive
            return
        self.bundle.work.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.bundle.work, suffix=".tar") as plain:
            try:
                with opener(archive) as packed:
                    shutil.copyfileobj(packed, plain, CHUNK)
            except (OSError, EOFError, lzma.LZMAError) as problem:
                raise FetchError(f"{archive}: cannot be unpacked: {problem}") from problem
            plain.flush()
            yield Path(plain.name)

    def asked(self) -> str:
        """Return the registry's current digest for the tag."""
        place = f"docker://{self.repository}:{self.item.version}"
        text = self.skopeo("inspect", "--raw", *self.login, place)
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def copied(self, source: str, digest: str) -> str:
        """Copy the image in all architectures, because the digest may be that of their index."""
        stage = self.bundle.work / "images" / (digest.removeprefix("sha256:") or "archive")
        shutil.rmtree(stage, ignore_errors=True)
        stage.parent.mkdir(parents=True, exist_ok=True)
        login = self.login if source.startswith("docker://") else []
        keep = ["--all", "--preserve-digests"] if digest else []
        self.skopeo("copy", "--quiet", *keep, *login, source, f"dir:{stage}")
        found = f"sha256:{hashlib.sha256((stage / 'manifest.json').read_bytes()).hexdigest()}"
        if digest and found != digest:
            raise FetchError(f"skopeo: fetched {short_digest(found)} in place of {short_digest(digest)}")
        self.shared(stage)
        self.bundle.swap(stage, self.path(found))
        return found

    def shared(self, stage: Path) -> None:
        """Link blobs that another image of the bundle has, instead of storing them twice."""
        have = {one.name: one for one in (self.bundle.folder / "images").rglob("*") if BLOB.fullmatch(one.name)}
        for path in sorted(stage.iterdir()):
            other = have.get(path.name)
            if other and other.is_file() and other.stat().st_size == path.stat().st_size:
                linked = path.with_name("linked")
                os.link(other, linked)
                linked.replace(path)

    def told(self, digest: str) -> Got:
        """Return the result for an image that is in the bundle."""
        path = self.path(digest)
        fetched = "" if self.item.version.startswith("sha256:") else digest
        folder = self.bundle.folder / path
        return Got(path, size_of(folder), digest=digest, fetched=fetched, licence=licence(folder))

    def path(self, digest: str) -> str:
        """Return the folder of an image in the bundle."""
        return f"images/{self.repository}/{digest.removeprefix('sha256:')}"

    def skopeo(self, *words: str) -> str:
        """Run skopeo; without a signature policy on this machine, any image is accepted, as container engines do."""
        policy = [] if any(one.is_file() for one in POLICIES) else ["--insecure-policy"]
        return self.bundle.run(["skopeo", *policy, *words]).stdout


def is_whole(folder: Path, digest: str) -> bool:
    """Return whether a folder contains the image with this digest and everything that its manifests name."""
    manifests = [("manifest.json", digest)]
    while manifests:
        name, wanted = manifests.pop()
        if checksum(folder / name) != wanted.removeprefix("sha256:"):
            return False
        found = _json(folder / name)
        listed = [str(one.get("digest")) for one in found.get("manifests") or ()]
        manifests += [(f"{one.removeprefix('sha256:')}.manifest.json", one) for one in listed]
        parts = [found.get("config") or {}, *(found.get("layers") or ())]
        blobs = [str(one["digest"]).removeprefix("sha256:") for one in parts if one.get("digest")]
        if any(checksum(folder / one) != one for one in blobs):
            return False
    return True


def licence(folder: Path) -> str:
    """Return the licence in a label or annotation of an image; empty without one."""
    found = _json(folder / "manifest.json")
    listed = [str(one.get("digest")) for one in found.get("manifests") or ()]
    manifests = [found, *(_json(folder / f"{one.removeprefix('sha256:')}.manifest.json") for one in listed)]
    for one in manifests:
        config = _json(folder / str((one.get("config") or {}).get("digest", "")).removeprefix("sha256:"))
        labels = (config.get("config") or {}).get("Labels") or {}
        said = labels.get(LICENCES) or (one.get("annotations") or {}).get(LICENCES)
        if said:
            return str(said)
    return ""


def _json(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, Mapping) else {}
