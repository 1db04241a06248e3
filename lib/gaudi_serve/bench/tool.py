"""The tool that sends a load: ``vllm bench serve`` of the serving image, or the script of older forks.

Names and meanings of its options differ by release, so the image itself is queried for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import InputError
from .loads import CHUNK, Load

OUT, TRACE = "/out", "trace.jsonl"
RESULT = "result.json"
PERCENTILES = (50, 90, 99)
METRICS = "ttft,tpot,itl,e2el"


@dataclass(frozen=True)
class Endpoint:
    """The endpoint of a load: its address, the model's name there, and the tokenizer in the container."""

    url: str
    model: str
    tokenizer: str
    tokenizer_mode: str = ""
    trust_remote_code: bool = False


@dataclass(frozen=True)
class Tool:
    """The benchmark tool of an image.

    command: the program. version: of vLLM. options: its options. datasets: the names of its datasets. widest: whether
    lengths are fixed at --random-range-ratio 1, as in the fork of DeepSeek; elsewhere they are fixed at 0.
    """

    command: tuple[str, ...]
    version: str
    options: frozenset[str]
    datasets: frozenset[str]
    widest: bool = False

    @classmethod
    def of(cls, probed: Mapping[str, Any]) -> Tool:
        """Return the tool of an image.

        Args:
            probed: the result of module vllm_bench: ``version``, ``command``, ``options``, ``datasets``,
                ``range_default``, ``lacks``, ``problem``.

        Raises:
            InputError: if the image has no tool, or lacks a requirement of it; the caller adds host and model.
        """
        version = str(probed.get("version") or "")
        called = f"its image (vLLM {version})" if version else "its image"
        if probed.get("problem"):
            raise InputError(f"{called} does not show its benchmark tool: {probed['problem']}")
        if not probed.get("command"):
            raise InputError(f"{called} has neither vllm bench serve nor benchmarks/benchmark_serving.py; {REMEDY}")
        if lacks := [str(one) for one in probed.get("lacks") or ()]:
            raise InputError(f"{called} lacks {' and '.join(lacks)}, which its benchmark tool imports; {REMEDY}")
        options, datasets = frozenset(probed.get("options") or ()), frozenset(probed.get("datasets") or ())
        if missing := sorted(NEEDED - options):
            raise InputError(f"the benchmark tool of {called} has no {' and no '.join(missing)}; {REMEDY}")
        widest = str(probed.get("range_default")) in ("1", "1.0")
        return cls(tuple(probed["command"]), version, options, datasets, widest)

    def refusal(self, load: Load) -> str:
        """Return why the tool cannot send a load; empty if it can."""
        if load.trace and "timed_trace" not in self.datasets:
            return (
                f"vLLM {self.version} in its image cannot replay a trace: that needs dataset timed_trace, which newer "
                "releases have; give a profile in place of trace"
            )
        if load.spread and self.widest:
            return (
                f"profile {load.profile}: spread {load.spread:g}: vLLM {self.version} in its image draws only lengths "
                "below the given one; leave spread out"
            )
        return ""

    def argv(self, load: Load, endpoint: Endpoint, seed: int, percentiles: Sequence[float] = ()) -> list[str]:
        """Return the command line of one run, without the key."""
        # Releases before 0.12 call it --endpoint-type.
        backend = "--backend" if "--backend" in self.options else "--endpoint-type"
        shares = ",".join(f"{one:g}" for one in sorted({*PERCENTILES, *percentiles}))
        given: list[Any] = [backend, "openai", "--base-url", endpoint.url, "--endpoint", "/v1/completions"]
        given += ["--model", endpoint.model, "--tokenizer", endpoint.tokenizer]
        given += ["--tokenizer-mode", endpoint.tokenizer_mode] if endpoint.tokenizer_mode else []
        given += ["--trust-remote-code"] if endpoint.trust_remote_code else []
        given += self._dataset(load)
        given += ["--num-prompts", load.requests, "--seed", seed, "--ignore-eos"]
        given += ["--max-concurrency", load.concurrency] if load.concurrency else []
        given += ["--request-rate", f"{load.request_rate:g}"] if load.request_rate else []
        given += ["--percentile-metrics", METRICS, "--metric-percentiles", shares]
        given += ["--save-result", "--result-dir", OUT, "--result-filename", RESULT, "--disable-tqdm"]
        # The warm-up is a complete load; the tool's own warm-up would repeat a single request.
        silent = {"--temperature": 0, "--num-warmups": 0, "--ready-check-timeout-sec": 0}
        given += [word for name, value in silent.items() if name in self.options for word in (name, value)]
        return [*self.command, *(str(word) for word in given)]

    def _dataset(self, load: Load) -> list[Any]:
        if load.trace:
            name = ["--dataset-name", "timed_trace", "--dataset-path", f"{OUT}/{TRACE}"]
            return [*name, "--timed-trace-chunk-hash-size", CHUNK]
        lengths = ["--random-input-len", load.input_tokens, "--random-output-len", load.output_tokens]
        # The default means fixed lengths in every release.
        spread = ["--random-range-ratio", f"{load.spread:g}"] if load.spread else []
        return ["--dataset-name", "random", *lengths, *spread]


REMEDY = "a newer image has them, or measure with profile short"
NEEDED = frozenset(
    (
        *("--base-url", "--endpoint", "--model", "--tokenizer", "--dataset-name", "--random-input-len", "--seed"),
        *("--random-output-len", "--num-prompts", "--max-concurrency", "--request-rate", "--percentile-metrics"),
        *(
            "--metric-percentiles",
            "--save-result",
            "--result-dir",
            "--result-filename",
            "--disable-tqdm",
            "--ignore-eos",
        ),
    )
)
__all__ = ["Endpoint", "Tool"]
