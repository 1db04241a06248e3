"""Variables that have a new name: a host's old one counts as the new one, for one release."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from .errors import Finding, one_line, shown

Known = Mapping[str, Any]
# The old name, and the new one.
ALIASES: Mapping[str, str] = {
    "gaudi_accelerator": "accelerator",
    "gaudi_cards": "accelerator_cards",
    "gaudi_cards_excluded": "accelerator_cards_excluded",
    "gaudi_release": "accelerator_release",
    "gaudi_acknowledged": "fleet_acknowledged",
    "gaudi_fleet_address": "fleet_address",
    "gaudi_all_at_once": "fleet_all_at_once",
    "gaudi_awx": "fleet_awx",
    "gaudi_gateway": "fleet_gateway",
    "gaudi_gateway_secret": "fleet_gateway_secret",
    "gaudi_lock_break": "fleet_lock_break",
    "gaudi_lock_lease_s": "fleet_lock_lease_s",
    "gaudi_move_allowed": "fleet_move_allowed",
    "gaudi_stop_on_errors": "fleet_stop_on_errors",
    "gaudi_driver_release": "driver_release",
    "gaudi_driver_version": "driver_version",
    "gaudi_driver_packages": "driver_packages",
    "gaudi_driver_optional_packages": "driver_optional_packages",
    "gaudi_driver_modules": "driver_modules",
    "gaudi_driver_kernel_headers": "driver_kernel_headers",
    "gaudi_driver_upgrade_allowed": "driver_upgrade_allowed",
    "gaudi_driver_manage": "driver_manage",
    "gaudi_driver_repository": "driver_repository",
    "gaudi_driver_ports_may_be_down": "driver_ports_may_be_down",
    "hccl_validation_image": "link_validation_image",
    "hccl_validation_asked": "link_validation_asked",
    "hccl_validation_drain": "link_validation_drain",
    "hccl_validation_max_age_days": "link_validation_max_age_days",
    "hccl_validation_thresholds": "link_validation_thresholds",
    "hccl_validation_nodes": "link_validation_nodes",
    "hccl_validation_port": "link_validation_port",
    "hccl_validation_timeout": "link_validation_timeout",
    "hccl_validation_options": "link_validation_hccl_options",
    "hccl_validation_checkout": "link_validation_hccl_checkout",
    "hccl_validation_repository": "link_validation_hccl_repository",
    "hccl_validation_commit": "link_validation_hccl_commit",
}
OLD = {new: old for old, new in ALIASES.items()}
EMPTY = (None, "")


def written(known: Collection[str], name: str) -> str:
    """Return the name under which a host's variables have a variable: the old one where that alone is there."""
    old = OLD.get(name)
    return old if old and old in known and name not in known else name


def value_of(known: Known, name: str, default: Any = None) -> Any:
    """Return the value of a variable, under whichever of its names a host's variables have it."""
    return known.get(written(known, name), default)


def as_written(text: str, known: Collection[str], key: str = "") -> str:
    """Return a sentence with the names that a host's variables have.

    Args:
        text: with new names.
        known: the host's variables.
        key: what the sentence is about. Names that are a word of English too are names in sentences about them alone.
    """
    for new, old in OLD.items():
        if new in text and ("_" in new or new == key) and written(known, new) == old:
            text = re.sub(rf"\b{new}\b", old, text)
    return text


def finding_as_written(found: Finding, known: Collection[str]) -> Finding:
    """Return what is wrong with a host, with the names that its variables have."""
    return replace(found, key=written(known, found.key), message=as_written(found.message, known, found.key))


def current(text: str) -> str:
    """Return a text with new names in place of the old ones."""
    return re.sub(r"\w+", lambda word: ALIASES.get(word[0], word[0]), text)


def differ(old: str, values: tuple[Any, Any], hidden: bool = False) -> str:
    """Return the sentence for a variable that is there under both of its names, with different values.

    Args:
        old: its old name.
        values: under the old name, and under the new one.
        hidden: no message shows them.
    """
    before, now = ("(hidden)" if hidden else "(empty)" if value in EMPTY else shown(value) for value in values)
    return one_line(
        f"{old} {before} and {ALIASES[old]} {now} are two names of one variable, and differ; remove {old}, the old "
        "name. Where one of them comes with -e, give -e the name that the inventory has"
    )


def old_names(hosts: Iterable[Collection[str]]) -> list[str]:
    """Return one sentence on all old names that the variables of some hosts have; none where they have none."""
    left, found = dict(ALIASES), dict[str, str]()
    for known in hosts:
        found |= {old: left.pop(old) for old in [*left] if old in known}
    named = ", ".join(f"{old} (now {found[old]})" for old in ALIASES if old in found)
    return [f"Variables have new names; the next release does not read the old ones: {named}"] if named else []
