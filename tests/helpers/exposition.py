"""For tests: samples of everything that is scraped, made from the tables of metrics, as a text of OpenMetrics.

A counter rises by its place in the table each step; a gauge is 1, a time lies before the first sample. Of a histogram
every limit has a part of the observations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from gaudi_serve.monitoring.engine_metrics import (
    CARDS,
    ENDINGS,
    HAPROXY,
    HTTP,
    NODE,
    PROMETHEUS,
    VLLM,
    Release,
)
from gaudi_serve.monitoring.metrics import METRICS, REASONS, STATES

# Values of labels; what is not here has one value, its own name.
VALUES: dict[str, tuple[str, ...]] = {
    "card": ("0", "1"),
    "code": ("2xx", "4xx", "5xx"),
    "engine": ("0",),
    "finished_reason": ("stop", "length", "abort"),
    "handler": ("/v1/chat/completions",),
    "id": ("0", "1"),
    "kind": ("corrected", "uncorrected"),
    "mode": ("idle", "user"),
    "mountpoint": ("/",),
    "phase": ("prompt", "decode"),
    "port": ("1", "2"),
    "port_type": ("internal", "external"),
    "state": ("UP", "DRAIN"),
    "status": ("2xx", "5xx"),
}
# Of what a panel shows only the cases in which something is wrong, or that are otherwise no plain 1.
GAUGES = {
    "gaudi_serve_card_port_up": 0,
    "habanalabs_nic_port_status": 0,
    "habanalabs_power_mW": 350_000,
    "vllm:kv_cache_usage_perc": 0.5,
    "vllm:gpu_cache_usage_perc": 0.5,
}


@dataclass(frozen=True)
class Times:
    """When samples were taken, in seconds since 1970."""

    begin: int
    end: int
    step: int = 30

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Give the number and the time of each."""
        return enumerate(range(self.begin, self.end + 1, self.step))


def _series(name: str, labels: Mapping[str, str]) -> str:
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}"


def _combinations(labels: tuple[str, ...], target: Mapping[str, str], own: bool = False) -> Iterator[dict[str, str]]:
    """Give the labels of each series of a metric, with those of its target."""
    states = {"state": STATES, "reason": (*REASONS, "thermal", "power")} if own else {}
    values = [(target[one],) if one in target else {**VALUES, **states}.get(one, (one,)) for one in labels]
    for found in product(*values):
        yield {**target, **dict(zip(labels, found, strict=True))}


def plain(name: str, kind: str, labels: tuple[str, ...], target: Mapping[str, str], times: Times) -> Iterator[str]:
    """Give the samples of a gauge or counter."""
    for place, found in enumerate(_combinations(labels, target, name.startswith("gaudi_serve_"))):
        for number, time in times:
            value: float = GAUGES.get(name, 1)
            if kind == "counter":
                value = number * (place + 1)
            elif "time" in name and name.endswith("_seconds") and "average" not in name:
                value = times.begin
            yield f"{_series(name, found)} {value} {time}"


def histogram(name: str, limits: tuple[float, ...], target: Mapping[str, str], times: Times) -> Iterator[str]:
    """Give the samples of a histogram, of which each limit has one more observation than the one before it."""
    for number, time in times:
        for place, limit in enumerate(limits):
            yield f"{_series(f'{name}_bucket', {**target, 'le': repr(float(limit))})} {number * (place + 1)} {time}"
        every = number * (len(limits) + 1)
        yield f"{_series(f'{name}_bucket', {**target, 'le': '+Inf'})} {every} {time}"
        yield f"{_series(f'{name}_count', target)} {every} {time}"
        yield f"{_series(f'{name}_sum', target)} {every} {time}"


def server(release: Release | None, host: str, model: str, times: Times) -> Iterator[str]:
    """Give the samples of a server of vLLM of a release; None for the fork."""
    target = {"job": "vllm", "instance": f"{host}:30001", "host": host, "model": model}
    own = {**target, "model_name": model, **({"engine": "0"} if release else {})}
    yield from plain("up", "gauge", (), target, times)
    for metric in (one for one in VLLM if one.is_of(release)):
        if metric.kind == "histogram":
            yield from histogram(metric.name, metric.buckets, own, times)
        else:
            yield from plain(metric.name + ENDINGS[metric.kind][0], metric.kind, metric.labels, own, times)
    for name, labels in HTTP.items():
        yield from plain(name, "counter" if name.endswith("_total") else "gauge", labels, target, times)


def host(name: str, model: str, times: Times, exporter: bool) -> Iterator[str]:
    """Give the samples of a host: of node exporter, the collector, and where there is one the vendor's exporter."""
    target = {"job": "node", "instance": f"{name}:9100", "host": name}
    yield from plain("up", "gauge", (), target, times)
    yield from _of_table(NODE, target, times)
    for metric in METRICS:
        # Where the vendor's exporter is read, the collector has nothing of the cards.
        if not (exporter and metric.name.startswith("gaudi_serve_card_")):
            has = {**target, **({"model": model} if "model" in metric.labels else {})}
            yield from plain(metric.name, metric.kind, metric.labels, has, times)
    if exporter:
        target = {"job": "cards", "instance": f"{name}:41611", "host": name}
        yield from plain("up", "gauge", (), target, times)
        yield from _of_table(CARDS, target, times)


def gateway(name: str, models: tuple[str, ...], times: Times) -> Iterator[str]:
    """Give the samples of a gateway that serves models."""
    target = {"job": "haproxy", "instance": f"{name}:8405", "host": name}
    yield from plain("up", "gauge", (), target, times)
    yield from _of_table(HAPROXY, {**target, "proxy": "gateway"}, times, "haproxy_frontend_")
    for model in models:
        yield from _of_table(HAPROXY, {**target, "proxy": model}, times, "haproxy_backend_", "haproxy_server_")


def prometheus(models: tuple[str, ...], times: Times) -> Iterator[str]:
    """Give the samples that Prometheus has of itself, with what its rules have recorded."""
    yield from _of_table(PROMETHEUS, {"job": "prometheus", "instance": "prometheus:9090"}, times)
    alert = {"alertname": "EndpointDown", "alertstate": "firing", "severity": "critical", "host": "h"}
    for model in models:
        yield from plain("ALERTS", "gauge", (), {**alert, "model": model}, times)
        for kind in ("ttft", "itl", "error"):
            yield from plain(f"model:gaudi_serve_{kind}_bad:ratio_1h", "gauge", (), {"model": model}, times)


def _of_table(
    table: Mapping[str, tuple[str, ...]], target: Mapping[str, str], times: Times, *begins: str
) -> Iterator[str]:
    for name, labels in table.items():
        if not begins or name.startswith(begins):
            yield from plain(name, "counter" if name.endswith("_total") else "gauge", labels, target, times)
