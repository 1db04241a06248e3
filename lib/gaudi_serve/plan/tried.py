"""A plan with one more model on every host: the catalog entry in ``plan_try``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import Finding, near, shown
from .resolve import FIRST_PORT

Known = Mapping[str, Any]


def tried_name(entry: str) -> str:
    """Return the name of the tried model in a plan. No unit has that name."""
    return f"{entry}-tried"


def unknown_entry(entry: Any, catalog: Mapping[str, Any], host_name: str) -> Finding | None:
    """Return the problem with ``plan_try``, or None.

    Args:
        entry: Its value.
        catalog: The catalog of the host.
        host_name: The name of the host in messages.
    """
    if isinstance(entry, str) and entry in catalog:
        return None
    hint = near(entry, list(catalog), 1) if isinstance(entry, str) else ""
    allowed = f"is not an entry of the catalog of this host{hint}"
    return Finding(host_name, "plan_try", f"{host_name}: plan_try {shown(entry)}: {allowed}", None, None, allowed)


def with_tried(values: Known, entry: str, host: Known) -> list[Any]:
    """Return the models of a host, with one more for an entry of the catalog.

    It gets a free port. If the defaults set no image, it gets one that the host has or will have anyway.

    Args:
        values: The host's checked variables, with vllm_models, vllm_images and vllm_model_defaults.
        entry: The entry of the catalog.
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
    """Return the errors of the inventory, and the reasons why a host cannot have the tried model."""
    tried = [one for one in errors if one.model == tried_name(entry)]
    return [one for one in errors if one not in tried], [one.message for one in tried]
