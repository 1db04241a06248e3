"""The existing metrics with their labels, and the unknown metrics of an expression."""

from __future__ import annotations

from collections.abc import Collection

from gaudi_serve.monitoring.engine_metrics import OTHERS, RELEASES, engine_metrics
from gaudi_serve.monitoring.metrics import METRICS
from helpers import promql

OWN = {metric.name: metric.labels for metric in METRICS}
# Names of the same metric in several releases; an expression uses all of them.
SAME = (
    {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},
    *(
        {f"vllm:inter_token_latency_seconds_{ending}", f"vllm:time_per_output_token_seconds_{ending}"}
        for ending in ("bucket", "count")
    ),
)


def unknown_metrics(expr: str, release: tuple[int, ...] | None, recorded: Collection[str] = ()) -> list[str]:
    """Return the metrics of an expression that neither a server of a release nor any other target has.

    Args:
        expr: the expression.
        release: of vLLM; None for the fork.
        recorded: names of Prometheus' recordings.
    """
    known = {*engine_metrics(release), *OTHERS, *OWN, *recorded}
    named = promql.names(expr).metrics
    for same in SAME:
        if same <= named and same & known:
            named -= same
    return sorted(named - known)


def known_labels() -> dict[str, tuple[str, ...]]:
    """Return the labels of every scraped metric, for all releases."""
    engines = {name: labels for release in (None, *RELEASES) for name, labels in engine_metrics(release).items()}
    return {**engines, **OTHERS, **OWN}
