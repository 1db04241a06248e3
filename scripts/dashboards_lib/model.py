"""The dashboard of a model."""

from __future__ import annotations

from .build import Board, Panel, Row
from .queries import BURNS, ENGINE, HOSTS, KV, MODEL, MODELS, ON, RATE, VLLM, age, increase, own, quantiles, rate, vllm

BY_ENGINE = "host, model, engine"


def planned(title: str, plan: str, measured: str, unit: str) -> Panel:
    """Return a panel that compares planned with measured values."""
    queries = ((own(f"model_{plan}"), "planned"), (own(f"model_{measured}"), "measured"))
    return Panel(title, queries, unit, "table")


MODEL_BOARD = Board(
    "gaudi-serve-model",
    "gaudi-serve: model",
    "One model on its hosts: requests, times, memory, warm-up.",
    (MODELS, HOSTS),
    (
        Row(
            "Requests",
            (
                Panel("Requests under way", ((vllm("num_requests_running"), ON),), "none"),
                Panel("Requests that wait", ((vllm("num_requests_waiting"), ON),), "none"),
                Panel(
                    "Requests that ended, by reason",
                    ((rate("request_success_total", "model, finished_reason"), "{{model}} {{finished_reason}}"),),
                    "reqps",
                    stacked=True,
                ),
                Panel("Generated tokens", ((rate("generation_tokens_total"), ON),), "ops"),
                Panel("Prompt tokens", ((rate("prompt_tokens_total"), ON),), "ops"),
                Panel(
                    "Answers of the HTTP layer",
                    (
                        (
                            f'sum by (model, status) (rate(http_requests_total{{{VLLM},handler=~"/v1/.*"}}[{RATE}]))',
                            "{{model}} {{status}}",
                        ),
                    ),
                    "reqps",
                ),
            ),
        ),
        Row(
            "Engines",
            (
                Panel(
                    "Requests that wait, by engine",
                    ((vllm("num_requests_waiting", BY_ENGINE), ENGINE),),
                    "none",
                    text="With data parallelism a server has several engines, each with a queue of its own.",
                ),
                Panel("Requests under way, by engine", ((vllm("num_requests_running", BY_ENGINE), ENGINE),), "none"),
                Panel("Generated tokens, by engine", ((rate("generation_tokens_total", BY_ENGINE), ENGINE),), "ops"),
                Panel(
                    "Rejected requests",
                    (
                        (
                            rate("admission_rejections_total", "host, model, reason"),
                            "{{reason}}: " + ON,
                        ),
                    ),
                    "reqps",
                    text="By a full queue. vLLM counts these since release 0.32.",
                ),
                Panel(
                    "Mean time in the queue, from its length",
                    (
                        (
                            f"{vllm('num_requests_waiting', BY_ENGINE)}"
                            f" / {rate('time_to_first_token_seconds_count', BY_ENGINE)}",
                            ENGINE,
                        ),
                    ),
                    "s",
                    text="Waiting requests, divided by the rate of first tokens. Shows a queue that is stuck, too.",
                ),
            ),
        ),
        Row(
            "Times",
            (
                Panel("Time to the first token", quantiles("time_to_first_token_seconds"), "s"),
                Panel(
                    "Time between tokens",
                    quantiles("inter_token_latency_seconds", "time_per_output_token_seconds"),
                    "s",
                ),
                Panel(
                    "Time in the queue",
                    quantiles("request_queue_time_seconds"),
                    "s",
                    text="Counted when a request ends: a queue that is stuck shows nothing here.",
                ),
                Panel("Whole request", quantiles("e2e_request_latency_seconds"), "s"),
                Panel("Prefill", quantiles("request_prefill_time_seconds"), "s"),
                Panel("Decode", quantiles("request_decode_time_seconds"), "s"),
                Panel("Length of prompts, in tokens", quantiles("request_prompt_tokens"), "none"),
                Panel("Length of answers, in tokens", quantiles("request_generation_tokens"), "none"),
                Panel(
                    "Bad requests against objectives, last hour",
                    tuple((f'{name}{{model=~"$model"}}', legend) for name, legend in BURNS),
                    "percentunit",
                ),
            ),
        ),
        Row(
            "Memory",
            (
                Panel("KV cache in use", (KV,), "percentunit"),
                Panel("Preemptions", ((rate("num_preemptions_total"), ON),), "ops"),
                Panel(
                    "Prompt tokens that the prefix cache had",
                    ((f"{rate('prefix_cache_hits_total')} / {rate('prefix_cache_queries_total')}", ON),),
                    "percentunit",
                    text="The fork does not count these.",
                ),
            ),
        ),
        Row(
            "Start and warm-up",
            (
                Panel(
                    "State", ((own("model_state", MODEL, "host, model, state") + " == 1", "state"),), "none", "table"
                ),
                Panel("Warm-up under way", ((own("model_warmup_progress_ratio"), ON),), "percentunit"),
                Panel(
                    "Shapes compiled while serving",
                    (
                        (
                            own("model_unwarmed_shapes_total", MODEL, "host, model, phase", "sum"),
                            "{{phase}} {{model}} on {{host}}",
                        ),
                    ),
                    "none",
                    text="Since the last start. Each delays the requests of that moment.",
                ),
                planned("Warm-up", "planned_warmup_seconds", "warmup_seconds", "s"),
                planned("Graphs", "planned_graphs", "warmup_graphs", "none"),
                planned("Blocks of the KV cache", "planned_kv_blocks", "kv_blocks", "none"),
                Panel(
                    "Restarts, by reason",
                    (
                        (
                            increase("model_restarts_total", "1h"),
                            "{{reason}}: {{model}} on {{host}}",
                        ),
                    ),
                    "none",
                    text="In the hour before.",
                ),
                Panel(
                    "Up since",
                    (
                        (
                            age("model_start", MODEL, "host, model"),
                            "container",
                        ),
                        (
                            age("model_ready", MODEL, "host, model"),
                            "ready",
                        ),
                    ),
                    "s",
                    "table",
                ),
                Panel(
                    "Last smoke test that passed",
                    (
                        (
                            age("model_smoke", MODEL, "host, model"),
                            "age",
                        ),
                    ),
                    "s",
                    "table",
                ),
            ),
        ),
    ),
)
