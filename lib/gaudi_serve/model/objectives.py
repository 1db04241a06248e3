"""Objectives of a model, its key ``slo``: the share of good requests, whose complement is an error budget.

A budget burns fast if it would be used up within two days, and slowly if within five. A request is good if its time
is at most the objective. The server counts only the limits of its histogram, so an objective must be one of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import is_number, mapping, refusal

# Limits of vLLM's histograms, in seconds. They are the same in every release.
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
BETWEEN_TOKENS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)

KEY = "slo"
SHARE = 0.99
TIMES = {"ttft_s": FIRST_TOKEN, "itl_s": BETWEEN_TOKENS}


@dataclass(frozen=True)
class Objectives:
    """The objectives of a model.

    ttft_s: seconds to the first token. itl_s: seconds between two tokens. share: part of the requests (for itl_s, of
    the tokens) that must meet these times. errors: part of the requests that may fail. None: no objective.
    """

    ttft_s: float | None = None
    itl_s: float | None = None
    errors: float | None = None
    share: float = SHARE

    @property
    def any(self) -> bool:
        """Return whether there is an objective."""
        return (self.ttft_s, self.itl_s, self.errors) != (None, None, None)


def read_objectives(model: str, slo: Any) -> Objectives:
    """Return the objectives of a model.

    Args:
        model: The name of the model, which begins the message of an error.
        slo: Its key ``slo``, or None.

    Raises:
        InputError: The value is not a mapping, a key is unknown, a share is invalid or has no time, or a time is not
            a limit of vLLM's histogram. The message names the nearest limits.
    """
    given = mapping(model, KEY, {} if slo is None else slo, "a mapping of objectives, such as {ttft_s: 2.5}")
    known = (*TIMES, "errors", "share")
    for name, value in given.items():
        if name not in known:
            raise refusal(model, KEY, name, f"is not an objective; known are {', '.join(known)}")
        if name in TIMES:
            _must_be_limit(model, name, value)
        elif not is_number(value, 0, 1) or value in (0, 1):
            raise refusal(model, f"{KEY}.{name}", value, "is not a part between 0 and 1, both excluded")
    if "share" in given and not TIMES.keys() & given.keys():
        raise refusal(model, f"{KEY}.share", given["share"], f"has no meaning without {' or '.join(TIMES)}")
    return Objectives(**{name: float(value) for name, value in given.items()})


def _must_be_limit(model: str, name: str, value: Any) -> None:
    """Refuse a time that is not a limit of the histogram."""
    limits = TIMES[name]
    if not is_number(value, 0, limits[-1] * 1000):
        raise refusal(model, f"{KEY}.{name}", value, "is not a number of seconds")
    if value not in limits:
        at = bisect_left(limits, value)
        nearest = " or ".join(f"{one:g}" for one in limits[max(0, at - 1) : at + 1])
        raise refusal(model, f"{KEY}.{name}", value, f"is not a limit of vLLM's histogram; the nearest is {nearest}")


def read_all(models: Mapping[str, Any]) -> dict[str, Objectives]:
    """Return the objectives of all models that have some, by model name.

    Raises:
        InputError: See ``read_objectives``.
    """
    found = {str(model): read_objectives(str(model), slo) for model, slo in models.items()}
    return {model: one for model, one in sorted(found.items()) if one.any}


def limit_text(seconds: float) -> str:
    """Return a limit as vLLM writes it in the label ``le``."""
    return repr(float(seconds))
