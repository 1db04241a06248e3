"""The checks before a download: they report all problems before anything is changed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ...core.words import some_names
from ..images import INSIDE
from ..items import Item
from ..packages import NO_ADDRESS
from ..weights import TEXTS
from . import apt, galaxy, images, python, weights
from .base import Bundle
from .signing import Signer

# Programs for each kind, with their Debian packages.
PROGRAMS = {
    "image": {"skopeo": "skopeo"},
    "package": {"apt-get": "apt", "apt-ftparchive": "apt-utils"},
    "source": {"git": "git"},
}
ALWAYS = {"gpg": "gnupg", "gpgv": "gpgv"}
# Problems of items that cannot be downloaded; other problems are about items that may change later.
NEVER = (INSIDE, NO_ADDRESS, TEXTS)


def is_never(item: Item) -> bool:
    """Return whether an item cannot be downloaded as listed."""
    return any(one in item.problem for one in NEVER)


def is_inside(item: Item) -> bool:
    """Return whether an item is already on the hosts."""
    return item.kind == "image" and images.ON_HOST.fullmatch(item.origin) is not None


def refusal(bundle: Bundle, items: Sequence[Item], signer: Signer) -> list[str]:
    """Return messages on everything that prevents a download of these items.

    Args:
        bundle: the bundle.
        items: the items, without those that the site provides in another way.
        signer: the signer of the bundle.
    """
    found = _missing(bundle, items)
    if shutil.which("gpg"):
        found += [one for one in [signer.problem()] if one]
    if not bundle.settings.signing_key and _inside(bundle.settings.key_dir, bundle.folder):
        found.append(
            f"bundle_key_dir {bundle.settings.key_dir}: is inside the bundle, which would then contain its secret key"
        )
    found += [*apt.problems(bundle, items), *python.problems(bundle, items)]
    found += [f"{_named(one)}: {one.problem}; or leave it out with bundle_leave_out" for one in items if is_never(one)]
    moving = [] if bundle.settings.allow_unpinned else [one for one in items if one.problem and not is_never(one)]
    found += [f"{_named(one)}: {one.problem}" for one in moving]
    if moving:
        found.append(
            "bundle_allow_unpinned=true fetches today's version of what can change, and records which one it is"
        )
    return found


def _inside(path: Path, folder: Path) -> bool:
    return folder.resolve() in (path.resolve(), *path.resolve().parents)


def _named(item: Item) -> str:
    return f"{item.label} ({some_names(item.users)})"


def _missing(bundle: Bundle, items: Sequence[Item]) -> list[str]:
    """Return messages on the programs that this machine lacks."""
    kinds = {one.kind for one in items}
    needed = {**ALWAYS, **{key: value for kind in kinds for key, value in PROGRAMS.get(kind, {}).items()}}
    sources = weights.kinds(bundle, items)
    if "git" in sources:
        needed |= {"git": "git", "git-lfs": "git-lfs"}
    lacks = {name: package for name, package in needed.items() if not shutil.which(name)}
    if "python" in kinds and not (find_spec("pip") or shutil.which(python.program()[0])):
        lacks["pip"] = "python3-pip"
    if "collection" in kinds and not shutil.which(galaxy.program()):
        lacks["ansible-galaxy"] = "ansible-core"
    if sources & {*weights.MODULES} and not find_spec("ensurepip"):
        lacks["venv"] = "python3-venv"
    return [f"{name}: this machine has no such program; install the package {lacks[name]}" for name in sorted(lacks)]
