"""How long a warm-up takes, and which requests it leaves out."""

from __future__ import annotations

from typing import Any

import pytest
from gaudi_serve.buckets.base import BucketCounts
from gaudi_serve.buckets.linear import BucketRanges, bucket_counts
from gaudi_serve.buckets.script_ranges import bucket_ranges
from gaudi_serve.buckets.vision import vision_layers
from gaudi_serve.buckets.warmup import (
    coverage_warnings,
    likely_layers,
    plugin_warmup_seconds,
    seconds_per_graph,
    warmup_seconds,
)
from gaudi_serve.engines.aice_1_21 import LAUNCH_DEFAULTS
from gaudi_serve.engines.deepseek_r1 import DEFAULTS
from gaudi_serve.model.architecture import Architecture
from gaudi_serve.model.host import Host
from gaudi_serve.model.spec import Spec
from gaudi_serve.plan.cost import start_timeout
from gaudi_serve.plan.launch import launched, vllm_launch
from helpers.plans import gaudi_host


def warned(**spec: Any) -> list[str]:
    """Return what a launch leaves out."""
    full = Spec({**LAUNCH_DEFAULTS, **spec})
    return coverage_warnings(full, bucket_ranges(full))


def test_the_measured_warmups_are_met() -> None:
    # 72 graphs of an 8B model; the manual's Qwen2-72B on four cards; DeepSeek-R1 on eight.
    assert warmup_seconds(72, 32, 1, "bfloat16") == (49, 20)
    manual = {"input_range": [800, 1024], "output_range": [400, 512], "max_num_seqs": 128}
    ranges = bucket_ranges(Spec({**LAUNCH_DEFAULTS, **manual, "max_num_batched_tokens": 8192}))
    counts = bucket_counts(ranges, 8192, ranges.decode_block[2])
    assert counts.prompt + counts.decode == 271
    assert warmup_seconds(271, 80, 4, "bfloat16")[0] == pytest.approx(600, rel=0.02)
    found = launched(
        Spec({**DEFAULTS, "weights": "/r1", "launch_profile": "deepseek_r1"}), Host.of(gaudi_host())
    ).buckets
    assert isinstance(found, BucketRanges)
    assert bucket_counts(found, 16384, 16384) == BucketCounts(32, 608, 0, True)
    assert warmup_seconds(4 * 640, 61, 8, "fp8")[0] == pytest.approx(3600, rel=0.02)


def test_the_figures_of_the_plugins_pages_are_met() -> None:
    graphs = round(66 / seconds_per_graph(32, 1))
    assert plugin_warmup_seconds(graphs, 32, 1, "bfloat16") == (pytest.approx(66, abs=1), pytest.approx(23, abs=1))
    assert plugin_warmup_seconds(graphs, 32, 1, "fp8") == (pytest.approx(504, abs=6), pytest.approx(34, abs=1))
    # Llama 4 Maverick on eight cards: 126 decode buckets in 29 minutes, 49 in 11.
    assert plugin_warmup_seconds(126, 48, 8, "bfloat16", experts=True)[0] == pytest.approx(29 * 60, rel=0.03)
    assert plugin_warmup_seconds(49, 48, 8, "bfloat16", experts=True)[0] == pytest.approx(11 * 60, rel=0.06)


@pytest.mark.parametrize(
    ("measured", "graphs", "depth", "more"),
    [
        # Qwen3-VL-32B-FP8 on one Gaudi2 (vllm-gaudi#1182): 362 of 634 s are 35 graphs for pictures, of 27 layers.
        (634, 180, 64, {"vision_layers": 35 * 27}),
        # Qwen3-VL-30B-A3B (#1068), before and since experts are kept; Qwen3.5's mixture (#1602).
        (3000, 240, 48, {"experts": True, "vision_layers": 35 * 27}),
        (500, 240, 48, {"experts": True, "keeps_experts": True, "vision_layers": 35 * 27}),
        (948, 231, 40, {"experts": True, "keeps_experts": True}),
        (988, 231, 40, {"experts": True, "keeps_experts": True}),
    ],
)
def test_warmups_measured_with_pictures_and_experts_are_met_by_half_to_double(
    measured: int, graphs: int, depth: int, more: dict[str, Any]
) -> None:
    seconds, _ = plugin_warmup_seconds(graphs, depth, 1, "bfloat16", **more)
    assert measured / 2 <= seconds <= measured * 2
    if measured == 634:
        assert seconds == pytest.approx(634, rel=0.1)


