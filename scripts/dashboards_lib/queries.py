"""Queries of several dashboards. They sum over labels that differ by release of vLLM, and average ratios."""

from __future__ import annotations

HOST, CARD = 'host=~"$host"', "card {{card}} of {{host}}"
MODEL = 'host=~"$host",model=~"$model"'
VLLM = f'job="vllm",{MODEL}'
ON = "{{model}} on {{host}}"
ENGINE = ON + " {{engine}}"
RATE = "$__rate_interval"
HOSTS = ("host", 'label_values(up{job="node"}, host)')
MODELS = ("model", "label_values(gaudi_serve_model_expected, model)")


def own(name: str, labels: str = MODEL, by: str = "host, model", function: str = "max") -> str:
    """Return the query for one of the toolkit's own metrics, without the labels of its target."""
    return f'{function} by ({by}) (gaudi_serve_{name}{{job="node",{labels}}})'


def vllm(name: str, by: str = "host, model") -> str:
    """Return the query for a gauge of servers."""
    return f"sum by ({by}) (vllm:{name}{{{VLLM}}})"


def rate(name: str, by: str = "host, model") -> str:
    """Return the query for a counter of servers, as a rate per second."""
    return f"sum by ({by}) (rate(vllm:{name}{{{VLLM}}}[{RATE}]))"


def quantiles(*names: str) -> tuple[tuple[str, str], ...]:
    """Return the queries for quantiles of a histogram, over the selected servers of each model; names: by release."""
    rates = " or ".join(f"rate(vllm:{name}_bucket{{{VLLM}}}[{RATE}])" for name in names)
    return tuple(
        (f"histogram_quantile({share}, sum by (model, le) ({rates}))", f"p{share * 100:.0f} {{{{model}}}}")
        for share in (0.5, 0.95, 0.99)
    )


def age(name: str, labels: str, by: str) -> str:
    """Return the query for the seconds since a timestamp metric of the toolkit."""
    return f'max by ({by}) (time() - gaudi_serve_{name}_timestamp_seconds{{job="node",{labels}}})'


def increase(name: str, window: str) -> str:
    """Return the query for the increase of one of the toolkit's counters in a window, by reason."""
    return f'sum by (host, model, reason) (increase(gaudi_serve_{name}{{job="node",{MODEL}}}[{window}]))'


KV = (
    f"avg by (host, model) (vllm:kv_cache_usage_perc{{{VLLM}}} or vllm:gpu_cache_usage_perc{{{VLLM}}})",
    ON,
)
BURNS = tuple(
    (f"model:gaudi_serve_{kind}_bad:ratio_1h", f"{text} {{{{model}}}}")
    for kind, text in (("ttft", "late first tokens"), ("itl", "slow tokens"), ("error", "errors"))
)
