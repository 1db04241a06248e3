"""The execution environment as an image: what execution-environment.yml defines, on the base image made here.

ansible-builder writes the recipe, as for everybody; the packages from Python's index come as files, since a build may
reach no index.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from . import base_image
from .common import KEY_LABEL, REPOSITORY, digest, locked, run, step, succeeds

DEFINITION, REQUIREMENTS = REPOSITORY / "execution-environment.yml", REPOSITORY / "requirements.txt"
# What ansible-builder's recipe installs in addition.
TOOLS = ["bindep", "packaging", "pyyaml", "dumb-init==1.2.5"]
BASE = "FROM {base}\nCOPY wheels /wheels\nENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels\n"
BUILD_S = 1200


def tag() -> str:
    """Return the image's name, by what it is made from."""
    return f"gaudi-serve/execution-environment:{digest(base_image.key(), DEFINITION, REQUIREMENTS, BASE)}"


def ensure() -> str:
    """Return the image's name, made where it is missing."""
    with locked("execution-image"):
        if not succeeds("docker", "image", "inspect", tag()):
            make()
    return tag()


def recipe(context: Path) -> None:
    """Write what ansible-builder makes of the definition: a Dockerfile and what it copies."""
    builder = Path(sys.executable).with_name("ansible-builder")
    run(builder, "create", "--output-filename", "Dockerfile", "--file", DEFINITION, "--context", context)


def make() -> None:
    """Make the image."""
    base = base_image.ensure()
    builder = {"DOCKER_BUILDKIT": "0"}
    with step("Building the execution environment"), tempfile.TemporaryDirectory() as name:
        under, context = Path(name, "base"), Path(name, "context")
        (under / "wheels").mkdir(parents=True)
        wanted = ["--only-binary=:all:", "--dest", under / "wheels", "--requirement", REQUIREMENTS, *TOOLS]
        run(sys.executable, "-m", "pip", "download", "--quiet", *wanted, timeout=BUILD_S)
        (under / "Dockerfile").write_text(BASE.format(base=base), encoding="utf-8")
        below = f"{tag()}-base"
        labels = ["--label", f"{KEY_LABEL}={tag().rpartition(':')[2]}"]
        run("docker", "build", *labels, "--tag", below, under, env=builder, timeout=BUILD_S)
        recipe(context)
        options = ["--build-arg", f"EE_BASE_IMAGE={below}", *labels, "--tag", tag()]
        run("docker", "build", *options, context, env=builder, timeout=BUILD_S)
