"""Samples of all scraped metrics, as OpenMetrics text.

Samples of vLLM come from recorded pages, all others from the tables of metrics: a counter rises at each step by its
place in the table, a gauge is 1, and a timestamp is before the first sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from gaudi_serve.monitoring.card_exporters import CARDS
from gaudi_serve.monitoring.engine_metrics import HAPROXY, NODE, PROMETHEUS, USAGE
from gaudi_serve.monitoring.metrics import METRICS, REASONS, STATES

from . import recorded

# Values of labels; other labels have one value, their own name.
VALUES: dict[str, tuple[str, ...]] = {
    "card": ("0", "1"),
    "code": ("2xx", "4xx", "5xx"),
    "id": ("0", "1"),
    "kind": ("corrected", "uncorrected"),
    "mode": ("idle", "user"),
    "mountpoint": ("/",),
    "phase": ("prompt", "decode"),
    "port": ("1", "2"),
    "port_type": ("internal", "external"),
    "state": ("UP", "DRAIN"),
}
# Values of gauges for which panels show only problems, or which are not simply 1.
GAUGES = {
    "gaudi_serve_card_port_up": 0,
    "habanalabs_nic_port_status": 0,
    "habanalabs_power_mW": 350_000,
    "amd_gpu_health": 0,
    "gpu_health": 0,
}


@dataclass(frozen=True)
class Times:
    """The times of samples, in seconds since 1970."""

    begin: int
    end: int
    step: int = 30

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the number and the time of each sample."""
        return enumerate(range(self.begin, self.end + 1, self.step))


def _series(name: str, labels: Mapping[str, str]) -> str:
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}"


def _combinations(labels: tuple[str, ...], target: Mapping[str, str], own: bool = False) -> Iterator[dict[str, str]]:
    """Yield the labels of each series of a metric, with those of its target."""
    states = {"state": STATES, "reason": (*REASONS, "thermal", "power")} if own else {}
    values = [(target[one],) if one in target else {**VALUES, **states}.get(one, (one,)) for one in labels]
    for found in product(*values):
        yield {**target, **dict(zip(labels, found, strict=True))}


def plain(name: str, kind: str, labels: tuple[str, ...], target: Mapping[str, str], times: Times) -> Iterator[str]:
    """Yield the samples of a gauge or counter."""
    for place, found in enumerate(_combinations(labels, target, name.startswith("gaudi_serve_"))):
        for number, time in times:
            value: float = GAUGES.get(name, 1)
            if kind == "counter":
                value = number * (place + 1)
            elif "time" in name and name.endswith("_seconds") and "average" not in name:
                value = times.begin
            yield f"{_series(name, found)} {value} {time}"


def server(page: str, host: str, model: str, times: Times) -> Iterator[str]:
    """Yield the samples of a server with a recorded page: counters grow by the page's value at each step."""
    target = {"job": "vllm", "instance": f"{host}:30001", "host": host, "model": model}
    yield from plain("up", "gauge", (), target, times)
    for sample in recorded.page(page):
        series = _series(sample.name, {**target, **sample.labels})
        for number, time in times:
            yield f"{series} {number * sample.value if sample.rises else sample.value} {time}"


def host(name: str, model: str, times: Times, exporter: bool) -> Iterator[str]:
    """Yield the samples of a host: of node exporter, the collector, and the vendor's exporter if there is one."""
    target = {"job": "node", "instance": f"{name}:9100", "host": name}
    yield from plain("up", "gauge", (), target, times)
    yield from _of_table(NODE, target, times)
    for metric in METRICS:
        # With the vendor's exporter, the collector has no metrics of cards.
        if not (exporter and metric.name.startswith("gaudi_serve_card_")):
            has = {**target, **({"model": model} if "model" in metric.labels else {})}
            yield from plain(metric.name, metric.kind, metric.labels, has, times)
    if exporter:
        target = {"job": "cards", "instance": f"{name}:41611", "host": name}
        yield from plain("up", "gauge", (), target, times)
        yield from _of_table(CARDS, target, times)


def gateway(name: str, models: tuple[str, ...], times: Times) -> Iterator[str]:
    """Yield the samples of a gateway that serves models."""
    target = {"job": "haproxy", "instance": f"{name}:8405", "host": name}
    yield from plain("up", "gauge", (), target, times)
    yield from _of_table(HAPROXY, {**target, "proxy": "gateway"}, times, "haproxy_frontend_")
    yield from _of_table(HAPROXY, target, times, "haproxy_process_")
    for model in models:
        yield from _of_table(HAPROXY, {**target, "proxy": model}, times, "haproxy_backend_", "haproxy_server_")
        yield from _of_table(USAGE, {**target, "job": "usage", "model": model}, times)


def prometheus(models: tuple[str, ...], times: Times) -> Iterator[str]:
    """Yield Prometheus' own samples, with the recordings of its rules."""
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
