"""Validates ``fleet_gateway`` before anything is changed; each mistake gives one message."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface
from typing import Any

from ..core.checks import Rule, is_flag, matching, one_of
from ..core.errors import known, mapping, refusal, shown
from .chat import read_chat, refuse_chat
from .clients import ADDRESS, ALLOWING, ClientNames, integer, known_model, read_clients
from .objects import ABSENT, Backend, Gateway

# Model names in HAProxy's maps and configuration: no blanks, no quotes.
MODEL = re.compile(r"[\w./:@+=-]{1,255}", re.ASCII)
# Minimum and maximum of each number.
NUMBERS = {
    "port": (1, 65535),
    "metrics_port": (1, 65535),
    "waiting": (0, 100_000),
    "wait_s": (1, 3600),
    "body_mib": (1, 2048),
    "buffer_kib": (16, 4096),
    "connections": (100, 1_000_000),
    "connections_per_address": (1, 1_000_000),
    "hard_stop_s": (60, 86_400),
    "virtual_router_id": (1, 255),
}
BALANCES = ("least", "session", "prefix")
FIRST_BYTE_S = (10, 3600)
PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[\w.~-]+)+", re.ASCII)
# Paths that the gateway itself serves, and prefixes of such paths.
OWN_PATHS, OWN_FOLDERS = ("/health", "/models", "/v1/models"), ("/models/", "/v1/models/")
# Paths that change or stop a server, or show the requests of all clients.
OPERATOR_PATHS = (
    *("/metrics", "/load", "/server_info", "/sleep", "/wake_up", "/pause", "/resume", "/abort_requests"),
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/collective_rpc", "/update_weights"),
    *("/reset_prefix_cache", "/reset_mm_cache", "/scale_elastic_ep", "/start_profile", "/stop_profile"),
)
NO_ORIGIN = "is not an origin such as https://a.example"
ORIGIN = re.compile(r"https?://[a-z0-9.-]+(?::[0-9]{1,5})?", re.ASCII)


def read_gateway(
    given: Any,
    backends: tuple[Backend, ...] = (),
    fleet: ClientNames | None = None,
) -> Gateway:
    """Return the gateway of a mapping.

    Args:
        given: the keys of docs/guides/fleet.md. Beyond loopback, ``plain_allowed: true`` allows a gateway without a
            certificate, and ``open: true`` one without clients.
        backends: the models that it serves.
        fleet: the models and adapters that clients may use; None if they are unknown, which allows any name.

    Raises:
        InputError: for an unknown key or invalid value, and for a gateway that would listen beyond loopback in plain
            text or for everyone without permission. The message never contains a key.
    """
    names = mapping("", "fleet_gateway", given, "a mapping with address, port, clients and so on")
    known("fleet_gateway", names, KEYS)
    _refuse_names(backends)
    given = {key: names[key] for key in RULES if names.get(key) is not None}
    for key, value in given.items():
        if not RULES[key].good(value):
            raise refusal("", f"fleet_gateway.{key}", value, RULES[key].allowed)
    clients = read_clients(names.get("clients"), fleet)
    of_model = {key: _by_model(key, names.get(key), *by, backends, fleet) for key, by in BY_MODEL.items()}
    gateway = Gateway(
        **{key: _read(key, value) for key, value in given.items() if key not in (*ALLOWING, "state")},
        present=given.get("state") != ABSENT,
        clients=clients,
        backends=tuple(replace(one, **_of_model(one, of_model)) for one in backends),
        paths=_paths(names.get("paths")),
        cors_origins=_texts("cors_origins", names.get("cors_origins"), ORIGIN, NO_ORIGIN),
        chat=read_chat(names.get("chat"), fleet),
    )
    _refuse_exposed(gateway, given)
    _refuse_numbers(gateway)
    refuse_chat(gateway, names.get("chat") or {})
    return gateway


def _of_model(one: Backend, of_model: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values of a model's keys, each of the type that it has."""
    found = {key: values.get(one.model, getattr(one, key)) for key, values in of_model.items()}
    return {key: type(getattr(one, key))(value) for key, value in found.items()}


def _read(key: str, value: Any) -> Any:
    """Return a valid value in the type that a Gateway stores."""
    if key == "address":
        return str(ip_address(str(value)))
    if key == "virtual_address":
        return str(ip_interface(str(value)))
    return int(value) if key in NUMBERS else value


def _refuse_numbers(gateway: Gateway) -> None:
    if gateway.connections_per_address > gateway.connections:
        allowed = f"is more than connections ({gateway.connections})"
        raise refusal("", "fleet_gateway.connections_per_address", gateway.connections_per_address, allowed)
    if gateway.port == gateway.metrics_port:
        raise refusal(
            "", "fleet_gateway.metrics_port", gateway.metrics_port, "is the gateway's own port; choose another"
        )


def _refuse_names(backends: Iterable[Backend]) -> None:
    found: dict[str, str] = {}
    for backend in backends:
        for name in backend.names:
            key = "served_model_name" if name == backend.model else "adapter"
            if not MODEL.fullmatch(name):
                allowed = "must have only letters, digits and ./:@+=_-, because a gateway looks it up; choose another"
                raise refusal("", key, name, allowed)
            if name in found:
                raise refusal(
                    "", key, name, f"is served by {found[name]} and by {backend.model}; give one another name"
                )
            found[name] = backend.model


