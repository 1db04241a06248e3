"""The image that stands for the vendor's base image, in which serving images are built."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from . import base_image
from .common import KEY_LABEL, SHARED, digest, remove_superseded, run, step
from .standin_image import archives, label, save

TAG = "gaudi-serve/pytorch-installer-standin:1.21.3"
FILES = [SHARED / "standins" / "hl-smi", SHARED / "standins" / "serving" / "bin" / "numactl"]
# As on the vendor's: git, pip that may write into the system, a compiler's driver, `python`, the libraries' folder.
RECIPE = """\
ARG BASE
FROM ${BASE}
RUN apt-get update && apt-get install --yes --no-install-recommends \\
      bzip2 curl git make python-is-python3 python3-pip python3-setuptools python3-wheel \\
    && rm -rf /var/lib/apt/lists/*
COPY hl-smi numactl /usr/bin/
RUN mkdir /usr/lib/habanalabs
ENV PIP_BREAK_SYSTEM_PACKAGES=1
"""


def key() -> str:
    """Return the key of the image."""
    return digest(base_image.key(), RECIPE, *FILES)


def archive() -> Path:
    """Return where the image's archive is or will be."""
    return archives() / f"pytorch-installer-{key()}.tar.gz"


def ensure() -> None:
    """Make the archive where it is missing."""
    if archive().exists():
        return
    if label(TAG) != key():
        base = base_image.ensure()
        with step("Building the stand-in for the vendor's base image"), tempfile.TemporaryDirectory() as folder:
            context = Path(folder)
            (context / "Dockerfile").write_text(RECIPE, encoding="utf-8")
            for path in FILES:
                shutil.copy(path, context / path.name)
            options = ["--build-arg", f"BASE={base}", "--label", f"{KEY_LABEL}={key()}", "--tag", TAG]
            run("docker", "build", *options, context, env={"DOCKER_BUILDKIT": "0"}, timeout=900)
    with step("Saving the stand-in for the vendor's base image"):
        save(TAG, archive())
    remove_superseded("images/pytorch-installer-*", archive())
