"""The chat page of a gateway: validates ``fleet_gateway.chat`` and returns its settings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from ..core.checks import Rule, is_flag
from ..core.errors import InputError, known, refusal
from .clients import ADDRESS, ALLOWING, CLIENT, NAME, ClientNames, integer, read_client
from .objects import Chat, Client, Gateway

KEY = "fleet_gateway.chat"
LEAST_PASSWORD = 8  # characters
# HAProxy serves each file of the page from a buffer; the largest file has 52 KiB.
BUFFER_KIB = 64
RULES = {
    "address": ADDRESS,
    "port": integer(1, 65535),
    **dict.fromkeys(ALLOWING, Rule(is_flag, "is not true or false")),
    "title": Rule(
        lambda value: isinstance(value, str) and value.isprintable() and 1 <= len(value) <= 80,
        "is not a text of one line and at most 80 characters",
    ),
    "system_prompt": Rule(
        lambda value: isinstance(value, str) and len(value) <= 10_000, "is not a text of at most 10,000 characters"
    ),
}
KEYS = (*RULES, "users")
USER = ("password", *CLIENT[1:])


def read_chat(given: Any, fleet: ClientNames | None) -> Chat | None:
    """Return the chat page of a mapping; None without a mapping.

    Args:
        given: ``fleet_gateway.chat``, with the keys of docs/guides/chat.md.
        fleet: the models and adapters that users may use; None if they are unknown.

    Raises:
        InputError: for an unknown key or invalid value. The message never contains a password.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        # The value may be a password, so it is hidden.
        raise InputError(f"{KEY}: (hidden) is not a mapping with {', '.join(KEYS)}; {{}} takes all defaults")
    known(KEY, given, KEYS)
    said = {key: given[key] for key in RULES if given.get(key) is not None}
    for key, value in said.items():
        if not RULES[key].good(value):
            raise refusal("", f"{KEY}.{key}", value, RULES[key].allowed)
    said |= {"address": str(ip_address(str(said["address"])))} if "address" in said else {}
    said |= {"port": int(said["port"])} if "port" in said else {}
    return Chat(
        **{key: value for key, value in said.items() if key not in ALLOWING}, users=_users(given.get("users"), fleet)
    )


def _users(given: Any, fleet: ClientNames | None) -> tuple[Client, ...]:
    if given is None:
        return ()
    if not isinstance(given, Mapping) or not given:
        raise InputError(f"{KEY}.users: (hidden) is not a mapping of users by their names; leave it out for none")
    users: dict[str, Client] = {}
    for name, said in given.items():
        user = _user(name, said, fleet)
        if user.sha256 in users:
            raise InputError(f"{KEY}.users.{name}: has the digest of {users[user.sha256].name.removeprefix('chat.')}")
        users[user.sha256] = user
    return tuple(users.values())


def _user(name: Any, given: Any, fleet: ClientNames | None) -> Client:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise refusal(
            "", f"{KEY}.users", name, "is not a name of lowercase letters, digits, dots, dashes and underscores"
        )
    label = f"{KEY}.users.{name}"
    if not isinstance(given, Mapping):
        raise InputError(f"{label}: (hidden) is not a mapping with password or sha256, models, requests_per_minute")
    known(label, given, USER)
    password = given.get("password")
    if password is not None and (
        not isinstance(password, str) or len(password) < LEAST_PASSWORD or not password.isprintable()
    ):
        raise InputError(f"{label}.password: (hidden) is not a text of at least {LEAST_PASSWORD} signs")
    if (password is None) == (given.get("sha256") is None):
        raise InputError(f"{label}: needs password, or sha256 of {name}:PASSWORD in hexadecimal, and not both")
    digest = {} if password is None else {"sha256": hashlib.sha256(f"{name}:{password}".encode()).hexdigest()}
    asked = {key: value for key, value in given.items() if key != "password"}
    return read_client(label, f"chat.{name}", {**asked, **digest}, fleet)


def refuse_chat(gateway: Gateway, given: Mapping[str, Any]) -> None:
    """Refuse a chat page that is open to all, conflicts with the gateway's ports or clients, or exceeds its buffer."""
    chat = gateway.chat
    if not chat:
        return
    for key, port in (("port", gateway.port), ("metrics_port", gateway.metrics_port)):
        if chat.port == port:
            raise refusal("", f"{KEY}.port", chat.port, f"is the gateway's own {key}; choose another")
    if gateway.buffer_kib < BUFFER_KIB:
        allowed = f"must be at least {BUFFER_KIB} for a gateway with a chat page, which it keeps in this buffer"
        raise refusal("", "fleet_gateway.buffer_kib", gateway.buffer_kib, allowed)
    for name in {one.name for one in gateway.clients} & {one.name for one in chat.clients}:
        raise refusal(
            "", "fleet_gateway.clients", name, "is also the gateway's name for a user of the chat page; choose another"
        )
    if chat.is_local:
        return
    if not gateway.certificate and not given.get("plain_allowed"):
        allowed = (
            "is not a loopback address, so passwords and texts would be sent unencrypted; set "
            "fleet_gateway.certificate, or plain_allowed: true"
        )
        raise refusal("", f"{KEY}.address", chat.address, allowed)
    if not chat.users and not given.get("open"):
        allowed = "is not a loopback address, so everyone who reaches it could send requests; set users, or open: true"
        raise refusal("", f"{KEY}.address", chat.address, allowed)
