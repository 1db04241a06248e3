"""A real engine takes images of another host: what it has already, however it came, is not sent again."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import ssl
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.core.errors import InputError
from gaudi_serve.host import layers, registry
from testhosts_lib import engine

NAME = "gaudi-serve-test/layers"


def digest_of(content: bytes) -> str:
    """Return a digest as registries write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def archive_of(files: dict[str, bytes]) -> bytes:
    """Return a tar archive."""
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return found.getvalue()


def layer(name: str) -> bytes:
    """Return a layer of one file that does not compress, and that no engine has pulled before: it would remember."""
    return archive_of({name: os.urandom(2 * 2**20)})


BASE, OTHER, BODY, NEXT = (layer(name) for name in ("base", "other", "body", "next"))


class Image:
    """An image of some layers, as an archive has it, and as a registry."""

    def __init__(self, *contents: bytes) -> None:
        self.contents = contents
        names = [digest_of(content) for content in contents]
        config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": names}}
        self.config = json.dumps(config).encode()
        self.id = digest_of(self.config)
        packed = [gzip.compress(content, 1, mtime=0) for content in contents]
        self.blobs = {digest_of(one): one for one in (self.config, *packed)}
        kind = "application/vnd.docker.{}+json"
        media = kind.format("image.rootfs.diff.tar.gzip").removesuffix("+json")
        described = [{"mediaType": media, "size": len(one), "digest": digest_of(one)} for one in packed]
        head = {"mediaType": kind.format("container.image.v1"), "size": len(self.config), "digest": self.id}
        self.kind = kind.format("distribution.manifest.v2")
        manifest = {"schemaVersion": 2, "mediaType": self.kind, "config": head, "layers": described}
        self.manifest = json.dumps(manifest).encode()
        self.digest = digest_of(self.manifest)

    def blob(self, content: bytes) -> str:
        """Return by which digest the registry has a layer."""
        return digest_of(gzip.compress(content, 1, mtime=0))

    def load(self, name: str) -> None:
        """Load it from an archive, as ``docker load`` of an entry with ``archive`` does."""
        parts = {f"{number}.tar": content for number, content in enumerate(self.contents)}
        listed = [{"Config": "config.json", "RepoTags": [name], "Layers": list(parts)}]
        whole = archive_of({**parts, "config.json": self.config, "manifest.json": json.dumps(listed).encode()})
        subprocess.run(["docker", "load", "--quiet"], input=whole, check=True, capture_output=True)


