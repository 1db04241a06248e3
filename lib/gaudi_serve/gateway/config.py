"""The files of a gateway: HAProxy's configuration, the maps that it looks names and keys up in, and its answers.

All of it is computed; nobody edits it. Clients' keys are there as digests alone. The servers' own keys are in one map
of mode 0600, which HAProxy reads before it drops root's rights.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from .objects import Backend, Client, Gateway

# A client of a gateway that asks for no key.
EVERYBODY = "-"
# Between a client's name and a model's in a map; neither has one.
BETWEEN = "|"
JSON = "content-type application/json"
STREAM_S = 3600  # a server or a client may be silent for so long in the middle of a request
SLOW_START_S = 30
RETRY_S = 5
# Of every server: so much, that parts of it can be said at run time.
WEIGHT = 100
ADDRESS = "keepalived.conf"


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
    allowed = [f"{_name(client)}{BETWEEN}{model} 1" for client in clients for model in gateway.of_client(client)]
    lists = [f"{_name(client)} {_models(gateway.of_client(client))}" for client in clients]
    texts = {
        "haproxy.cfg": _configuration(gateway),
        "models.map": _lines(f"{one.model} {one.name}" for one in gateway.backends),
        "clients.map": _lines(keys),
        "rates.map": _lines(rates),
        "allowed.map": _lines(allowed),
        "lists.map": _lines(lists),
        "known.map": _lines(f"{_name(one)} {', '.join(gateway.of_client(one)) or 'none'}" for one in clients),
        **ANSWERS,
        **({ADDRESS: _address(gateway)} if gateway.virtual_address else {}),
    }
    files = {f"{gateway.folder}/{name}": File(text) for name, text in texts.items()}
    secrets = _lines(f"{one.name} {one.key}" for one in gateway.backends if one.key)
    return {**files, f"{gateway.folder}/servers.map": File(secrets, "0600", secret=True)}


def _name(client: Client | None) -> str:
    return client.name if client else EVERYBODY


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _models(names: list[str]) -> str:
    """Return what /v1/models answers, on one line."""
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "gaudi-serve"} for name in names]
    return json.dumps({"object": "list", "data": data}, separators=(",", ":"))


def _error(message: str, kind: str, code: str) -> str:
    """Return an error as OpenAI's clients read it; ``message`` may have HAProxy's own variables."""
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return json.dumps(body) + "\n"


MODEL = "%[var(txn.model),json(utf8s)]"
ANSWERS = {
    "400.json": _error(
        "No model is named where the gateway reads it. Say it before the messages and pictures in the body, or ask "
        "/models/NAME/v1/... instead of /v1/...",
        "invalid_request_error",
        "model_missing",
    ),
    "401.json": _error("No key, or one that is not known.", "invalid_request_error", "invalid_api_key"),
    "404.json": _error(
        f"The model `{MODEL}` is not served here; there are: %[var(txn.known)]",
        "invalid_request_error",
        "model_not_found",
    ),
    "413.json": _error("The request is larger than the gateway takes.", "invalid_request_error", "request_too_large"),
    "429-rate.json": _error("More requests a minute than this key has.", "requests", "rate_limit_exceeded"),
    "429-queue.json": _error(
        f"All servers of `{MODEL}` are busy, and as many requests wait as may.", "requests", "overloaded"
    ),
    "503.json": _error("No server is free, or none is up; ask again.", "server_error", "service_unavailable"),
    "504.json": _error("The server did not answer in time.", "server_error", "timeout"),
}


def _configuration(gateway: Gateway) -> str:
    sections = [
        _head(gateway),
        _frontend(gateway),
        _metrics(gateway),
        *(_backend(gateway, one) for one in gateway.backends),
    ]
    return "\n".join(["# Written by gaudi-serve; changes here are lost.", *sections])


def _section(title: str, lines: Iterable[str]) -> str:
    return "\n".join([title, *(f"    {line}" for line in lines if line), ""])


def _head(gateway: Gateway) -> str:
    owner = [f"user {gateway.user}", f"group {gateway.user}"] if gateway.user else []
    limits = [
        f"maxconn {gateway.connections}",
        # As much of a request as is searched for its model. Memory is taken while a connection's bytes are on the way.
        f"tune.bufsize {gateway.buffer_kib * 1024}",
        f"stats socket {gateway.run}/admin.sock mode 600 level admin expose-fd listeners",
        # By it a look at the socket tells which files the running workers have read.
        f"description {gateway.folder.rpartition('/')[2]}",
        f"server-state-file {gateway.state}",
        "log stdout format raw local0 info",
        "ssl-default-bind-options ssl-min-ver TLSv1.2 no-tls-tickets",
    ]
    timeouts = [
        "mode http",
        "log global",
        # Never bodies, never headers: these have keys.
        'log-format "%ci %[var(txn.client)] %b/%s %HM %HPO %ST %TR/%Tw/%Tc/%Tr/%Ta %ts %sq/%bq"',
        "option http-buffer-request",
        "option http-keep-alive",
        "option dontlognull",
        # A generation is never asked for twice: only what no server has begun goes to another one.
        "option redispatch 1",
        "retries 3",
        "retry-on conn-failure",
        "load-server-state-from-file global",
        "timeout connect 5s",
        "timeout http-request 60s",
        "timeout http-keep-alive 60s",
        f"timeout client {STREAM_S}s",
        f"timeout server {STREAM_S}s",
        f"timeout queue {gateway.wait_s}s",
        *(
            f"http-error status {status} {JSON} lf-file {gateway.folder}/{file}.json hdr Retry-After {RETRY_S}"
            for status, file in ((502, 503), (503, 503), (504, 504))
        ),
    ]
    return _section("global", [*owner, *limits]) + "\n" + _section("defaults", timeouts)


def _address(gateway: Gateway) -> str:
    """Return keepalived's configuration: the address is where a gateway works, at the first of them if all do."""
    return f"""# Written by gaudi-serve; changes here are lost.
global_defs {{
    enable_script_security
    script_user root
}}
vrrp_script gateway {{
    script "/usr/bin/systemctl is-active --quiet gaudi-gateway.service"
    interval 1
    timeout 3
    fall 2
    rise 2
}}
vrrp_instance gateway {{
    state BACKUP
    interface {gateway.virtual_interface}
    virtual_router_id {gateway.virtual_router_id}
    priority {max(1, 200 - 10 * gateway.rank)}
    advert_int 1
    virtual_ipaddress {{
        {gateway.virtual_address}
    }}
    track_script {{
        gateway
    }}
}}
"""


