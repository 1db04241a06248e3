"""Names of container images."""

from __future__ import annotations

from .checks import matching

# A name as engines take it: a registry's host, folders of small letters, a tag, a digest.
_FOLDER = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
NAME = (
    rf"(?=.{{1,255}}\Z)(?:(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:]+\])(?::\d+)?/)?{_FOLDER}(?:/{_FOLDER})*"
    r"(?::\w[\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
IS_NAME = matching(NAME)
# What stands before the first slash; images without it are of this one.
IS_REGISTRY, HUB = matching(r"(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:]+\])(?::\d{1,5})?"), "docker.io"
NAMED = (
    "must be the name of an image, such as registry.example.net/vllm-gaudi:1.21.3: small letters, without blanks, "
    "https:// or a user (vllm_image_registries has logins)"
)