class Registry(ThreadingHTTPServer):
    """A registry that only reads, and keeps which blobs it has sent; with ``cut`` it breaks the next layer off."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, tuple[str, bytes]] = {}
        self.sent: list[str] = []
        self.cut = False
        for name in ("server", "client"):
            registry.certificate_pair(folder, name, "IP:127.0.0.1")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        context.load_verify_locations(folder / "client.crt")
        # On loopback an engine shows no certificate; the toolkit must.
        context.verify_mode = ssl.CERT_OPTIONAL
        self.socket = context.wrap_socket(self.socket, server_side=True)
        parts = [(folder / name).read_text() for name in ("server.crt", "client.crt", "client.key")]
        self.client = registry.RegistryClient(f"127.0.0.1:{self.server_port}", *parts)

    def give(self, image: Image) -> Image:
        """Have an image, and forget what was sent before."""
        self.blobs |= image.blobs
        self.manifests[image.digest] = (image.kind, image.manifest)
        self.sent.clear()
        return image

    def take(self, image: Image, name: str = f"{NAME}:taken") -> list[str]:
        """Let the engine take an image; return which layers were sent."""
        registry.take(self.client, name, image.digest, 60)
        return [one for one in self.sent if one != image.id]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing about connections that end in the middle."""


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: Registry

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Give a manifest or a blob by its digest."""
        name = self.path.rpartition("/")[2]
        kind, body = self.server.manifests.get(name) or ("application/octet-stream", self.server.blobs.get(name, b""))
        foreign = "urllib" in self.headers["User-Agent"] and not self.connection.getpeercert()
        self.send_response(403 if foreign else 200 if body or self.path == "/v2/" else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Docker-Content-Digest", name)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if name in self.server.blobs:
            self.server.sent.append(name)
            if self.server.cut and len(body) > 2**20:
                self.server.cut, body, self.close_connection = False, body[: 2**20], True
        self.wfile.write(body)


def said(*argv: str) -> str:
    """Return what the engine's client reports."""
    return subprocess.run(["docker", *argv], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module", autouse=True)
def running() -> Iterator[None]:
    """An engine: that which runs, or one of this module's own."""
    mine = not engine.answers()
    engine.start()
    yield
    if mine:
        engine.stop()


def remove() -> None:
    """Remove the images of this module, those that lost their name too."""
    named = [f"{NAME}:{tag}" for tag in said("image", "ls", "--format", "{{.Tag}}", NAME).split()]
    ours = [image.id for image in (Image(BASE), Image(BASE, NEXT), Image(BASE, BODY), Image(OTHER, BODY), LIES)]
    subprocess.run(["docker", "image", "rm", "--force", *named, *ours], check=False, capture_output=True)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A registry, and an engine that has none of its images."""
    monkeypatch.setattr(layers, "FOLDER", tmp_path / "layers")
    remove()
    with Registry(tmp_path) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()
    assert not (tmp_path / "layers").exists()
    remove()


def is_whole(name: str, image: Image) -> bool:
    """Return whether the engine has an image under a name, with all of its layers."""
    told = json.loads(said("image", "inspect", name))[0]
    found = subprocess.run(["docker", "save", name], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(found)) as archive:
        parts = [archive.extractfile(member) for member in archive if member.isfile()]
        contents = {part.read() for part in parts if part}
    return told["Id"] == image.id and set(image.contents) <= contents


# The image with another digest in its configuration than its layer has, and all digests of the registry right.
LIES = Image(BASE, NEXT)
LIES.config = LIES.config.replace(digest_of(NEXT).encode(), digest_of(b"").encode())
LIES.manifest = LIES.manifest.replace(LIES.id.encode(), digest_of(LIES.config).encode())
LIES.id, LIES.digest = digest_of(LIES.config), digest_of(LIES.manifest)
LIES.blobs[LIES.id] = LIES.config


def test_what_came_in_an_archive_is_not_sent_again(source: Registry) -> None:
    base = layer("archive")
    Image(base).load(f"{NAME}:archive")
    image = source.give(Image(base, NEXT))
    assert source.take(image) == [image.blob(NEXT)]
    assert is_whole(f"{NAME}:taken", image)


def test_an_engine_that_has_nothing_pulls_all_and_knows_it_the_next_time(source: Registry) -> None:
    image = source.give(Image(BASE))
    assert source.take(image) == [image.blob(BASE)]
    image = source.give(Image(BASE, NEXT))
    assert source.take(image) == [image.blob(NEXT)]
    # What came by such a transfer is known too, and what has another name here.
    for number in range(2):
        source.give(image)
        assert source.take(image, f"{NAME}:{number}") == []
        assert is_whole(f"{NAME}:{number}", image)


def test_a_layer_of_another_image_is_not_sent_though_it_lies_on_other_ones(source: Registry) -> None:
    Image(OTHER, BODY).load(f"{NAME}:other")
    image = source.give(Image(BASE, BODY))
    assert source.take(image) == [image.blob(BASE)]
    assert is_whole(f"{NAME}:taken", image)


def test_a_layer_that_came_otherwise_is_not_loaded(source: Registry) -> None:
    Image(BASE).load(f"{NAME}:archive")
    image = source.give(Image(BASE, NEXT))
    bad = bytearray(image.blobs[image.blob(NEXT)])
    bad[-1000] ^= 1
    source.blobs[image.blob(NEXT)] = bytes(bad)
    given = (
        f"127.0.0.1:{source.server_port} gave {digest_of(bytes(bad))[:19]}... in place of {image.blob(NEXT)[:19]}..."
    )
    with pytest.raises(
        InputError, match=re.escape(f"image {NAME}:taken: it could not be pulled from ") + f".*{re.escape(given)}"
    ):
        source.take(image)
    source.give(LIES)
    with pytest.raises(
        InputError, match=f"image {NAME}:taken: it could not be pulled from .*: invalid diffID for layer"
    ):
        source.take(LIES)
    assert not {image.id, LIES.id} & set(said("image", "ls", "--all", "--quiet", "--no-trunc").split())
    assert said("image", "ls", "--format", "{{.Tag}}", NAME) == "archive"


def test_a_connection_that_breaks_is_left_to_the_engine_which_asks_again(source: Registry) -> None:
    Image(BASE).load(f"{NAME}:archive")
    image = source.give(Image(BASE, NEXT))
    source.cut = True
    assert image.blob(NEXT) in source.take(image)
    assert is_whole(f"{NAME}:taken", image)
