"""Several models in one process: the options of each, and what each can do; the fork of release 1.22 alone has it."""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import Any

from . import log

PLACE = "mm_arg_utils.py:120"
WHOLE = {"max_model_len", "tensor_parallel_size", "max_num_seqs", "max_num_batched_tokens", "block_size"}
NUMBERS = {"gpu_memory_utilization", "swap_space", "cpu_offload_gb"}
FLAGS = {"enforce_eager", "trust_remote_code", "enable_prefix_caching"}
DOCUMENTS = {"hf_overrides", "override_generation_config"}
POOLING_TOKENS = 32768


def each(options: argparse.Namespace) -> list[argparse.Namespace]:
    """Return the options of every model; what a parameter of one has that is none, is logged and left out."""
    params: dict[str, dict[str, Any]] = {}
    for text in options.model_param or []:
        name, colon, rest = text.partition(":")
        key, sign, value = rest.partition("=")
        if not colon or not sign:
            log.write("WARNING", PLACE, f"Invalid model parameter format: {text}")
            continue
        params.setdefault(name.strip(), {})[key.strip()] = converted(key.strip(), value.strip())
    return [of_one(options, model, params.get(model, {})) for model in options.models]


def converted(key: str, value: str) -> Any:
    """Return a value in its own type; one that does not fit stays a text, on which the server ends later."""
    try:
        if key in FLAGS:
            return value.lower() in ("true", "1", "yes", "on")
        if key in DOCUMENTS:
            return json.loads(value)
        return int(value) if key in WHOLE else float(value) if key in NUMBERS else value
    except ValueError:
        return value


def of_one(options: argparse.Namespace, model: str, params: dict[str, Any]) -> argparse.Namespace:
    """Return the options of one model, whose name is its path and whose tokenizer is its own."""
    one = copy.copy(options)
    one.model = one.tokenizer = model
    one.served_model_name = [model]
    for key, value in params.items():
        if hasattr(one, key):
            setattr(one, key, value)
        else:
            log.write("WARNING", PLACE, f"  Unknown parameter {key} for model {model}")
    one.task = one.task if one.task not in (None, "auto") else task_of(one)
    if one.task != "generate":
        one.max_num_batched_tokens = one.max_num_batched_tokens or max(one.max_model_len or 0, POOLING_TOKENS)
    return one


def task_of(options: argparse.Namespace) -> str:
    """Return what a model is for, by its architecture."""
    path = Path(options.model, "config.json")
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    names = {**config, **(options.hf_overrides or {})}.get("architectures") or [""]
    if names[0].endswith("ForSequenceClassification"):
        return "score"
    return "generate" if names[0].endswith(("ForCausalLM", "ForConditionalGeneration")) else "embed"
