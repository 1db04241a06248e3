"""Names of container images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .checks import matching

# A name that container engines accept: the registry's host, folders of lowercase letters, a tag, a digest.
_FOLDER = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
NAME = (
    rf"(?=.{{1,255}}\Z)(?:(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:]+\])(?::\d+)?/)?{_FOLDER}(?:/{_FOLDER})*"
    r"(?::\w[\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
IS_NAME = matching(NAME)
# Images without a registry are from Docker Hub, which has two names.
HUB, OLD_HUB = "docker.io", "index.docker.io"
# Before the first slash, engines take a word as a registry only with a dot, a port or a capital, or if it is localhost.
REGISTRY = r"(?:(?=localhost[:/]|localhost\Z|[^/]*[.:A-Z])[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:]+\])(?::\d{1,5})?"
IS_REGISTRY = matching(REGISTRY)
# A mirror of other registries may be a folder of a registry.
IS_MIRROR = matching(rf"{REGISTRY}(?:/{_FOLDER})*")
NAMED = (
    "must be the name of an image, such as registry.example.net/vllm-gaudi:1.21.3: lowercase letters, without blanks, "
    "https:// or a user (vllm_image_registries has logins)"
)


def split_registry(name: str) -> tuple[str, str]:
    """Return the registry of an image, which is docker.io if its name has none, and the rest of its name."""
    first, slash, rest = name.partition("/")
    if not slash or not IS_REGISTRY(first):
        return HUB, name
    return HUB if first == OLD_HUB else first, rest


def image_name(name: str) -> str:
    """Return an image's name as Docker lists it: with a tag or digest, without the default registry."""
    registry, rest = split_registry(name)
    short = rest.removeprefix("library/") if registry == HUB else name
    has_tag = "@" in short or ":" in short.rpartition("/")[2]
    return short if has_tag else f"{short}:latest"


def vllm_image_id(images: Mapping[str, Any], name: str) -> str | None:
    """Return the id of an image, or None if the host does not have it.

    Args:
        images: ``gaudi_services.images`` of the host.
        name: The image, with or without a tag and the default registry.
    """
    found = images.get(image_name(name))
    return str(found) if found else None
