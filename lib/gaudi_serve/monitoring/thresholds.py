"""The thresholds of alerts; a site may set each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..core.errors import is_number, is_whole, mapping, refusal

KEY = "fleet_monitoring.thresholds"
MOST = 1e12
MOST_S = 31_536_000  # a year; Prometheus accepts only integers as durations


@dataclass(frozen=True)
class Thresholds:
    """Each attribute is a threshold; its name ends in its unit, or in ratio if it is a part of 1."""

    restarts: float = 2  # of a model in 30 minutes
    start_factor: float = 3  # times the planned warm-up
    start_extra_s: float = 1800
    ttft_p95_s: float = 5
    itl_p95_s: float = 0.2
    queue_p95_s: float = 5
    queue_stalled_s: float = 120
    requests_per_s: float = 0.05  # of an engine; with fewer requests, quantiles and ratios mean nothing
    bad_requests: float = 5  # late or failed ones; fewer are no pattern
    waiting: float = 20  # requests
    kv_cache_ratio: float = 0.95
    preemptions_per_s: float = 0.1
    aborted_ratio: float = 0.3
    prefix_cache_fall_ratio: float = 0.5  # of the day before
    prefix_cache_used_ratio: float = 0.3  # of the tokens; with less, a cache matters little
    unwarmed_shapes: float = 3  # in 15 minutes
    fast_burn: float = 14.4  # times the rate that uses up the budget in 30 days
    slow_burn: float = 6
    gateway_errors_ratio: float = 0.05
    drained_s: float = 7200
    card_margin_celsius: float = 5
    card_throttled_s: float = 5  # in 10 minutes
    collector_age_s: float = 300
    disk_free_ratio: float = 0.05
    disk_full_s: float = 86400
    disk_soon_ratio: float = 0.25  # a disk with more free space never raises the alert
    validation_days: float = 90
    certificate_days: float = 14

    @classmethod
    def read(cls, given: Any) -> Thresholds:
        """Return the defaults with the user's values.

        Raises:
            InputError: for a value that is not a mapping, an unknown key, a value that is not a number above 0, and a
                ratio above 1.
        """
        known = [one.name for one in fields(cls)]
        found: dict[str, float] = {}
        wanted: Mapping[Any, Any] = mapping("", KEY, given or {}, "a mapping of thresholds to numbers")
        for name, value in wanted.items():
            if name not in known:
                raise refusal("", KEY, name, f"is not a threshold; known are {', '.join(known)}")
            most = 1 if name.endswith("_ratio") else MOST
            if not is_number(value, 0, most) or not value:
                raise refusal("", f"{KEY}.{name}", value, f"is not a number above 0, and {most:g} at most")
            if name == "drained_s" and not is_whole(value, 1, MOST_S):
                raise refusal("", f"{KEY}.{name}", value, f"is not an integer number of seconds from 1 to {MOST_S}")
            found[name] = float(value)
        return cls(**found)


def figure(value: float) -> str:
    """Return a number for PromQL, integers without a decimal point."""
    return repr(int(value)) if float(value).is_integer() else repr(float(value))
