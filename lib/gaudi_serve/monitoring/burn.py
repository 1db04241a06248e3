"""Rules of objectives: the ratio of bad requests over four windows, and alerts on the burn rate of a budget."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ..gateway.objects import Backend
from ..model.objectives import Objectives, limit_text
from .alerts import QUIET, Alert, Recording
from .expressions import grown

# Each window, in minutes.
WINDOWS = {"5m": 5, "30m": 30, "1h": 60, "6h": 360}
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


def least(kind: str, long: str, short: str) -> dict[str, str]:
    """Return how many bad requests an alert needs, by window: one late request of a quiet hour is no alert.

    One slow request has many slow tokens, so the alert on tokens also needs two requests in the short window.
    """
    return {long: "<bad_requests>"} | ({short: "2"} if kind == "itl" else {})


# The windows whose bad requests an alert counts, by kind.
COUNTED = {
    kind: {window for _, long, short, *_ in PACES for window in least(kind, long, short)} for kind in (*TIMES, "error")
}


def recorded(kind: str, window: str, what: str = "ratio") -> str:
    """Return the name of the recording for bad requests: their ratio, or their count."""
    return f"model:gaudi_serve_{kind}_bad:{what}_{window}"


def burn_recordings(objectives: Mapping[str, Objectives], served: Mapping[str, str]) -> Iterator[Recording]:
    """Yield the recordings of all objectives; ``served``: names of models for clients, if they differ."""
    for model, given in objectives.items():
        for window, minutes in WINDOWS.items():
            for kind, limit in (("ttft", given.ttft_s), ("itl", given.itl_s)):
                if limit is not None:
                    good = _summed(TIMES[kind][2], "_bucket", f'model="{model}",le="{limit_text(limit)}"', window)
                    every = _summed(TIMES[kind][2], "_count", f'model="{model}"', window)
                    begun = _summed(TIMES["ttft"][2], "_count", f'model="{model}"', window)
                    ratio = f'{recorded(kind, window)}{{model="{model}"}}'
                    yield Recording(recorded(kind, window), f"1 - {good}\n/ {every}", (("model", model),))
                    if window in COUNTED[kind]:
                        count = f"round(sum({ratio}) * {begun})"
                        yield Recording(recorded(kind, window, "count"), count, (("model", model),))
            if given.errors is not None:
                proxy = Backend(served.get(model, model), ()).name
                for what in ("ratio", "count") if window in COUNTED["error"] else ("ratio",):
                    expr = _failed(model, proxy, minutes, what == "ratio")
                    yield Recording(recorded("error", window, what), expr, (("model", model),))


def _summed(names: Iterable[str], ending: str, matchers: str, window: str) -> str:
    """Return the increase of a counter, or of its name in other releases, over all servers that are not quiet."""
    grows = " or ".join(f'increase({name}{ending}{{job="vllm",{matchers}}}[{window}])' for name in names)
    return f"sum(({grows}) {QUIET['quiet']})"


def _failed(model: str, proxy: str, minutes: int, ratio: bool) -> str:
    """Return the count or ratio of failed requests as measured by the gateway, or without a gateway by the servers."""
    gateway = f'haproxy_backend_http_responses_total{{job="haproxy",proxy="{proxy}"'
    server = f'http_requests_total{{job="vllm",model="{model}",handler=~"/v1/.*"'
    found = []
    for counter, bad in ((gateway, 'code="5xx"'), (server, 'status="5xx"')):
        every = f"sum({grown(counter + '}', minutes)})"
        failed = f"(sum({grown(f'{counter},{bad}}}', minutes)}) or 0 * {every})"
        found.append(f"{failed}\n/ {every}" if ratio else f"round({failed})")
    return "\nor\n".join(found)


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
                counts = least(kind, long, short).items()
                above += [f'{recorded(kind, at, "count")}{{model="{model}"}} >= {count}' for at, count in counts]
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
