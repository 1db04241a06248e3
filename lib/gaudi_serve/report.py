"""What people read: a refusal that names everything at once, and the table at the end of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .container_runtime import daemon_json
from .errors import InputError
from .service import image_name, secrets_refusal
from .smoke import EVERYWHERE

SUPPORTED = {("debian", "12"), ("ubuntu", "22.04"), ("ubuntu", "24.04")}


def plan_refusal(
    plan: Mapping[str, Any],
    system: Mapping[str, Any],
    host: Mapping[str, Any],
    *,
    host_name: str = "this host",
    wanted: str = "auto",
    cards: int = 0,
    release: str = "1.21.3",
    images: Sequence[str] | None = None,
    daemon: str | None = None,
    secrets: Any = None,
) -> list[str]:
    """Return every reason why a run must not begin on this host, as sentences; empty when it may.

    Args:
        plan: what vllm_plan returned.
        system: ``gaudi_system`` of the host.
        host: ``gaudi_host`` of the host.
        host_name: how messages call the host.
        wanted: accelerator that the inventory expects: auto, gaudi or cpu.
        cards: how many cards the inventory expects; 0 for any number.
        release: release of the serving image; driver and image must be of one.
        images: names of the images that are on the host or will be brought; None does not check.
        daemon: text of the host's daemon.json, which must be one that can be merged into.
        secrets: ``vllm_secrets``.
    """
    reasons = system_refusal(system, host_name)
    found = host["accelerator"]
    if wanted not in ("auto", found):
        reasons.append(f"{host_name}: gaudi_accelerator is {wanted}, but this is a {found} host")
    if found == "gaudi":
        reasons += _card_reasons(host, host_name, cards, release)
    reasons += _daemon_reasons(daemon, host_name) + secrets_refusal(secrets or {}, host_name)
    reasons += _image_reasons(plan, images, host_name)
    return reasons + [error["message"] for error in plan["errors"]]


def _daemon_reasons(daemon: str | None, host_name: str) -> list[str]:
    try:
        daemon_json(daemon, habana=False, live_restore=True, data_root="", host_name=host_name)
    except InputError as problem:
        return [str(problem)]
    return []


def _image_reasons(plan: Mapping[str, Any], images: Sequence[str] | None, host_name: str) -> list[str]:
    if images is None:
        return []
    known = sorted({image_name(name) for name in images})
    return [
        f"{host_name}: model {model['name']}: image {model['image']!r}: neither on this host nor in vllm_images; "
        f"there are {known}"
        for model in plan["models"]
        if model["state"] == "started" and image_name(model["image"]) not in known
    ]


def system_refusal(system: Mapping[str, Any], host_name: str) -> list[str]:
    """Return why this toolkit does not work on an operating system; empty where it does."""
    if (system["id"], system["version_id"]) in SUPPORTED:
        return []
    known = ", ".join(f"{name} {version}" for name, version in sorted(SUPPORTED))
    return [f"{host_name}: {system['pretty_name']} is not supported; supported are {known}"]


def _card_reasons(host: Mapping[str, Any], host_name: str, cards: int, release: str) -> list[str]:
    if host.get("problem"):
        detail = " ".join(host["problem"])
        return [f"{host_name}: the cards do not answer: {detail}. Is the driver of release {release} loaded?"]
    reasons = []
    here = sorted(module["module_id"] for module in host["modules"])
    if cards and len(here) != cards:
        reasons.append(f"{host_name}: gaudi_cards is {cards}, but hl-smi shows {len(here)}: module_ids {here}")
    driver = str(host.get("driver_version") or "unknown")
    if not re.fullmatch(r"\d+\.\d+\.\d+.*", str(release)):
        return [*reasons, f"{host_name}: gaudi_release {release}: a quoted release such as '1.21.3'"]
    if driver.split(".")[:2] != release.split(".")[:2]:
        reasons.append(f"{host_name}: driver {driver} and image release {release} differ; both must be of one release")
    return reasons


def endpoint_table(hostvars: Mapping[str, Mapping[str, Any]], hosts: Sequence[str]) -> list[str]:
    """Return the lines of the final table: host, model, cards, state, URL, time to the first token.

    Args:
        hostvars: Ansible's variables by host; read are ``preflight_plan``, ``gaudi_services`` and what
            host_tuning and container_runtime have to say.
        hosts: the hosts that the table shows.
    """
    rows = [["HOST", "MODEL", "CARDS", "STATE", "URL", "FIRST TOKEN"]]
    notes = []
    for host in hosts:
        known = hostvars[host]
        units = known["gaudi_services"]["units"] if "gaudi_services" in known else {}
        models = known["preflight_plan"]["models"] if "preflight_plan" in known else []
        address = str(known["gaudi_host"]["ip"]) if "gaudi_host" in known else "127.0.0.1"
        rows += [[host, model["name"], *_cells(model, units.get(model["name"], {}), address)] for model in models]
        notes += [f"{host}: {note}" for note in _notes(known)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:], *notes]


def _notes(known: Mapping[str, Any]) -> list[str]:
    notes = []
    for key in ("host_tuning_notes", "container_runtime_notes"):
        notes += list(known[key]) if key in known else []
    if known.get("host_tuning_reboot_required"):
        notes.append("reboot required: the running kernel lacks arguments that grub.cfg has")
    return notes


def _cells(model: Mapping[str, Any], unit: Mapping[str, Any], address: str) -> list[str]:
    # A server on all addresses is reached at the host's.
    where = address if model["host"] in EVERYWHERE else model["host"]
    first = (unit.get("smoke") or {}).get("first_token_s")
    return [
        ",".join(map(str, model["module_ids"])) or "cpu",
        unit.get("state", "not there"),
        f"http://{where}:{model['port']}/v1",
        f"{first * 1000:.0f} ms" if first is not None else "-",
    ]