@pytest.mark.parametrize(
    ("kind", "version", "more", "graphs"),
    [
        ("qwen3_vl", "0.26.0", {}, 35),
        ("qwen3_vl_moe", "0.16.0", {}, 35),
        ("qwen2_5_vl", "0.13.0", {}, 7),
        ("mistral3", "0.24.0", {}, 70),
        ("gemma3", "0.24.0", {}, 4),
        ("qwen3_5_moe", "0.24.0", {}, 35),
        ("qwen3_5_moe", "0.26.0", {}, 0),
        ("gemma4", "0.26.0", {}, 0),
        (None, "0.26.0", {}, 35),
        ("qwen3_vl", "0.26.0", {"env": {"VLLM_MULTIMODAL_BUCKETS": "None"}}, 0),
        ("qwen3_vl", "0.26.0", {"env": {"VLLM_MULTIMODAL_BUCKETS": "196,900"}}, 10),
        ("qwen3_vl", "0.26.0", {"limit_mm_per_prompt": {"image": 0}}, 0),
    ],
)
def test_graphs_for_pictures_are_the_sizes_that_the_plugin_guesses(
    kind: str | None, version: str, more: dict[str, Any], graphs: int
) -> None:
    config = {"model_type": kind, "text_config": {"num_hidden_layers": 9}, "vision_config": {"depth": 3}}
    assert vision_layers(more, Architecture.of(config), version) == 3 * graphs
    assert vision_layers(more, Architecture.of({"model_type": kind, "num_hidden_layers": 9}), version) == 0
    assert vision_layers({"smoke": ["image"], **more}, Architecture.of({"model_type": kind}), version) == 27 * graphs


def test_layers_are_guessed_from_the_size() -> None:
    assert likely_layers(8e9) == pytest.approx(32)
    assert likely_layers(72e9) == pytest.approx(80, rel=0.01)


def test_a_start_may_take_four_warmups() -> None:
    assert start_timeout(600, 144_000_000_000) == 600 + 2400 + 720


def test_ranges_that_cover_everything_warn_of_nothing() -> None:
    assert warned(input_range=[100, 1920], output_range=[10, 128], max_model_len=2048) == []


@pytest.mark.parametrize(
    ("spec", "warning"),
    [
        (
            {"input_range": [4, 4096], "max_num_batched_tokens": 2000},
            "prompts of 1921 to 4096 tokens, within input_range, compile while serving",
        ),
        (
            {"input_range": [4, 1000], "output_range": [4, 100], "max_model_len": 8192},
            "max_model_len 8192 allows prompts beyond input_range: those above 1152 tokens compile while serving",
        ),
        (
            {"input_range": [4, 16384], "reduce_warmup": {"max_num_seqs": 8, "max_seq_len": 3000}},
            "prompts of 2945 to 16384 tokens, within input_range, compile while serving",
        ),
        (
            {"reduce_warmup": {"max_num_seqs": 8, "max_seq_len": 2048}},
            "more than 8 requests at a time, of max_num_seqs 32, compile while serving",
        ),
        (
            {"reduce_warmup": {"max_num_seqs": 8, "max_seq_len": 2048}},
            "decode steps above 256 blocks of 128 tokens, of 1152, compile while serving",
        ),
        (
            {"max_num_seqs": 140, "input_range": [4, 1024]},
            "127 to 128 short requests at a time have more padded sequences than KV blocks: "
            "such buckets are not warmed and compile while serving",
        ),
        (
            {"skip_warmup": True},
            "skip_warmup: every shape compiles at its first request, unless the recipe cache has it",
        ),
    ],
)
def test_what_no_bucket_covers_is_reported(spec: dict[str, Any], warning: str) -> None:
    assert warning in warned(**spec)


def test_the_vendors_silences_are_warnings_of_the_launch() -> None:
    host = gaudi_host()
    spec = {"weights": "/m", "tensor_parallel_size": 2, "module_ids": [3, 4], "max_model_len": 1000}
    launch = vllm_launch({**spec, "reduce_warmup": {"max_num_seqs": 8, "max_seq_len": 3000}}, host)
    assert launch["numactl"] is None
    for part in (
        "max_model_len 1000 is below 18432, the sum of the input and output maxima",
        "reduce_warmup.max_seq_len 3000 is not a multiple of 128: lengths from 2945 to 3000 compile while serving",
        "cards [3, 4] are on NUMA nodes [0, 1]: no core binding, slower transfers",
    ):
        assert any(part in warning for warning in launch["warnings"]), launch["warnings"]
