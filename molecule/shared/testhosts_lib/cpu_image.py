"""The image with the real vLLM for CPUs, and a tiny model for it."""

from __future__ import annotations

import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import base_image
from .common import REPOSITORY, SHARED, HostError, cache, digest, remove_superseded, run, say, step, ticking
from .standin_image import archives

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
    return archives() / f"vllm-cpu-{key()}.tar"


def model() -> Path:
    """Return where the tiny model is or will be."""
    return cache() / f"tiny-model-{digest(MODEL_MAKER, SENTENCES, REQUIREMENTS)}"


def made() -> bool:
    """Return whether image archive and model are there."""
    return archive().exists() and model().exists()


def ensure() -> None:
    """Make what is missing of archive and model. Until the system below is needed, no engine is."""
    if made():
        return
    with tempfile.TemporaryDirectory(dir=cache(), prefix="site-") as folder:
        site = Path(folder) / "site"
        build("--site", site)
        base = base_image.ensure()
        # Saving waits for the disk while training computes.
        with ThreadPoolExecutor() as pool:
            training = None if model().exists() else pool.submit(make_model, base, site)
            if not archive().exists():
                build("--site", site, "--base", base, "--tag", TAG, "--key", key(), "--output", archive())
                remove_superseded("images/vllm-cpu-*", archive())
            if training:
                training.result()


def build(*options: str | Path) -> None:
    """Run the builder, and report what it reports."""
    argv = [str(word) for word in (BUILDER, "--cache", cache(), *options)]
    now = [("The CPU image", time.monotonic())]
    with (
        ticking(lambda: now[-1]),
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process,
    ):
        for line in process.stdout or ():
            now.append((line.rstrip(" .\n"), time.monotonic()))
            say(line.rstrip("\n"))
    if process.returncode != 0:
        raise HostError("the CPU image could not be built")


def make_model(base: str, site: Path) -> None:
    """Make the tiny model with the packages of the image, which need not be loaded for it."""
    beside = model().with_suffix(".part")
    beside.mkdir(exist_ok=True)
    inputs = [f"{MODEL_MAKER}:/make.py:ro", f"{SENTENCES}:/sentences.yml:ro", f"{site}:/opt/vllm:ro"]
    mounts = [word for volume in [*inputs, f"{beside}:/out"] for word in ("--volume", volume)]
    options = ["--rm", "--network", "none", "--env", "PYTHONPATH=/opt/vllm", *mounts]
    with step("Making the tiny model: training it"):
        run("docker", "run", *options, base, "python3", "/make.py", "/sentences.yml", "/out", timeout=600)
    beside.rename(model())
    say(f"Tiny model: {model()}")
