"""Rules of objectives: the ratio of bad requests over four windows, and alerts on the burn rate of a budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..gateway.objects import Backend
from ..model.objectives import Objectives, limit_text
from .alerts import QUIET, Alert, Recording

WINDOWS = ("5m", "30m", "1h", "6h")
# Name, long and short window, threshold, duration before firing, and severity.
PACES = (
    ("Fast", "1h", "5m", "fast_burn", "2m", "critical"),
    ("Slowly", "6h", "30m", "slow_burn", "15m", "warning"),
)
# The highest threshold: with a large budget, a multiple of it could exceed 1 and never fire.
MOST = 0.9
TIMES = {
    "ttft": ("TimeToFirstToken", "first tokens are late", ("vllm:time_to_first_token_seconds",)),
    "itl": (
        "InterTokenLatency",
        "tokens are slow",
        ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    ),
}


def recorded(kind: str, window: str) -> str:
    """Return the name of the recording for a ratio of bad requests."""
    return f"model:gaudi_serve_{kind}_bad:ratio_{window}"


def burn_recordings(objectives: Mapping[str, Objectives], served: Mapping[str, str]) -> Iterator[Recording]:
    """Yield the recordings of all objectives; ``served``: names of models for clients, if they differ."""
    for model, given in objectives.items():
        for window in WINDOWS:
            for kind, limit in (("ttft", given.ttft_s), ("itl", given.itl_s)):
                if limit is not None:
                    good = _summed(kind, "_bucket", f'job="vllm",model="{model}",le="{limit_text(limit)}"', window)
                    every = _summed(kind, "_count", f'job="vllm",model="{model}"', window)
                    yield Recording(recorded(kind, window), f"1 - {good}\n/ {every}", (("model", model),))
            if given.errors is not None:
                proxy = Backend(served.get(model, model), ()).name
                yield Recording(recorded("error", window), _failed(model, proxy, window), (("model", model),))


def _summed(kind: str, ending: str, matchers: str, window: str) -> str:
    """Return the rate of a counter, or of its name in other releases, over all servers that are not quiet."""
    rates = " or ".join(f"rate({name}{ending}{{{matchers}}}[{window}])" for name in TIMES[kind][2])
    return f"sum(({rates}) {QUIET['quiet']})"


def _failed(model: str, proxy: str, window: str) -> str:
    """Return the ratio of failed requests as measured by the gateway, or without a gateway by the servers."""
    gateway = f'haproxy_backend_http_responses_total{{job="haproxy",proxy="{proxy}"'
    server = f'http_requests_total{{job="vllm",model="{model}",handler=~"/v1/.*"'
    ratios = []
    for counter, bad in ((gateway, 'code="5xx"'), (server, 'status="5xx"')):
        every = f"sum(rate({counter}}}[{window}]))"
        ratios.append(f"(sum(rate({counter},{bad}}}[{window}])) or 0 * {every})\n/ {every}")
    return "\nor\n".join(ratios)


def burn_alerts(objectives: Mapping[str, Objectives], burns: Mapping[str, float]) -> Iterator[Alert]:
    """Yield the alerts of all objectives; ``burns``: the thresholds of ``PACES`` by name."""
    for model, given in objectives.items():
        kinds = [(kind, *TIMES[kind][:2], round(1 - given.share, 9)) for kind in TIMES if getattr(given, f"{kind}_s")]
        if given.errors is not None:
            kinds.append(("error", "Error", "requests fail", given.errors))
        for kind, title, what, budget in kinds:
            for pace, long, short, burn, lasts, severity in PACES:
                most = min(burns[burn] * budget, MOST)
                above = [f'{recorded(kind, window)}{{model="{model}"}} > {most:.9g}' for window in (long, short)]
                yield Alert(
                    f"{title}BudgetBurns{pace}",
                    "\nand on (model) ".join(above),
                    lasts,
                    severity,
                    f"{{{{ $labels.model }}}}: too many {what}",
                    f"{{{{ $value | humanizePercentage }}}} of them over {long}; {budget:.9g} is promised. "
                    f"At this pace the budget of 30 days is used up within {30 * budget / most:.0f} days.",
                    (("model", model),),
                )
