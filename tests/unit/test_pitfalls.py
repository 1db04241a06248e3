"""What a report of a model on Turing cards ran into, one start after the other: the plan reports each before."""

from __future__ import annotations

from typing import Any

import pytest
from gaudi_serve.plan.host import vllm_plan

# Qwen2.5-VL-72B-Instruct-AWQ as it was first published: its feed-forward width has no whole groups on two cards.
CONFIG = {
    "model_type": "qwen2_5_vl",
    "torch_dtype": "float16",
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128000,
    "vocab_size": 152064,
    "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"},
}
# Qwen2.5-VL-3B-Instruct-AWQ, with which it went on.
SMALL = {**CONFIG, "num_hidden_layers": 36, "hidden_size": 2048, "intermediate_size": 11008, "vocab_size": 151936}
SMALL |= {"num_attention_heads": 16, "num_key_value_heads": 2}


def errors(config: dict[str, Any], gib: float, **keys: Any) -> list[str]:
    """Return why a model cannot be served on eight cards of the report."""
    return [one["message"] for one in planned(config, gib, **keys)["errors"]]


def planned(config: dict[str, Any], gib: float, **keys: Any) -> dict[str, Any]:
    """Plan a model on eight cards of the report."""
    modules = [
        {"module_id": number, "index": number, "device_id": f"GPU-{number}", "name": "NVIDIA GeForce RTX 2080 Ti"}
        | {"memory_mib": 11264, "capability": "7.5", "numa_node": 0}
        for number in range(8)
    ]
    host = {"accelerator": "cuda", "device_name": "NVIDIA GeForce RTX 2080 Ti", "driver_version": "580.95.05"}
    weights = {"/data/m": {"config": config, "bytes": int(gib * 2**30)}}
    spec = {"name": "m", "weights": "/data/m", "dtype": "float16", "max_model_len": 4096, "max_num_seqs": 2}
    spec |= {"limit_mm_per_prompt": {"image": 0, "video": 0}, **keys}
    return vllm_plan([spec], {**host, "modules": modules, "weights": weights}, host_name="g", release="")


def test_the_small_model_is_served_as_in_the_report() -> None:
    assert errors(SMALL, 3.2, tensor_parallel_size=2) == []


def test_an_attention_backend_that_needs_newer_cards_is_refused() -> None:
    (text,) = errors(SMALL, 3.2, attention_backend="FLASH_ATTN")
    assert "attention_backend 'FLASH_ATTN': needs compute capability 8.0 or more" in text


@pytest.mark.parametrize("cards", [2, 4, 8])
def test_groups_of_quantised_weights_that_cards_would_split_are_refused(cards: int) -> None:
    text = " ".join(errors(CONFIG, 5.0, tensor_parallel_size=cards))
    assert f"tensor_parallel_size {cards}: " in text and "group" in text, text


def test_a_context_that_the_cache_cannot_hold_is_refused_with_what_fits() -> None:
    (text,) = errors(SMALL, 3.2, max_model_len=100_000, gpu_memory_utilization=0.5)
    assert "max_model_len 100000: needs more KV cache than" in text and "what fits: " in text


def test_weights_that_fill_a_card_are_refused_with_what_fits() -> None:
    (text,) = errors({**SMALL, "quantization_config": None}, 15.0)
    assert "GiB a card are missing; what fits: tensor_parallel_size 2" in text


def test_cards_that_do_not_divide_the_attention_heads_are_refused() -> None:
    text = " ".join(errors(SMALL, 3.2, tensor_parallel_size=6))
    assert "tensor_parallel_size 6: does not divide the 16 attention heads" in text


def test_workers_are_spawned_where_a_forked_one_could_not_use_its_card() -> None:
    several, one = (planned(SMALL, 3.2, tensor_parallel_size=cards)["models"][0] for cards in (2, 1))
    assert several["env"]["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert "VLLM_WORKER_MULTIPROC_METHOD" not in one["env"]
