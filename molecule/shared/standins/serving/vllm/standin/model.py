"""What vLLM finds out about a model before it loads it, and refuses."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from . import cards, stack

GIB = 2**30
# Upstream takes the values of small devices, since the plugin reports no memory.
SMALL_TOKENS, SMALL_SEQS = 2048, 256


@dataclasses.dataclass
class Model:
    """The part of a model that start and answers need."""

    path: str
    names: list[str]
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    blocks: int
    weights_gib: float
    cache_gib: float = 0.0


def load(options: argparse.Namespace) -> Model:
    """Read and check the model that the options name."""
    folder = Path(options.model)
    if not folder.is_dir():
        raise OSError(
            f"Incorrect path_or_model_id: '{options.model}'. Please provide either the path to a local folder "
            "or the repo_id of a model on the Hub."
        )
    if not (folder / "config.json").is_file():
        raise OSError(f"{options.model} does not appear to have a file named config.json.")
    config = config_of(options)
    patterns = ("*.safetensors", "*.bin", "*.pt")
    if options.load_format != "dummy" and not any(any(folder.glob(pattern)) for pattern in patterns):
        raise RuntimeError(f"Cannot find any model weights with `{options.model}`")
    check_split(config, options.tensor_parallel_size)
    length = context(config, options)
    if stack.UPSTREAM:
        batched = options.max_num_batched_tokens or SMALL_TOKENS
        seqs = options.max_num_seqs or min(SMALL_SEQS, batched)
        check_batch(length, seqs, batched, options.enable_chunked_prefill is not False)
    else:
        seqs = options.max_num_seqs or 128
        batched = options.max_num_batched_tokens or max(length, 2048)
        check_batch(length, seqs, batched, bool(options.enable_chunked_prefill))
    weights = parameters(config) * 2 / GIB
    names = options.served_model_name or [options.model]
    blocks = cache_blocks(config, options, weights)
    cache = blocks * block_bytes(config, options) / GIB
    return Model(options.model, list(names), length, seqs, batched, blocks, weights, cache)


def config_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the model's configuration."""
    found: dict[str, Any] = json.loads((Path(options.model) / "config.json").read_text(encoding="utf-8"))
    return found


def check_split(config: dict[str, int], size: int) -> None:
    """Refuse a tensor parallel size that does not divide the heads."""
    heads = int(config.get("num_attention_heads", 1))
    if heads % size:
        raise ValueError(
            f"Total number of attention heads ({heads}) must be divisible by tensor parallel size ({size})."
        )
    shares = int(config.get("num_key_value_heads", heads))
    if max(shares, size) % min(shares, size):
        raise AssertionError(f"{max(shares, size)} is not divisible by {min(shares, size)}")


def context(config: dict[str, int], options: argparse.Namespace) -> int:
    """Return the context length, and refuse one above the model's."""
    most = int(config.get("max_position_embeddings", 2048))
    wanted = options.max_model_len or most
    if wanted > most and os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") != "1":
        raise ValueError(
            f"User-specified max_model_len ({wanted}) is greater than the derived max_model_len "
            f"(max_position_embeddings={most} or model_max_length=None in model's config.json). This may lead to "
            "incorrect model outputs or CUDA errors. To allow overriding this maximum, set the env var "
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"
        )
    return int(wanted)


def check_batch(length: int, seqs: int, batched: int, chunked: bool) -> None:
    """Refuse a batch that cannot hold one sequence, or one token of each."""
    if batched < length and not chunked:
        raise ValueError(
            f"max_num_batched_tokens ({batched}) is smaller than max_model_len ({length}). This effectively limits "
            "the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences. "
            "Please increase max_num_batched_tokens or decrease max_model_len."
        )
    if batched < seqs:
        raise ValueError(f"max_num_batched_tokens ({batched}) must be greater than or equal to max_num_seqs ({seqs}).")


def parameters(config: dict[str, int]) -> int:
    """Return about how many parameters a model of this shape has."""
    hidden, layers = int(config.get("hidden_size", 1)), int(config.get("num_hidden_layers", 1))
    heads = int(config.get("num_attention_heads", 1))
    shared = hidden // heads * int(config.get("num_key_value_heads", heads))
    layer = 2 * hidden * hidden + 2 * hidden * shared + 3 * hidden * int(config.get("intermediate_size", hidden))
    return layers * layer + 2 * hidden * int(config.get("vocab_size", 1))


def block_bytes(config: dict[str, Any], options: argparse.Namespace) -> int:
    """Return the bytes of one block of the KV cache on one card."""
    heads = int(config.get("num_attention_heads", 1))
    shares = max(1, int(config.get("num_key_value_heads", heads)) // options.tensor_parallel_size)
    head = int(config.get("head_dim") or int(config.get("hidden_size", 1)) // heads)
    return 2 * int(config.get("num_hidden_layers", 1)) * head * shares * int(options.block_size) * 2


def cache_blocks(config: dict[str, Any], options: argparse.Namespace, weights_gib: float) -> int:
    """Return the blocks that fit beside the weights, and refuse weights that leave no room."""
    free = cards.memory_gib() - weights_gib / options.tensor_parallel_size
    usable = free * options.gpu_memory_utilization
    reserved = float(os.environ.get("VLLM_GRAPH_RESERVED_MEM") or 0.1)
    cache = usable * (1 - (0 if stack.PLUGIN and options.enforce_eager else reserved))
    # The plugin keeps one block for padding.
    blocks = int(cache * GIB // block_bytes(config, options)) - stack.PLUGIN
    if blocks <= 0:
        raise ValueError(
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the engine."
        )
    return blocks
