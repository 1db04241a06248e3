"""The image of a virgin server: systemd, GRUB, a local package repository with Docker in it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from . import base_image
from .base_image import DEBIAN_12, DEBIAN_13, HOSTS, Release
from .common import KEY_LABEL, SHARED, digest, run, step, succeeds

REPOSITORY = "gaudi-serve/testhost"
FILES = SHARED / "hostimage"
RUNTIME = [f"habana-container-{part}" for part in ("runtime", "hook", "cli")]
QUAL = ("hl_qual", "manage_network_ifs.sh")
GPUS = ("nvidia-smi", "amd-smi", "xpu-smi", "nvidia-container-runtime")
STANDINS = [*(SHARED / "standins" / name for name in ("hl-smi", *QUAL, *RUNTIME, *GPUS)), SHARED / "gpu_trees.py"]
# Of each release of Debian the packages of its engine.
ENGINES = {DEBIAN_12: "docker.io", DEBIAN_13: "docker.io docker-cli"}


def key(release: Release = HOSTS) -> str:
    """Return the key of the host image."""
    return digest(base_image.key(release), ENGINES[release], FILES, *STANDINS)


def ensure(release: Release = HOSTS) -> str:
    """Return the tag of the host image, made where it is missing."""
    tag = f"{REPOSITORY}:{key(release)}"
    if succeeds("docker", "image", "inspect", tag):
        return tag
    base = base_image.ensure(release)
    with step(f"Building the host image on {release.name}"), tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        shutil.copytree(FILES, context, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        for path in STANDINS:
            shutil.copy(path, context / path.name)
        options = ["--build-arg", f"BASE={base}", "--build-arg", f"ENGINE={ENGINES[release]}"]
        options += ["--label", f"{KEY_LABEL}={key(release)}", "--tag", tag]
        # The classic builder is on every engine; the other one needs a plugin that Debian does not ship.
        run("docker", "build", *options, context, env={"DOCKER_BUILDKIT": "0"}, timeout=1800)
    return tag
