"""Additions to a container whose devices use network cards, between hosts or between card groups of one host."""

from __future__ import annotations

from dataclasses import replace

from ..model.between import NICS
from ..model.host import Host
from ..model.spec import Spec
from ..platforms import platform_of
from ..platforms.between import CAPABILITY, ULIMIT, verbs_nodes
from .model import Container


def crosses_nics(spec: Spec, host: Host, cards: int) -> bool:
    """Return whether a model's devices communicate over network cards.

    They do if it runs on several hosts, or has more cards than a group of linked cards.

    Args:
        spec: The model.
        host: The host with a part of it.
        cards: The number of its cards there.
    """
    if host.between.kind != NICS or not cards:
        return False
    group = platform_of(host.accelerator).group(replace(host, nics=False))
    return spec.members is not None or bool(group and cards > group)


def with_nics(container: Container, host: Host) -> Container:
    """Return a container that may also use the network cards: their device nodes, and locked memory."""
    access = container.access
    if access is None:
        return container
    nodes = verbs_nodes(host.between.used(host.verbs))
    return replace(
        container,
        access=replace(access, beside=nodes),
        ulimits=[*container.ulimits, *([] if _limits(container.ulimits) else [ULIMIT])],
        cap_add=sorted({*container.cap_add, CAPABILITY}),
    )


def _limits(ulimits: list[str]) -> bool:
    return any(limit.startswith("memlock=") for limit in ulimits)
