"""Removes all that was made here; the virtual environment stays."""

from __future__ import annotations

import shutil

from . import engine, kernel
from .common import KEY_LABEL, LABEL, cache, run, say, succeeds

# The folder may be one that the user shares with other things.
OWN = (
    "images",
    "wheels",
    "site-*",
    "tiny-model-*",
    "ray-site*",
    "vm-*",
    "testhosts.json*",
    "kernel.json*",
    "durations.json",
    "logs",
    "images.lock",
    "*-image.lock",
)


def clean() -> None:
    """Remove hosts, images and archives, and give the kernel its old values back."""
    if engine.answers():
        hosts = run("docker", "ps", "--all", "--quiet", "--filter", f"label={LABEL}").split()
        if hosts:
            run("docker", "rm", "--force", "--volumes", *hosts)
        if succeeds("docker", "network", "inspect", engine.NETWORK):
            run("docker", "network", "rm", engine.NETWORK)
        images = run("docker", "images", "--quiet", "--no-trunc", "--filter", f"label={KEY_LABEL}").split()
        if images:
            run("docker", "rmi", "--force", *dict.fromkeys(images))
        say(f"removed {len(hosts)} hosts and {len(set(images))} images")
    kernel.restore()
    for path in [path for pattern in OWN for path in cache().glob(pattern)]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    engine.stop()
