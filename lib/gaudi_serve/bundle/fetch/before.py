"""What keeps a bundle from being fetched, all of it before anything is."""

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

# Programs that fetch each kind, with the package of Debian that has them.
PROGRAMS = {
    "image": {"skopeo": "skopeo"},
    "package": {"apt-get": "apt", "apt-ftparchive": "apt-utils"},
    "source": {"git": "git"},
}
ALWAYS = {"gpg": "gnupg", "gpgv": "gpgv"}
# What nobody can fetch; other problems are those of things that may be something else tomorrow.
NEVER = (INSIDE, NO_ADDRESS, TEXTS)


def is_never(item: Item) -> bool:
    """Tell whether nobody can fetch an item as it is listed."""
    return any(one in item.problem for one in NEVER)


def is_inside(item: Item) -> bool:
    """Tell whether an item lies on the hosts already."""
    return item.kind == "image" and images.ON_HOST.fullmatch(item.origin) is not None


def refusal(bundle: Bundle, items: Sequence[Item], signer: Signer) -> list[str]:
    """Return everything that keeps these items from being fetched.

    Args:
        bundle: that is to be fetched.
        items: without those that the site brings in another way.
        signer: that is to sign it.
    """
    found = _missing(bundle, items)
    if shutil.which("gpg"):
        found += [one for one in [signer.problem()] if one]
    if not bundle.settings.signing_key and _inside(bundle.settings.key_dir, bundle.folder):
        found.append(
            f"bundle_key_dir {bundle.settings.key_dir}: is in the bundle, which would carry its secret key along"
        )
    found += [*apt.problems(bundle, items), *python.problems(bundle, items)]
    found += [f"{_named(one)}: {one.problem}; or leave it out with bundle_leave_out" for one in items if is_never(one)]
    moving = [] if bundle.settings.allow_unpinned else [one for one in items if one.problem and not is_never(one)]
    found += [f"{_named(one)}: {one.problem}" for one in moving]
    if moving:
        found.append("bundle_allow_unpinned=true fetches what moves as it is today, and notes what that was")
    return found


def _inside(path: Path, folder: Path) -> bool:
    return folder.resolve() in (path.resolve(), *path.resolve().parents)


def _named(item: Item) -> str:
    return f"{item.label} ({some_names(item.users)})"


def _missing(bundle: Bundle, items: Sequence[Item]) -> list[str]:
    """Return which programs this machine lacks."""
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
