"""A dozen of vLLM's metric families, in the Prometheus text format."""

from __future__ import annotations

import threading

GAUGES = ("num_requests_running", "num_requests_waiting", "num_requests_swapped", "gpu_cache_usage_perc")
HISTOGRAMS = ("time_to_first_token_seconds", "time_per_output_token_seconds", "e2e_request_latency_seconds")


class Metrics:
    """Counts what was served."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.lock = threading.Lock()
        self.prompt = self.generated = self.requests = 0
        self.reasons = {"stop": 0, "length": 0, "abort": 0}

    def count(self, prompt: int, generated: int, reason: str) -> None:
        """Add one answer."""
        with self.lock:
            self.prompt += prompt
            self.generated += generated
            self.requests += 1
            self.reasons[reason] += 1

    def text(self) -> str:
        """Return all families."""
        label = f'model_name="{self.model}"'
        lines: list[str] = []
        for name in GAUGES:
            lines += [f"# HELP vllm:{name} {name}.", f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{label}}} 0.0"]
        counters = {
            "prompt_tokens_total": self.prompt,
            "generation_tokens_total": self.generated,
            "num_preemptions_total": 0,
            "gpu_prefix_cache_queries_total": 0,
            "gpu_prefix_cache_hits_total": 0,
        }
        for name, value in counters.items():
            lines += [f"# HELP vllm:{name} {name}.", f"# TYPE vllm:{name} counter", f"vllm:{name}{{{label}}} {value}.0"]
        lines += ["# HELP vllm:request_success_total Finished requests.", "# TYPE vllm:request_success_total counter"]
        for reason, value in self.reasons.items():
            lines.append(f'vllm:request_success_total{{finished_reason="{reason}",{label}}} {value}.0')
        for name in HISTOGRAMS:
            lines += [f"# HELP vllm:{name} {name}.", f"# TYPE vllm:{name} histogram"]
            lines += [f'vllm:{name}_bucket{{le="{bound}",{label}}} {self.requests}.0' for bound in ("0.1", "+Inf")]
            lines += [f"vllm:{name}_count{{{label}}} {self.requests}.0"]
            lines += [f"vllm:{name}_sum{{{label}}} {self.requests * 0.01:.2f}"]
        lines += ["# HELP vllm:cache_config_info Cache settings.", "# TYPE vllm:cache_config_info gauge"]
        lines.append('vllm:cache_config_info{block_size="128",cache_dtype="auto"} 1.0')
        return "\n".join(lines) + "\n"
