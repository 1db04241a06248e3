"""Parts of PromQL expressions that several rules share."""

from __future__ import annotations

# A counter that was seen within this time before a window is not new in that window.
BEFORE = "1d"
# A target that is younger than a window by less than these minutes may have counted before it was first read.
SETTLED_MINUTES = 15


def grown(series: str, minutes: int) -> str:
    """Return the expression for how much each counter rose in the last minutes, if it began above 0 too.

    ``increase`` does not see the first value of a counter: many counters appear with their first event. Such a counter
    counts from 0, unless Prometheus itself has read its target for a shorter time.

    Args:
        series: a metric with its matchers.
        minutes: the window.
    """
    known_before = f"last_over_time({series}[{BEFORE}] offset {minutes}m)"
    young = f"(up unless up offset {minutes + SETTLED_MINUTES}m)"
    return f"({series} unless {known_before} unless on (job, instance) {young} or increase({series}[{minutes}m]))"


def by_engine(expr: str, function: str = "sum") -> str:
    """Return an expression for each engine of a server: with data parallelism, a sum hides one that is dead."""
    return f"{function} by (host, model, engine) ({expr})"


def vllm(name: str, function: str = "{}", matchers: str = "") -> str:
    """Return a metric of servers for each engine; ``function`` with braces in place of the metric."""
    return by_engine(function.format(f'vllm:{name}{{job="vllm"{matchers}}}'))
