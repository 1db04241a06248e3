"""Container images, and the parts of images that are built here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.images import split_registry
from ..core.templates import file_of
from ..platforms import platform_of
from ..stages.image import recipe_parts, vllm_images
from .host import BundleHost
from .items import Item, Need
from .roles import pins

NO_DIGEST = "no digest: a tag may be moved; name it as NAME@sha256:..."
MOVES = "tag latest moves: name a digest, as NAME@sha256:..."
INSIDE = (
    "pip installs it while the image is built, at no fixed version: build the image first, on a host with internet "
    "that is named as build_host (playbooks/images.yml), and the bundle carries the image"
)
# Parts of the program that builds the image for processors.
CPU_BASE = re.compile(r'"--base", default="([^"]+)"')
CPU_NAMES = re.compile(r'^PACKAGES = "([^"]+)"', re.MULTILINE)
CPU_APT = re.compile(r"apt-get install --yes --no-install-recommends ([^\\\n]+)")


def images(host: BundleHost) -> list[Item]:
    """Return the images of a host, their base images, and what is built into them."""
    found: list[Item] = []
    release = str(host.known["vllm_image_release"])
    for entry in vllm_images(host.known["vllm_image_images"] or [], release):
        users, archive = _users(host, entry), _archive(host, entry)
        # A mirror has built images as complete images, so that no host builds them again.
        built = archive or host.known["vllm_image_mirror"]
        if entry.get("build") == "gaudi" and not built:
            found += _recipe(host, entry, users)
        elif entry.get("build") == "cpu" and not built:
            found += _cpu(host, users)
        else:
            found += [_image(host, str(entry["name"]), users, archive)]
    return found


def _archive(host: BundleHost, entry: Mapping[str, Any]) -> str:
    """Return the origin of an image's archive; empty without one, or if it is not built yet."""
    path = str(entry.get("archive") or "")
    if entry.get("archive_on_host"):
        return f"archive {path} on the host"
    if entry.get("build") == "gaudi":
        # The name under which role vllm_image stores a build host's image on the control node.
        kept = re.sub("[/:]", "_", str(entry["name"]))
        path = f"{host.known['vllm_image_archives']}/{kept}.tar"
    there = not entry.get("build") or Path(path).expanduser().is_file()
    return f"archive {path} on the control node" if path and there else ""


def _users(host: BundleHost, entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the models that use an image."""
    names = {str(entry["name"]), str(entry.get("alias"))}
    return tuple(str(one["name"]) for one in host.models if str(one.get("image")) in names)


def _image(host: BundleHost, name: str, models: Sequence[str], archive: str = "") -> Item:
    return image_item(name, host.need("vllm_image", *models), archive)


def image_item(name: str, need: Need, archive: str = "") -> Item:
    """Return the item of an image name, with its registry.

    Args:
        name: with a tag or a digest.
        need: who needs it.
        archive: the origin of its archive; empty for an image that is pulled.
    """
    place, at, digest = name.partition("@")
    last = place.rpartition("/")[2]
    tag = last.partition(":")[2] if ":" in last else ""
    bare = place.removesuffix(f":{tag}") if tag else place
    version = digest if at else tag or "latest"
    problem = "" if at or archive else MOVES if version == "latest" else NO_DIGEST
    origin = archive or split_registry(bare)[0]
    return Item("image", bare, version, origin, "", need, bool(at), problem)


def _recipe(host: BundleHost, entry: Mapping[str, Any], models: Sequence[str]) -> list[Item]:
    recipe = entry.get("recipe") or {}
    alias = str(entry["alias"])
    # The name of a built image begins with its release.
    release = str(recipe.get("release") or host.known["vllm_image_release"])
    parts = recipe_parts(alias, recipe, release)
    need = host.need("vllm_image", *models)
    found = [_image(host, parts["base"], models)]
    for one in parts["sources"].values():
        name = one["repository"].rstrip("/").rpartition("/")[2].removesuffix(".git")
        found.append(Item("source", name, one["commit"], one["repository"], need=need, pinned=True))
        if name not in ("hccl_ofi_wrapper", "hccl_demo"):
            name = f"requirements of {name}"
            found.append(Item("python", name, one["commit"], _index(host), need=need, problem=INSIDE))
    further = [("audio", "vllm[audio]"), ("multimodal", "pillow-simd")]
    found += [Item("python", name, "", _index(host), need=need, problem=INSIDE) for key, name in further if parts[key]]
    if parts["libfabric"]:
        fetched = parts["libfabric"]
        name = fetched["url"].rpartition("/")[2]
        found.append(Item("download", name, f"sha256:{fetched['sha256']}", fetched["url"], need=need, pinned=True))
    return found


def _index(host: BundleHost) -> str:
    return str(host.known["vllm_image_pip_index_url"] or "") or "package index of pip"


def _cpu(host: BundleHost, models: Sequence[str]) -> list[Item]:
    """Return the parts from which the control node builds the image for processors."""
    text = file_of("vllm_image", "build_cpu_image")
    base, names, apt = (pattern.search(text) for pattern in (CPU_BASE, CPU_NAMES, CPU_APT))
    found = [_image(host, base[1], models)] if base else []
    own = apt[1].replace("{PACKAGES}", names[1]).split() if apt and names else []
    need = Need(why=("vllm_image",))  # on the control node
    system = base[1].replace(":", " ") if base else ""
    found += [Item("package", name, "", system, system, need) for name in own]
    wheels = pins("roles/vllm_image/files/cpu-requirements.txt")
    return found + [Item("python", *pin, "package index of pip", need=need, pinned=bool(pin[1])) for pin in wheels]


def link_measurement(host: BundleHost) -> list[Item]:
    """Return the program that measures the links of a host; it is cloned if the image lacks it."""
    links, key = platform_of(host.machine.get("accelerator")).links, "link_validation_hccl_"
    # A host without a driver shows no cards yet.
    several = len(host.machine.get("modules") or ()) > 1 or not host.machine.get("driver_version")
    if links is None or links.backend or not several or not host.known["link_validation_image"]:
        return []
    built = [one.get("recipe") or {} for one in host.known["vllm_image_images"] or () if one.get("build") == "gaudi"]
    if built and all("hccl_demo" in one for one in built):
        return []
    place, commit = str(host.known[f"{key}repository"]), str(host.known[f"{key}commit"] or "")
    name = place.rstrip("/").rpartition("/")[2].removesuffix(".git")
    problem = "" if commit else f"no commit: the newest of that day; set {key}commit, or use an image that has it"
    return [Item("source", name, commit, place, "", host.need("link_validation"), bool(commit), problem)]
