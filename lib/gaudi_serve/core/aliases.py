"""Variables that have a new name. Their old names work for one more release."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from .errors import Finding, one_line, shown

Known = Mapping[str, Any]
# Old name: new name.
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
    """Return the name of a variable in a host's variables: the old name if only that is set."""
    old = OLD.get(name)
    return old if old and old in known and name not in known else name


def value_of(known: Known, name: str, default: Any = None) -> Any:
    """Return the value of a variable, set under its new or its old name."""
    return known.get(written(known, name), default)


def as_written(text: str, known: Collection[str], key: str = "") -> str:
    """Return a sentence with the names that a host's variables use.

    Args:
        text: The sentence, with new names.
        known: The variables of the host.
        key: The variable that the sentence is about. A new name without an underscore is also an English word.
            It is replaced only if it is this key.
    """
    for new, old in OLD.items():
        if new in text and ("_" in new or new == key) and written(known, new) == old:
            text = re.sub(rf"\b{new}\b", old, text)
    return text


def finding_as_written(found: Finding, known: Collection[str]) -> Finding:
    """Return a finding with the names that the host's variables use."""
    return replace(found, key=written(known, found.key), message=as_written(found.message, known, found.key))


def current(text: str) -> str:
    """Return a text with the old names replaced by the new ones."""
    return re.sub(r"\w+", lambda word: ALIASES.get(word[0], word[0]), text)


def differ(old: str, values: tuple[Any, Any], hidden: bool = False) -> str:
    """Return the message for a variable that is set under both names with different values.

    Args:
        old: The old name.
        values: The value of the old name, and the value of the new one.
        hidden: The values are secret and the message hides them.
    """
    before, now = ("(hidden)" if hidden else "(empty)" if value in EMPTY else shown(value) for value in values)
    return one_line(
        f"{old} {before} and {ALIASES[old]} {now} are two names of one variable, and differ; remove {old}, the old "
        "name. If one of them is set with -e, use the same name with -e as in the inventory"
    )


def old_names(hosts: Iterable[Collection[str]]) -> list[str]:
    """Return one sentence that lists all old names that the hosts' variables use, or an empty list."""
    left, found = dict(ALIASES), dict[str, str]()
    for known in hosts:
        found |= {old: left.pop(old) for old in [*left] if old in known}
    named = ", ".join(f"{old} (now {found[old]})" for old in ALIASES if old in found)
    return [f"Variables have new names; the next release does not read the old ones: {named}"] if named else []
