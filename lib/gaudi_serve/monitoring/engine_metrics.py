"""The metrics of other programs that rules and dashboards read, by engine and release, with their labels.

Names are those on the page /metrics. Tests check that rules for one release do not need labels of another.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..model.objectives import BETWEEN_TOKENS, FIRST_TOKEN
from .card_exporters import CARDS

Release = tuple[int, ...]


@dataclass(frozen=True)
class EngineMetric:
    """One metric of vLLM.

    name: without the endings of its kind. labels: in addition to model_name and engine. since, until: the first release
    of vLLM with this metric, and the first without it. fork: whether the V0 engine of Gaudi's fork has it. buckets:
    the limits of a histogram. by_engine: whether it has the label engine in releases that have engines.
    """

    name: str
    kind: str
    labels: tuple[str, ...] = ()
    since: Release = ()
    until: Release = ()
    fork: bool = True
    buckets: tuple[float, ...] = ()
    by_engine: bool = True

    def is_of(self, release: Release | None) -> bool:
        """Return whether a release has this metric; None means the fork."""
        if release is None:
            return self.fork
        return self.since <= release and (not self.until or release < self.until)


REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0)
# Releases of vLLM, and those on which Gaudi's plugin builds.
RELEASES: tuple[Release, ...] = (
    *((0, 10, 1), (0, 10, 2), (0, 11, 0), (0, 11, 2)),
    *((0, minor, 0) for minor in range(12, 34)),
)
VLLM: tuple[EngineMetric, ...] = (
    *(EngineMetric(f"vllm:num_requests_{name}", "gauge") for name in ("running", "waiting")),
    EngineMetric("vllm:kv_cache_usage_perc", "gauge", since=(0, 9, 2), fork=False),
    EngineMetric("vllm:gpu_cache_usage_perc", "gauge", until=(0, 11)),
    *(EngineMetric(f"vllm:prefix_cache_{name}", "counter", (), (0, 9, 2), fork=False) for name in ("queries", "hits")),
    *(EngineMetric(f"vllm:{name}", "counter") for name in ("num_preemptions", "prompt_tokens", "generation_tokens")),
    EngineMetric("vllm:request_success", "counter", ("finished_reason",)),
    EngineMetric("vllm:admission_rejections", "counter", ("reason",), (0, 32), fork=False, by_engine=False),
    EngineMetric("vllm:time_to_first_token_seconds", "histogram", buckets=FIRST_TOKEN),
    EngineMetric("vllm:inter_token_latency_seconds", "histogram", (), (0, 10, 2), fork=False, buckets=BETWEEN_TOKENS),
    EngineMetric("vllm:time_per_output_token_seconds", "histogram", until=(0, 12), buckets=BETWEEN_TOKENS),
    *(
        EngineMetric(f"vllm:{name}_seconds", "histogram", buckets=REQUEST)
        for name in ("e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time")
    ),
    *(EngineMetric(f"vllm:request_{name}_tokens", "histogram", buckets=TOKENS) for name in ("prompt", "generation")),
)
# Metrics of the HTTP layer in front of vLLM; they have neither model_name nor engine.
HTTP: dict[str, tuple[str, ...]] = {
    "http_requests_total": ("handler", "method", "status"),
    "process_start_time_seconds": (),
}
# Name endings on the page, by kind.
ENDINGS = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}


def engine_metrics(release: Release | None) -> dict[str, tuple[str, ...]]:
    """Return the metrics of a server's /metrics page by release (None: the fork): names with their labels."""

    def own(metric: EngineMetric) -> tuple[str, ...]:
        return ("model_name", "engine") if release is not None and metric.by_engine else ("model_name",)

    return {
        metric.name + ending: (*own(metric), *metric.labels, *(("le",) if ending == "_bucket" else ()))
        for metric in VLLM
        if metric.is_of(release)
        for ending in ENDINGS[metric.kind]
    } | HTTP


# HAProxy 2.6's own exporter.
HAPROXY: dict[str, tuple[str, ...]] = {
    "haproxy_process_start_time_seconds": (),
    "haproxy_process_dropped_logs_total": (),
    **{
        f"haproxy_backend_{name}": ("proxy",)
        for name in (
            *("http_requests_total", "active_servers", "current_queue", "current_sessions"),
            *("queue_time_average_seconds", "total_time_average_seconds", "connection_errors_total"),
            *("retry_warnings_total", "redispatch_warnings_total"),
        )
    },
    "haproxy_backend_http_responses_total": ("proxy", "code"),
    "haproxy_server_status": ("proxy", "server", "state"),
    "haproxy_server_http_responses_total": ("proxy", "server", "code"),
    **{
        f"haproxy_server_{name}": ("proxy", "server")
        for name in ("current_sessions", "current_queue", "check_failures_total")
    },
    **{f"haproxy_frontend_{name}": ("proxy",) for name in ("current_sessions", "http_requests_total")},
    "haproxy_frontend_http_responses_total": ("proxy", "code"),
}
# The gateway's own page of tokens, with `usage: true`. `model` is the model's name for clients.
USAGE: dict[str, tuple[str, ...]] = {
    f"gaudi_gateway_{name}_total": ("client", "model")
    for name in ("requests", "requests_without_usage", "input_tokens", "output_tokens", "output_events")
}
# Node exporter 1.5.
DISK = ("device", "fstype", "mountpoint")
NODE: dict[str, tuple[str, ...]] = {
    "node_filesystem_avail_bytes": DISK,
    "node_filesystem_size_bytes": DISK,
    "node_filesystem_readonly": DISK,
    "node_memory_HugePages_Total": (),
    "node_memory_HugePages_Free": (),
    "node_memory_MemAvailable_bytes": (),
    "node_memory_MemTotal_bytes": (),
    "node_cpu_seconds_total": ("cpu", "mode"),
    "node_load1": (),
    "node_boot_time_seconds": (),
    "node_network_receive_bytes_total": ("device",),
    "node_network_transmit_bytes_total": ("device",),
    "node_textfile_scrape_error": (),
    "node_textfile_mtime_seconds": ("file",),
}
# Prometheus 2.42's own metrics.
PROMETHEUS: dict[str, tuple[str, ...]] = {
    "prometheus_notifications_alertmanagers_discovered": (),
    "prometheus_notifications_errors_total": ("alertmanager",),
    "prometheus_rule_evaluation_failures_total": ("rule_group",),
    "prometheus_tsdb_head_series": (),
}
# Series that Prometheus itself writes for each target, and for alerts.
SCRAPE: dict[str, tuple[str, ...]] = {"up": (), "ALERTS": ("alertname", "alertstate", "severity")}
# Labels that the scrape jobs add.
TARGET_LABELS = ("job", "instance", "host", "model")
OTHERS: dict[str, tuple[str, ...]] = {**HAPROXY, **USAGE, **NODE, **PROMETHEUS, **CARDS, **SCRAPE}
