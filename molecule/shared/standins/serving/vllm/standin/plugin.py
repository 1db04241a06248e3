"""Upstream vLLM with the vendor's plugin: its buckets, its warm-up, how it dies, and what it says while serving.

The rules of the buckets are the project's own code, which the vendor's golden vectors prove; how a server takes its
refusals is here. STANDIN_VLLM is the version whose rules hold (0.26.0).
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gaudi_serve.buckets.from_file import file_buckets
from gaudi_serve.buckets.plugin import Bucket, PluginBuckets, plugin_buckets
from gaudi_serve.buckets.plugin_input import LONG_NAMES, STRATEGIES, TRUE, PluginInput, PluginSettings
from gaudi_serve.buckets.plugin_plan import MOST_TIMES
from gaudi_serve.buckets.plugin_rules import rules_of
from gaudi_serve.buckets.plugin_server import PluginServer
from gaudi_serve.core.errors import InputError

from . import cards, log
from .model import GIB, Model, block_bytes, config_of
from .warmup import RecipeCache, fail

VERSION = os.environ.get("STANDIN_VLLM", "0.26.0")
RUNNER, WORKER, BUCKETING = "hpu_model_runner.py", "hpu_worker.py", "common.py"
NONE_LEFT = "buckets. Please adjust the bucketing configuration according to README"


def told(name: str) -> bool:
    """Tell whether a variable is true, by the plugin's words."""
    return os.environ.get(name, "").lower() in TRUE


def say(place: str, text: str, level: str = "INFO") -> None:
    """Print a line of the engine."""
    log.write(level, place, text, log.CORE)


def settings_of() -> PluginSettings:
    """Read the environment, as the plugin does when it is loaded."""
    try:
        return PluginSettings.read(os.environ, rules_of(VERSION))
    except InputError as problem:
        name, value, _ = problem.finding or ("", "", "")
        if name == "VLLM_BUCKETING_STRATEGY":
            words = ", ".join(STRATEGIES if rules_of(VERSION).names_strategy else LONG_NAMES)
            reason: Exception = RuntimeError(f"bucketing_strategy: {value} is not in allowed options: [{words}]!")
        else:
            reason = ValueError(f"invalid literal for int() with base 10: {value!r}")
        raise RuntimeError(f"{name}: failed to process environment variable") from reason


def file_of(settings: PluginSettings) -> str | None:
    """Read the bucket file; one that is not there stops the server."""
    return Path(settings.from_file).read_text(encoding="utf-8") if settings.strategy == "file" else None


WANTED_SKIP = "If you want to skip warmup, set VLLM_SKIP_WARMUP=true"
# What the project's refusals say, and what the vendor's code has in their place.
DEATHS: tuple[tuple[str, type[Exception], str], ...] = (
    (
        "is not a multiple of mamba_chunk_size",
        ValueError,
        "max_num_batched_tokens must be divisible by mamba_chunk_size",
    ),
    ("names a missing file", FileNotFoundError, "[Errno 2] No such file or directory: {value!r}"),
    ("no prompt bucket is", RuntimeError, f"Generated 0 prompt {NONE_LEFT}"),
    ("no decode bucket has", RuntimeError, f"Generated 0 decode {NONE_LEFT}"),
    ("has no line of a ", ValueError, "max() arg is an empty sequence"),
    ("leaves no value", ValueError, "max() arg is an empty sequence"),
    ("is not a step", ValueError, "range() arg 3 must not be zero"),
    ("is above ", AssertionError, f"Min. batch size cannot be greater than max. batch size. {WANTED_SKIP}"),
    ("is not from 0 to 50 percent", AssertionError, "pad_percent must be between 0 and 50 percentage points: {value}"),
    ("is below 1", AssertionError, "bucket_step must be positive, got: ({value})"),
)


def as_the_server_dies(problem: InputError) -> Exception:
    """Return the exception that the vendor's code has for an input, told from the project's refusal of it."""
    key, value, why = problem.finding or ("", None, "")
    if key.startswith("file, line"):
        return as_a_line_ends_it(str(value), why)
    found = ((kind, text) for words, kind, text in DEATHS if words in why)
    kind, text = next(found, (ValueError, str(problem)))
    return kind(text.replace("{value}", str(value)).replace("{value!r}", repr(value)))


