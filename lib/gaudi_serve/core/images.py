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
# The registry is before the first slash. Images without one are from Docker Hub.
REGISTRY, HUB = r"(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:]+\])(?::\d{1,5})?", "docker.io"
IS_REGISTRY = matching(REGISTRY)
# A mirror of other registries may be a folder of a registry.
IS_MIRROR = matching(rf"{REGISTRY}(?:/{_FOLDER})*")
NAMED = (
    "must be the name of an image, such as registry.example.net/vllm-gaudi:1.21.3: lowercase letters, without blanks, "
    "https:// or a user (vllm_image_registries has logins)"
)


def image_name(name: str) -> str:
    """Return an image's name as Docker lists it: with a tag or digest, without the default registry."""
    short = name.removeprefix("docker.io/").removeprefix("library/")
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
