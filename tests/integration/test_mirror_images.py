"""The registry of a mirror is filled from a bundle: the real docker-registry, and skopeo."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import socket
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.core.errors import InputError
from gaudi_serve.core.run import Result, run
from gaudi_serve.host import mirror_images
from gaudi_serve.host.mirror_images import SPARE_BYTES, digest_of, filled, images_of

OCI = "application/vnd.oci.image"
CONFIG = """version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: '127.0.0.1:{port}'}}
"""


def blob(folder: Path, content: bytes, kind: str) -> dict[str, Any]:
    """Write a part of an image, and return how its manifest names it."""
    digest = hashlib.sha256(content).hexdigest()
    (folder / digest).write_bytes(content)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}


def image(bundle: Path, name: str, version: str, text: str) -> dict[str, Any]:
    """Put an image with one file into a bundle, and return its item."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        info = tarfile.TarInfo("file")
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text.encode()))
    tree = layer.getvalue()
    draft = bundle / "draft"
    draft.mkdir()
    history = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(tree).hexdigest()}"]}
    known = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": history}).encode()
    parts = {
        "config": blob(draft, known, f"{OCI}.config.v1+json"),
        "layers": [blob(draft, gzip.compress(tree, mtime=0), f"{OCI}.layer.v1.tar+gzip")],
    }
    text = json.dumps({"schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json", **parts})
    digest = hashlib.sha256(text.encode()).hexdigest()
    (draft / "manifest.json").write_text(text)
    (draft / "version").write_text("Directory Transport Version: 1.1\n")
    path = f"images/{name}/{digest}"
    (bundle / path).parent.mkdir(parents=True, exist_ok=True)
    draft.rename(bundle / path)
    return {"kind": "image", "name": name, "version": version, "path": path, "digest": f"sha256:{digest}"}


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """Return the name of a registry on loopback, empty."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "registry.yml").write_text(CONFIG.format(folder=tmp_path / "store", port=port))
    argv = ["docker-registry", "serve", str(tmp_path / "registry.yml")]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as served:
        yield f"127.0.0.1:{port}"
        served.terminate()


def test_images_keep_their_digest_and_come_once(registry: str, tmp_path: Path) -> None:
    bundle, store = tmp_path / "bundle", str(tmp_path / "store")
    bundle.mkdir()
    items = [image(bundle, "docker.io/library/debian", "12", "a"), image(bundle, "vault.example:5000/x/y", "1", "b")]
    by_digest = image(bundle, "vault.example/z", "sha256:0", "c")
    items.append({**by_digest, "version": by_digest["digest"]})
    (bundle / "manifest.json").write_text(json.dumps({"items": [*items, {"kind": "package", "name": "jq"}]}))
    names = [
        "docker.io/library/debian:12",
        "vault.example__5000/x/y:1",
        f"vault.example/z:sha256-{by_digest['digest'][7:]}",
    ]
    assert filled(str(bundle), registry, store, check=True) == names
    assert filled(str(bundle), registry, store) == names
    assert [digest_of(registry, one) for one in images_of(str(bundle))] == [one["digest"] for one in items]
    assert filled(str(bundle), registry, store) == []
    # A tag that is another image now.
    items[0] = image(bundle, "docker.io/library/debian", "12", "newer")
    (bundle / "manifest.json").write_text(json.dumps({"items": items}))
    assert filled(str(bundle), registry, store) == names[:1]


def test_an_image_that_was_changed_is_refused(registry: str, tmp_path: Path) -> None:
    bundle, store = tmp_path / "bundle", str(tmp_path / "store")
    bundle.mkdir()
    item = image(bundle, "docker.io/library/debian", "12", "a")
    (bundle / "manifest.json").write_text(json.dumps({"items": [{**item, "digest": f"sha256:{'0' * 64}"}]}))
    with pytest.raises(InputError, match=f"debian:12: the registry has {item['digest'][:19]}[.]{{3}}, not sha256:0000"):
        filled(str(bundle), registry, store)
    with pytest.raises(InputError, match=r"manifest\.json: cannot be read"):
        filled(str(tmp_path / "none"), registry, store)


def test_a_disk_without_room_is_named_before_anything_is_copied(
    registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, store = tmp_path / "bundle", str(tmp_path / "store")
    bundle.mkdir()
    items = [image(bundle, f"docker.io/library/{name}", "12", "a" * 100_000) for name in ("debian", "other")]
    (bundle / "manifest.json").write_text(json.dumps({"items": items}))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=SPARE_BYTES))
    for check in (True, False):
        with pytest.raises(
            InputError, match=r"store: its disk has 0.1 GB free, but 2 images of the bundle need 0.1 GB"
        ):
            filled(str(bundle), registry, store, check)
    assert [digest_of(registry, one) for one in images_of(str(bundle))] == ["", ""]
    # What both share counts once, and what the registry has not at all.
    folder = bundle / items[0]["path"]
    size = sum(path.stat().st_size for path in folder.iterdir())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=SPARE_BYTES + size))
    assert len(filled(str(bundle), registry, store)) == 2


def test_a_disk_that_fills_during_a_copy_is_named_and_the_next_run_has_its_room_again(
    registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, store = tmp_path / "bundle", tmp_path / "store"
    bundle.mkdir()
    (bundle / "manifest.json").write_text(json.dumps({"items": [image(bundle, "docker.io/x", "12", "a")]}))
    unfinished = store / "docker/registry/v2/repositories/docker.io/x/_uploads/1/data"
    unfinished.parent.mkdir(parents=True)
    unfinished.write_text("half of a layer")
    usage = shutil.disk_usage(tmp_path)

    def fails(argv: Sequence[str], limit_s: float) -> Result:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
        return Result(1, "", "write tcp 127.0.0.1: connection reset by peer")

    assert filled(str(bundle), registry, str(store), check=True) and unfinished.exists()
    monkeypatch.setattr(mirror_images, "run", fails)
    with pytest.raises(InputError, match=r"docker\.io/x:12: not copied .*store: its disk has 0\.0 GB free, but"):
        filled(str(bundle), registry, str(store))
    assert not unfinished.exists()
    monkeypatch.setattr(mirror_images, "run", run)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert filled(str(bundle), registry, str(store)) == ["docker.io/x:12"]
