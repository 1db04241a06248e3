"""The buckets of release 1.21, and the time it takes to compile their graphs."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from . import log
from .model import Model

Bucket = tuple[int, int]
PLACE = "hpu_model_runner.py:1066"


def dimension(phase: str, name: str, default: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return minimum, step and maximum of one dimension; a minimum above the maximum is refused."""
    parts = zip(("MIN", "STEP", "MAX"), default, strict=True)
    low, step, high = (int(os.environ.get(f"VLLM_{phase}_{name}_BUCKET_{part}", value)) for part, value in parts)
    assert low <= high, (
        "Min. batch size cannot be greater than max. batch size. If you want to skip warmup, set VLLM_SKIP_WARMUP=true"
    )
    return low, step, high


def values(low: int, step: int, high: int) -> list[int]:
    """Return the values of a dimension: powers of two times the minimum, then multiples of the step."""
    found, value = [], low
    while value < step and value <= high:
        found.append(value)
        value *= 2
    found += range(step, high + 1, step)
    return [value for value in found if value >= low]


def prompt_buckets(model: Model) -> list[Bucket]:
    """Return (batch, tokens) of every prompt graph."""
    batches = values(*dimension("PROMPT", "BS", (1, 32, min(model.max_num_seqs, 64))))
    lengths = values(*dimension("PROMPT", "SEQ", (128, 128, max(128, model.max_model_len))))
    every = [(batch, length) for batch in batches for length in lengths]
    fitting = [pair for pair in every if pair[0] * pair[1] <= model.max_num_batched_tokens]
    return sorted(fitting or every, key=lambda pair: (pair[0] * pair[1], pair[1], pair[0]))


def decode_buckets(model: Model) -> list[Bucket]:
    """Return (batch, blocks) of every decode graph."""
    most = max(128, model.max_num_seqs * model.max_model_len // 128)
    batches = values(*dimension("DECODE", "BS", (1, 32, model.max_num_seqs)))
    counts = values(*dimension("DECODE", "BLOCK", (128, 128, most)))
    found: list[Bucket] = []
    for batch in batches:
        for count in counts:
            if batch > count:
                continue
            found.append((batch, min(count, model.blocks)))
            if count >= model.blocks:
                break
    return sorted(found, key=lambda pair: (pair[0] * pair[1], pair[1], pair[0]))


class RecipeCache:
    """Recipes compiled by an earlier start, one file a graph."""

    def __init__(self) -> None:
        words = os.environ.get("PT_HPU_RECIPE_CACHE_CONFIG", "").split(",")
        self.folder = Path(words[0]) if words[0] else None
        if self.folder:
            self.folder.mkdir(parents=True, exist_ok=True)
            if len(words) > 1 and words[1].lower() in ("true", "1"):
                for path in self.folder.glob("*.recipe"):
                    path.unlink()

    def compile(self, phase: str, bucket: tuple[int, ...], seconds: float) -> None:
        """Take the time of a compilation, or a tenth where the recipe is there."""
        path = self.folder / f"{phase.lower()}_{'_'.join(map(str, bucket))}.recipe" if self.folder else None
        if path and path.exists():
            time.sleep(seconds / 10)
            return
        time.sleep(seconds)
        if path:
            path.write_bytes(bytes(1024))


def warm_up(model: Model, fault: str, decodes: bool = True) -> None:
    """Compile every graph, telling each; a model that generates nothing has no decode steps."""
    prompt, decode = prompt_buckets(model), decode_buckets(model) if decodes else []
    if os.environ.get("VLLM_SKIP_WARMUP", "").lower() in ("true", "1"):
        log.info(PLACE, "Skipping warmup...")
        return
    seconds, cache, start = float(os.environ.get("STANDIN_STEP_S", "0.002")), RecipeCache(), time.monotonic()
    for phase, buckets in (("Prompt", prompt), ("Decode", decode)):
        total = len(buckets)
        for number, bucket in enumerate(reversed(buckets), 1):
            if fault and number > min(3, total - 1):
                fail(fault)
            cache.compile(phase, bucket, seconds)
            name = "seq_len" if phase == "Prompt" else "num_blocks"
            text = f"batch_size:{bucket[0]} {name}:{bucket[1]} free_mem:30.1 GiB"
            log.info(PLACE, f"[Warmup][{phase}][{number}/{total}] {text}")
    took = time.monotonic() - start
    log.info(PLACE, f"Warmup finished in {took:.0f} secs, allocated 1.5 GiB of device memory")


def fail(fault: str) -> None:
    """Do what the switched-on fault asks for in the middle of the warm-up."""
    if fault == "crash_in_warmup":
        raise RuntimeError("synStatus=26 [Generic failure] Graph compile failed.")
    if fault == "hang_in_warmup":
        threading.Event().wait()
