"""A dozen of vLLM's metric families, in the Prometheus text format."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from . import stack

# Upstream has another name for the share of the KV cache, and counts nothing that is swapped.
GAUGES = ("kv_cache_usage_perc",) if stack.UPSTREAM else ("num_requests_swapped", "gpu_cache_usage_perc")
CACHE = "prefix_cache" if stack.UPSTREAM else "gpu_prefix_cache"
HISTOGRAMS = ("time_to_first_token_seconds", "time_per_output_token_seconds", "e2e_request_latency_seconds")
STARTED = time.time()


def edges(most: int) -> Iterator[int]:
    """Give the bounds of vLLM's histograms of tokens: 1, 2, 5 times powers of ten, up to the context."""
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power > most:
                return
            yield digit * power
        power *= 10


class Metrics:
    """Counts what was served."""

    def __init__(self, model: str, max_model_len: int = 2048, most: int = 256) -> None:
        self.model = model
        self.lock = threading.Condition()
        self.running, self.waiting, self.most = 0, 0, most
        self.prompts: list[int] = []
        self.generations: list[int] = []
        self.edges = list(edges(max_model_len))
        self.reasons = {"stop": 0, "length": 0, "abort": 0}

    def begin(self) -> int:
        """Wait as long as max_num_seqs requests run, count one more, and return how many do."""
        with self.lock:
            self.waiting += 1
            self.lock.wait_for(lambda: self.running < self.most)
            self.waiting -= 1
            self.running += 1
            return self.running

    def end(self) -> None:
        """Forget one that runs."""
        with self.lock:
            self.running -= 1
            self.lock.notify()

    def count(self, prompt: int, generated: int, reason: str) -> None:
        """Add one answer."""
        with self.lock:
            self.prompts.append(prompt)
            self.generations.append(generated)
            self.reasons[reason] += 1

    def text(self) -> str:
        """Return all families."""
        with self.lock:
            return "\n".join(self.lines()) + "\n"

    def labels(self, **more: str) -> str:
        """Return a line's labels, in the order of their names."""
        own = {"model_name": self.model, **({"engine": "0"} if stack.UPSTREAM else {}), **more}
        return "{" + ",".join(f'{name}="{value}"' for name, value in sorted(own.items())) + "}"

    def lines(self) -> list[str]:
        """Return all lines."""
        label = self.labels()
        lines = ["# HELP process_start_time_seconds Start time of the process since unix epoch in seconds."]
        lines += ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {STARTED:.2f}"]
        gauges = {
            "num_requests_running": self.running,
            "num_requests_waiting": self.waiting,
            **dict.fromkeys(GAUGES, 0),
        }
        for name, value in gauges.items():
            lines += [f"# HELP vllm:{name} {name}.", f"# TYPE vllm:{name} gauge", f"vllm:{name}{label} {value}.0"]
        counters = {
            "prompt_tokens_total": sum(self.prompts),
            "generation_tokens_total": sum(self.generations),
            "num_preemptions_total": 0,
            f"{CACHE}_queries_total": 0,
            f"{CACHE}_hits_total": 0,
        }
        for name, value in counters.items():
            lines += [f"# HELP vllm:{name} {name}.", f"# TYPE vllm:{name} counter", f"vllm:{name}{label} {value}.0"]
        lines += ["# HELP vllm:request_success_total Finished requests.", "# TYPE vllm:request_success_total counter"]
        for reason, value in self.reasons.items():
            lines.append(f"vllm:request_success_total{self.labels(finished_reason=reason)} {value}.0")
        for name, tokens in (("request_prompt_tokens", self.prompts), ("request_generation_tokens", self.generations)):
            lines += self.histogram(name, [float(bound) for bound in self.edges], [float(one) for one in tokens])
        for name in HISTOGRAMS:
            lines += self.histogram(name, [0.1], [0.01] * len(self.prompts))
        lines += ["# HELP vllm:cache_config_info Cache settings.", "# TYPE vllm:cache_config_info gauge"]
        lines.append('vllm:cache_config_info{block_size="128",cache_dtype="auto"} 1.0')
        return lines

    def histogram(self, name: str, bounds: list[float], seen: list[float]) -> list[str]:
        """Return the lines of one histogram."""
        lines = [f"# HELP vllm:{name} {name}.", f"# TYPE vllm:{name} histogram"]
        for bound in bounds:
            within = sum(value <= bound for value in seen)
            lines.append(f"vllm:{name}_bucket{self.labels(le=str(bound))} {within}.0")
        lines.append(f"vllm:{name}_bucket{self.labels(le='+Inf')} {len(seen)}.0")
        label = self.labels()
        return [*lines, f"vllm:{name}_count{label} {len(seen)}.0", f"vllm:{name}_sum{label} {sum(seen):.2f}"]
