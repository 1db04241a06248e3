"""Requests like those of running servers, made from vLLM's own histograms.

A histogram has the number of prompts (or answers) with up to so many tokens, and the sum of their tokens. Requests are
drawn from it at even quantiles. Within a bucket of the histogram, lengths follow a power of the quantile. It is the
same power for all buckets, chosen so that the mean is the measured one, so no length leaves its bucket. No server
reports which prompt had which answer. They count as independent, and are matched in an order that is the same in every
run. Arrivals are those of a Poisson process with a fixed seed, at the rate of the busiest server: its mean since the
start, or, if more requests are in it now than that explains, the rate that explains them (Little's law).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ..buckets.traffic import Request
from ..core.errors import InputError, one_line
from ..core.words import counted
from ..show.stage_output import names

FEWEST = 100  # The least number of requests for a useful histogram.
MOST = 4000  # The most requests that are made.
SEED = 1


@dataclass(frozen=True)
class Histogram:
    """Requests by tokens: (edge, requests up to it) in rising order, and the sum of all tokens."""

    upto: tuple[tuple[float, float], ...]
    total: float

    @property
    def count(self) -> float:
        """Return the number of requests."""
        return self.upto[-1][1] if self.upto else 0.0

    @classmethod
    def merged(cls, found: Sequence[Histogram]) -> Histogram:
        """Return one histogram of several servers. If one has no such edge, its next lower edge counts."""
        edges = sorted({edge for one in found for edge, _ in one.upto})
        rows = tuple((edge, sum(one._at(edge) for one in found)) for edge in edges)
        return cls(rows, sum(one.total for one in found))

    def _at(self, edge: float) -> float:
        return max((count for upper, count in self.upto if upper <= edge), default=0.0)

    def lengths(self, count: int, least: int, most: int) -> list[int]:
        """Return ``count`` lengths at even quantiles, rising. Their mean is that of the histogram if possible."""
        places = [self._place((index + 0.5) / count, least, most) for index in range(count)]
        mean = self.total / self.count
        low, high = -7.0, 7.0  # The exponent is two to this power.
        for _ in range(40):
            middle = (low + high) / 2
            power = 2.0**middle
            found = sum(begin + (end - begin) * share**power for begin, end, share in places) / count
            low, high = (middle, high) if found > mean else (low, middle)
        power = 2.0 ** ((low + high) / 2)
        return [min(most, max(least, round(begin + (end - begin) * share**power))) for begin, end, share in places]

    def _place(self, quantile: float, least: int, most: int) -> tuple[float, float, float]:
        """Return the two lengths between which a quantile is, and its relative place between them."""
        wanted, before, lower = quantile * self.count, 0.0, float(least)
        for edge, upto in self.upto:
            upper = float(min(edge, most))
            if upto >= wanted and upto > before:
                return min(lower, upper), upper, (wanted - before) / (upto - before)
            before, lower = upto, max(lower, min(edge + 1, most))
        return lower, float(most), 1.0


@dataclass(frozen=True)
class Learned:
    """The observed traffic of a model's servers.

    prompt, answer: tokens. rate: requests per second of the busiest server; its answers have a token every token_s
    seconds, 0 if unknown. blocks: by host, the KV cache blocks that its server reports. source: the origin of the data,
    in words. notes: sentences about single hosts.
    """

    prompt: Histogram
    answer: Histogram
    rate: float
    token_s: float
    blocks: dict[str, int]
    source: str
    notes: list[str] = field(default_factory=list)

    def requests(self, most: int) -> list[Request]:
        """Return similar requests, of at most ``most`` tokens, the same in every run."""
        count = min(MOST, math.ceil(self.prompt.count))
        random = Random(SEED)  # noqa: S311 - Not secret. random() gives the same numbers in every version of Python.
        prompts = self.prompt.lengths(count, 1, most)
        answers = self.answer.lengths(count, 0, most)
        order = sorted(range(count), key=lambda _: random.random())
        matched = sorted(range(count), key=lambda _: random.random())
        found, now = [], 0.0
        for one, other in zip(order, matched, strict=True):
            found.append(Request(round(now, 6), prompts[one], answers[other]))
            now -= math.log(1 - random.random()) / self.rate
        return found


def learned(name: str, hosts: Sequence[str], traffic: Mapping[str, Any]) -> Learned:
    """Return the observed traffic of a model's servers.

    Args:
        name: The model.
        hosts: The hosts that have it in their plan.
        traffic: By host, the result of module vllm_traffic. A result without ``traffic`` was not read.

    Raises:
        InputError: No server could be read, or there were too few requests.
    """
    read: dict[str, Mapping[str, Any]] = {}
    lost = []
    for host in hosts:
        result = traffic.get(host) or {}
        if result.get("traffic"):
            read[host] = result["traffic"]
        else:
            lost.append(one_line(f"{host}: {_why(result).strip()}"))
    if not read:
        raise InputError(
            f"model {name}: no server of it reports its traffic; start it, or set a trace (-e trace=FILE): "
            + "; ".join(lost)
        )
    prompt = Histogram.merged([_histogram(one["prompt_tokens"]) for one in read.values()])
    answer = Histogram.merged([_histogram(one["generation_tokens"]) for one in read.values()])
    seen = int(min(prompt.count, answer.count))
    where = names(list(read), 4)
    if seen < FEWEST:
        raise InputError(
            f"model {name}: its servers have had {counted(seen, 'request')} since they started ({where}), and a plan "
            f"needs {FEWEST}; wait for more, or set a trace (-e trace=FILE)"
        )
    rate, busiest = max((_rate(one), host) for host, one in read.items())
    blocks = {host: int(one["num_blocks"]) for host, one in read.items() if one.get("num_blocks")}
    source = f"made like the {seen} that {where} had, {rate:.3g} a second as on {busiest}"
    token_s = float(read[busiest].get("mean_token_s") or 0)
    return Learned(prompt, answer, rate, token_s, blocks, source, [*_compiled(read), *lost])


def _why(result: Mapping[str, Any]) -> str:
    if result.get("problem"):
        return str(result["problem"])
    if result.get("unreachable") or not result:
        return "cannot be reached" + (f": {result['msg']}" if result.get("msg") else "")
    return str(result.get("msg") or "was not read")


def _histogram(found: Mapping[str, Any]) -> Histogram:
    rows = sorted((math.inf if edge == "+Inf" else float(edge), float(count)) for edge, count in found["buckets"])
    return Histogram(tuple(rows), float(found["sum"]))


def _rate(one: Mapping[str, Any]) -> float:
    """Return a server's requests per second: the average, or the rate that explains its present requests."""
    average = one["requests"] / max(1.0, one["uptime_s"])
    seconds = one.get("mean_request_s") or 0
    now = (one["running"] + one["waiting"]) / seconds if seconds else 0.0
    return float(max(average, now, 1e-6))


def _compiled(read: Mapping[str, Mapping[str, Any]]) -> list[str]:
    notes = []
    for host, one in read.items():
        hours = one["uptime_s"] / 3600
        count = one.get("compiled")
        if count is None:
            notes.append(f"{host}: the shapes compiled while serving are unknown: {one.get('journal_problem')}")
        else:
            notes.append(
                f"{host}: compiled while serving, by the journal of the last {_time(hours)}: "
                + (counted(count, "shape") if count else "nothing")
            )
    return notes


def _time(hours: float) -> str:
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.0f} days"


__all__ = ["FEWEST", "Histogram", "Learned", "learned"]
