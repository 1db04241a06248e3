"""The files of a gateway: HAProxy's configuration, the maps that it looks names and keys up in, and its answers.

All of it is computed; nobody edits it. Clients' keys are there as digests alone. The servers' own keys are in one map
of mode 0600, which HAProxy reads before it drops root's rights.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .address import HEALTH, HEALTH_FILE, address_configuration
from .answers import ANSWERS, own_errors
from .backend import backend_rules
from .frontend import BETWEEN, EVERYBODY, frontend_rules
from .objects import Client, Gateway

STREAM_S = 3600  # a server may be silent for so long in the middle of a request
ADDRESS = "keepalived.conf"
# Connections beside those of clients: Prometheus, and the workers of before a reload.
OWN_CONNECTIONS = 100
# Mozilla's intermediate list of November 2026, without the ciphers that need parameters of their own.
CIPHERS = ":".join(
    f"ECDHE-{kind}-{cipher}"
    for cipher in ("AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305")
    for kind in ("ECDSA", "RSA")
)
SUITES = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
# What HAProxy's own language cannot do; each thread has its own state, since HAProxy 2.6 crashes with a shared one.
LUA, USAGE = (Path(__file__).with_name(f"{name}.lua") for name in ("gateway", "usage"))
# Never bodies, never headers: these have keys.
LOG = (
    "client=%[var(txn.client)] model=%[var(txn.served)] address=%ci request=%[var(txn.id)] method=%HM path=%HPO "
    "status=%ST server=%b/%s input_tokens=%[var(txn.input_tokens)] output_tokens=%[var(txn.output_tokens)] "
    "queue_ms=%Tw first_byte_ms=%Tr total_ms=%Ta end=%ts"
)


@dataclass(frozen=True)
class File:
    """One file: its text, its mode, and whether it holds a secret, which no diff may show."""

    text: str
    mode: str = "0644"
    secret: bool = False


def gateway_files(gateway: Gateway) -> dict[str, File]:
    """Return the files by their paths."""
    clients: list[Client | None] = list(gateway.clients) or [None]
    keys = [f"{client.sha256.upper()} {client.name}" for client in gateway.clients]
    rates = [f"{client.name} {client.requests_per_minute}" for client in gateway.clients if client.requests_per_minute]
    allowed = [
        f"{_name(client)}{BETWEEN}{name} {_allowed(gateway, client, name)}"
        for client in clients
        for name in gateway.of_client(client)
    ]
    lists = [f"{_name(client)} {_models(gateway.of_client(client))}" for client in clients]
    texts = {
        "haproxy.cfg": _configuration(gateway),
        "models.map": _lines(f"{name} {one.name}" for one in gateway.backends for name in one.names),
        "clients.map": _lines(keys),
        "rates.map": _lines(rates),
        "allowed.map": _lines(allowed),
        "lists.map": _lines(lists),
        "known.map": _lines(f"{_name(one)} {', '.join(gateway.of_client(one)) or 'none'}" for one in clients),
        **ANSWERS,
        "failed.map": "",
        LUA.name: LUA.read_text(encoding="utf-8"),
        **({USAGE.name: USAGE.read_text(encoding="utf-8"), "usage.map": ""} if gateway.usage else {}),
        **({ADDRESS: address_configuration(gateway), HEALTH_FILE: HEALTH} if gateway.virtual_address else {}),
    }
    files = {f"{gateway.folder}/{name}": File(text) for name, text in texts.items()}
    secrets = _lines(f"{one.name} {one.key}" for one in gateway.backends if one.key)
    return {**files, f"{gateway.folder}/servers.map": File(secrets, "0600", secret=True)}


def _name(client: Client | None) -> str:
    return client.name if client else EVERYBODY


def _allowed(gateway: Gateway, client: Client | None, name: str) -> str:
    """Return how much a body must say.

    ``strict`` where the client may not use all names of the servers that serve this one; ``named`` where a server would
    use another model for a body without a name; ``all`` otherwise.
    """
    beside = gateway.beside(name)
    if client and client.models and not beside <= set(client.models):
        return "strict"
    bases = {backend.model for backend in gateway.backends} & beside
    return "all" if bases == {name} else "named"


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _models(names: list[str]) -> str:
    """Return what /v1/models answers, on one line."""
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "gaudi-serve"} for name in names]
    return json.dumps({"object": "list", "data": data}, separators=(",", ":"))


def _configuration(gateway: Gateway) -> str:
    sections = [
        _global(gateway),
        _defaults(gateway),
        _tables(gateway),
        _section("frontend gateway", frontend_rules(gateway)),
        _metrics(gateway),
        *(_section(f"backend {one.name}", backend_rules(gateway, one)) for one in gateway.backends),
    ]
    return "\n".join(["# Written by gaudi-serve; changes here are lost.", *sections])


def _section(title: str, lines: Iterable[str]) -> str:
    return "\n".join([title, *(f"    {line}" for line in lines if line), ""])


def _global(gateway: Gateway) -> str:
    owner = [f"user {gateway.user}", f"group {gateway.user}"] if gateway.user else []
    limits = [
        f"maxconn {gateway.connections + OWN_CONNECTIONS}",
        # As much of a request as is searched for its model. Memory is taken while a connection's bytes are on the way.
        f"tune.bufsize {gateway.buffer_kib * 1024}",
        f"stats socket {gateway.run}/admin.sock mode 600 level admin expose-fd listeners",
        # By it a look at the socket tells which files the running workers have read.
        f"description {gateway.folder.rpartition('/')[2]}",
        f"server-state-file {gateway.state}",
        "localpeer gateway",
        *(f"lua-load-per-thread {gateway.folder}/{file.name}" for file in ([LUA, USAGE] if gateway.usage else [LUA])),
        f"hard-stop-after {gateway.hard_stop_s}s",
        "log stdout format raw local0 info",
        "ssl-default-bind-options ssl-min-ver TLSv1.2 no-tls-tickets",
        f"ssl-default-bind-ciphers {CIPHERS}",
        f"ssl-default-bind-ciphersuites {SUITES}",
    ]
    return _section("global", [*owner, *limits])


def _defaults(gateway: Gateway) -> str:
    timeouts = [
        "mode http",
        "log global",
        f'log-format "{LOG}"',
        "option http-keep-alive",
        "option dontlognull",
        # A request that its client has left ends at its server too.
        "option abortonclose",
        # A generation is never asked for twice: only what no server has begun goes to another one.
        "option redispatch 1",
        "retries 3",
        "retry-on conn-failure",
        "load-server-state-from-file global",
        # A host that vanishes in the middle of an answer is noticed within 14 s.
        "option srvtcpka",
        "srvtcpka-idle 5s",
        "srvtcpka-intvl 3s",
        "srvtcpka-cnt 3",
        "timeout connect 5s",
        f"timeout http-request {gateway.client_s}s",
        f"timeout http-keep-alive {gateway.client_s}s",
        f"timeout client {gateway.client_s}s",
        f"timeout server {STREAM_S}s",
        f"timeout tunnel {STREAM_S}s",
        f"timeout queue {gateway.wait_s}s",
        *own_errors(gateway.folder),
    ]
    return _section("defaults", timeouts)


def _tables(gateway: Gateway) -> str:
    """Return what the gateway counts. Old workers pass on what a reload must not lose.

    They do so only when they have run for five seconds: HAProxy waits so long for those before them.
    """
    # The unit's UMask keeps others out; HAProxy cannot change the mode of a socket after its owner.
    owner = f" user {gateway.user}" if gateway.user else ""
    tables = {
        "addresses": "type ipv6 size 100k expire 1m store conn_cur",
        "minutes": "type string len 100 size 20k expire 2m store gpc0 peers own",
        "requests": "type string len 340 size 20k expire 2m store conn_cur",
    }
    peers = _section("peers own", [f"bind unix@{gateway.run}/peers.sock{owner}", "server gateway"])
    return "\n".join(
        [peers, *(_section(f"backend own:{name}", [f"stick-table {what}"]) for name, what in tables.items())]
    )


def _metrics(gateway: Gateway) -> str:
    return _section(
        "frontend metrics",
        [
            f"bind 127.0.0.1:{gateway.metrics_port}",
            "http-request set-log-level silent",
            "http-request use-service prometheus-exporter if { path /metrics }",
            "http-request use-service lua.usage if { path /usage }" if gateway.usage else "",
            "http-request return status 404",
        ],
    )
