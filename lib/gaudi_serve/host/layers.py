"""Fetches an image from a registry without the layers that the engine has already. Standard library only.

When an engine pulls, it recognizes layers by the digest of their compressed form, which it stores only for layers that
it has pulled itself. Layers that were loaded from an archive or built on the host would be pulled again. This module
compares layers by the digest of their content, which every image lists, and loads the missing layers as an archive. The
engine reuses the lower layers that it has, and refuses a layer whose content does not match the image's digest.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import ssl
import subprocess
import tarfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from typing import IO, Any

from ..core.errors import InputError
from ..core.run import run
from ..core.words import short_digest
from .observe_services import STATE

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
MANIFESTS = (
    "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json, "
    "application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.index.v1+json"
)
QUIET_S = 60.0
MOST = 8 * 2**20  # bytes of a manifest or a configuration
SMALL, PART = 2**20, 2**20
FOLDER = STATE / "layers"


@dataclass(frozen=True)
class Layer:
    """A layer of an image: its digest and size in the registry, compressed, and the digest of its content."""

    digest: str
    size: int
    content: str


@dataclass(frozen=True)
class Image:
    """An image of a registry: its ID, which is the digest of its configuration, and its layers, the lowest first."""

    id: str
    config: bytes
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Source:
    """A repository of a registry, and the engine's folder with this host's client and CA certificates for it."""

    registry: str
    repository: str
    folder: Path

    def open(self, path: str, accept: str = "*/*") -> IO[bytes]:
        """Return the registry's answer; a proxy of the environment is ignored.

        Raises:
            OSError: if it does not answer, or refuses.
        """
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        context.load_cert_chain(self.folder / "client.cert", self.folder / "client.key")
        handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        address = f"https://{self.registry}/v2/{self.repository}/{path}"
        asked = urllib.request.Request(address, headers={"Accept": accept})
        answer: IO[bytes] = urllib.request.build_opener(*handlers).open(asked, timeout=QUIET_S)
        return answer

    def check(self, digest: str, given: str) -> None:
        """Refuse content whose digest differs from the requested one."""
        if given != digest:
            raise InputError(
                f"{self.registry} gave {short_digest(given)} in place of {short_digest(digest)}, which is not loaded"
            )

    def whole(self, kind: str, digest: str) -> bytes:
        """Return a manifest or a small blob.

        Raises:
            OSError: as above.
            InputError: if it has another digest.
        """
        with self.open(f"{kind}/{digest}", MANIFESTS) as answer:
            body = answer.read(MOST)
        self.check(digest, f"sha256:{hashlib.sha256(body).hexdigest()}")
        return body

    def image(self, digest: str) -> Image | None:
        """Return an image by the digest of its manifest; None for a list of images, or for anything without layers.

        Raises:
            OSError, InputError: as above.
        """
        try:
            manifest = json.loads(self.whole("manifests", digest))
            name = str(manifest["config"]["digest"])
            given = [(str(one["digest"]), int(one["size"])) for one in manifest["layers"]]
            config = self.whole("blobs", name)
            contents = [str(one) for one in json.loads(config)["rootfs"]["diff_ids"]]
            layers = tuple(Layer(*one, content) for one, content in zip(given, contents, strict=True))
        except (KeyError, TypeError, ValueError) as problem:
            if isinstance(problem, InputError):
                raise
            return None
        named = [text for one in layers for text in (one.digest, one.content)]
        return Image(name, config, layers) if all(map(DIGEST.fullmatch, named)) else None


class Hashed:
    """A layer during its transfer; its digest is known at the end."""

    def __init__(self, source: IO[bytes]) -> None:
        self.source, self.hash = source, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        part = self.source.read(size)
        self.hash.update(part)
        return part

    @property
    def digest(self) -> str:
        """Return the digest of the bytes read so far."""
        return f"sha256:{self.hash.hexdigest()}"


@contextmanager
def docker(argv: Sequence[str], seconds: float, **pipes: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run the engine's client, and end it at the time limit or on an error."""
    with subprocess.Popen(["docker", *argv], **pipes) as process:
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        try:
            yield process
        except BaseException:
            process.kill()
            if process.stdin:
                # Unwritten data in its buffer would raise a second error.
                with suppress(OSError):
                    process.stdin.close()
            raise
        finally:
            timer.cancel()


def engine_layers() -> dict[str, list[str]]:
    """Return the layers of each image of this engine, by its ID; empty if it stores its images in containerd.

    Such an engine pulls no content that it has already unpacked, and loads no archive without all layers.
    """
    if "io.containerd.snapshotter" in run(["docker", "info", "--format", "{{json .DriverStatus}}"]).out:
        return {}
    listed = sorted(set(run(["docker", "image", "ls", "--all", "--quiet", "--no-trunc"]).out.split()))
    if not listed:
        return {}
    # An image that is removed meanwhile is missing from the output; the others remain.
    shown = run(["docker", "image", "inspect", "--format", "{{.Id}} {{json .RootFS.Layers}}", *listed]).out
    lines = [line.partition(" ") for line in shown.splitlines() if " " in line]
    return {name: json.loads(text) or [] for name, _, text in lines}