def _answer(gateway: Gateway, status: int, file: str, when: str, retry_s: int = 0) -> str:
    """Return the rule that answers a request by itself."""
    later = f" hdr Retry-After {retry_s}" if retry_s else ""
    return f"http-request return status {status} {JSON} lf-file {gateway.folder}/{file}.json{later} {when}"


def _found(folder: str, target: str, source: str, name: str) -> str:
    """Return the rule that looks a variable up in a map and keeps what it finds."""
    return f"http-request set-var(txn.{target}) var(txn.{source}),map_str({folder}/{name}.map)"


def _frontend(gateway: Gateway) -> str:
    secured = f" ssl crt {gateway.certificate} alpn h2,http/1.1" if gateway.certificate else ""
    rules = [
        f"bind {gateway.address}:{gateway.port}{secured}",
        "http-request return status 200 content-type text/plain string ok if { path /health }",
        *(_who(gateway) if gateway.clients else [f"http-request set-var(txn.client) str({EVERYBODY})"]),
        _answer(gateway, 413, "413", f"if {{ req.body_size gt {gateway.body_mib << 20} }}"),
        *_which(gateway),
        # A server of several models lets whoever asks it load and unload models.
        f"http-request return status 403 {JSON} string '{FIXED.strip()}' {UPDATE}" if _shared(gateway) else "",
        # A client's key is the gateway's business; a server gets its own.
        "http-request del-header authorization",
        _found(gateway.folder, "key", "backend", "servers"),
        'http-request set-header authorization "Bearer %[var(txn.key)]" if { var(txn.key) -m found }',
        "http-request unset-var(txn.key)",
        "use_backend %[var(txn.backend)]",
    ]
    return _section("frontend gateway", rules)