def as_a_line_ends_it(line: str, why: str) -> Exception:
    """Return what a line of a bucket file ends the server with; the plugin means to skip some, and fails at that."""
    if "instead of a number" not in why:
        return AttributeError("'functools._lru_cache_wrapper' object has no attribute 'warning'")
    if why.startswith(("has [", "has (")):
        return TypeError("int() argument must be a string, a bytes-like object or a real number, not 'tuple'")
    return ValueError(f"invalid literal for int() with base 10: {line}")


class Plugin:
    """A server's buckets, from its start to its end."""

    def __init__(self, options: Namespace, known: Model) -> None:
        """Make the buckets.

        Raises:
            Exception: as the vendor's code has it.
        """
        self.options, self.known = options, known
        self.settings = settings = settings_of()
        config = config_of(options)
        speculative = options.speculative_config if isinstance(options.speculative_config, dict) else {}
        chunk = int(config.get("mamba_chunk_size") or 0)
        self.lock, self.prepared, self.seen = threading.Lock(), set[Bucket](), set[tuple[str, Bucket]]()
        say(f"{RUNNER}:1524", "Bucketing is ON." if settings.enabled else "Bucketing is OFF.")
        given = PluginInput(
            max_num_seqs=known.max_num_seqs,
            max_num_prefill_seqs=settings.prefill_seqs(known.max_num_seqs),
            block_size=options.block_size,
            max_num_batched_tokens=known.max_num_batched_tokens,
            max_model_len=known.max_model_len,
            num_hpu_blocks=known.blocks,
            settings=settings,
            num_speculative_tokens=int(speculative.get("num_speculative_tokens", 0)),
            mamba_chunk_size=chunk,
            mamba_chunk_size_is_explicit=bool(chunk),
            vllm_version=VERSION,
        )
        self.given = replace(given, file=file_of(settings))
        try:
            self.buckets = plugin_buckets(self.given)
        except InputError as problem:
            raise as_the_server_dies(problem) from None
        self.server = PluginServer(self.given, self.buckets)

    def generated(self) -> Iterator[tuple[str, list[Bucket]]]:
        """Give the phases in the order of their warm-up, with all their buckets."""
        found: PluginBuckets = self.buckets
        yield "Prompt", list(found.prompt)
        yield "Decode", list(found.decode)

    def warm_up(self, fault: str) -> None:
        """Compile every graph, from the last to the first, telling each as the plugin does."""
        if not self.settings.enabled:
            for phase in ("prompt", "decode"):
                say(f"{BUCKETING}:191", f"Bucketing is off - skipping {phase} buckets generation")
        for phase, buckets in self.generated() if self.settings.enabled else ():
            self.tell_omitted(phase.lower(), set(buckets))
            text = f"Generated {len(buckets)} {phase.lower()} buckets [bs, query, num_blocks]: {buckets}"
            say(f"{BUCKETING}:253", text)
        if told("VLLM_SKIP_WARMUP"):
            say(f"{RUNNER}:6219", "Skipping warmup...")
            return
        start = time.monotonic()
        if not self.options.enforce_eager:
            self.warm_sampler()
            cache = RecipeCache()
            for phase, buckets in self.generated():
                self.warm_phase(phase, buckets, cache, fault)
                say(f"{RUNNER}:5222", f"Graph/{phase} captured:{len(buckets)} used_mem:1.5 GiB")
        took = time.monotonic() - start
        say(f"{RUNNER}:6308", f"Warmup finished in {took:.0f} secs, allocated 1.5 GiB of device memory")

    def tell_omitted(self, phase: str, kept: set[Bucket]) -> None:
        """Say what the limits drop from a bucket file; a decode bucket that they cut down is none of it."""
        if self.given.file is None:
            return
        prompt, decode = file_buckets(self.given.file)
        cut = not self.settings.use_contiguous_pa
        dropped = set(prompt) - kept if phase == "prompt" else {one for one in decode if cut and one[0] > one[2]}
        if dropped:
            file = "custom bucketing file (VLLM_BUCKETING_FROM_FILE) were omitted during warmup:"
            say(f"{BUCKETING}:522", f"The following {phase} buckets from {file}", "WARNING")
        for bucket in sorted(dropped):
            say(f"{BUCKETING}:526", f"  {bucket}", "WARNING")

    def warm_sampler(self) -> None:
        """Tell what comes before the graphs."""
        batches = sorted({batch for batch, _, _ in self.buckets.decode})
        say(f"{RUNNER}:5369", f"Warming up sampler with batch sizes: {batches} and following configs:")
        say(f"{RUNNER}:5372", "Starting sampler warmup...")
        say(f"{RUNNER}:5464", "Sampler warmup completed successfully")

    def warm_phase(self, phase: str, buckets: list[Bucket], cache: RecipeCache, fault: str) -> None:
        """Compile the graphs of a phase.

        A line for each is for developers alone. All others see a bar, redrawn on one line that ends with the phase.
        """
        seconds, total = float(os.environ.get("STANDIN_STEP_S", "0.002")), len(buckets)
        asked = max((blocks for _, _, blocks in buckets), default=0)
        dies = phase == "Decode" and self.settings.strategy == "exp" and not self.settings.use_contiguous_pa
        with Bar(f"{phase} warmup processing: ", total) as bar:
            for index, bucket in enumerate(reversed(buckets)):
                batch, query, blocks = bucket
                if told("VLLM_DEVELOPER_MODE"):
                    shape = f"batch_size:{batch} query_len:{query} num_blocks:{blocks}"
                    bar.write(f"[Warmup][{phase}][{index + 1}/{total}] {shape} free_mem:30.1 GiB")
                if fault and index >= min(3, total - 1):
                    fail(fault)
                if dies and asked > MOST_TIMES * self.known.blocks:
                    raise RuntimeError("[Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::8388608")
                cache.compile(phase, bucket, seconds)
                self.seen.add((phase.lower(), bucket))
                bar.done(f"{index}/{total}")

    def step(self, prompt: int, generated: int, running: int) -> None:
        """Run a request's steps, saying of each shape that was not warmed up that it is compiled now.

        Args:
            prompt: its tokens.
            generated: tokens of its answer.
            running: sequences of a decode step; the others are taken to be like this one.
        """
        most, block = self.known.max_num_batched_tokens, self.options.block_size
        with self.lock:
            for start in range(0, prompt, most):
                self.look_up("prompt", 1, min(most, prompt - start), start // block)
            for tokens in sorted({prompt + 1, prompt + max(1, generated)}):
                self.look_up("decode", running, 1, running * -(-(tokens + 1) // block))

    def look_up(self, phase: str, batch: int, query: int, blocks: int) -> None:
        """Pad one step to its bucket."""
        found = self.server.prompt(batch, query, blocks) if phase == "prompt" else self.server.decode(batch, blocks)
        bucket = found.bucket
        if self.settings.enabled and not found.warmed and bucket not in self.prepared:
            self.prepared.add(bucket)
            wanted = f"{phase.capitalize()} bucket for {(batch, query, blocks)} was not prepared."
            say(f"{BUCKETING}:{288 if phase == 'prompt' else 314}", f"{wanted} Adding new bucket: {bucket}", "WARNING")
        if (phase, bucket) not in self.seen:
            self.seen.add((phase, bucket))
            say(f"{RUNNER}:3588", f"Configuration: {(phase, *bucket)} was not warmed-up!", "WARNING")
            time.sleep(float(os.environ.get("STANDIN_STEP_S", "0.002")))


class Bar:
    """A bar of tqdm's on standard error, where nobody sees a terminal: each state follows a carriage return."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total, self.count, self.start = title, total, 0, time.monotonic()
        self.postfix, self.hidden = "", bool(os.environ.get("TQDM_DISABLE"))

    def __enter__(self) -> Bar:
        self.draw()
        return self

    def __exit__(self, *_: object) -> None:
        self.draw("\n")

    def write(self, text: str) -> None:
        """Write a line beside the bar: to standard output, which keeps it back unless Python is told not to."""
        if not self.hidden:
            sys.stderr.write("\r" + " " * 60 + "\r")
        sys.stdout.write(log.head(log.CORE) + text + "\n")
        self.draw()

    def done(self, postfix: str) -> None:
        """Count one more."""
        self.postfix = f", {postfix}"
        self.draw()
        self.count += 1
        self.draw()

    def draw(self, end: str = "") -> None:
        """Draw the bar again."""
        if self.hidden:
            return
        share = self.count / self.total if self.total else 0
        full, part = divmod(int(share * 80), 8)
        bar = ("█" * full + (" ▏▎▍▌▋▊▉"[part] if full < 10 else "")).ljust(10)
        took = int(time.monotonic() - self.start)
        clock = f"{took // 60:02d}:{took % 60:02d}"
        text = f"\r{self.title}{share:4.0%}|{bar}| {self.count}/{self.total} [{clock}<?, ?item/s{self.postfix}]{end}"
        sys.stderr.write(text)
        sys.stderr.flush()


def start(options: Namespace, known: Model, taken: list[int], fault: str) -> Plugin:
    """Bring the engine up on its cards and return its buckets.

    Raises:
        Exception: as the vendor's code has it.
    """
    refuse_measurements(cards.device())
    if options.dtype in ("half", "float16", "float", "float32"):
        word = "float16" if options.dtype in ("half", "float16") else "float32"
        say(
            "platform.py:230",
            f"The HPU backend currently does not support torch.{word}. Using bfloat16 instead.",
            "WARNING",
        )
    if told("VLLM_CONTIGUOUS_PA"):
        say("platform.py:242", "Using Contiguous PA, disabling prefix caching", "WARNING")
    settings_of()
    memory_needed(known, options.block_size, block_bytes(config_of(options), options))
    say("parallel_state.py:1200", f"world_size={len(taken)} acquired HPU device(s), indices {taken}")
    share = known.weights_gib / options.tensor_parallel_size
    say(f"{RUNNER}:4796", f"Starting to load model {options.model}...")
    say(f"{RUNNER}:4814", f"Loading model weights took {share:.4f} GB")
    say(f"{WORKER}:404", f"Model profiling run took {share:.2f} GiB of device memory")
    free = cards.memory_gib() - share
    usable = free * options.gpu_memory_utilization
    say(f"{WORKER}:432", f"Free device memory: {free:.2f} GiB, {usable:.2f} GiB usable")
    shown = f"Usable num_blocks: {known.blocks}, actual allocated num_blocks (max across layers): {known.blocks + 1}"
    say(f"{WORKER}:546", f"{shown} (_PAD_BLOCK_ID={known.blocks}, _PAD_SLOT_ID={known.blocks * options.block_size})")
    plugin = Plugin(options, known)
    plugin.warm_up(fault)
    return plugin


def refuse_measurements(device: str) -> None:
    """Refuse measurements of INC that are not there, or were made on the other generation of cards."""
    path = os.environ.get("QUANT_CONFIG")
    if not path:
        return
    measured = json.loads(Path(path).read_text(encoding="utf-8")).get("dump_stats_path", "")
    here = "3" if device.startswith("HL-3") else "2"
    made = set(re.findall(r"(?:^|[_\W])(?:g|gaudi)([23])(?=[_\W]|$)", f"{path} {measured}", re.IGNORECASE))
    if made and here not in made:
        raise RuntimeError(f"measurements in {measured} were not made on this device, which is gaudi{here}")


def memory_needed(known: Model, block_size: int, block_bytes: int) -> None:
    """Refuse a KV cache that does not hold one sequence."""
    needed = -(-known.max_model_len // block_size)
    if needed > known.blocks:
        raise ValueError(
            f"To serve at least one request with the models's max seq len ({known.max_model_len}), "
            f"({needed * block_bytes / GIB:.2f} GiB KV cache is needed, which is larger than the available KV cache "
            f"memory ({known.blocks * block_bytes / GIB:.2f} GiB). Try increasing `gpu_memory_utilization` or "
            "decreasing `max_model_len` when initializing the engine."
        )
