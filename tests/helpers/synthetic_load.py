"""Simulated servers under random load, as the metrics that Prometheus would read of them each minute."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

FIRST, BETWEEN = (2.5, 5.0, 10.0), (0.1, 0.5)


@dataclass(frozen=True)
class Load:
    """A server and its clients.

    per_hour: requests. slots: requests that it serves at once. prompt_s, answer_s: mean seconds for the prompt and the
    answer of a request. burst: requests that arrive together. fails: part of the requests that fail. broken_at: minute
    from which the server serves one request in two minutes at most, or none if ``frozen``. model: ``promised`` has
    objectives, and ``qwq`` has none.
    """

    per_hour: float
    slots: int = 32
    prompt_s: float = 0.5
    answer_s: float = 8
    burst: int = 1
    fails: float = 0.0
    broken_at: int = 10**9
    frozen: bool = False
    engine: int = 0
    model: str = "promised"


HEALTHY = {
    "busy": Load(3600),
    "quiet": Load(6),
    "quiet with a slow or failed one": Load(4, prompt_s=0.8, fails=0.05),
    "long prompts": Load(3, prompt_s=240, answer_s=60, model="qwq"),
    "bursts": Load(200, burst=100, slots=64, answer_s=5, model="qwq"),
}
SICK = {
    "frozen": replace(HEALTHY["busy"], broken_at=60, frozen=True),
    "slow": replace(HEALTHY["busy"], per_hour=40, broken_at=60),
    "failing": Load(60, fails=0.9),
    "failing in a quiet time": Load(12, fails=1.0),
}


@dataclass
class Request:
    """A request: when it arrived and was begun, and how long it takes, in seconds."""

    arrived: float
    prompt: float
    answer: float
    begun: float = -1.0
    first: bool = False


def goes_on(one: Request, second: int, totals: Counter[str]) -> bool:
    """Serve a request for a second, and count it; return whether it is not complete."""
    if not one.first and second - one.begun >= one.prompt:
        one.first = True
        totals["first"] += 1
        totals["prompt_tokens"] += 800
        totals.update(f"first {limit}" for limit in FIRST if second - one.arrived <= limit)
    if one.first:
        totals["tokens"] += 20
        totals.update({f"between {limit}": 20 for limit in BETWEEN})
    complete = one.first and second - one.begun >= one.prompt + one.answer
    totals["2xx"] += complete
    return not complete


def simulated(load: Load, minutes: int, seed: int) -> dict[str, list[float]]:
    """Return the value of each series at each minute; the same seed gives the same values."""
    chance = random.Random(seed)  # noqa: S311 - not for secrets
    waiting: list[Request] = []
    running: list[Request] = []
    totals: Counter[str] = Counter()
    found: dict[str, list[float]] = {}
    due = chance.expovariate(load.per_hour / load.burst / 3600)
    last = -120.0
    for second in range(minutes * 60 + 1):
        while due <= second:
            for _ in range(load.burst):
                if chance.random() < load.fails:
                    totals["5xx"] += 1
                    continue
                work = (chance.expovariate(1 / mean) for mean in (load.prompt_s, load.answer_s))
                waiting.append(Request(second, *work))
            due += chance.expovariate(load.per_hour / load.burst / 3600)
        broken = second >= load.broken_at * 60
        frozen = broken and load.frozen
        while waiting and not frozen and len(running) < load.slots and not (broken and second - last < 120):
            last = second
            waiting[0].begun = second
            running.append(waiting.pop(0))
        if not frozen:
            running = [one for one in running if goes_on(one, second, totals)]
        if second % 60 == 0:
            values = {"running": len(running), "waiting": len(waiting), **totals}
            for name in (*NAMES, "running", "waiting"):
                found.setdefault(name, []).append(values.get(name, 0))
    return found


NAMES = (
    *("first", "prompt_tokens", "tokens", "2xx", "5xx"),
    *(f"first {limit}" for limit in FIRST),
    *(f"between {limit}" for limit in BETWEEN),
)


def series(load: Load, minutes: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yield the series of a server, with their values as promtool takes them."""
    values = {name: " ".join(f"{one:g}" for one in found) for name, found in simulated(load, minutes, seed).items()}
    target = f'job="vllm",instance="g1:30001",host="g1",model="{load.model}"'
    own = f'{target},model_name="m",engine="{load.engine}"'
    plain = {"num_requests_running": "running", "num_requests_waiting": "waiting"}
    plain |= {"prompt_tokens_total": "prompt_tokens", "generation_tokens_total": "tokens"}
    for metric, name in plain.items():
        yield f"vllm:{metric}{{{own}}}", values[name]
    for metric, kind, limits, count in (
        ("time_to_first_token_seconds", "first", FIRST, "first"),
        ("inter_token_latency_seconds", "between", BETWEEN, "tokens"),
    ):
        for limit in limits:
            yield f'vllm:{metric}_bucket{{{own},le="{limit}"}}', values[f"{kind} {limit}"]
        yield f'vllm:{metric}_bucket{{{own},le="+Inf"}}', values[count]
        yield f"vllm:{metric}_count{{{own}}}", values[count]
    for code in ("2xx", "5xx"):
        proxy = f'job="haproxy",instance="gw:8405",host="gw",proxy="{load.model}",code="{code}"'
        yield f"haproxy_backend_http_responses_total{{{proxy}}}", values[code]
    yield f"up{{{target}}}", f"1x{minutes}"
