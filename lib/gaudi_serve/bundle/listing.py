"""The items of one host, by the stages of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..catalog.merge import merged
from ..core.errors import InputError
from ..model.host import Host
from ..platforms import platform_of
from . import images, packages, weights
from .host import BundleHost, Known
from .items import Item

Part = Callable[[BundleHost], list[Item]]
# The functions that list the items of each role. Other roles download nothing.
PARTS: Mapping[str, tuple[Part, ...]] = {
    "host_tuning": (packages.host_tuning,),
    "driver": (packages.driver,),
    "accelerator_network": (packages.accelerator_network,),
    "container_runtime": (packages.container_runtime,),
    "vllm_image": (images.images, packages.images),
    "link_validation": (images.link_measurement,),
    "model_weights": (weights.weights,),
    "gateway": (packages.gateway,),
    "monitoring": (packages.monitoring,),
    "site_mirror": (packages.site_mirror,),
}
SYSTEM = ("id", "version_id", "kernel", "accelerator")


def host_items(host: BundleHost, stages: Sequence[str]) -> list[Item]:
    """Return all items that the stages of a run download for a host.

    Raises:
        InputError: if its facts are not enough to choose its packages.
    """
    parts = [part for stage in stages for part in PARTS.get(stage, ())]
    if not parts:
        return []
    system = host.known.get("gaudi_system")
    if not system:
        raise InputError(no_facts(host.name))
    missing = [key for key in SYSTEM if not system.get(key)]
    if missing:
        raise InputError(
            f"{host.name}: facts: gaudi_system has no {', '.join(missing)}, by which packages are chosen; read it "
            "again with playbooks/plan.yml -e plan_save_facts_dir=FOLDER, or add it by hand"
        )
    return [item for part in parts for item in part(host)]


def unplanned_models(known: Known) -> list[dict[str, Any]]:
    """Return name and image of a host's models that are planned after a run has installed its driver.

    Args:
        known: the variables of the host.
    """
    host, release = Host.of(known.get("gaudi_host") or {}), str(known["vllm_image_release"])
    found = []
    for given in known["preflight_models"] or ():
        full = merged(given, known["preflight_catalog"], known["preflight_model_defaults"] or {}, host, release)
        image = full.get("image") or platform_of(host.accelerator).image(host, release, "")
        if image:
            found.append({"name": str(full.get("name")), "image": image, "state": full.get("state", "started")})
    return [{**one, "env": {}} for one in found]


def no_facts(name: str) -> str:
    """Return the message for a host without facts."""
    return (
        f"no facts of {name}: run playbooks/plan.yml -e plan_save_facts_dir=FOLDER where the host can be reached, or "
        "write them by hand (docs/guides/planning.md)"
    )
