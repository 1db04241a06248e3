"""Sources of a bundle on loopback: real repositories of apt and git, registries, indexes, and a hub."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import socket
import subprocess
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from helpers.weights_programs import COMMIT, MIB, model, server_module

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar"
# The htpasswd entries of the passwords that tests use.
PASSWORDS = {"canary-of-a-password": "$2b$04$Dec1fvRi.dxIiT3lqkZlpuAqEv99RPlGdwXH2MJJsACjO7F9jf.sy"}
CONFIG = "application/vnd.docker.container.image.v1+json"


class Files(ThreadingHTTPServer):
    """Serves the files of a folder over HTTP, with range requests, and counts the bytes sent."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.sent: dict[str, int] = {}

    @property
    def url(self) -> str:
        """Return the address for a client."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing when clients are killed."""


class _Handler(BaseHTTPRequestHandler):
    server: Files
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].lstrip("/")
        path = self.server.root / name
        if path.is_dir():
            path = next((path / one for one in ("index.json", "index.html") if (path / one).is_file()), path)
        content = path.read_bytes() if path.is_file() else b""
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        begin = int(found[1]) if found else 0
        status = 404 if not path.is_file() else 416 if begin and begin >= len(content) else 206 if begin else 200
        body = content[begin:] if status in (200, 206) else b""
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(body)))
        kind = {".json": "application/json", ".html": "text/html"}.get(path.suffix, "application/octet-stream")
        self.send_header("Content-Type", kind)
        self.end_headers()
        # Count before sending, because a client that has read the body checks the count at once.
        self.server.sent[name] = self.server.sent.get(name, 0) + len(body)
        self.wfile.write(body)


