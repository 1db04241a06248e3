"""The servers of one model: which of them gets a request, how many at a time, and when one gets none for a while."""

from __future__ import annotations

from .answers import RETRY_S, answer
from .frontend import BETWEEN
from .objects import Backend, Gateway

SLOW_START_S = 30
# Of every server: so much, that parts of it can be set at run time.
WEIGHT = 100
# Of the failed answers after which a server is taken out of the pool, so many must be of other clients than the rest.
OTHERS = 3
# Requests that a server may have, in percent of the mean, before the next one gets what would be its share.
MOST = 150
STORED = "100k"  # responses that a gateway remembers the server of


def backend_rules(gateway: Gateway, backend: Backend) -> list[str]:
    """Return the lines of a model's backend."""
    return [
        *_balance(backend),
        "option httpchk GET /health",
        # A host that vanished answers no new connection; a busy server may take long to answer.
        "timeout check 10s",
        f"stick-table type string len 136 size {STORED} expire 1h peers own",
        "stick match var(txn.response)",
        "stick store-response res.body,lua.response_id if { var(txn.stores) -m found }",
        "http-request set-var(txn.stores) str(yes) if METH_POST { path /v1/responses }",
        # The id is in the answer's first bytes.
        "tcp-response inspect-delay 5s",
        "tcp-response content accept unless { var(txn.stores) -m found }",
        "tcp-response content accept if { res.body,length gt 60 }",
        *_fair(gateway, backend),
        *_passive(gateway, backend),
        f"default-server check inter 2s fastinter 500ms downinter 2s fall 3 rise 1 slowstart {SLOW_START_S}s "
        f"weight {WEIGHT} on-marked-down shutdown-sessions",
        *(f"server {one.name} {one.address}:{one.port} maxconn {one.takes}" for one in backend.servers),
    ]


def _balance(backend: Backend) -> list[str]:
    if backend.balance == "least":
        return ["balance leastconn"]
    named = (
        ["http-request set-var(txn.same) req.hdr(x-session-id) if { req.hdr(x-session-id) -m found }"]
        if backend.balance == "session"
        else []
    )
    missing = "unless { var(txn.same) -m found }"
    return [
        *named,
        f"http-request set-var(txn.same) req.body,json_query('$.prompt_cache_key') {missing}",
        f"http-request set-var(txn.same) req.body,lua.{backend.balance} {missing}",
        "balance hash var(txn.same)",
        "hash-type consistent",
        f"hash-balance-factor {MOST}",
    ]


def _passive(gateway: Gateway, backend: Backend) -> list[str]:
    """Return the rules by which a server that answers /health and fails requests leaves the pool for some seconds.

    Not by the requests of one client alone, where there are several: a server may fail because of what it is asked.
    """
    if len(backend.servers) < 2:
        return []
    users = [one for one in gateway.clients if not one.models or set(one.models) & set(backend.names)]
    others = OTHERS if len(users) > 1 else 0
    answered = "if { var(txn.answered) -m found } or { status 502 504 }"
    return [
        "http-response set-var(txn.answered) status",
        f'http-after-response set-var-fmt(txn.judged) "%[be_name] %[srv_name] %[status] %[var(txn.client)]" {answered}',
        f"http-after-response set-var(txn.judged) var(txn.judged),lua.judge({others}) {answered}",
    ]


def _fair(gateway: Gateway, backend: Backend) -> list[str]:
    """Return the rules by which no client takes the others' places.

    Who has fewer requests under way is served first. Requests whose body is larger than the gateway's buffer hold a
    server's place while they arrive: a client may have a quarter of the places with them.
    """
    who = "var(txn.client)" if gateway.clients else "src"
    large = "if { var(txn.large) -m bool }"
    quarter = max(1, backend.places // 4)
    busy = "429-queue"
    return [
        f"http-request set-var-fmt(txn.who) %[{who}]{BETWEEN}{backend.model}",
        f"http-request set-var-fmt(txn.who) %[var(txn.who)]{BETWEEN}large {large}",
        "http-request track-sc0 var(txn.who) table own:requests",
        answer(
            *(gateway.folder, 429, busy),
            f"if {{ sc_conn_cur(0,own:requests) gt {backend.places + gateway.waiting} }}",
            RETRY_S,
        ),
        answer(gateway.folder, 429, busy, f"{large} {{ sc_conn_cur(0,own:requests) gt {quarter} }}", RETRY_S),
        "http-request set-priority-class sc_conn_cur(0,own:requests)",
    ]
