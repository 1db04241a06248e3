"""The image of a virgin server: systemd, GRUB, a local package repository with Docker in it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from . import base_image
from .common import KEY_LABEL, SHARED, digest, run, step, succeeds

REPOSITORY = "gaudi-serve/testhost"
FILES = SHARED / "hostimage"
RUNTIME = [f"habana-container-{part}" for part in ("runtime", "hook", "cli")]
STANDINS = [SHARED / "standins" / name for name in ("hl-smi", *RUNTIME)]


def key() -> str:
    """Return the key of the host image."""
    return digest(base_image.key(), FILES, *STANDINS)


def ensure() -> str:
    """Return the tag of the host image, made where it is missing."""
    tag = f"{REPOSITORY}:{key()}"
    if succeeds("docker", "image", "inspect", tag):
        return tag
    base = base_image.ensure()
    with step("Building the host image"), tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        shutil.copytree(FILES, context, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        for path in STANDINS:
            shutil.copy(path, context / path.name)
        options = ["--build-arg", f"BASE={base}", "--label", f"{KEY_LABEL}={key()}", "--tag", tag]
        # The classic builder is on every engine; the other one needs a plugin that Debian does not ship.
        run("docker", "build", *options, context, env={"DOCKER_BUILDKIT": "0"}, timeout=1800)
    return tag
