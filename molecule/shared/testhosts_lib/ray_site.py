"""Ray for the image with the real vLLM for CPUs: a folder that a model mounts, with a plug-in by which vLLM uses it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from .common import SHARED, cache, digest, run, say, step

PINS = ("ray==2.60.0", "msgpack==1.2.4")
PLUGIN = SHARED / "cpu_ray"
NAME = "gaudi_serve_cpu_ray"
ENTRY = f"[vllm.platform_plugins]\ncpu_ray = {NAME}:register\n"
ABOUT = "Metadata-Version: 2.1\nName: gaudi-serve-cpu-ray\nVersion: 1\n"


def folder() -> Path:
    """Return where the folder is or will be."""
    return cache() / f"ray-site-{digest(PLUGIN, *PINS, ENTRY)}"


def ensure() -> None:
    """Make the folder where it is missing."""
    if folder().exists():
        return
    with tempfile.TemporaryDirectory(dir=cache(), prefix="ray-site-") as beside:
        site = Path(beside) / "site"
        target = ["--python-version", "3.11", "--implementation", "cp", "--only-binary", ":all:", "--no-deps"]
        with step("Unpacking Ray, 80 MB"):
            run(sys.executable, "-m", "pip", "install", "--quiet", *target, "--target", site, *PINS, timeout=900)
        shutil.copytree(PLUGIN, site / NAME, ignore=shutil.ignore_patterns("__pycache__"))
        about = site / f"{NAME}-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(ABOUT, encoding="ascii")
        (about / "entry_points.txt").write_text(ENTRY, encoding="ascii")
        for old in cache().glob("ray-site-????????????????"):
            shutil.rmtree(old)
        site.rename(folder())
    say(f"Ray: {folder()}")
