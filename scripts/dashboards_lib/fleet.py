"""The dashboard of the whole fleet."""

from __future__ import annotations

from .build import Board, Panel, Row
from .queries import BURNS, HOST, HOSTS, KV, MODEL, MODELS, VLLM, age, increase, own, quantiles, rate

ALERTS = Panel(
    "Alerts that fire",
    (
        (
            'sum by (alertname, severity, host, model, card, proxy) (ALERTS{alertstate="firing",severity!="none"})',
            "firing",
        ),
    ),
    kind="table",
    width=24,
    text="docs/reference/alerts.md explains each alert and what to do.",
)
LINKS = ((age("host_validation", HOST, "host"), "age of the measurement"),)
FLEET = Board(
    "gaudi-serve-fleet",
    "gaudi-serve: fleet",
    "All hosts and models: what serves, what fires, what needs attention.",
    (HOSTS, MODELS),
    (
        Row(
            "Now",
            (
                Panel("Hosts that answer", ((f'sum(up{{job="node",{HOST}}})', "hosts"),), "none", "stat", 4, 4),
                Panel(
                    "Models that serve",
                    ((f'sum(gaudi_serve_model_state{{job="node",{MODEL},state="serving"}})', "models"),),
                    "none",
                    "stat",
                    4,
                    4,
                ),
                Panel(
                    "Requests under way",
                    ((f"sum(vllm:num_requests_running{{{VLLM}}})", "running"),),
                    "none",
                    "stat",
                    4,
                    4,
                ),
                Panel(
                    "Requests that wait",
                    ((f"sum(vllm:num_requests_waiting{{{VLLM}}})", "waiting"),),
                    "none",
                    "stat",
                    4,
                    4,
                ),
                Panel(
                    "Hosts in a rollout",
                    ((f'sum(gaudi_serve_host_in_rollout{{job="node",{HOST}}})', "hosts"),),
                    "none",
                    "stat",
                    4,
                    4,
                ),
                Panel(
                    "Changes pending",
                    ((f'sum(gaudi_serve_fleet_pending_changes{{job="node",{HOST}}})', "changes"),),
                    "none",
                    "stat",
                    4,
                    4,
                ),
                ALERTS,
            ),
        ),
        Row(
            "Traffic",
            (
                Panel(
                    "Generated tokens", ((rate("generation_tokens_total", "model"), "{{model}}"),), "ops", stacked=True
                ),
                Panel("Prompt tokens", ((rate("prompt_tokens_total", "model"), "{{model}}"),), "ops", stacked=True),
                Panel(
                    "Requests that ended",
                    ((rate("request_success_total", "model"), "{{model}}"),),
                    "reqps",
                    stacked=True,
                ),
                Panel("Time to the first token, p95", (quantiles("time_to_first_token_seconds")[1],), "s"),
                Panel("KV cache in use", (KV,), "percentunit"),
                Panel(
                    "Bad requests against objectives, last hour",
                    BURNS,
                    "percentunit",
                    text="Only models with objectives (slo).",
                ),
            ),
        ),
        Row(
            "Models",
            (
                Panel(
                    "State of the models",
                    ((own("model_state", MODEL, "host, model, state") + " == 1", "state"),),
                    "none",
                    "table",
                    12,
                    9,
                ),
                Panel(
                    "Restarts in the last day",
                    (
                        (
                            increase("model_restarts_total", "1d") + " > 0",
                            "restarts",
                        ),
                    ),
                    "none",
                    "table",
                    12,
                    9,
                ),
            ),
        ),
        Row(
            "What needs attention",
            (
                Panel(
                    "Models with an old launch", ((own("model_launch_differs") + " == 1", "differs"),), "none", "table"
                ),
                Panel(
                    "Changes that the last status found",
                    (
                        (
                            f'sum by (host, stage) (gaudi_serve_fleet_pending_changes{{job="node",{HOST}}}) > 0',
                            "changes",
                        ),
                    ),
                    "none",
                    "table",
                ),
                Panel(
                    "Age of the last status",
                    (
                        (
                            age("fleet_status", HOST, "host"),
                            "age",
                        ),
                    ),
                    "s",
                    "table",
                ),
                Panel(
                    "Hosts in a rollout",
                    ((own("host_in_rollout", HOST, "host") + " == 1", "in a rollout"),),
                    "none",
                    "table",
                ),
                Panel(
                    "Hosts that need a reboot",
                    ((own("host_reboot_due", HOST, "host") + " == 1", "reboot"),),
                    "none",
                    "table",
                ),
                Panel(
                    "Validation of the links between cards",
                    LINKS,
                    "s",
                    "table",
                ),
            ),
        ),
    ),
)
