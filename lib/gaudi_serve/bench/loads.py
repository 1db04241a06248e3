"""Loads of a benchmark: the toolkit's profiles, and the site's own."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..buckets.traffic import Request
from ..core.checks import Rule, filled, matching, whole, within
from ..core.errors import Problem, near, readable, shown
from ..core.words import counted

VARIABLE = "benchmark_profiles"
SHORT = "short"
PER_SLOT = 10  # requests for each concurrent one, so that ramp-up and drain take a tenth of the time
RATE_S = 120  # seconds of requests at a rate
# Tokens for each hash id of a replayed trace: vLLM generates that part of the prompt from the id.
CHUNK = 512


@dataclass(frozen=True)
class Load:
    """The load of a benchmark.

    profile: its name. input_tokens, output_tokens: of each request; the means of a trace. requests: their number.
    concurrency: concurrent requests, in a closed loop. request_rate: requests a second, in an open loop. spread:
    lengths vary from (1 - spread) to (1 + spread) times these. trace: requests with their own arrivals and lengths.
    note: how the load differs from its source.
    """

    profile: str
    input_tokens: int
    output_tokens: int
    requests: int
    concurrency: int | None = None
    request_rate: float | None = None
    spread: float = 0.0
    trace: tuple[Request, ...] = ()
    note: str = ""

    @property
    def longest(self) -> tuple[int, int]:
        """Return the tokens of the longest prompt and of the longest answer."""
        if self.trace:
            return max(one.input_tokens for one in self.trace), max(one.output_tokens for one in self.trace)
        return math.ceil(self.input_tokens * (1 + self.spread)), math.ceil(self.output_tokens * (1 + self.spread))

    def but(self, **values: Any) -> Load:
        """Return a copy with other values."""
        return replace(self, **values)

    def with_concurrency(self, concurrency: int) -> Load:
        """Return a copy with another concurrency, and the same number of requests for each slot."""
        each = self.requests / self.concurrency if self.concurrency else PER_SLOT
        return self.but(concurrency=concurrency, request_rate=None, requests=max(1, round(each * concurrency)))

    def with_rate(self, rate: float) -> Load:
        """Return a copy with a request rate, and requests for two minutes."""
        return self.but(concurrency=None, request_rate=rate, requests=max(20, round(rate * RATE_S)))

    def case(self, through: str) -> dict[str, Any]:
        """Return the values that must be equal for two runs to be compared: the load, and how it reaches the server.

        The profile's name and its note do not count.
        """
        given = {key: value for key, value in asdict(self).items() if key not in ("profile", "note", "trace")}
        return {
            **given,
            "through": through,
            "trace": _sha256([asdict(one) for one in self.trace]) if self.trace else "",
        }

    @property
    def text(self) -> str:
        """Return the load as text."""
        if self.trace:
            return f"{counted(len(self.trace), 'request')} at the times of the trace"
        how = f"{self.concurrency} at a time" if self.concurrency else f"{self.request_rate:g} a second"
        spread = f" ± {self.spread:.0%}" if self.spread else ""
        sent = counted(self.requests, "request")
        return f"{sent}, {self.input_tokens} tokens in and {self.output_tokens} out{spread}, {how}"


def digest(case: Mapping[str, Any]) -> str:
    """Return the digest of a case."""
    return _sha256(case)[:16]


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _vendor(name: str, tokens: tuple[int, int], concurrency: int, requests: int, note: str = "") -> Load:
    return Load(name, *tokens, requests=requests, concurrency=concurrency, note=note)


NO_SONNET = (
    "the vendor sends sonnets with a common prefix, a dataset that vLLM 0.32 no longer has; random tokens of the same "
    "lengths take its place"
)
# The loads of the vendor's recipes; docs/guides/benchmark.md lists the sources. Rollouts use the short measurement.
PROFILES = {
    one.profile: one
    for one in (
        _vendor("vendor-128-128", (128, 128), 256, 2560),
        _vendor("vendor-4096-128", (4096, 128), 32, 320),
        _vendor("vendor-128-4096", (128, 4096), 256, 2560),
        _vendor("deepseek-1", (1024, 1024), 1, 3),
        _vendor("deepseek-32", (1024, 1024), 32, 96),
        _vendor("plugin-2048-2048", (2048, 2048), 64, 640, NO_SONNET),
        _vendor("plugin-2048-2048-8", (2048, 2048), 8, 80, NO_SONNET),
    )
}
# Twelve answers, four at a time; the prompts are those of the smoke test.
SHORT_CASE: dict[str, Any] = {"short": True, "requests": 12, "concurrency": 4, "output_tokens": 48, "through": "direct"}

NAME = matching(r"[a-z0-9][a-z0-9._-]{0,62}")
TOKENS = "must be an integer from 1 to 1000000, in tokens"
RULES = {
    "input_tokens": Rule(whole(1, 10**6), TOKENS),
    "output_tokens": Rule(whole(1, 10**6), TOKENS),
    "concurrency": Rule(whole(1, 10_000), "must be an integer from 1 to 10000, of requests at a time", None),
    "request_rate": Rule(within(0.001, 10_000), "must be a number of requests a second from 0.001 to 10000", None),
    "requests": Rule(whole(1, 200_000), "must be an integer from 1 to 200000, of requests", None),
    "spread": Rule(within(0, 0.99), "must be a number from 0 to 0.99, the part by which lengths differ", 0.0),
}


def site_profiles(given: Any) -> tuple[dict[str, Load], list[Problem]]:
    """Return the site's profiles, and their mistakes as (key, value, what is allowed).

    Args:
        given: ``benchmark_profiles``, a mapping of names to mappings; or None.
    """
    if given in (None, "", {}):
        return {}, []
    if not isinstance(given, Mapping):
        return {}, [(VARIABLE, given, f"must be a mapping of names to mappings of {', '.join(RULES)}")]
    found: dict[str, Load] = {}
    problems: list[Problem] = []
    for name, one in given.items():
        where = f"{VARIABLE}.{readable(name)}"
        complete, wrong = filled(one, RULES, where, beside=())
        if not NAME(name) or name in (*PROFILES, SHORT):
            allowed = "must be a name of lowercase letters, digits and ._- that no profile of the toolkit has"
            wrong = [(VARIABLE, name, allowed), *wrong]
        elif not wrong and (complete["concurrency"] is None) == (complete["request_rate"] is None):
            wrong = [(where, one, "must have either concurrency or request_rate")]
        if wrong:
            problems += wrong
        else:
            found[name] = _load(name, complete)
    return found, problems


def _load(name: str, complete: Mapping[str, Any]) -> Load:
    rate, slots = complete["request_rate"], complete["concurrency"]
    count = complete["requests"] or (PER_SLOT * slots if slots else max(20, round(rate * RATE_S)))
    lengths = int(complete["input_tokens"]), int(complete["output_tokens"])
    return Load(name, *lengths, requests=count, concurrency=slots, request_rate=rate, spread=complete["spread"])


def benchmark_names(of_hosts: Iterable[Any]) -> list[str]:
    """Return the names of all profiles, the short one first.

    Args:
        of_hosts: ``benchmark_profiles`` of hosts; mistakes are ignored here.
    """
    own = {name for one in of_hosts for name in site_profiles(one)[0]}
    return [SHORT, *PROFILES, *sorted(own)]


def load_named(name: str, site: Mapping[str, Load]) -> tuple[Load | None, list[str]]:
    """Return the profile of this name, and messages if there is none."""
    known = {**PROFILES, **site}
    if name in known:
        return known[name], []
    names = (SHORT, *known)
    hint = near(name, names) or f"; known are {', '.join(names)}"
    return None, [f"profile: {shown(name)} is not a profile{hint}"]


def load_of_trace(name: str, requests: Sequence[Request]) -> Load:
    """Return the load that replays a trace with its requests and arrival times."""
    # A server generates at least one token.
    taken = tuple(Request(one.arrival_s, one.input_tokens, max(1, one.output_tokens)) for one in requests)
    means = (sum(one.input_tokens for one in taken), sum(one.output_tokens for one in taken))
    prompt, answer = (max(1, round(total / len(taken))) for total in means)
    return Load(name, prompt, answer, requests=len(taken), trace=taken)


def trace_text(requests: Sequence[Request]) -> str:
    """Return a trace in the format of vLLM's dataset timed_trace; no two prompts have the same beginning."""
    lines, number = [], 0
    for one in requests:
        parts = -(-one.input_tokens // CHUNK)
        row = {"timestamp": one.arrival_s, "input_length": one.input_tokens, "output_length": one.output_tokens}
        lines.append(json.dumps({**row, "hash_ids": list(range(number, number + parts))}))
        number += parts
    return "".join(f"{line}\n" for line in lines)


__all__ = [
    "PROFILES",
    "SHORT",
    "SHORT_CASE",
    "Load",
    "digest",
    "load_named",
    "load_of_trace",
    "site_profiles",
    "trace_text",
]
