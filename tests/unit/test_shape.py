"""What config.json has of a model, and what it forbids."""

from __future__ import annotations

from typing import Any

import pytest
from gaudi_serve.memory.fit import quantised_at_load
from gaudi_serve.memory.shape import memory_names, shape_problems
from gaudi_serve.model.architecture import Architecture
from gaudi_serve.model.config_json import text_config
from gaudi_serve.model.spec import Spec

of = Architecture.of

DENSE = {
    "num_hidden_layers": 64,
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
}
AWQ = {**DENSE, "quantization_config": {"quant_method": "awq", "group_size": 128, "bits": 4}}


def problems(config: dict[str, Any], even_heads: bool = True, **spec: Any) -> list[str]:
    """Return the sentences about a requested model."""
    return [
        f"{key} {value}: {text}"
        for key, value, text in shape_problems(
            {"launch_profile": "aice_1_21", **spec}, of(config), even_heads=even_heads
        )
    ]


def test_the_text_model_is_found_inside_a_multimodal_one() -> None:
    config = {"thinker_config": {"text_config": DENSE}, "quantization_config": {"x": 1}}
    assert text_config(config)["num_hidden_layers"] == 64
    assert text_config({"vision_config": {}}) == {"vision_config": {}}
    names = memory_names(of(config))
    assert names and names["NUM_KEY_VALUE_HEADS"] == 8
    assert memory_names(of({"num_hidden_layers": 2})) is None
    without = {key: value for key, value in DENSE.items() if key != "num_key_value_heads"}
    found = memory_names(of(without))
    assert found and found["NUM_KEY_VALUE_HEADS"] == 40


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        (None, 32768),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"type": "linear", "factor": 2}, 65536),
        ({"rope_type": "llama3", "factor": 8.0}, 32768),
        ({"type": "mrope", "mrope_section": [16, 24, 24]}, 32768),
        ({"rope_type": "yarn", "factor": "4"}, 32768),
        # What cannot be is refused; until then nothing may fail by it.
        ({"rope_type": "yarn", "factor": float("inf")}, 32768),
        ({"rope_type": "linear", "factor": -2}, 32768),
    ],
)
def test_the_longest_context_counts_rope_scaling(rope: Any, longest: int) -> None:
    assert of({**DENSE, "rope_scaling": rope}).context == longest
    assert of({}).context is None


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({}, 0),
        ({"full_attention_interval": 4}, 48),
        ({"layer_types": ["mamba"] * 60 + ["attention"] * 4}, 60),
        ({"layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 16}, 48),
        # A window's cache is kept whole by the plugin.
        ({"layer_types": ["sliding_attention", "full_attention"] * 32}, 0),
        ({"layer_types": "mamba", "full_attention_interval": "4"}, 0),
    ],
)
def test_layers_that_keep_a_state_in_place_of_a_cache(more: dict[str, Any], count: int) -> None:
    assert of({**DENSE, **more}).stateful_layers == count


def test_experts_are_known_by_all_of_their_names() -> None:
    assert not of(DENSE).experts
    for key in ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"):
        assert of({**DENSE, key: 64}).experts
    # ERNIE's for words, and those for pictures.
    assert of({**DENSE, "moe_num_experts": [64, 64]}).experts


def test_the_chunks_of_a_hybrid_are_known_also_inside_a_multimodal_one() -> None:
    assert (of(DENSE).mamba_chunk, of({**DENSE, "mamba_chunk_size": 256}).mamba_chunk) == (0, 256)
    assert of({"text_config": {**DENSE, "chunk_size": 64}}).mamba_chunk == 64


@pytest.mark.parametrize("told", [{}, {"num_local_experts": "32"}, {"num_local_experts": [32]}, {"num_experts": 32}])
def test_experts_that_cannot_be_counted_are_all_of_the_weights(told: dict[str, Any]) -> None:
    figures = {**DENSE, "num_hidden_layers": 24, "hidden_size": 2880, "intermediate_size": 2880}
    assert of({**figures, "num_local_experts": 32}).dequantised_bytes(13_761_264_768) == 28_068_249_600
    assert of({**figures, **told}).dequantised_bytes(17_000) == 47_000


