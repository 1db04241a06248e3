"""The registry of a mirror: which images of a bundle it has, and how the others are copied into it."""

from __future__ import annotations

import http.client
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import InputError, one_line
from ..core.run import run
from ..core.words import counted, short_digest
from .pull import mirrored_name

# Accepted manifests: images of one platform or of several, in Docker's and OCI's format.
ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
SPARE_BYTES = 64 << 20  # that a registry keeps free for its own files
COPY_S, READY_S, ANSWER_S = 7200, 30.0, 60.0


@dataclass(frozen=True)
class BundledImage:
    """An image of a bundle: its folder there, its name in the mirror's registry with a tag, and its digest."""

    folder: str
    name: str
    tag: str
    digest: str


def images_of(bundle: str) -> list[BundledImage]:
    """Return the images of a bundle.

    Raises:
        InputError: if its manifest cannot be read.
    """
    path = Path(bundle, "manifest.json")
    try:
        items = json.loads(path.read_text(encoding="utf-8"))["items"]
        found = [one for one in items if one["kind"] == "image" and one.get("path")]
        return [
            BundledImage(
                str(one["path"]),
                # The path is images/REGISTRY/REPOSITORY/DIGEST, which gives the image's name in the mirror.
                mirrored_name(str(one["path"]).removeprefix("images/").rpartition("/")[0]),
                str(one["digest"]).replace(":", "-") if str(one["version"]).startswith("sha256:") else one["version"],
                str(one["digest"]),
            )
            for one in found
        ]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise InputError(f"{path}: cannot be read: {problem}") from None


def filled(bundle: str, registry: str, store: str, check: bool = False) -> list[str]:
    """Copy the images of a bundle that a registry lacks into it; return their names.

    Args:
        bundle: its folder.
        registry: its name, on loopback and without TLS.
        store: the folder of the registry's files.
        check: copy nothing.

    Raises:
        InputError: if the registry does not answer, has no room, or has an image with another digest.
    """
    missing = [one for one in images_of(bundle) if digest_of(registry, one) != one.digest]
    if missing and not check:
        drop_unfinished(Path(store))
    if missing and (wrong := no_room(bundle, missing, Path(store))):
        raise InputError(wrong)
    copied = []
    for one in missing:
        copied.append(f"{one.name}:{one.tag}")
        if check:
            continue
        place = f"docker://{registry}/{one.name}:{one.tag}"
        argv = ["skopeo", "--insecure-policy", "copy", "--quiet", "--all", "--preserve-digests"]
        done = run([*argv, "--dest-tls-verify=false", f"dir:{bundle}/{one.folder}", place], COPY_S)
        if done.status != 0:
            # A registry without room only closes the connection.
            why = no_room(bundle, [one], Path(store)) or one_line(done.err)[-500:]
            raise InputError(f"image {one.name}:{one.tag}: not copied into the registry: {why}")
        if (came := digest_of(registry, one)) != one.digest:
            there = f"the registry has {short_digest(came or 'none')}, not {short_digest(one.digest)}"
            raise InputError(f"image {one.name}:{one.tag}: {there}")
    return copied


def drop_unfinished(store: Path) -> None:
    """Remove what an interrupted copy left in a registry: it takes the room of its layers, and nothing continues it."""
    for folder in list((store / "docker/registry/v2/repositories").rglob("_uploads")):
        shutil.rmtree(folder, ignore_errors=True)


def no_room(bundle: str, images: list[BundledImage], store: Path) -> str:
    """Return that the disk of a registry has no room for images; empty if it has.

    Layers that images share, and those that the registry has, count once.
    """
    blobs = store / "docker/registry/v2/blobs/sha256"
    sizes = {
        path.name: path.stat().st_size
        for one in images
        for path in Path(bundle, one.folder).iterdir()
        if not (blobs / path.name[:2] / path.name).exists()
    }
    needed = sum(sizes.values()) + SPARE_BYTES
    place = next(one for one in (store, *store.parents) if one.exists())
    free = shutil.disk_usage(place).free
    if free >= needed:
        return ""
    what = f"{counted(len(images), 'image')} of the bundle need {needed / 1e9:.1f} GB"
    return f"{store}: its disk has {free / 1e9:.1f} GB free, but {what}: make room, and run it again"


def digest_of(registry: str, image: BundledImage) -> str:
    """Return the digest of an image in a registry; empty if it lacks the image.

    Raises:
        InputError: if it does not answer.
    """
    deadline = time.monotonic() + READY_S
    while True:
        connection = http.client.HTTPConnection(registry, timeout=ANSWER_S)
        try:
            connection.request("HEAD", f"/v2/{image.name}/manifests/{image.tag}", headers={"Accept": ACCEPT})
            answer = connection.getresponse()
            answer.read()
            return answer.getheader("Docker-Content-Digest", "") if answer.status == http.HTTPStatus.OK else ""
        except OSError as problem:
            # The registry may just have been started.
            if time.monotonic() > deadline:
                raise InputError(f"the registry {registry} does not answer: {problem}") from problem
            time.sleep(0.2)
        finally:
            connection.close()
