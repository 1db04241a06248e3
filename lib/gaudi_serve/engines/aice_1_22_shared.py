"""Engine ``aice_1_22_shared``: the vendor's fork, branch aice/v1.22.0, with several small models on one card.

One process (``mm_api_server``) loads all models one after the other and serves them on one port. It was added to the
branch on 2025-09-25, and values for a single model (``--model-param``) on 2025-11-06; no tagged release has it.

Relevant facts from its source:

- A model's name for clients is the text in ``--models``; ``--served-model-name`` has no effect. The text is the path of
  a folder, which may be relative. So each folder is mounted under its model's name below one folder, in which the
  server starts.
- Each model's own tokenizer replaces ``--tokenizer``.
- Each model gets its share of the memory that is free when the server loads it, after the models before it.
- All models use the buckets of the common environment. A model for vectors or scores has no decode steps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..buckets.base import BucketCounts
from ..buckets.linear import BucketRanges
from ..buckets.warmup import SKIPPED
from ..core.errors import Problem
from ..model.shared import SHARED, key_of
from ..model.spec import size_key
from .aice import cards_of, model_name, node_warnings
from .base import Engine, Host, Launch, Spec
from .linear import JOURNAL, OF_AICE_1_22, OF_BUCKETS, PROGRESS, refuse_buckets
from .quantisations import OF_FORK

FOLDER = "/models"
DTYPES = ("bfloat16", "float32")
DEFAULTS: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 30001,
    "dtype": "bfloat16",
    "tensor_parallel_size": 1,
    "max_model_len": 512,  # Every model of the vendor's list supports this.
    "skip_warmup": False,
}
MOST_MEMORY = 0.9  # Part of the card for all models together. It is the share of a single model on this branch.
PROMPTS = 8  # The most prompts in one step for which shapes are warmed up.
POOLING_TOKENS = 32768  # Tokens in one step of a model that generates nothing.
# The vendor's guide serves gte and bge models below a billion parameters without lazy mode.
SMALL, LARGE = re.compile(r"\b(gte|bge)\b"), re.compile(r"qwen|gemma|minicpm|icl|\d+(\.\d+)?b\b")
TASKS = ("embed", "embedding", "score")  # The fork also calls embed "embedding".
PRECISION = "their precision is dtype"
LEFT_OUT = {
    "tokenizer": "this server uses each model's own",
    **dict.fromkeys(("quantization", "kv_cache_dtype"), PRECISION),
    **dict.fromkeys(("convert", "runner"), "set task of each model"),
    "speculative_config": "they generate nothing",
}
# Keys that the server accepts for single models.
PER_MODEL = ("max_model_len", "gpu_memory_utilization", "task", "hf_overrides")


@dataclass(frozen=True)
class SharedRanges(BucketRanges):
    """Bucket ranges with which each of several models warms up its prompts. There are no decode buckets."""

    models: int = 1

    def changed_by(self, env: Mapping[str, str]) -> SharedRanges:
        """Return the ranges with the changes of a user's environment."""
        found = super().changed_by(env)
        return self.of_ranges(found, self.models)

    def counts(self, max_num_batched_tokens: int, num_hpu_blocks: int | None) -> BucketCounts:
        """Return the number of graphs that a start warms up."""
        one = super().counts(max_num_batched_tokens, num_hpu_blocks)
        return BucketCounts(self.models * one.prompt, 0, self.models * one.omitted)

    @classmethod
    def of_ranges(cls, ranges: BucketRanges, models: int) -> SharedRanges:
        """Return the same ranges for several models."""
        return cls(ranges.prompt_bs, ranges.prompt_seq, ranges.decode_bs, ranges.decode_block, models=models)


def share(models: int) -> float:
    """Return each model's part of a card's memory, from 0 to 1, by the vendor's rule."""
    return 7 // models / 10


def launch(spec: Spec, host: Host) -> Launch:
    """Return the launch of the vendor's guide.

    Raises:
        InputError: Cards are not free, or there are no or too many buckets.
    """
    numactl, cards = cards_of(spec, host)
    models = spec.served
    longest = max(int(one["max_model_len"]) for one in models)
    ranges = SharedRanges(
        prompt_bs=(1, 1, int(spec.get("max_num_prefill_seqs", PROMPTS))),
        prompt_seq=(1, 512, longest),
        decode_bs=(1, 1, 2),
        decode_block=(1, 1, 2),
        models=len(models),
    )
    tokens = max(longest, POOLING_TOKENS)
    refuse_buckets(spec.but(max_num_batched_tokens=tokens), ranges, _too_narrow, _too_wide)
    env = {
        "PT_HPU_LAZY_MODE": "0" if all(map(_is_small, models)) else "1",
        "VLLM_CONTIGUOUS_PA": "false",
        # Without this, the server ignores the ranges.
        "VLLM_EXPONENTIAL_BUCKETING": "false",
        "VLLM_SKIP_WARMUP": "true" if spec["skip_warmup"] else "false",
        **cards,
    }
    if spec.get("recipe_cache_path"):
        env["PT_HPU_RECIPE_CACHE_CONFIG"] = f"{spec['recipe_cache_path']},false,40960"
    warnings = [*node_warnings(spec, host), *_mixed(models), *[SKIPPED] * bool(spec["skip_warmup"])]
    return Launch(env, _arguments(spec), numactl, warnings, ranges, tokens=tokens)


