"""The engine: one way of starting vLLM, with everything that is known about it.

An engine is one file in this folder and one line in the registry (``engines/__init__.py``). Nothing else names it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..buckets.base import Buckets
from ..buckets.warmup import warmup_seconds
from ..core.errors import Problem
from ..model.host import Host
from ..model.shared import members
from ..model.spec import Spec
from ..model.vllm_options import OPTION_NAMES
from ..platforms import Platform
from .quantisations import Loads

__all__ = [
    "FINISHED",
    "LOADING",
    "UNWARMED",
    "UPSTREAM",
    "Dequantised",
    "Engine",
    "Host",
    "Launch",
    "LogPatterns",
    "Spec",
    "option_arguments",
    "pass_through",
]


# The log of every vLLM has this line.
LOADING = (r"(?i)Loading (?:safetensors|model weights|model)", "loading weights")


@dataclass(frozen=True)
class LogPatterns:
    """Patterns that the collector on a host searches in a server's log: regular expressions with named groups.

    graph: ``done`` of ``total`` graphs of a ``phase`` of the warm-up are compiled. phases: all phases in order, in
    lowercase. finished: the warm-up took ``seconds``. cache: the KV cache has ``blocks`` or ``tokens``.
    unwarmed: a ``shape`` of a ``phase`` is compiled while serving; each worker prints it.
    """

    graph: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    cache: tuple[str, ...] = ()
    unwarmed: tuple[str, ...] = ()


# Upstream's V1 engine. Newer versions print the device instead of GPU.
UPSTREAM = LogPatterns(
    finished=(r"init engine \(profile, create kv cache, warmup model\) took (?P<seconds>[\d.]+) s",),
    cache=(r"\w+ KV cache size: (?P<tokens>[\d,]+) tokens",),
)
# Every vLLM on Gaudi prints this. Some versions add the worker's rank.
UNWARMED = r"Configuration: (?:rank \(\d+, |\()(?P<shape>['\"]?(?P<phase>[a-z_]+)['\"]?(?:, \d+)+)\) was not warmed-up!"
FINISHED = r"Warmup finished in (?P<seconds>[\d.]+) secs"


@dataclass(frozen=True)
class Launch:
    """The exact launch of a server.

    env: variables, without those of the buckets. args: arguments after the engine's command. numactl: its arguments;
    None: no core binding. buckets: the shapes that are warmed up; None if the server chooses them. bucket_file: the
    text of a bucket file, which the server reads at bucket_path. tokens: the most in one step, for the number of
    buckets.
    """

    env: dict[str, str]
    args: list[str]
    numactl: list[str] | None = None
    warnings: list[str] = field(default_factory=list)
    buckets: Buckets | None = None
    bucket_file: str | None = None
    bucket_path: str | None = None
    tokens: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """Return all variables."""
        return {**self.env, **(self.buckets.env() if self.buckets else {})}


@dataclass(frozen=True)
class Dequantised:
    """Weights that become BF16 at load unless variable ``preserved_by`` is 1 (vLLM ``preserved_since`` or newer)."""

    preserved_by: str
    preserved_since: str


def _no_problems(_: Spec) -> list[Problem]:
    return []


def _as_it_is(found: Launch, _spec: Spec, _host: Host) -> Launch:
    return found


@dataclass(frozen=True)
class Engine:
    """One way of starting vLLM.

    name: its ``launch_profile``. platforms: names of the platforms that it serves, its main one first. command: the
    program, before the arguments of the launch. defaults: keys of a model that its user leaves out. launch: returns
    the exact launch of a complete spec on a host; raises InputError. amended: returns the same with the parts that a
    vendor's script forgets, for plans.
    reads: texts of the host's facts that the launch reads; reads_cards: it reads its cards and their cores.
    problems: returns the problems with a spec before the cards are chosen; late_problems: those that the server would
    only find at start.
    own_options: its launch sets the options of vLLM; further ones, and the served name, follow them. Without it, the
    launch passes all options on by itself. consumed: options of vLLM that its launch converts to something else.
    ignored: keys of this toolkit that it does not use.
    capabilities and ulimits: required by its container. precision: if it always serves in the same one.
    dequantised_at_load: precisions of stored weights that it converts to BF16 at load.
    capped: it leaves out buckets with more blocks than the cards have. expert_parallel: it always sets that option.
    copies_heads: with more cards than key-value heads, each card gets a copy of one. stages: it serves models with
    pipeline_parallel_size.
    progress: patterns of its log, each with the status text of the unit, which is filled from the pattern's groups;
    they go into the launch file, because the supervisor on the host has no engines. journal: what the collector there
    reads from the same log. warmup: returns the seconds that graphs take, from the arguments of warmup_seconds.
    loads: by platform, the quantised weights that it loads; other platforms are unknown.
    executors: ways to spread a model over several hosts, its default first; empty if it cannot. over_hosts: why that is
    experimental; empty if it is not.
    no_adapters: why its server takes no LoRA adapters; empty if it does.
    share: returns each model's default part of the card's memory for a number of models; None if the server serves one
    model. folder: the folder in which the server finds each model's folder, by the model's name; None if it
    uses the host's path.
    """

    name: str
    platforms: tuple[str, ...]
    command: tuple[str, ...]
    defaults: Mapping[str, Any]
    launch: Callable[[Spec, Host], Launch]
    reads: tuple[str, ...] = ()
    reads_cards: bool = False
    problems: Callable[[Spec], list[Problem]] = _no_problems
    late_problems: Callable[[Spec], list[Problem]] = _no_problems
    amended: Callable[[Launch, Spec, Host], Launch] = _as_it_is
    own_options: bool = True
    consumed: frozenset[str] = frozenset()
    ignored: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ("SYS_NICE",)
    ulimits: tuple[str, ...] = ()
    precision: str | None = None
    dequantised_at_load: Mapping[str, Dequantised] = field(default_factory=dict)
    capped: bool = True
    expert_parallel: bool = True
    copies_heads: bool = False
    stages: bool = False
    progress: tuple[tuple[str, str], ...] = (LOADING,)
    journal: LogPatterns = UPSTREAM
    warmup: Callable[..., tuple[int, int]] = warmup_seconds
    loads: Mapping[str, Loads] = field(default_factory=dict)
    executors: tuple[str, ...] = ()
    over_hosts: str = ""
    no_adapters: str = ""
    share: Callable[[int], float] | None = None
    folder: str | None = None

    def serves(self, platform: Platform) -> bool:
        """Return whether it serves a platform: one in its list, or one whose main engine it is."""
        return platform.name in self.platforms or platform.engine == self.name

    def defaults_of(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the defaults of a model. Shares of a card's memory depend on the number of models."""
        if not self.share:
            return self.defaults
        return {**self.defaults, "gpu_memory_utilization": self.share(1 + len(members(given)))}

    def seen_at(self, spec: Spec) -> str:
        """Return the path of a model's weights inside the container."""
        return f"{self.folder}/{spec.name}" if self.folder else spec.weights

    def served_in(self, spec: Spec) -> str:
        """Return the precision that decides the time of a warm-up: fp8 or bfloat16."""
        return (
            "fp8" if "fp8" in (self.precision, spec.get("dtype")) or spec.get("quantization") == "inc" else "bfloat16"
        )


def option_arguments(key: str, value: Any) -> list[str]:
    """Return one vLLM option as arguments. True is a flag, false its negation, and a mapping is JSON."""
    flag = "--" + key.replace("_", "-")
    if value is None:
        return []
    if value is True:
        return [flag]
    if value is False:
        return ["--no-" + key.replace("_", "-")]
    if isinstance(value, Mapping):
        return [flag, _sorted_json(value)]
    if isinstance(value, list):
        return [flag, *[_sorted_json(item) if isinstance(item, Mapping) else str(item) for item in value]]
    return [flag, str(value)]


def pass_through(spec: Spec) -> list[str]:
    """Return the arguments for all keys of a model that are vLLM's own options."""
    return [part for key, value in spec.items() if key in OPTION_NAMES for part in option_arguments(key, value)]


def _sorted_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
