"""A plan as if every host served one more model: an entry of the catalog that somebody would like to have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import Finding, near, shown
from .resolve import FIRST_PORT

Known = Mapping[str, Any]


def tried_name(entry: str) -> str:
    """Return how a plan calls the model of an entry that is tried; no unit has that name."""
    return f"{entry}-tried"


def unknown_entry(entry: Any, catalog: Mapping[str, Any], host_name: str) -> Finding | None:
    """Return what is wrong with ``plan_try``; None where nothing is.

    Args:
        entry: its value.
        catalog: the catalog of the host.
        host_name: how messages call the host.
    """
    if isinstance(entry, str) and entry in catalog:
        return None
    hint = near(entry, list(catalog), 1) if isinstance(entry, str) else ""
    allowed = f"is not an entry of the catalog of this host{hint}"
    return Finding(host_name, "plan_try", f"{host_name}: plan_try {shown(entry)}: {allowed}", None, None, allowed)


def with_tried(values: Known, entry: str, host: Known) -> list[Any]:
    """Return the models of a host, with one more that takes an entry of the catalog.

    It gets a port that nothing has, and where the defaults name no image, one that the host has or gets anyway.

    Args:
        values: the host's variables, checked; read are vllm_models, vllm_images, vllm_model_defaults.
        entry: the catalog's.
        host: ``gaudi_host``.
    """
    models, defaults = values["vllm_models"] or [], values["vllm_model_defaults"] or {}
    known, images = (
        [one for one in some or [] if isinstance(one, Mapping)] for some in (models, values["vllm_images"])
    )
    taken = {str(one.get("port") or FIRST_PORT) for one in known} | set(map(str, host["ports"]))
    port = next(number for number in range(FIRST_PORT, 2**16) if str(number) not in taken)
    own = [image for image in (*(one.get("image") for one in known), *(one.get("name") for one in images)) if image]
    image = {"image": own[0]} if own and not defaults.get("image") else {}
    return [*models, {"name": tried_name(entry), "model": entry, "port": port, **image}]


def parted(errors: Sequence[Finding], entry: str) -> tuple[list[Finding], list[str]]:
    """Return the errors of what an inventory says, and why a host cannot have the model that is tried: an answer."""
    tried = [one for one in errors if one.model == tried_name(entry)]
    return [one for one in errors if one not in tried], [one.message for one in tried]
