"""The clients of a gateway and their keys, validated before anything is changed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from ..core.checks import Rule, whole
from ..core.errors import InputError, known, near, refusal, shown
from ..core.options import rule_of
from .objects import Client

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
DIGEST = re.compile(r"[0-9a-fA-F]{64}")
# Keys with which a user accepts an exposed gateway.
ALLOWING = ("plain_allowed", "open")
LEAST_KEY = 16  # characters
MOST_UNREAD = 3  # reasons that a message lists
CLIENT = ("key", "sha256", "models", "requests_per_minute")


@dataclass(frozen=True)
class ClientNames:
    """The names of a fleet's models and adapters for clients, and why the names of some hosts are unknown."""

    models: frozenset[str]
    adapters: frozenset[str] = frozenset()
    unread: tuple[str, ...] = ()


def not_read(reasons: Sequence[str]) -> str:
    """Return the end of a message: which hosts could not be read, and why; empty without reasons."""
    more = [f"and {len(reasons) - MOST_UNREAD} more"] if len(reasons) > MOST_UNREAD else []
    return f"; these could not be read: {'; '.join([*reasons[:MOST_UNREAD], *more])}" if reasons else ""


def is_address(value: Any) -> bool:
    """Return whether a value is a host's IP address without a zone."""
    try:
        ip_address(str(value))
    except ValueError:
        return False
    # A zone can be any text, and neither HAProxy nor keepalived accepts one.
    return "%" not in str(value)


def integer(low: int, high: int) -> Rule:
    """Return the rule for integers within limits; Ansible may pass them as text."""
    return rule_of({"type": "int"}, Rule(whole(low, high), f"is not an integer from {low} to {high}"))


ADDRESS = Rule(is_address, "is not an address of the gateway's host, such as 127.0.0.1, or 0.0.0.0 for all")
RATE = integer(1, 1_000_000)


def known_model(key: str, model: Any, fleet: ClientNames | None, names: Collection[str]) -> None:
    """Refuse a model that no host of the inventory has, if the fleet's models are known.

    Raises:
        InputError: with the key and similar names.
    """
    if fleet is not None and model not in names:
        hint = near(model, names) or f"; there are {', '.join(sorted(names)) or 'none'}"
        raise refusal("", key, model, f"is not a model of any host of this inventory{hint}{not_read(fleet.unread)}")


def read_clients(given: Any, fleet: ClientNames | None) -> tuple[Client, ...]:
    """Return the clients of a mapping ``{name: {key or sha256, models, requests_per_minute}}``; empty for None.

    Raises:
        InputError: for an unknown key or invalid value. The message never contains a client's key.
    """
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise InputError("fleet_gateway.clients: (hidden) is not a mapping of clients by their names")
    found: dict[str, Client] = {}
    for name, said in given.items():
        label = f"fleet_gateway.clients.{shown(name) if not isinstance(name, str) else name}"
        if not isinstance(name, str) or not NAME.fullmatch(name):
            allowed = "is not a name of lowercase letters, digits, dots, dashes and underscores"
            raise refusal("", "fleet_gateway.clients", name, allowed)
        client = read_client(label, name, said, fleet)
        if client.sha256 in found:
            raise InputError(f"{label}: has the key of {found[client.sha256].name}; every client needs its own key")
        found[client.sha256] = client
    return tuple(found.values())


def read_client(label: str, name: str, given: Any, fleet: ClientNames | None) -> Client:
    """Return one client; ``label`` is its name in messages.

    Raises:
        InputError: as in read_clients.
    """
    if not isinstance(given, Mapping):
        # The value may be the key itself, so it is hidden.
        raise InputError(f"{label}: (hidden) is not a mapping with key or sha256, models, requests_per_minute")
    known(label, given, CLIENT)
    if (given.get("key") is None) == (given.get("sha256") is None):
        raise InputError(f"{label}: needs key, or sha256 of it in hexadecimal, and not both")
    digest = _hashed(label, given["key"]) if given.get("key") is not None else given["sha256"]
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise InputError(f"{label}.sha256: (hidden) is not the SHA-256 of a key: 64 hexadecimal digits")
    allowed = given.get("models")
    # An empty list would allow all models, for example after a user removed the last entry.
    if allowed is not None and not (
        isinstance(allowed, list) and allowed and all(isinstance(one, str) for one in allowed)
    ):
        raise refusal("", f"{label}.models", allowed, "is not a list of served models; leave it out for all")
    for one in allowed or []:
        known_model(f"{label}.models", one, fleet, fleet.models | fleet.adapters if fleet else ())
    rate = given.get("requests_per_minute")
    if rate is not None and not RATE.good(rate):
        raise refusal("", f"{label}.requests_per_minute", rate, RATE.allowed)
    return Client(name, digest.lower(), tuple(allowed or []), int(rate or 0))


def _hashed(label: str, key: Any) -> str:
    if not isinstance(key, str) or len(key) < LEAST_KEY or not key.isascii() or not key.isprintable() or " " in key:
        allowed = f"a text of at least {LEAST_KEY} letters, digits and symbols without blanks"
        raise InputError(f"{label}.key: (hidden) is not {allowed}")
    return hashlib.sha256(key.encode()).hexdigest()