def _texts(key: str, given: Any, pattern: re.Pattern[str], allowed: str) -> tuple[str, ...]:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise refusal("", f"fleet_gateway.{key}", given, "is not a list")
    for text in given:
        if not isinstance(text, str) or not pattern.fullmatch(text):
            raise refusal("", f"fleet_gateway.{key}", text, allowed)
    return tuple(given)


def _paths(given: Any) -> tuple[str, ...]:
    paths = _texts("paths", given, PATH, "is not a path such as /pooling")
    for path in paths:
        if path in OWN_PATHS or path.startswith(OWN_FOLDERS):
            raise refusal("", "fleet_gateway.paths", path, "is answered by the gateway itself; leave it out")
        if path in OPERATOR_PATHS:
            allowed = "is for a server's operator: it shows or changes what all clients share; send it to the server"
            raise refusal("", "fleet_gateway.paths", path, allowed)
    return paths


def _by_model(
    key: str, given: Any, kind: str, rule: Rule, backends: tuple[Backend, ...], fleet: ClientNames | None
) -> dict[str, Any]:
    """Return a mapping of base models to values; ``kind`` describes the values.

    Raises:
        InputError: for another value, and for a name that is no base model of the fleet.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise refusal("", f"fleet_gateway.{key}", given, f"is not a mapping of models to {kind}")
    models, adapters = (fleet.models, fleet.adapters) if fleet else (frozenset[str](), frozenset[str]())
    bases = {*models, *(one.model for one in backends)}
    others = {*adapters, *(name for one in backends for name in (*one.adapters, *one.partly))} - bases
    for model, value in given.items():
        if not rule.good(value):
            raise refusal("", f"fleet_gateway.{key}: {shown(model)}", value, rule.allowed)
        if model in others:
            allowed = "is an adapter; its requests go where those of its base model go; set it for that model"
            raise refusal("", f"fleet_gateway.{key}", model, allowed)
        known_model(f"fleet_gateway.{key}", model, fleet, models)
    return dict(given)


def _is_virtual(value: Any) -> bool:
    try:
        found = ip_interface(str(value))
    except ValueError:
        return False
    of_all = found.is_unspecified or found.is_loopback or found.is_multicast or _of_network(found)
    return "/" in str(value) and "%" not in str(value) and not of_all


def _of_network(address: IPv4Interface | IPv6Interface) -> bool:
    """Return whether an address is the network or broadcast address of its network; not in networks of one or two."""
    network = address.network
    last = network.broadcast_address if network.version == 4 else network.network_address  # IPv6 has no broadcast
    return network.num_addresses > 2 and address.ip in (network.network_address, last)


# The rules of keys that do not depend on other keys.
RULES = {
    "address": ADDRESS,
    "certificate": Rule(
        lambda value: isinstance(value, str) and re.fullmatch(r"/[\w./+@-]+", value) is not None,
        "is not a path on the gateway's host, such as /etc/ssl/private/gateway.pem",
    ),
    "virtual_address": Rule(_is_virtual, "is not an address of a host with its prefix length, such as 10.0.0.100/24"),
    "virtual_interface": Rule(matching(r"[\w.:@-]{1,15}"), "is not a name of an interface, such as eth0"),
    **{key: integer(*limits) for key, limits in NUMBERS.items()},
    **dict.fromkeys((*ALLOWING, "usage"), Rule(is_flag, "is not true or false")),
    "state": Rule(one_of("present", ABSENT), "is neither present nor absent"),
}
# Keys whose values are mappings of models.
BY_MODEL = {
    "balance": (", ".join(BALANCES), Rule(lambda kind: kind in BALANCES, f"is none of {', '.join(BALANCES)}")),
    "first_byte_s": ("seconds", integer(*FIRST_BYTE_S)),
}
KEYS = (*RULES, *BY_MODEL, "clients", "paths", "cors_origins", "chat")


def _refuse_exposed(gateway: Gateway, allowed_by: Mapping[str, Any]) -> None:
    if gateway.virtual_address and not ip_address(gateway.address).is_unspecified:
        allowed = "must be 0.0.0.0 or :: with a virtual_address, which only one of the gateways has at a time"
        raise refusal("", "fleet_gateway.address", gateway.address, allowed)
    if ip_address(gateway.address).is_loopback:
        return
    if not gateway.certificate and not allowed_by.get("plain_allowed"):
        allowed = (
            "is not a loopback address, so keys and texts would be sent unencrypted; set certificate, or "
            "plain_allowed: true"
        )
        raise refusal("", "fleet_gateway.address", gateway.address, allowed)
    if not gateway.clients and not allowed_by.get("open"):
        allowed = (
            "is not a loopback address, so everyone who reaches it could send requests; set clients, or open: true"
        )
        raise refusal("", "fleet_gateway.address", gateway.address, allowed)
