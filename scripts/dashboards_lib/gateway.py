"""The dashboard of gateways."""

from __future__ import annotations

from .build import Board, Panel, Row
from .queries import RATE

ANSWERS, FAILED = "http_responses_total", ',code="5xx"'
FRONT = 'job="haproxy",host=~"$gateway",proxy="gateway"'
GW = 'job="haproxy",host=~"$gateway",proxy=~"$proxy",proxy!~"own:.*"'


def backend(name: str, by: str = "proxy", more: str = "") -> str:
    """Return the query for a counter of backends, as a rate per second."""
    return f"sum by ({by}) (rate(haproxy_backend_{name}{{{GW}{more}}}[{RATE}]))"


def server(name: str, function: str = "sum") -> str:
    """Return the query for a gauge of servers."""
    return f"{function} by (proxy, server) (haproxy_server_{name}{{{GW}}})"


def usage(title: str, name: str, unit: str, text: str = "") -> Panel:
    """Return the panel of a counter by client and model, over the selected gateways."""
    query = f'sum by (client, model) (rate(gaudi_gateway_{name}_total{{job="usage",host=~"$gateway"}}[{RATE}]))'
    return Panel(title, ((query, "{{client}}: {{model}}"),), unit, stacked=True, text=text)


GATEWAY = Board(
    "gaudi-serve-gateway",
    "gaudi-serve: gateway",
    "What clients get, by model and server.",
    (
        ("gateway", 'label_values(up{job="haproxy"}, host)'),
        ("proxy", 'label_values(haproxy_backend_active_servers{proxy!~"own:.*"}, proxy)'),
    ),
    (
        Row(
            "Models",
            (
                Panel("Requests", ((backend("http_requests_total"), "{{proxy}}"),), "reqps", stacked=True),
                Panel(
                    "Answers, by code",
                    ((backend("http_responses_total", "proxy, code"), "{{proxy}} {{code}}"),),
                    "reqps",
                ),
                Panel(
                    "Share of errors 5xx",
                    (
                        (
                            f"{backend(ANSWERS, more=FAILED)} / {backend(ANSWERS)}",
                            "{{proxy}}",
                        ),
                    ),
                    "percentunit",
                ),
                Panel(
                    "Requests that wait for a server",
                    ((f"sum by (proxy) (haproxy_backend_current_queue{{{GW}}})", "{{proxy}}"),),
                    "none",
                ),
                Panel(
                    "Mean time in the queue",
                    ((f"avg by (proxy) (haproxy_backend_queue_time_average_seconds{{{GW}}})", "{{proxy}}"),),
                    "s",
                    text="Of the last 1024 requests.",
                ),
                Panel(
                    "Mean time of a request",
                    ((f"avg by (proxy) (haproxy_backend_total_time_average_seconds{{{GW}}})", "{{proxy}}"),),
                    "s",
                    text="Of the last 1024 requests.",
                ),
                Panel(
                    "Servers that are up",
                    ((f"min by (proxy) (haproxy_backend_active_servers{{{GW}}})", "{{proxy}}"),),
                    "none",
                ),
                Panel("Errors of connections to servers", ((backend("connection_errors_total"), "{{proxy}}"),), "ops"),
                Panel(
                    "Requests given to another server",
                    (
                        (backend("retry_warnings_total"), "tried again: {{proxy}}"),
                        (backend("redispatch_warnings_total"), "moved: {{proxy}}"),
                    ),
                    "ops",
                ),
            ),
        ),
        Row(
            "Clients",
            (
                usage("Tokens of prompts, by client", "input_tokens", "ops", "Only gateways with usage: true."),
                usage("Generated tokens, by client", "output_tokens", "ops", "Only gateways with usage: true."),
                usage(
                    "Requests without token counts, by client",
                    "requests_without_usage",
                    "reqps",
                    "The gateway cannot count the tokens of these: docs/reference/gateway.md shows when.",
                ),
            ),
        ),
        Row(
            "Servers",
            (
                Panel(
                    "State",
                    ((f"max by (proxy, server, state) (haproxy_server_status{{{GW}}}) == 1", "state"),),
                    "none",
                    "table",
                    8,
                    9,
                ),
                Panel("Requests under way", ((server("current_sessions"), "{{server}}"),), "none", height=9),
                Panel(
                    "Requests that wait for this server", ((server("current_queue"), "{{server}}"),), "none", height=9
                ),
                Panel(
                    "Answers 5xx",
                    (
                        (
                            f"sum by (proxy, server) (rate(haproxy_server_{ANSWERS}{{{GW}{FAILED}}}[{RATE}]))",
                            "{{server}}",
                        ),
                    ),
                    "reqps",
                ),
                Panel(
                    "Failed checks",
                    (
                        (
                            f"sum by (proxy, server) (rate(haproxy_server_check_failures_total{{{GW}}}[{RATE}]))",
                            "{{server}}",
                        ),
                    ),
                    "ops",
                ),
                Panel(
                    "Requests of clients",
                    (
                        (
                            f"sum by (host, code) (rate(haproxy_frontend_{ANSWERS}{{{FRONT}}}[{RATE}]))",
                            "{{code}} at {{host}}",
                        ),
                    ),
                    "reqps",
                    text="With those that the gateway itself refuses: no key, no such model, above a rate.",
                ),
                Panel(
                    "Dropped lines of the log",
                    (
                        (
                            'sum by (host) (haproxy_process_dropped_logs_total{job="haproxy",host=~"$gateway"})',
                            "{{host}}",
                        ),
                    ),
                    "none",
                    text="Since the last reload of HAProxy. Their requests are missing in the journal.",
                ),
            ),
        ),
    ),
)