def below(image: Image, there: Mapping[str, Sequence[str]]) -> int:
    """Return the number of an image's lowest layers that the engine has in the same order on top of each other."""
    wanted = [layer.content for layer in image.layers]
    pairs = (zip(wanted, layers, strict=False) for layers in there.values())
    return max(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], one)) for one in pairs)


def holders(wanted: Sequence[Layer], there: Mapping[str, Sequence[str]]) -> list[str]:
    """Return as few images as possible that have the wanted layers; small layers are not worth reading an image."""
    left, found = {layer.content for layer in wanted if layer.size >= SMALL}, list[str]()
    while best := max(there, key=lambda name: len(left & set(there[name]))):
        if not left & set(there[best]):
            break
        found.append(best)
        left -= set(there[best])
    return found


def saved(images: Sequence[str], wanted: Sequence[Layer], seconds: float) -> dict[str, Path]:
    """Return layers of images of this engine, as files by the digest of their content."""
    found: dict[str, Path] = {}
    if not images:
        return found
    contents = {layer.content for layer in wanted}
    argv = ["image", "save", *images]
    # Layers that cannot be read here are downloaded.
    with (
        suppress(OSError, tarfile.TarError),
        docker(argv, seconds, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process,
        tarfile.open(fileobj=process.stdout, mode="r|", bufsize=PART) as archive,
    ):
        for member in archive:
            if not member.isfile() or (body := archive.extractfile(member)) is None:
                continue
            layer, path = Hashed(body), FOLDER / str(len(found))
            with path.open("wb") as file:
                shutil.copyfileobj(layer, file, PART)
            if layer.digest in contents:
                found.setdefault(layer.digest, path)
    return found


def bring(source: Source, digest: str, seconds: float) -> str:
    """Fetch an image without the layers that this engine has; return its ID.

    Empty if a pull would not download more: if the engine has none of the layers, or recognizes all of them itself.

    Args:
        source: the registry.
        digest: of its manifest.
        seconds: time limit.

    Raises:
        OSError, http.client.HTTPException: if the connection to the registry fails.
        InputError: if some content has a wrong digest, or the engine refuses it.
    """
    deadline, there = time.monotonic() + seconds, engine_layers()
    image = source.image(digest) if there else None
    if image is None:
        return ""
    known = below(image, there)
    missing = image.layers[known:]
    elsewhere = holders(missing, there)
    if not known and not elsewhere:
        return ""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(mode=0o700, parents=True)
    try:
        own = saved(elsewhere, missing, seconds)
        load(source, image, missing, own, deadline - time.monotonic())
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
    return image.id


def load(source: Source, image: Image, missing: Sequence[Layer], own: Mapping[str, Path], seconds: float) -> None:
    """Load an image into the engine, which lacks some of its layers.

    Args:
        source: registry of the layers that are not in ``own``, which has files by the digest of their content.
        image, missing: the image, and those of its layers that the engine needs.
        seconds: time limit.

    Raises:
        OSError, http.client.HTTPException, InputError: as ``bring``.
    """
    names = [f"{layer.content.removeprefix('sha256:')}.tar" for layer in image.layers]
    manifest = json.dumps([{"Config": "config.json", "RepoTags": None, "Layers": names}]).encode()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with docker(["image", "load", "--quiet"], seconds, **pipes) as process:
        # If the engine ends early, its output has the reason.
        with suppress(BrokenPipeError), tarfile.open(fileobj=process.stdin, mode="w|", bufsize=PART) as archive:
            for layer, name in zip(missing, names[len(names) - len(missing) :], strict=True):
                if layer.content in own:
                    with own[layer.content].open("rb") as file:
                        archive.addfile(archive.gettarinfo(arcname=name, fileobj=file), file)
                    continue
                with source.open(f"blobs/{layer.digest}") as answer:
                    body = Hashed(answer)
                    _add(archive, name, body, layer.size)
                source.check(layer.digest, body.digest)
            # These make it an image, so they come last: without them the engine keeps none of the layers.
            for name, text in (("config.json", image.config), ("manifest.json", manifest)):
                _add(archive, name, BytesIO(text), len(text))
        told = process.communicate()[1].decode(errors="replace").splitlines()
    if process.returncode:
        raise InputError([line.strip() for line in ("docker load ended", *told) if line.strip()][-1])


def _add(archive: tarfile.TarFile, name: str, body: Any, size: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = size
    archive.addfile(entry, body)
