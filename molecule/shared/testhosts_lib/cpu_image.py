"""The image with the real vLLM for CPUs, and a tiny model for it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from . import base_image
from .common import REPOSITORY, SHARED, Trouble, cache, digest, remove_superseded, run, say, step
from .standin_image import archives, label

TAG = "gaudi-serve/vllm-cpu:0.32.0"
BUILDER = REPOSITORY / "roles" / "vllm_image" / "files" / "build_cpu_image"
REQUIREMENTS = BUILDER.with_name("cpu-requirements.txt")
MODEL_MAKER = SHARED / "make_tiny_model.py"
SENTENCES = SHARED / "tiny_model_sentences.yml"


def key() -> str:
    """Return the key of the image."""
    return digest(base_image.key(), BUILDER, REQUIREMENTS)


def archive() -> Path:
    """Return where the image's archive is or will be."""
    return archives() / f"vllm-cpu-{key()}.tar.gz"


def model() -> Path:
    """Return where the tiny model is or will be."""
    return cache() / f"tiny-model-{digest(MODEL_MAKER, SENTENCES, REQUIREMENTS)}"


def made() -> bool:
    """Return whether image archive and model are there."""
    return archive().exists() and model().exists()


def ensure() -> None:
    """Make what is missing of archive and model."""
    if not archive().exists():
        argv = [str(BUILDER), "--base", base_image.ensure(), "--tag", TAG, "--key", key()]
        argv += ["--cache", str(cache()), "--output", str(archive())]
        if subprocess.run(argv, stdout=2, check=False).returncode != 0:
            raise Trouble("the CPU image could not be built")
        remove_superseded("images/vllm-cpu-*", archive())
    if not model().exists():
        make_model()


def make_model() -> None:
    """Make the tiny model inside the image, which has all that it takes."""
    if label(TAG) != key():
        with step("Loading the CPU image"):
            run("docker", "load", "--quiet", "--input", archive())
    beside = model().with_suffix(".part")
    beside.mkdir(exist_ok=True)
    inputs = [f"{MODEL_MAKER}:/make.py:ro", f"{SENTENCES}:/sentences.yml:ro"]
    mounts = [word for volume in [*inputs, f"{beside}:/out"] for word in ("--volume", volume)]
    maker = ["python3", "/make.py", "/sentences.yml", "/out"]
    with step("Training the tiny model, half a minute"):
        run("docker", "run", "--rm", "--network", "none", *mounts, TAG, *maker, timeout=600)
    beside.rename(model())
    say(f"Tiny model: {model()}")
