"""The platforms: kinds of machines, by their names in ``accelerator`` of a host's facts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..core.errors import near, refusal, shown
from ..model.host import live_models
from . import cpu, cuda, elsewhere, gaudi, rocm, xpu
from .base import Platform, Runtime
from .device_access import DeviceAccess

# The last one is the default for a machine without devices of any.
PLATFORMS: dict[str, Platform] = {
    one.name: one
    for one in (gaudi.PLATFORM, cuda.PLATFORM, rocm.PLATFORM, xpu.PLATFORM, *elsewhere.ELSEWHERE, cpu.PLATFORM)
}
LAST = cpu.PLATFORM.name
# Handwritten facts for a plan may omit the platform.
USUAL = gaudi.PLATFORM.name

__all__ = [
    "LAST",
    "PLATFORMS",
    "USUAL",
    "DeviceAccess",
    "Platform",
    "Runtime",
    "accelerator_needs",
    "card_variables",
    "card_warnings",
    "platform_among",
    "platform_here",
    "platform_of",
    "platforms_here",
    "runtime_of",
    "runtimes",
    "serial_notes",
    "served_names",
    "sick_cards",
    "with_health",
]


def platform_of(accelerator: str | None) -> Platform:
    """Return the platform of the name in a host's facts; the default if they omit it."""
    return PLATFORMS[accelerator or USUAL]


def sick_cards(host: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each device of ``gaudi_host`` that works but is sick; for an unusable one, its problem."""
    health = platform_of(host.get("accelerator")).health
    cards = [module for module in host.get("modules") or () if not module.get("problem")]
    runs = {number: name for name, one in live_models(host).items() if one.runs for number in one.module_ids}
    return [
        f"card {module['module_id']} is sick: {text}"
        + (f"; model {runs[module['module_id']]} runs on it" if module["module_id"] in runs else "")
        for module in cards
        if (text := health(module))
    ]


def with_health(
    host: Mapping[str, Any], excluded: Collection[str] = (), accepted: Collection[str] = ()
) -> dict[str, Any]:
    """Return a ``gaudi_host`` whose cards have their health problems, and whether they are excluded from models.

    Args:
        host: facts.
        excluded: serial numbers of cards that get no model.
        accepted: serial numbers of sick cards that still get models.
    """
    health = platform_of(host.get("accelerator")).health
    modules = []
    for module in host.get("modules") or ():
        serial = module.get("serial") or None
        sick = "" if serial in accepted else health(module) or ""
        modules.append({**module, "sick": sick, "excluded": serial in excluded})
    return {**host, "modules": modules}


def serial_notes(host: Mapping[str, Any], named: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a sentence for each serial number in the inventory that no card of a host has.

    Args:
        host: ``gaudi_host``.
        named: serial numbers by variable.
    """
    known = [str(one["serial"]) for one in host.get("modules") or () if one.get("serial")]
    has = f"it has {', '.join(known)}" if known else "the serial numbers of its cards are not known"
    return [
        f"{key}: {shown(serial)} is not a card of this host{near(serial, known, 2)}; {has}"
        for key, serials in named.items()
        for serial in serials
        if serial not in known
    ]


def card_warnings(host: Mapping[str, Any]) -> list[str]:
    """Return warnings about the devices of ``gaudi_host``, a sentence each."""
    cards = [module for module in host.get("modules") or () if module.get("warned")]
    return [f"card {module['module_id']}: {module['warned']}" for module in cards]


def accelerator_needs(accelerator: str) -> list[str]:
    """Return the requirements of a platform's hosts that others do not have, such as driver, habana_runtime.

    Raises:
        InputError: for an unknown platform.
    """
    if accelerator not in PLATFORMS:
        raise refusal("", "accelerator", accelerator, f"is not one of {', '.join(PLATFORMS)}")
    return list(PLATFORMS[accelerator].needs)


def runtimes() -> list[Runtime]:
    """Return the runtimes that platforms need in a container engine."""
    return [one.runtime for one in PLATFORMS.values() if one.runtime]


def runtime_of(name: str | bool) -> Runtime | None:
    """Return a runtime by its name; that of the usual platform for true, none for false or an empty text."""
    if name is True:
        return PLATFORMS[USUAL].runtime
    return next((one for one in runtimes() if one.name == name), None)


def card_variables() -> set[str]:
    """Return the variables that choose devices on any platform: the plan sets them, users must not."""
    return {name for one in PLATFORMS.values() for name in one.card_variables}


def served_names() -> str:
    """Return the names of the supported platforms, for a sentence."""
    *names, last = [one.name for one in PLATFORMS.values() if not one.refused]
    return f"{', '.join(names)} or {last}"


def platforms_here(root: str = "/") -> list[Platform]:
    """Return the platforms of this machine's devices; the last of all platforms if it has none."""
    found = [one for one in PLATFORMS.values() if one.here(root)]
    return [one for one in found if one.name != LAST] or found


def platform_here(root: str = "/") -> Platform:
    """Return the platform of this machine if its inventory does not name one."""
    return platform_among(platforms_here(root))


def platform_among(here: Sequence[Platform], wanted: str = "auto") -> Platform:
    """Return the platform as which a machine is used.

    Args:
        here: the platforms of its devices.
        wanted: the value in its inventory; ``auto`` selects the first supported one, or else the first unsupported one.
    """
    named = [one for one in (*here, PLATFORMS[LAST]) if one.name == wanted]
    return (named or [one for one in here if not one.refused] or here)[0]
