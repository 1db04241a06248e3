"""The rules that each request passes: who asks, for what, of which model, and how much of it at a time."""

from __future__ import annotations

from .answers import JSON, answer
from .objects import Gateway

# A client of a gateway that asks for no key.
EVERYBODY = "-"
# Between a client's name and a model's in a map; neither has one.
BETWEEN = "|"
# What vLLM answers for users. All else of a server is for its operator: metrics, adapters, sleep, profiles.
PATHS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"),
    *("/v1/embeddings", "/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score", "/tokenize", "/detokenize"),
    *("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/realtime"),
)
FORMS = ("/v1/audio/transcriptions", "/v1/audio/translations")
BY_ID = "path_reg ^/v1/responses/[A-Za-z0-9_-]{1,128}(/cancel)?$"
HEADERS = "authorization, content-type, x-api-key, x-request-id, x-session-id, anthropic-version, anthropic-beta"
WAIT_TO_NEXT_MINUTE = '"%[date,mod(60),neg,add(60)]"'


def frontend_rules(gateway: Gateway) -> list[str]:
    """Return the lines of the frontend that clients reach."""
    secured = f" ssl crt {gateway.certificate} alpn h2,http/1.1" if gateway.certificate else ""
    per_address = gateway.connections_per_address or max(1, gateway.connections // 4)
    return [
        f"bind {gateway.address}:{gateway.port}{secured}",
        f"maxconn {gateway.connections}",
        "filter lua.usage" if gateway.usage else "",
        # Idle connections of one address leave room for others.
        "tcp-request connection track-sc2 src table own:addresses",
        f"tcp-request connection reject if {{ sc_conn_cur(2,own:addresses) gt {per_address} }}",
        # Asked every other second, by who holds the address and by balancers in front.
        "http-request set-log-level silent if { path /health }",
        "http-request return status 200 content-type text/plain string ok if { path /health }",
        *_named(gateway),
        *_origin(gateway),
        *(_who(gateway) if gateway.clients else [f"http-request set-var(txn.client) str({EVERYBODY})"]),
        *_what(gateway),
        *_which(gateway),
        # Once more: others may have used the rate while this body arrived.
        *([_above(gateway), "http-request sc-inc-gpc0(1) if { var(txn.rate) -m int gt 0 }"] if gateway.clients else []),
        # A client's key is the gateway's business; a server gets its own.
        "http-request del-header authorization",
        "http-request del-header x-api-key",
        lookup(gateway.folder, "key", "backend", "servers"),
        'http-request set-header authorization "Bearer %[var(txn.key)]" if { var(txn.key) -m found }',
        "http-request unset-var(txn.key)",
        "use_backend %[var(txn.backend)]",
    ]


def lookup(folder: str, target: str, source: str, name: str) -> str:
    """Return the rule that sets a variable to what a map has for another one."""
    return f"http-request set-var(txn.{target}) var(txn.{source}),map_str({folder}/{name}.map)"


def _named(gateway: Gateway) -> list[str]:
    """Return the rules by which server, client and log name the same request."""
    return [
        # The variable is what is looked at: a condition on a header holds for any of its values.
        "http-request set-var(txn.id) req.fhdr(x-request-id)",
        "http-request unset-var(txn.id) unless { var(txn.id) -m reg ^[A-Za-z0-9._-]{8,64}$ }",
        "http-request set-var(txn.id) uuid unless { var(txn.id) -m found }",
        "http-request set-header x-request-id %[var(txn.id)]",
        "http-request set-header x-forwarded-for %[src]",
        f"http-request set-header x-forwarded-proto {'https' if gateway.certificate else 'http'}",
        "http-after-response set-header x-request-id %[var(txn.id)] if { var(txn.id) -m found }",
    ]


def _origin(gateway: Gateway) -> list[str]:
    """Return the rules for pages of other sites, whose browsers ask first."""
    # A server's own word does not count: vLLM lets every page in.
    own = "http-response del-header access-control- -m beg"
    if not gateway.cors_origins:
        return [own]
    known = "if { var(txn.origin) -m found }"
    origins = " ".join(gateway.cors_origins)
    allowed = "hdr access-control-allow-origin %[var(txn.origin)] hdr vary origin"
    return [
        "http-request set-var(txn.origin) req.fhdr(origin)",
        f"http-request unset-var(txn.origin) unless {{ var(txn.origin) -m str {origins} }}",
        f'http-request return status 204 {allowed} hdr access-control-allow-methods "GET, POST" '
        f'hdr access-control-allow-headers "{HEADERS}" hdr access-control-max-age 600 '
        f"{known} METH_OPTIONS {{ req.hdr(access-control-request-method) -m found }}",
        own,
        f"http-after-response set-header access-control-allow-origin %[var(txn.origin)] {known}",
        f"http-after-response add-header vary origin {known}",
    ]


def _who(gateway: Gateway) -> list[str]:
    """Return the rules by which a client is known, and is held to its rate.

    Requests are counted by the minute, and only those that are let in.
    """
    bearer = "req.fhdr(authorization),word(2,' '),sha2(256),hex"
    return [
        f"http-request set-var(txn.digest) {bearer} if {{ req.hdr(authorization) -m found }}",
        "http-request set-var(txn.digest) req.fhdr(x-api-key),sha2(256),hex unless { var(txn.digest) -m found }",
        lookup(gateway.folder, "client", "digest", "clients"),
        answer(gateway.folder, 401, "401", "if !{ var(txn.client) -m found }"),
        f"http-request set-var(txn.rate) var(txn.client),map_str_int({gateway.folder}/rates.map,0)",
        f"http-request set-var-fmt(txn.minute) %[var(txn.client)]{BETWEEN}%[date,div(60)]",
        "http-request track-sc1 var(txn.minute) table own:minutes if { var(txn.rate) -m int gt 0 }",
        _above(gateway),
    ]


def _above(gateway: Gateway) -> str:
    """Return the rule that refuses what is above a client's rate."""
    above = "if { var(txn.rate) -m int gt 0 } { sc_get_gpc0(1,own:minutes),sub(txn.rate) ge 0 }"
    return answer(gateway.folder, 429, "429-rate", above, WAIT_TO_NEXT_MINUTE)


def _what(gateway: Gateway) -> list[str]:
    """Return the rules for the path and for the size of the body."""
    folder = gateway.folder
    prefixed = "if { path_beg /models/ }"
    served = f"{{ path {' '.join([*PATHS, *gateway.paths])} }}"
    return [
        lookup(folder, "known", "client", "known"),
        lookup(folder, "list", "client", "lists"),
        f"http-request set-var(txn.model) path,field(3,/),url_dec {prefixed}",
        rf"http-request replace-path /models/[^/]+(/.*) \1 {prefixed}",
        f"http-request return status 200 {JSON} lf-string %[var(txn.list)] if {{ path /v1/models }}",
        answer(folder, 404, "404-path", f"unless {served} or {{ path_reg ^/v1/models/. }} or {{ {BY_ID} }}"),
        # Headers that leave the body no room in the buffer would end the wait for it.
        answer(folder, 431, "431", f"if {{ req.hdrs,length gt {headers(gateway)} }}"),
        # As much of it as the gateway reads before it chooses a server.
        f"http-request wait-for-body time {gateway.client_s}s",
        answer(folder, 413, "413", f"if {{ req.body_size gt {gateway.body_mib << 20} }}"),
        # Without Content-Length the gateway can check only what fits its buffer.
        answer(
            folder,
            413,
            "413-length",
            f"if !{{ req.fhdr(content-length) -m found }} {{ req.body_len gt {read(gateway)} }}",
        ),
        # What it has not read completely arrives at a server's place.
        "http-request set-var(txn.size) req.body_size",
        f"http-request set-var(txn.large) bool(true) if {{ req.body_size gt {read(gateway)} }}",
        "http-request set-var(txn.large) bool(true) if { req.body_len,sub(txn.size) lt 0 }",
    ]


def headers(gateway: Gateway) -> int:
    """Return the bytes that all headers of a request may have."""
    return min(32, gateway.buffer_kib // 4) * 1024


def read(gateway: Gateway) -> int:
    """Return the bytes of a body that certainly fit the buffer beside the headers, and beside what HAProxy adds."""
    size = gateway.buffer_kib * 1024
    return min(size * 3 // 4, size - headers(gateway) - 2048)


def _which(gateway: Gateway) -> list[str]:
    """Return the rules that find the model, and whether the client may use it."""
    folder = gateway.folder
    only = gateway.backends[0].model if len(gateway.backends) == 1 and not gateway.backends[0].adapters else None
    missing, unasked = "unless { var(txn.model) -m found }", "!{ var(txn.asked) -m found }"
    form = f"if {{ path {' '.join(FORMS)} }} {{ req.fhdr(content-type) -m beg -i multipart/form-data }}"
    return [
        "http-request set-var(txn.model) path,bytes(11),url_dec if { path_beg /v1/models/ }",
        "http-request set-var(txn.asked) url_param(model),url_dec if { path /v1/realtime }",
        f"http-request set-var(txn.asked) req.body,lua.form_model {form}",
        f"http-request set-var(txn.asked) req.body,json_query('$.model') if {unasked}",
        f"http-request set-var(txn.asked) req.body,lua.escaped_model if {unasked}",
        "http-request unset-var(txn.asked) if { var(txn.asked) -m len 0 }",
        f"http-request set-var(txn.model) var(txn.asked) {missing}",
        "http-request unset-var(txn.model) if { var(txn.model) -m len 0 }",
        *_stored(gateway),
        # Where there is one model alone, a body in which the name stands too far behind can mean no other.
        f"http-request set-var(txn.model) str({only}) {missing}" if only else "",
        answer(folder, 400, "400-model", missing),
        f"http-request set-var(txn.pair) var(txn.client),concat({BETWEEN},txn.model)",
        f"http-request set-var(txn.allowed) var(txn.pair),map_str({folder}/allowed.map)",
        answer(folder, 404, "404", "unless { var(txn.allowed) -m found }"),
        "http-request set-var(txn.served) var(txn.model)",
        f"http-request return status 200 {JSON} lf-string "
        '"{\\"id\\":\\"%[var(txn.model),json(utf8s)]\\",\\"object\\":\\"model\\",\\"created\\":0,'
        '\\"owned_by\\":\\"gaudi-serve\\"}" if { path_beg /v1/models/ }',
        lookup(folder, "backend", "model", "models"),
        *(_strict(gateway) if any(len(gateway.beside(one.model)) > 1 for one in gateway.backends) else []),
    ]


def _stored(gateway: Gateway) -> list[str]:
    """Return the rules for responses that a server has stored: only that server knows them."""
    missing = "!{ var(txn.model) -m found }"
    return [
        f"http-request set-var(txn.response) path,field(4,/) if {{ {BY_ID} }}",
        "http-request set-var(txn.response) req.body,json_query('$.previous_response_id') if { path /v1/responses }",
        *(
            f"http-request set-var(txn.model) str({backend.model}) if {{ {BY_ID} }} {missing} "
            f"{{ var(txn.response),in_table({backend.name}) }}"
            for backend in gateway.backends
        ),
        answer(gateway.folder, 404, "404-response", f"if {{ {BY_ID} }} {missing}"),
    ]


def _strict(gateway: Gateway) -> list[str]:
    """Return the rules for models whose servers answer to other names too: the body must name the model.

    A key that may use only some of those names may have no other name in the body.
    """
    strict = "{ var(txn.allowed) -m str strict }"
    by_id = f"!{{ {BY_ID} }}"
    refuse, other = f"if {strict} {by_id}", "!{{ var(txn.{}),strcmp(txn.model) eq 0 }}"
    return [
        answer(gateway.folder, 400, "400-strict", f"{refuse} {{ path {' '.join([*FORMS, '/v1/realtime'])} }}"),
        answer(gateway.folder, 400, "400-strict", f"{refuse} {{ var(txn.large) -m bool }}"),
        f"http-request set-var(txn.body) req.body,lua.only_model {refuse}",
        answer(gateway.folder, 400, "400-strict", f"{refuse} {other.format('body')}"),
        answer(
            gateway.folder, 400, "400-named", f"if {{ var(txn.allowed) -m str named }} {by_id} {other.format('asked')}"
        ),
    ]
