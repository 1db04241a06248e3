"""What a model needs whose devices talk over network cards: between hosts, and between the groups of one host."""

from __future__ import annotations

from dataclasses import replace

from ..model.between import NICS
from ..model.host import Host
from ..model.spec import Spec
from ..platforms import platform_of
from ..platforms.between import CAPABILITY, ULIMIT, verbs_nodes
from .model import Container


def crosses_nics(spec: Spec, host: Host, cards: int) -> bool:
    """Tell whether a model's devices talk over network cards.

    They do where it runs on several hosts, or has more cards than a group of linked ones has.

    Args:
        spec: the model.
        host: where a part of it is planned.
        cards: how many it has there.
    """
    if host.between.kind != NICS or not cards:
        return False
    group = platform_of(host.accelerator).group(replace(host, nics=False))
    return spec.members is not None or bool(group and cards > group)


def with_nics(container: Container, host: Host) -> Container:
    """Return a container that may use the network cards too: their nodes, and memory that stays where it is."""
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