@pytest.mark.parametrize("outside", [{}, {"quantization_config": None}])
def test_what_a_nested_text_model_reports_of_its_weights_counts(outside: dict[str, Any]) -> None:
    inner = {**DENSE, "torch_dtype": "float32", "quantization_config": {"quant_method": "fp8"}}
    model = of({"text_config": inner, **outside})
    assert (model.dtype, model.precision) == ("float32", "fp8")
    # Weights that are FP8 already are not halved again.
    wanted = Spec({"name": "m", "weights": "/m", "dtype": "fp8", "launch_profile": "aice_1_21"})
    assert not quantised_at_load(wanted, model)
    assert quantised_at_load(wanted, of({"text_config": DENSE, **outside}))


def test_cards_must_divide_heads_and_not_exceed_kv_heads() -> None:
    assert problems(DENSE, tensor_parallel_size=6) == [
        "tensor_parallel_size 6: does not divide the 40 attention heads; possible: [1, 2, 4, 8]"
    ]
    assert problems(DENSE, tensor_parallel_size=10) == [
        "tensor_parallel_size 10: is above the model's 8 key-value heads"
    ]
    assert problems(DENSE, tensor_parallel_size=5) == [
        "tensor_parallel_size 5: cards do not share the model's 8 key-value heads evenly; possible: [1, 2, 4, 8]"
    ]
    # Without Gaudi, and with the plugin, vLLM copies the heads, where each card has one then.
    few = {**DENSE, "num_key_value_heads": 4}
    assert problems(few, tensor_parallel_size=8) == ["tensor_parallel_size 8: is above the model's 4 key-value heads"]
    assert problems(few, even_heads=False, tensor_parallel_size=8) == []
    assert problems(few, tensor_parallel_size=8, launch_profile="plugin") == []
    assert problems(DENSE, tensor_parallel_size=10, launch_profile="plugin") == [
        "tensor_parallel_size 10: cards do not share the model's 8 key-value heads evenly; possible: [1, 2, 4, 8]"
    ]
    assert problems({}, tensor_parallel_size=7, max_model_len=10**6) == []


def test_quantised_weights_must_split_into_whole_groups() -> None:
    assert problems(AWQ, tensor_parallel_size=4) == []
    assert problems({**AWQ, "intermediate_size": 29568}, tensor_parallel_size=2) == [
        "tensor_parallel_size 2: does not split the quantised weights evenly: intermediate_size 29568 over 2 cards "
        "gives no complete groups of 128; possible: [1]"
    ]
    assert problems({**AWQ, "head_dim": 72}, tensor_parallel_size=8, max_model_len=5) == [
        "tensor_parallel_size 8: does not split the quantised weights evenly: num_attention_heads * head_dim 2880 "
        "over 8 cards gives no complete groups of 128; possible: [1]"
    ]


def test_experts_are_split_only_without_expert_parallelism() -> None:
    moe = {
        **DENSE,
        "intermediate_size": None,
        "moe_intermediate_size": 2560,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    assert problems(moe, tensor_parallel_size=8) == []
    assert problems(moe, tensor_parallel_size=8, launch_profile="vllm", enable_expert_parallel=True) == []
    assert "moe_intermediate_size 2560" in problems(moe, tensor_parallel_size=8, launch_profile="vllm")[0]


def test_a_model_whose_layers_all_have_experts_reports_their_width_by_the_other_name() -> None:
    every = {
        **DENSE,
        "intermediate_size": 1536,
        "num_local_experts": 256,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    assert problems(every, tensor_parallel_size=8, launch_profile="plugin", enable_expert_parallel=True) == []
    assert "intermediate_size 1536 over 8" in problems(every, tensor_parallel_size=8, launch_profile="plugin")[0]


def test_weights_without_groups_split_as_they_like() -> None:
    for quantization in (None, "awq", {"group_size": -1}, {"quant_method": "fp8"}):
        assert (
            problems({**DENSE, "intermediate_size": 27649, "quantization_config": quantization}, tensor_parallel_size=8)
            == []
        )


def test_context_beyond_the_model() -> None:
    assert problems(DENSE, max_model_len=40000) == [
        "max_model_len 40000: is above 32768, the model's longest context (max_position_embeddings)"
    ]
