"""The Debian root file systems under the images made here."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from .common import KEY_LABEL, HostError, digest, install, locked, run, step, succeeds

CODENAME = "bookworm"
REPOSITORY = "gaudi-serve/base"
EDITION = "1"  # to be raised when the image is made differently from the same packages
PULL_S = 300  # for a slow line; where there is no registry, the engine gives up in 15 s by itself


class Release(NamedTuple):
    """A release of Debian, with the packages that an image of it has at least."""

    name: str
    codename: str
    packages: tuple[str, ...]


DEBIAN_12 = Release("debian:12", CODENAME, ("python3", "ca-certificates"))
DEBIAN_13 = Release("debian:13", "trixie", ("python3-venv", "ca-certificates", "openssl", "procps", "openssh-client"))
# GAUDI_SERVE_DEBIAN=13 makes all hosts of the scenarios from the newer release.
HOSTS = DEBIAN_13 if os.environ.get("GAUDI_SERVE_DEBIAN") == "13" else DEBIAN_12


def key(release: Release = DEBIAN_12) -> str:
    """Return the key of a base image."""
    return digest(release.name, " ".join(release.packages), EDITION)


def ensure(release: Release = DEBIAN_12) -> str:
    """Return the tag of a base image, made where it is missing."""
    tag = f"{REPOSITORY}:{key(release)}"
    with locked("base-image"):  # several images on it are made at once
        if not succeeds("docker", "image", "inspect", tag):
            make(release, tag)
    return tag


def make(release: Release, tag: str) -> None:
    """Make a base image from one of a registry, or from packages."""
    if succeeds("docker", "image", "inspect", release.name) or pulled(release.name):
        with step(f"Making the base image from a pulled {release.name}"):
            recipe = (
                f"FROM {release.name}\nLABEL {KEY_LABEL}={key(release)}\n"
                f"RUN apt-get update && apt-get install --yes --no-install-recommends {' '.join(release.packages)}\n"
            )
            run("docker", "build", "--tag", tag, "-", stdin=recipe, env={"DOCKER_BUILDKIT": "0"})
    else:
        bootstrap(release, tag)


def pulled(name: str) -> bool:
    """Try a registry; many machines have none."""
    with step(f"Looking for {name} in a registry"):
        return succeeds("docker", "pull", "--quiet", name, timeout=PULL_S) or succeeds(
            "docker", "image", "inspect", name
        )


def bootstrap(release: Release, tag: str) -> None:
    """Make an image from packages, with the machine's own package sources, which have the other releases too."""
    install("mmdebstrap", "mmdebstrap")
    with step(f"Making the base image of {release.name} with mmdebstrap"), tempfile.TemporaryDirectory() as folder:
        sources = []
        for path in distribution_sources():
            text = path.read_text(encoding="utf-8").replace(CODENAME, release.codename)
            sources.append(Path(folder) / path.name)
            sources[-1].write_text(text, encoding="utf-8")
        archive = Path(folder) / "base.tar"
        include = f"--include={','.join(release.packages)}"
        run("mmdebstrap", "--variant=minbase", include, release.codename, archive, *sources)
        run("docker", "import", "--change", f"LABEL {KEY_LABEL}={key(release)}", archive, tag)


def distribution_sources() -> list[Path]:
    """Return the apt source files of the distribution itself; third parties' ones stay out of the hosts."""
    release = Path("/etc/os-release").read_text(encoding="utf-8")
    if f"VERSION_CODENAME={CODENAME}" not in release.split():
        name = DEBIAN_12.name
        raise HostError(f"no registry with {name} is reachable, and without one this needs a machine with {name}")
    folder = Path("/etc/apt/sources.list.d")
    found = [folder / "debian.sources", Path("/etc/apt/sources.list")]
    named = [path for path in found if path.exists() and CODENAME in path.read_text(encoding="utf-8")]
    if named:
        return named
    mark = "debian-archive-keyring"
    others = sorted(folder.glob("*.sources")) + sorted(folder.glob("*.list"))
    named = [path for path in others if mark in path.read_text(encoding="utf-8")]
    if not named:
        raise HostError(f"no apt source of {DEBIAN_12.name} in /etc/apt")
    return named