def _is_small(spec: Spec) -> bool:
    name = model_name(spec).replace("_", "-")
    return bool(SMALL.search(name)) and not LARGE.search(name)


def _mixed(models: tuple[Spec, ...]) -> list[str]:
    small = [one.name for one in models if _is_small(one)]
    if not small or len(small) == len(models):
        return []
    return [
        f"{', '.join(small)}: small models of gte and bge are faster without lazy mode, but the others need it; a "
        "server has one mode, so all get lazy mode (PT_HPU_LAZY_MODE=1)"
    ]


def _arguments(spec: Spec) -> list[str]:
    args: list[Any] = ["--models", *(one.name for one in spec.served), "--host", spec["host"], "--port", spec.port]
    args += ["--device", "hpu", "--dtype", spec["dtype"]]
    args += ["--gpu-memory-utilization", spec["gpu_memory_utilization"], "--use-v2-block-manager"]
    args += ["--max-model-len", spec["max_model_len"]]
    for key in ("max_num_seqs", "max_num_prefill_seqs", "max_num_batched_tokens"):
        args += [f"--{key.replace('_', '-')}", spec[key]] if spec.get(key) else []
    for one in spec.served:
        own = [key for key in PER_MODEL if one.get(key) is not None and one[key] != _of_all(spec, key)]
        for key in own:
            args += ["--model-param", f"{one.name}:{key}={_text(one[key])}"]
    return [str(argument) for argument in args]


def _of_all(spec: Spec, key: str) -> Any:
    """Return the server's common value of a key, or None."""
    return spec[key] if key in ("max_model_len", "gpu_memory_utilization") else None


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":")) if isinstance(value, dict) else str(value)


def _too_narrow(_: Spec, dimension: str) -> tuple[str, str]:
    return "max_model_len", f"{dimension} begins at 1"


def _too_wide(_: Spec, dimension: str) -> str:
    """Return the key of a model that makes a dimension wide."""
    return "max_num_prefill_seqs" if dimension == "PROMPT_BS" else "max_model_len"


def _problems(spec: Spec) -> list[Problem]:
    problems: list[Problem] = []
    if spec.tensors != 1:
        key, value = size_key(spec)
        one = "one card" if key == "module_ids" else "1"
        problems.append((key, value, f"must be {one}: models that share a card have one card"))
    if spec["dtype"] not in DTYPES:
        problems.append(("dtype", spec["dtype"], f"must be one of {', '.join(DTYPES)} if models share a card"))
    if spec["served_model_name"] != spec.name:
        allowed = "must be left out: this server names its models after their folders, which have their names here"
        problems.append(("served_model_name", spec["served_model_name"], allowed))
    problems += [
        (key, spec[key], f"must be left out if models share a card: {why}")
        for key, why in LEFT_OUT.items()
        if spec.get(key) not in (None, "auto")
    ]
    return problems + [one for place in range(len(spec.served)) for one in _of_model(spec, place)] + _shares(spec)


def _of_model(spec: Spec, place: int) -> list[Problem]:
    """Return the problems with one model's own keys that its server does not accept."""
    one, problems = spec.served[place], []
    if one.get("task") is not None and one["task"] not in TASKS:
        allowed = "must be embed or score: this server is for models that return vectors or scores"
        problems.append((key_of(place, "task"), one["task"], allowed))
    if one.get("hf_overrides") is not None and not isinstance(one["hf_overrides"], Mapping):
        allowed = "must be a mapping of values that replace those of config.json"
        problems.append((key_of(place, "hf_overrides"), one["hf_overrides"], allowed))
    return problems


def _shares(spec: Spec) -> list[Problem]:
    """Return the problem if the models would get more than the card's memory."""
    shares = [float(one["gpu_memory_utilization"]) for one in spec.served]
    total = round(sum(shares), 4)
    if total <= MOST_MEMORY:
        return []
    # The first model with the largest share is the most likely mistake.
    place = shares.index(max(shares))
    each = ", ".join(f"{one.name} {value:g}" for one, value in zip(spec.served, shares, strict=True))
    allowed = (
        f"makes {total:g} of the card's memory for all models ({each}), and at most {MOST_MEMORY:g} is allowed; lower "
        f"it, or leave it out everywhere, and each gets {share(len(shares)):g}"
    )
    return [(key_of(place, "gpu_memory_utilization"), shares[place], allowed)]


ENGINE = Engine(
    name="aice_1_22_shared",
    platforms=("gaudi",),
    command=("env", "-C", FOLDER, "python3", "-m", "vllm.entrypoints.openai.mm_api_server"),
    loads={"gaudi": OF_FORK},
    defaults=DEFAULTS,
    launch=launch,
    reads_cards=True,
    problems=_problems,
    consumed=frozenset({"gpu_memory_utilization", "max_num_prefill_seqs", "task", "hf_overrides", SHARED}),
    ignored=("bucketing", *OF_AICE_1_22, *OF_BUCKETS),
    expert_parallel=False,
    progress=PROGRESS,
    journal=JOURNAL,
    share=share,
    folder=FOLDER,
    no_adapters="is not possible for models that share a card; give this model its own entry and card",
)
