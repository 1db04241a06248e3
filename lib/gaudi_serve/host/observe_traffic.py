"""The load of a model's server since its start: vLLM's metrics, and the compilations in its log."""

from __future__ import annotations

import http.client
import math
import re
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from .smoke import EVERYWHERE

LARGEST = 16 * 2**20  # bytes of /metrics
MOST_LINE = 4096  # characters of a line of the journal to read at most
MOST_SHAPES = 100_000
SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# From the plugin and the fork: a graph that runs without warm-up, logged once for each worker.
COLD = re.compile(r"Configuration: \((.{1,200}?)\) was not warmed-up")
# From the plugin, before it runs the graph: the shape gets a bucket of its own. If COLD's line is not logged, this is
# the only one.
ADDED = re.compile(r"(Prompt|Decode) bucket for \(.{1,200}?\) was not prepared\. Adding new bucket: \((.{1,200}?)\)")
# Seconds between two tokens of an answer; vLLM has renamed these metrics.
BETWEEN_TOKENS = (
    *("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "vllm:request_time_per_output_token_seconds",
)
Samples = dict[str, list[tuple[dict[str, str], float]]]


class Unread(Exception):
    """The error if a server's metrics cannot be read."""


def observe(name: str, host: str, port: int, timeout: float = 10.0, journal_timeout: float = 60.0) -> dict[str, Any]:
    """Return the load of a server since its start.

    Args:
        name: the model.
        host, port: address of its server.
        timeout: time limit for its metrics, in seconds.
        journal_timeout: time limit for its log, in seconds.

    Returns:
        ``prompt_tokens``, ``generation_tokens``: ``{buckets: [[edge, count]], sum}``; ``requests`` that ended (without
        the one-token probes of the supervisor), and ``uptime_s`` of the server; ``running``, ``waiting``: requests now;
        ``mean_request_s``: from the arrival of a request to its end, and ``mean_token_s`` between two tokens, 0 if
        unknown; ``num_blocks``: of the KV cache, 0 if unknown; ``compiled``: shapes compiled while serving, None if the
        log cannot be read, for the reason in ``journal_problem``.

    Raises:
        Unread: if it does not answer, or not as vLLM does.
    """
    found = samples(metrics(host, port, timeout))
    started = [value for _, value in found.get("process_start_time_seconds", [])]
    # With several processes behind one port, only the histogram has the start time.
    started = started or [value for _, value in found.get("vllm:request_prompt_tokens_created", [])]
    if not started:
        raise Unread("/metrics does not show since when it counts (process_start_time_seconds)")
    compiled, problem = journal_count(name, min(started), journal_timeout)
    return {
        **of_clients(found),
        "uptime_s": round(max(1.0, time.time() - min(started)), 1),
        "running": _sum(found, "vllm:num_requests_running"),
        "waiting": _sum(found, "vllm:num_requests_waiting"),
        "mean_request_s": _mean(found, "vllm:e2e_request_latency_seconds"),
        "mean_token_s": next((mean for name in BETWEEN_TOKENS if (mean := _mean(found, name))), 0.0),
        "num_blocks": _blocks(found),
        "compiled": compiled,
        "journal_problem": problem,
    }


def metrics(host: str, port: int, timeout: float) -> str:
    """Return the text of a server's /metrics, which requires no key.

    Raises:
        Unread: for a status other than 200, no connection, or an answer that takes too long or is too large.
    """
    deadline = time.monotonic() + timeout
    connection = http.client.HTTPConnection(EVERYWHERE.get(host, host), port, timeout=timeout)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        parts, size = [], 0
        while part := response.read1(65536):
            parts.append(part)
            size += len(part)
            if size > LARGEST:
                raise Unread(
                    f"/metrics on port {port} is larger than {LARGEST // 2**20} MiB; is another program there?"
                )
            if time.monotonic() > deadline:
                raise Unread(f"/metrics on port {port} took longer than {timeout:g} s")
    except (OSError, http.client.HTTPException) as problem:
        raise Unread(f"/metrics on port {port}: {problem or type(problem).__name__}") from problem
    finally:
        connection.close()
    text = b"".join(parts).decode(errors="replace")
    if response.status != 200:
        raise Unread(f"/metrics on port {port} answered status {response.status}: {text[:200]!r}")
    return text


def samples(text: str) -> Samples:
    """Return the samples of a text in Prometheus' format by name, each with its labels."""
    found: Samples = defaultdict(list)
    for line in text.splitlines():
        match = SAMPLE.fullmatch(line)
        value = _number(match[3]) if match else math.nan
        if match and math.isfinite(value):
            found[match[1]].append((dict(LABEL.findall(match[2] or "")), value))
    return dict(found)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def histogram(found: Samples, name: str) -> dict[str, Any]:
    """Return ``{buckets: [[edge, count]], sum}`` of a histogram, summed over several engines.

    Raises:
        Unread: if it is missing.
    """
    counts: dict[str, float] = defaultdict(float)
    for labels, value in found.get(f"{name}_bucket", []):
        counts[labels.get("le", "")] += value
    if not counts.get("+Inf", -1) >= 0:
        raise Unread(f"/metrics has no {name}; is another program there, or --disable-log-stats set?")
    rows = sorted(([edge, count] for edge, count in counts.items()), key=lambda row: float(str(row[0])))
    return {"buckets": rows, "sum": _sum(found, f"{name}_sum")}


def of_clients(found: Samples) -> dict[str, Any]:
    """Return the requests of clients: lengths of their prompts and answers, and the number of ended requests."""
    prompt = histogram(found, "vllm:request_prompt_tokens")
    probes = next((count for edge, count in prompt["buckets"] if float(edge) == 1), 0.0)
    requests = _sum(found, "vllm:request_success_total") or _sum(found, "vllm:request_prompt_tokens_count")
    return {
        "prompt_tokens": _without(prompt, probes),
        "generation_tokens": _without(histogram(found, "vllm:request_generation_tokens"), probes),
        "requests": max(0.0, requests - probes),
    }


def _without(found: dict[str, Any], probes: float) -> dict[str, Any]:
    """Return a histogram without a number of one-token requests, which are the supervisor's probes."""
    buckets = [[edge, max(0.0, count - probes) if float(edge) >= 1 else count] for edge, count in found["buckets"]]
    return {"buckets": buckets, "sum": max(0.0, found["sum"] - probes)}


def _sum(found: Samples, name: str) -> float:
    return sum(value for _, value in found.get(name, []))


def _mean(found: Samples, name: str) -> float:
    count = _sum(found, f"{name}_count")
    return _sum(found, f"{name}_sum") / count if count else 0.0


def _blocks(found: Samples) -> int:
    """Return the number of KV-cache blocks of an engine, the smallest for several engines."""
    told = [labels.get("num_gpu_blocks", "") for labels, _ in found.get("vllm:cache_config_info", [])]
    return min((int(text) for text in told if text.isdigit()), default=0)


def journal_count(name: str, since: float, timeout: float) -> tuple[int | None, str]:
    """Return the number of shapes compiled while serving since some time, from the log; or why it is unknown."""
    argv = [
        "journalctl",
        "-u",
        f"vllm-{name}.service",
        "-o",
        "cat",
        "--no-pager",
        "--quiet",
        "--since",
        f"@{int(since)}",
    ]
    try:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace")
    except OSError as problem:
        return None, f"journalctl: {problem.strerror}"
    late = threading.Timer(timeout, process.kill)
    late.start()
    try:
        with process:
            count = compiled_shapes(_short(process.stdout or ()))
    finally:
        late.cancel()
    if process.returncode == 0:
        return count, ""
    return None, f"journalctl did not end well within {timeout:g} s (status {process.returncode})"


def compiled_shapes(lines: Iterable[str]) -> int:
    """Return the number of different shapes that were compiled while serving according to log lines."""
    cold: set[tuple[str, ...]] = set()
    added: set[tuple[str, ...]] = set()
    for line in lines:
        for pattern, found in ((COLD, cold), (ADDED, added)):
            match = pattern.search(line)
            if match and len(found) < MOST_SHAPES:
                found.add(match.groups())
    return len(cold) or len(added)


def _short(lines: Iterable[str]) -> Iterator[str]:
    return (line[:MOST_LINE] for line in lines)


__all__ = ["Unread", "compiled_shapes", "histogram", "journal_count", "metrics", "observe", "samples"]
