"""The Debian root file system under every image made here."""

from __future__ import annotations

import tempfile
from pathlib import Path

from .common import KEY_LABEL, Trouble, digest, install, locked, run, step, succeeds

RELEASE, CODENAME = "debian:12", "bookworm"
PACKAGES = ["python3", "ca-certificates"]
REPOSITORY = "gaudi-serve/base"
EDITION = "1"  # to be raised when the image is made differently from the same packages
PULL_S = 300  # for a slow line; where there is no registry, the engine gives up in 15 s by itself


def key() -> str:
    """Return the key of the base image."""
    return digest(RELEASE, " ".join(PACKAGES), EDITION)


def ensure() -> str:
    """Return the tag of the base image, made where it is missing."""
    tag = f"{REPOSITORY}:{key()}"
    with locked("base-image"):  # several images on it are made at once
        if not succeeds("docker", "image", "inspect", tag):
            make(tag)
    return tag


def make(tag: str) -> None:
    """Make the base image from one of a registry, or from packages."""
    if succeeds("docker", "image", "inspect", RELEASE) or pulled():
        with step("Making the base image from a pulled one"):
            recipe = (
                f"FROM {RELEASE}\nLABEL {KEY_LABEL}={key()}\n"
                f"RUN apt-get update && apt-get install --yes --no-install-recommends {' '.join(PACKAGES)}\n"
            )
            run("docker", "build", "--tag", tag, "-", stdin=recipe, env={"DOCKER_BUILDKIT": "0"})
    else:
        bootstrap(tag)


def pulled() -> bool:
    """Try a registry; many machines have none."""
    with step(f"Looking for {RELEASE} in a registry"):
        return succeeds("docker", "pull", "--quiet", RELEASE, timeout=PULL_S) or succeeds(
            "docker", "image", "inspect", RELEASE
        )


def bootstrap(tag: str) -> None:
    """Make the image from packages, with the machine's own package sources."""
    sources = distribution_sources()
    install("mmdebstrap", "mmdebstrap")
    with step("Making the base image with mmdebstrap"), tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "base.tar"
        include = f"--include={','.join(PACKAGES)}"
        run("mmdebstrap", "--variant=minbase", include, CODENAME, archive, *sources)
        run("docker", "import", "--change", f"LABEL {KEY_LABEL}={key()}", archive, tag)


def distribution_sources() -> list[Path]:
    """Return the apt source files of the distribution itself; third parties' ones stay out of the hosts."""
    release = Path("/etc/os-release").read_text(encoding="utf-8")
    if f"VERSION_CODENAME={CODENAME}" not in release.split():
        raise Trouble(f"no registry with {RELEASE} is reachable, and without one this needs a machine with {RELEASE}")
    folder = Path("/etc/apt/sources.list.d")
    found = [folder / "debian.sources", Path("/etc/apt/sources.list")]
    named = [path for path in found if path.exists() and CODENAME in path.read_text(encoding="utf-8")]
    if named:
        return named
    mark = "debian-archive-keyring"
    others = sorted(folder.glob("*.sources")) + sorted(folder.glob("*.list"))
    named = [path for path in others if mark in path.read_text(encoding="utf-8")]
    if not named:
        raise Trouble(f"no apt source of {RELEASE} in /etc/apt")
    return named