@contextlib.contextmanager
def served(server: Any) -> Iterator[Any]:
    """Run a server until the end of the context."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def run(*argv: str | Path, cwd: Path | None = None, **env: str) -> str:
    """Run a program that must not fail, and return its output."""
    words = [str(one) for one in argv]
    done = subprocess.run(
        words, cwd=cwd, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C", **env}
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


class Apt:
    """A signed apt repository on the server."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder, self.home = folder, home
        (folder / "pool").mkdir(parents=True)

    def add(self, name: str, version: str = "1.0", depends: str = "", size: int = 2000) -> None:
        """Add a package, and replace an older version."""
        for old in (self.folder / "pool").glob(f"{name}_*"):
            old.unlink()
        tree = self.folder.with_name("tree")
        shutil.rmtree(tree, ignore_errors=True)
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "usr/share").mkdir(parents=True)
        (tree / "usr/share" / name).write_bytes(hashlib.sha256(f"{name}{version}".encode()).digest() * (size // 32))
        lines = [f"Package: {name}", f"Version: {version}", "Architecture: amd64", "Maintainer: t <t@t.example>"]
        lines += [f"Depends: {depends}"] * bool(depends) + ["Description: of a test"]
        (tree / "DEBIAN/control").write_text("\n".join(lines) + "\n")
        run("dpkg-deb", "--root-owner-group", "-Znone", "-b", tree, self.folder / f"pool/{name}_{version}_amd64.deb")

    def sign(self) -> None:
        """Write and sign its index."""
        (self.folder / "Packages").write_text(run("apt-ftparchive", "packages", "pool", cwd=self.folder))
        (self.folder / "Release").unlink(missing_ok=True)
        (self.folder / "Release").write_text(run("apt-ftparchive", "release", ".", cwd=self.folder))
        gpg(self.home, "--yes", "--clearsign", "--output", self.folder / "InRelease", self.folder / "Release")


def gpg(home: Path, *words: str | Path) -> str:
    """Run gpg with its own keyring."""
    return run("gpg", "--homedir", home, "--batch", "--quiet", *words)


@contextlib.contextmanager
def keyring(home: Path) -> Iterator[Path]:
    """Create a key, and stop its agent afterwards."""
    home.mkdir(mode=0o700, parents=True)
    try:
        gpg(home, "--passphrase", "", "--quick-generate-key", "vendor", "ed25519", "sign", "never")
        yield home
    finally:
        run("gpgconf", "--homedir", home, "--kill", "gpg-agent")


def wheel(folder: Path, name: str, version: str) -> None:
    """Write an empty wheel with this name."""
    project = re.sub(r"[-_.]+", "_", name)
    about = f"{project}-{version}.dist-info"
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense: Test-1.0\n"
    with zipfile.ZipFile(folder / f"{project}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{about}/METADATA", text)
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")


def index(folder: Path, pins: Sequence[tuple[str, str]]) -> None:
    """Write wheels, and the index that lists them."""
    (folder / "files").mkdir(parents=True)
    for name, version in pins:
        wheel(folder / "files", name, version)
    for path in sorted((folder / "files").iterdir()):
        page = folder / re.sub(r"[-_.]+", "-", path.name.split("-")[0]).lower() / "index.html"
        page.parent.mkdir(exist_ok=True)
        before = page.read_text() if page.exists() else "<!DOCTYPE html>"
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        page.write_text(f'{before}<a href="../files/{path.name}#sha256={digest}">{path.name}</a>')


def galaxy(folder: Path, url: str, pins: Sequence[tuple[str, str]]) -> None:
    """Write the responses of a collections server as files."""

    def say(path: str, value: Any) -> None:
        place = folder / path / "index.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(value))

    say("api", {"available_versions": {"v3": "v3/"}})
    for full, version in pins:
        namespace, name = full.split(".")
        about = {"namespace": namespace, "name": name, "version": version, "license": ["Test-2.0"], "dependencies": {}}
        file = folder / f"{namespace}-{name}-{version}.tar.gz"
        with tarfile.open(file, "w:gz") as archive:
            for inside, value in (("MANIFEST.json", {"collection_info": about, "format": 1}), ("FILES.json", {})):
                content = json.dumps(value).encode()
                entry = tarfile.TarInfo(inside)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        own = f"api/v3/collections/{namespace}/{name}"
        say(own, {"namespace": namespace, "name": name, "highest_version": {"version": version}})
        say(f"{own}/versions", {"meta": {"count": 1}, "links": {"next": None}, "data": [{"version": version}]})
        artifact = {"sha256": hashlib.sha256(file.read_bytes()).hexdigest(), "size": file.stat().st_size}
        more = {"namespace": {"name": namespace}, "collection": {"name": name}, "metadata": {"dependencies": {}}}
        place = {"download_url": f"{url}/{file.name}", "href": f"{url}/{own}/versions/{version}/", "signatures": []}
        say(f"{own}/versions/{version}", {"version": version, "artifact": artifact, **more, **place})


def git(folder: Path) -> str:
    """Create a git repository for plain HTTP, and return its commit."""
    work = folder.with_suffix(".work")
    who = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t", "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t"}
    run("git", "init", "--quiet", "-b", "main", work)
    (work / "run.py").write_text("print()\n")
    run("git", "add", ".", cwd=work)
    run("git", "commit", "--quiet", "-m", "one", cwd=work, **who)
    run("git", "clone", "--quiet", "--bare", work, folder)
    run("git", "update-server-info", cwd=folder)
    return run("git", "rev-parse", "HEAD", cwd=work).strip()


def image(folder: Path, layers: Sequence[bytes], labels: Mapping[str, str]) -> str:
    """Write an image in skopeo's folder format, and return its digest."""
    folder.mkdir()

    def blob(content: bytes, kind: str) -> dict[str, Any]:
        name = hashlib.sha256(content).hexdigest()
        (folder / name).write_bytes(content)
        return {"mediaType": kind, "size": len(content), "digest": f"sha256:{name}"}

    told = [blob(one, LAYER) for one in layers]
    rootfs = {"type": "layers", "diff_ids": [one["digest"] for one in told]}
    about = {"architecture": "amd64", "os": "linux", "config": {"Labels": dict(labels)}, "rootfs": rootfs}
    config = blob(json.dumps(about).encode(), CONFIG)
    text = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": told})
    (folder / "manifest.json").write_text(text)
    (folder / "version").write_text("Directory Transport Version: 1.1\n")
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def image_list(folder: Path, images: Mapping[str, Path]) -> str:
    """Write images of several architectures as one, and return the digest of their index."""
    folder.mkdir()
    told = []
    for architecture, one in images.items():
        for path in one.iterdir():
            shutil.copy(path, folder / path.name)
        content = (folder / "manifest.json").read_bytes()
        name = hashlib.sha256(content).hexdigest()
        (folder / "manifest.json").rename(folder / f"{name}.manifest.json")
        platform = {"architecture": architecture, "os": "linux"}
        told.append({"mediaType": MANIFEST, "size": len(content), "digest": f"sha256:{name}", "platform": platform})
    text = json.dumps({"schemaVersion": 2, "mediaType": LIST, "manifests": told})
    (folder / "manifest.json").write_text(text)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def layer(seed: int, size: int = MIB) -> bytes:
    """Return a layer of one file."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        entry = tarfile.TarInfo(f"file{seed}")
        entry.size = size
        archive.addfile(entry, io.BytesIO(bytes([seed]) * size))
    return made.getvalue()


class Registry:
    """The real registry, with or without a login."""

    def __init__(self, folder: Path, user: str = "", password: str = "") -> None:
        folder.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.name = f"127.0.0.1:{self.port}"
        self.auth = ["--dest-creds", f"{user}:{password}"] if user else []
        config = {"version": 0.1, "log": {"level": "error"}, "http": {"addr": self.name}}
        config["storage"] = {"filesystem": {"rootdirectory": str(folder / "data")}}
        if user:
            (folder / "htpasswd").write_text(f"{user}:{PASSWORDS[password]}\n")
            config["auth"] = {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}
        (folder / "config.yml").write_text(json.dumps(config))
        self.process = subprocess.Popen(
            ["docker-registry", "serve", folder / "config.yml"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self.process.poll() is None and time.monotonic() < deadline, "the registry does not answer"
                time.sleep(0.02)

    def push(self, folder: Path, name: str) -> None:
        """Push an image to it."""
        words = [
            "--insecure-policy",
            "copy",
            "--all",
            "--quiet",
            "--preserve-digests",
            "--dest-tls-verify=false",
            *self.auth,
        ]
        run("skopeo", *words, f"dir:{folder}", f"docker://{self.name}/{name}")

    def stop(self) -> None:
        """Stop it."""
        self.process.terminate()
        self.process.wait(20)


@contextlib.contextmanager
def hub(folder: Path, token: str) -> Iterator[Any]:
    """Serve a model as a hub does."""
    repo = folder / "owner/model"
    model(repo / COMMIT, size=2 * MIB)
    (repo / "refs.json").write_text(json.dumps({"main": COMMIT}))
    with served(server_module().Server(folder, token=token)) as server:
        yield server
