"""An image with the newest ansible-core on the Python of Debian 13, in which tests run once more."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from . import base_image
from .base_image import DEBIAN_13
from .common import KEY_LABEL, REPOSITORY, digest, locked, run, step, succeeds

PYTHON = "3.13"
REQUIREMENTS = REPOSITORY / "requirements-newest.txt"
RECIPE = """FROM {base}
COPY wheels /wheels
RUN python3 -m venv /opt/newest && /opt/newest/bin/pip install --no-index --no-cache-dir /wheels/* && rm -r /wheels
ENV PATH=/opt/newest/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
"""
BUILD_S = 1200


def tag() -> str:
    """Return the image's name, by what it is made from."""
    return f"gaudi-serve/newest:{digest(base_image.key(DEBIAN_13), REQUIREMENTS, RECIPE)}"


def ensure() -> str:
    """Return the image's name, made where it is missing."""
    with locked("newest-image"):
        if not succeeds("docker", "image", "inspect", tag()):
            make()
    return tag()


def make() -> None:
    """Make the image; the outer machine fetches the packages, with its own settings."""
    base = base_image.ensure(DEBIAN_13)
    with step("Making the image with the newest ansible-core"), tempfile.TemporaryDirectory() as name:
        context = Path(name)
        wanted = ["--only-binary=:all:", "--python-version", PYTHON, "--dest", context / "wheels"]
        run(sys.executable, "-m", "pip", "download", "--quiet", *wanted, "-r", REQUIREMENTS, timeout=BUILD_S)
        (context / "Dockerfile").write_text(RECIPE.format(base=base), encoding="utf-8")
        argv = ["--label", f"{KEY_LABEL}={tag().rpartition(':')[2]}", "--tag", tag(), context]
        run("docker", "build", *argv, env={"DOCKER_BUILDKIT": "0"}, timeout=BUILD_S)
