"""The reasons why a run must not begin on a host, other than the findings of its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import Finding, plain
from ..core.images import image_name
from ..inventory.facts import checked_host
from ..inventory.variables import problem_text
from ..model.host import Host
from ..platforms import LAST, PLATFORMS, Platform, card_variables, platform_of
from ..platforms.releases import DEFAULT
from ..stages.base import system_refusal
from ..stages.container_runtime import daemon_json_problems
from ..stages.service import secrets_refusal


def host_findings(
    plan: Mapping[str, Any],
    system: Mapping[str, Any] | None,
    host: Mapping[str, Any],
    *,
    host_name: str = "this host",
    wanted: str = "auto",
    cards: int = 0,
    release: str = "1.21.3",
    device_family: str = "",
    images: Sequence[Any] | None = None,
    daemon: str | None = None,
    secrets: Any = None,
    habana: str | None = None,
) -> list[Finding]:
    """Return the findings about a host, and about its plan other than the plan's own findings.

    Args:
        plan: The plan that vllm_plan returned.
        system: ``gaudi_system`` of the host; None: no check (saved facts may not have it).
        host: ``gaudi_host`` of the host.
        host_name: The name of the host in messages.
        wanted: The accelerator in the inventory: auto, gaudi or cpu.
        cards: The number of cards in the inventory; 0 for any number.
        release: The release of the serving image. Driver and image must be of one release. Empty if it is not set.
        device_family: The family that unknown cards count as; empty if it is not set.
        images: Names of the images on the host and entries of ``vllm_images``; None: no check.
        daemon: The text of the host's daemon.json, which the toolkit must be able to merge into.
        secrets: ``vllm_secrets``.
        habana: The text of the settings of the platform's runtime. Servers must be able to start with them.
    """
    found = [("system", text) for text in system_refusal(system, host_name)] if system is not None else []
    found += _accelerator_reasons({**host, "device_family": device_family}, host_name, wanted, cards, release)
    found += _file_reasons(daemon, habana, platform_of(host["accelerator"]), host_name)
    found += [("vllm_secrets", text) for text in secrets_refusal({} if secrets is None else secrets, host_name)]
    findings = [Finding(host_name, key, text) for key, text in found]
    findings += _core_findings(host, host_name) + _twice(plan, secrets, host_name)
    return findings + _image_findings(plan, images, host_name, host["accelerator"])


def without_driver_twice(findings: Sequence[Finding], known: Mapping[str, Any]) -> list[Finding]:
    """Return the findings, without that of a driver of another release if stage driver refuses it with its own remedy.

    Args:
        findings: about a host.
        known: The host's variables; uses ``driver_refusal``.
    """
    return [one for one in findings if one.key != "driver_version" or not known.get("driver_refusal")]


def _core_findings(host: Mapping[str, Any], host_name: str) -> list[Finding]:
    """Return the findings about cores that contradict each other, which would give models the wrong cores.

    The toolkit's own module reports the other facts of a live host. Cores come from the kernel and the cards.
    """
    findings = []
    for key, value, allowed in checked_host(host)[1]:
        if key.endswith(".cpus"):
            message = f"{host_name}: facts: {problem_text(key, value, allowed)}"
            findings.append(Finding(host_name, key, message, None, plain(value), allowed))
    return findings


def _twice(plan: Mapping[str, Any], secrets: Any, host_name: str) -> list[Finding]:
    """Return the findings about secrets that set a variable a second time. It is undefined which value counts."""
    findings = []
    for model in plan["models"]:
        named = secrets.get(model["name"]) if isinstance(secrets, Mapping) else None
        for key in named if isinstance(named, Mapping) else ():
            if key in card_variables():
                allowed = "must not be set: the plan chooses the cards; set module_ids"
            elif key in model["env"]:
                allowed = (
                    "is also set by the model's launch; a container uses only one of the two, so set it in one place"
                )
            else:
                continue
            message = f"{host_name}: model {model['name']}: vllm_secrets: {key} {allowed}"
            findings.append(Finding(host_name, f"vllm_secrets: {key}", message, model["name"], None, allowed))
    return findings


def _accelerator_reasons(
    host: Mapping[str, Any], host_name: str, wanted: str, cards: int, release: str
) -> list[tuple[str, str]]:
    found, known = host["accelerator"], Host.of(host)
    platform = platform_of(found)
    # The inventory can also name a refused platform that the host does not show.
    refused = PLATFORMS[wanted].refused if wanted in PLATFORMS else platform.refused
    if refused:
        return [("accelerator", f"{host_name}: {refused}")]
    reasons = []
    if wanted not in ("auto", found):
        text = f"{host_name}: accelerator is {wanted}, but this is a {found} host"
        reasons.append(("accelerator", text))
    if text := _unclear(known, platform, wanted):
        reasons.append(("accelerator", f"{host_name}: {text}"))
    # Facts that need the driver are checked after its installation.
    told = [] if known.awaits_driver else platform.reasons(known, host_name, cards, release or DEFAULT)
    # If no release is set, the plan reports a driver of another release, with what to write.
    return reasons + [one for one in told if release or one[0] != "driver_version"]


def _unclear(host: Host, platform: Platform, wanted: str) -> str:
    """Return why the inventory must set ``accelerator``, or set it differently; empty if it need not.

    A new version of the toolkit that knows more devices must not move a serving host from cards to processors or back.
    """
    served = [PLATFORMS[name] for name in host.platforms if name in PLATFORMS and not PLATFORMS[name].refused]
    running = {name: one for name, one in host.services.items() if one.runs}
    on_devices = sorted(name for name, one in running.items() if one.module_ids)
    # Models that run on devices decide which are served. A display card that is known now changes nothing.
    if wanted == "auto" and len(served) > 1 and not on_devices:
        names = " and ".join(one.devices for one in served)
        return f"it has {names}; set accelerator to the one to serve with: {' or '.join(one.name for one in served)}"
    on_processors = sorted(name for name, one in running.items() if not one.module_ids)
    if wanted == "auto" and platform.devices and on_processors:
        return (
            f"it has {platform.devices}, and {', '.join(on_processors)} run on its processors; accelerator must be set:"
            f" {LAST} keeps them there, {platform.name} restarts them on the cards"
        )
    if wanted == LAST and on_devices and served and served[0].name != LAST:
        return (
            f"accelerator is {LAST}, but {', '.join(on_devices)} run on its {served[0].devices}; it must be "
            f"{served[0].name}, or these models must be stopped first"
        )
    return ""


def refused_hosts(hostvars: Mapping[str, Mapping[str, Any]], hosts: Sequence[str]) -> list[str]:
    """Return the hosts on which a run must not begin: read but refused, or with invalid variables.

    Unreachable hosts are not among them, because they drop out of the run by themselves.
    """
    refused = []
    for name in hosts:
        known = hostvars[name]
        read = "gaudi_observed_at" in known and "preflight_passed" not in known
        wrong = (known.get("preflight_inventory") or {}).get("failed")
        if read or wrong or known.get("preflight_refusal"):
            refused.append(name)
    return refused


def _file_reasons(
    daemon: str | None, settings: str | None, platform: Platform, host_name: str
) -> list[tuple[str, str]]:
    reasons = [("daemon.json", text) for text in daemon_json_problems(daemon, host_name)]
    known = platform.runtime.settings if platform.runtime else None
    problems = known.problems(settings, host_name) if known else []
    return reasons + [(known.path.rpartition("/")[2], text) for text in problems if known]


def _image_findings(
    plan: Mapping[str, Any], images: Sequence[Any] | None, host_name: str, accelerator: str
) -> list[Finding]:
    if images is None:
        return []
    entries = [entry if isinstance(entry, Mapping) else {"name": entry} for entry in images]
    made_for = {image_name(str(entry["name"])): _made_for(entry) for entry in entries if entry.get("name")}
    findings = []
    for model in plan["models"]:
        name = image_name(model["image"])
        if model["state"] == "started" and name not in made_for:
            allowed = f"neither on this host nor in vllm_images; there are {sorted(made_for)}"
        elif made_for.get(name) not in (None, accelerator):
            allowed = f"is made for {made_for[name]} hosts, and this is a {accelerator} host"
        else:
            continue
        message = f"{host_name}: model {model['name']}: image {model['image']!r}: {allowed}"
        findings.append(Finding(host_name, "image", message, model["name"], model["image"], allowed))
    return findings


def _made_for(entry: Mapping[str, Any]) -> str | None:
    return entry.get("accelerator") or entry.get("build")
