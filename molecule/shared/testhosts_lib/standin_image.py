"""The image that stands for the vendor's serving image, and its archive."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import tempfile
from pathlib import Path

from . import base_image
from .common import KEY_LABEL, SHARED, Trouble, cache, digest, remove_superseded, run, step

TAG = "gaudi-serve/vllm-standin:1.21.3"
FILES = SHARED / "standins" / "serving"
TOOLS = [SHARED / "standins" / "hl-smi"]


def key() -> str:
    """Return the key of the image."""
    return digest(base_image.key(), FILES, *TOOLS)


def archives() -> Path:
    """Return the folder of the archives; hosts see it read-only."""
    folder = cache() / "images"
    folder.mkdir(exist_ok=True)
    return folder


def label(tag: str) -> str:
    """Return the key that an image carries, or an empty text."""
    try:
        return run("docker", "image", "inspect", "--format", f'{{{{index .Config.Labels "{KEY_LABEL}"}}}}', tag).strip()
    except Trouble:
        return ""


def save(tag: str, target: Path) -> None:
    """Write an image's archive beside its place, and move it there when it is whole."""
    beside = target.with_suffix(".part")
    argv = ["docker", "save", tag]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process, gzip.open(beside, "wb", compresslevel=1) as out:
        if process.stdout is None:
            raise Trouble("docker save gives no output")
        shutil.copyfileobj(process.stdout, out, 1 << 20)
    if process.returncode != 0:
        beside.unlink()
        raise Trouble(f"docker save {tag}: status {process.returncode}")
    beside.replace(target)


def ensure() -> Path:
    """Return the archive, made where it is missing."""
    archive = archives() / f"vllm-standin-{key()}.tar.gz"
    if archive.exists():
        return archive
    if label(TAG) != key():
        build()
    with step("Saving the serving image's stand-in"):
        save(TAG, archive)
    remove_superseded("images/vllm-standin-*", archive)
    return archive


def build() -> None:
    """Build the image."""
    base = base_image.ensure()
    with step("Building the serving image's stand-in"), tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        shutil.copytree(FILES, context, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        for path in TOOLS:
            shutil.copy(path, context / path.name)
        options = ["--build-arg", f"BASE={base}", "--label", f"{KEY_LABEL}={key()}", "--tag", TAG]
        run("docker", "build", *options, context, env={"DOCKER_BUILDKIT": "0"}, timeout=600)
