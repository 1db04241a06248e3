"""A check whether a model that is too large for each single host fits on several hosts together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.words import counted
from ..model.distributed import HOSTS, PORT, host_models
from ..platforms import platform_of
from .assembly import Peer, assemble
from .tried import tried_name, with_tried

COUNTS = (2, 4, 8)
# The first port of a block that no model has by default.
FREE_PORT = 27900


def tried_together(hosts: Mapping[str, Peer], entry: str) -> str:
    """Return the hosts and sizes with which a catalog entry fits on several hosts, or an empty text.

    Args:
        hosts: The hosts that could be read, by name and in the order of the inventory.
        entry: The entry of the catalog.
    """
    for count in COUNTS:
        for names in _alike(hosts, count):
            for sizes in _sizes(hosts[names[0]], count):
                if _fits({name: hosts[name] for name in names}, entry, sizes):
                    said = ", ".join(f"{key} {value}" for key, value in sizes.items())
                    return (
                        f"{entry} fits on {counted(count, 'host')} together, such as {', '.join(names)}: {said}, as an "
                        "entry of vllm_distributed_models (docs/guides/multi-host.md)"
                    )
    return ""


def _alike(hosts: Mapping[str, Peer], count: int) -> Iterator[list[str]]:
    """Yield the first ``count`` hosts of each kind of cards with enough hosts."""
    kinds: dict[tuple[Any, ...], list[str]] = {}
    for name, one in hosts.items():
        facts = one.facts["gaudi_host"]
        kind = (facts["accelerator"], facts["device_name"], len(facts["modules"]), one.wanted.release)
        kinds.setdefault(kind, []).append(name)
    yield from (names[:count] for names in kinds.values() if len(names) >= count)


def _sizes(host: Peer, count: int) -> list[dict[str, int]]:
    """Return the ways to spread a model over hosts like this one, first the way for a slow network."""
    facts = host.facts["gaudi_host"]
    cards, platform = len(facts["modules"]) or 1, platform_of(facts["accelerator"])
    whole = {"tensor_parallel_size": cards * count}
    staged = {"tensor_parallel_size": cards, "pipeline_parallel_size": count}
    return [staged, whole] if platform.devices and not platform.even_heads else [whole]


def _fits(hosts: Mapping[str, Peer], entry: str, sizes: Mapping[str, int]) -> bool:
    """Return whether an entry can be planned on these hosts together without an error."""
    names: Sequence[str] = list(hosts)
    tried: dict[str, Peer] = {}
    for name, one in hosts.items():
        facts, wanted = one.facts["gaudi_host"], one.wanted
        given = {"vllm_models": wanted.models, "vllm_images": wanted.images, "vllm_model_defaults": wanted.defaults}
        model = {**with_tried(given, entry, facts)[-1], **sizes, HOSTS: list(names), PORT: FREE_PORT}
        models = host_models(wanted.models, [model], name)
        tried[name] = Peer(replace(wanted, models=models, gateway=None), one.facts)
    for name, one in tried.items():
        found = assemble(name, one.wanted, one.facts, None, [], tried)
        planned = [model for model in found.models["models"] if model["name"] == tried_name(entry)]
        if not planned or any(problem.model == tried_name(entry) for problem in found.findings):
            return False
    return True
