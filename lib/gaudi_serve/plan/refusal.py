"""Every reason why a run must not begin on a host, beside the mistakes that its plan has found."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import InputError, plain
from ..platforms import platform_of
from ..spec.facts import checked_host
from ..spec.inventory import problem_text
from ..spec.keys import CARD_VARIABLES
from ..stages.container_runtime import daemon_json
from ..stages.habana_config import habana_config_problems
from ..stages.service import image_name, secrets_refusal

Errors = list[dict[str, Any]]

SUPPORTED = {("debian", "12"), ("ubuntu", "22.04"), ("ubuntu", "24.04")}
# Repositories of the vendor's images carry their release as a part of the path.
VENDOR_IMAGE = re.compile(r"/gaudi-docker/(\d+\.\d+)\.\d+/")


def host_errors(
    plan: Mapping[str, Any],
    system: Mapping[str, Any] | None,
    host: Mapping[str, Any],
    *,
    host_name: str = "this host",
    wanted: str = "auto",
    cards: int = 0,
    release: str = "1.21.3",
    images: Sequence[Any] | None = None,
    daemon: str | None = None,
    secrets: Any = None,
    habana: str | None = None,
) -> Errors:
    """Return everything that is wrong with a host and its plan, each with host, model, key and message.

    Args:
        plan: what vllm_plan returned.
        system: ``gaudi_system`` of the host; None does not check it (saved facts may lack it).
        host: ``gaudi_host`` of the host.
        host_name: how messages call the host.
        wanted: accelerator that the inventory expects: auto, gaudi or cpu.
        cards: how many cards the inventory expects; 0 for any number.
        release: release of the serving image; driver and image must be of one.
        images: names of the images on the host and entries of ``vllm_images``; None does not check.
        daemon: text of the host's daemon.json, which must be one that can be merged into.
        secrets: ``vllm_secrets``.
        habana: text of the host's config.toml of the habana runtime, with which servers must be able to start.
    """
    found = [("system", text) for text in system_refusal(system, host_name)] if system is not None else []
    found += _accelerator_reasons(host, host_name, wanted, cards, release)
    found += _file_reasons(daemon, habana if platform_of(host).runtime else None, host_name)
    found += [("vllm_secrets", text) for text in secrets_refusal({} if secrets is None else secrets, host_name)]
    errors: Errors = [
        {"host": host_name, "model": None, "key": key, "value": None, "allowed": None, "message": text}
        for key, text in found
    ]
    errors += _core_errors(host, host_name) + _twice_errors(plan, secrets, host_name)
    return errors + _image_errors(plan, images, host_name, host["accelerator"], release) + list(plan["errors"])


def _core_errors(host: Mapping[str, Any], host_name: str) -> Errors:
    """Return cores that contradict each other: models would be bound to those of another node, or of other models.

    The other facts of a live host are what the toolkit's own module says; cores come from the kernel and the cards.
    """
    errors = []
    for key, value, allowed in checked_host(host)[1]:
        if key.endswith(".cpus"):
            keys = {"host": host_name, "model": None, "key": key, "value": plain(value), "allowed": allowed}
            errors.append({**keys, "message": f"{host_name}: facts: {problem_text(key, value, allowed)}"})
    return errors


def _twice_errors(plan: Mapping[str, Any], secrets: Any, host_name: str) -> Errors:
    """Return the secrets that would set a variable a second time: which of the two counts, none of us decides."""
    errors = []
    for model in plan["models"]:
        named = secrets.get(model["name"]) if isinstance(secrets, Mapping) else None
        for key in named if isinstance(named, Mapping) else ():
            if key in CARD_VARIABLES:
                allowed = "must not be set: the plan chooses the cards; say module_ids"
            elif key in model["env"]:
                allowed = "is set by the model's launch too; a container takes one of the two, so say it in one place"
            else:
                continue
            message = f"{host_name}: model {model['name']}: vllm_secrets: {key} {allowed}"
            keys = {"host": host_name, "model": model["name"], "key": f"vllm_secrets: {key}", "value": None}
            errors.append({**keys, "allowed": allowed, "message": message})
    return errors


def _accelerator_reasons(
    host: Mapping[str, Any], host_name: str, wanted: str, cards: int, release: str
) -> list[tuple[str, str]]:
    found = host["accelerator"]
    reasons = []
    if wanted not in ("auto", found):
        text = f"{host_name}: gaudi_accelerator is {wanted}, but this is a {found} host"
        reasons.append(("gaudi_accelerator", text))
    return reasons + platform_of(host).reasons(host, host_name, cards, release)


def plan_refusal(plan: Mapping[str, Any], system: Mapping[str, Any], host: Mapping[str, Any], **more: Any) -> list[str]:
    """Return the sentences of host_errors: every reason why a run must not begin; empty when it may."""
    return [error["message"] for error in host_errors(plan, system, host, **more)]


def refused_hosts(hostvars: Mapping[str, Mapping[str, Any]], hosts: Sequence[str]) -> list[str]:
    """Return the hosts that a run must not begin on: read, but refused, or with variables that cannot be understood.

    A host that could not be reached is none of them: it drops out alone.
    """
    refused = []
    for name in hosts:
        known = hostvars[name]
        read = "gaudi_observed_at" in known and "preflight_passed" not in known
        wrong = (known.get("preflight_inventory") or {}).get("failed")
        if read or wrong or known.get("preflight_refusal"):
            refused.append(name)
    return refused


def system_refusal(system: Mapping[str, Any], host_name: str) -> list[str]:
    """Return why this toolkit does not work on an operating system; empty where it does."""
    if (system["id"], system["version_id"]) in SUPPORTED:
        return []
    known = ", ".join(f"{name} {version}" for name, version in sorted(SUPPORTED))
    return [f"{host_name}: {system['pretty_name']} is not supported; supported are {known}"]


def _file_reasons(daemon: str | None, habana: str | None, host_name: str) -> list[tuple[str, str]]:
    reasons = [("config.toml", text) for text in habana_config_problems(habana, host_name)]
    try:
        daemon_json(daemon, habana=False, live_restore=True, data_root="", host_name=host_name)
    except InputError as problem:
        return [("daemon.json", str(problem)), *reasons]
    return reasons


def _image_errors(
    plan: Mapping[str, Any], images: Sequence[Any] | None, host_name: str, accelerator: str, release: str
) -> Errors:
    if images is None:
        return []
    entries = [entry if isinstance(entry, Mapping) else {"name": entry} for entry in images]
    made_for = {image_name(str(entry["name"])): _made_for(entry) for entry in entries if entry.get("name")}
    errors = []
    for model in plan["models"]:
        name = image_name(model["image"])
        vendor = VENDOR_IMAGE.search(name)
        if model["state"] == "started" and name not in made_for:
            allowed = f"neither on this host nor in vllm_images; there are {sorted(made_for)}"
        elif made_for.get(name) not in (None, accelerator):
            allowed = f"is made for {made_for[name]} hosts, and this is a {accelerator} host"
        elif vendor and vendor[1] != ".".join(release.split(".")[:2]):
            allowed = f"is of release {vendor[1]}, but gaudi_release is {release}; both must be of one release"
        else:
            continue
        message = f"{host_name}: model {model['name']}: image {model['image']!r}: {allowed}"
        keys = {"host": host_name, "model": model["name"], "key": "image", "value": model["image"]}
        errors.append({**keys, "allowed": allowed, "message": message})
    return errors


def _made_for(entry: Mapping[str, Any]) -> str | None:
    return entry.get("accelerator") or entry.get("build")