FIXED = _error("The models of a server are chosen by those who operate it", "invalid_request_error", "not_allowed")
UPDATE = "if { path,url_dec -m sub /update_models }"


def _shared(gateway: Gateway) -> bool:
    """Tell whether one server answers for several models."""
    places = [(one.address, one.port) for backend in gateway.backends for one in backend.servers]
    return len(set(places)) < len(places)


def _who(gateway: Gateway) -> list[str]:
    """Return the rules by which a client is known, and is held to its rate."""
    above = "if { var(txn.rate) -m int gt 0 } { sc0_http_req_rate,sub(txn.rate) -m int gt 0 }"
    return [
        "stick-table type string len 64 size 10k expire 2m store http_req_rate(60s)",
        "http-request set-var(txn.digest) req.hdr(authorization),word(2,' '),sha2(256),hex",
        _found(gateway.folder, "client", "digest", "clients"),
        _answer(gateway, 401, "401", "if !{ var(txn.client) -m found }"),
        "http-request track-sc0 var(txn.client)",
        f"http-request set-var(txn.rate) var(txn.client),map_str_int({gateway.folder}/rates.map,0)",
        _answer(gateway, 429, "429-rate", above, 60),
    ]


def _which(gateway: Gateway) -> list[str]:
    """Return the rules that find the model, and whether the client may use it."""
    folder = gateway.folder
    only = gateway.backends[0].model if len(gateway.backends) == 1 else None
    return [
        _found(folder, "known", "client", "known"),
        _found(folder, "list", "client", "lists"),
        f"http-request return status 200 {JSON} lf-string %[var(txn.list)] if {{ path /v1/models }}",
        "http-request set-var(txn.model) path,field(3,/),url_dec if { path_beg /models/ }",
        r"http-request replace-path /models/[^/]+(/.*) \1 if { path_beg /models/ }",
        "http-request set-var(txn.model) req.body,json_query('$.model') unless { var(txn.model) -m found }",
        # Where there is one model alone, a body in which the name stands too far behind can mean no other.
        f"http-request set-var(txn.model) str({only}) unless {{ var(txn.model) -m found }}" if only else "",
        _answer(gateway, 400, "400", "unless { var(txn.model) -m found }"),
        f"http-request set-var(txn.pair) var(txn.client),concat({BETWEEN},txn.model)",
        _answer(gateway, 404, "404", f"unless {{ var(txn.pair),map_str({folder}/allowed.map) -m found }}"),
        _found(folder, "backend", "model", "models"),
    ]


def _metrics(gateway: Gateway) -> str:
    return _section(
        "frontend metrics",
        [
            f"bind 127.0.0.1:{gateway.metrics_port}",
            "http-request set-log-level silent",
            "http-request use-service prometheus-exporter if { path /metrics }",
        ],
    )


def _backend(gateway: Gateway, backend: Backend) -> str:
    busy = f"{gateway.folder}/429-queue.json"
    return _section(
        f"backend {backend.name}",
        [
            "balance leastconn",
            "option httpchk GET /health",
            f"http-request return status 429 {JSON} lf-file {busy} hdr Retry-After {RETRY_S} "
            f"if {{ queue ge {gateway.waiting} }}",
            f"default-server check inter 2s fastinter 500ms fall 3 rise 1 slowstart {SLOW_START_S}s weight {WEIGHT}",
            *(f"server {one.name} {one.address}:{one.port} maxconn {one.takes}" for one in backend.servers),
        ],
    )
