"""What a plan adds to the exact launch, and the odd ends of the filters."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from gaudi_serve.buckets.linear import hpu_buckets, hpu_padded_shape
from gaudi_serve.core.errors import InputError, as_filter
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.plan.launch import vllm_launch
from helpers.plans import QWQ, gaudi_host, live_of, model, planned

ENV = {
    f"VLLM_{dimension}_BUCKET_{part}": value
    for dimension in ("PROMPT_BS", "PROMPT_SEQ", "DECODE_BS", "DECODE_BLOCK")
    for part, value in (("MIN", "1"), ("STEP", "2"), ("MAX", "4"))
}


def only(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the one model of a plan without errors."""
    assert plan["errors"] == []
    (one,) = plan["models"]
    found: dict[str, Any] = one
    return found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"VLLM_DECODE_BS_BUCKET_MAX": "many"}, "VLLM_DECODE_BS_BUCKET_MAX: 'many' is not an integer"),
        (
            {"VLLM_PROMPT_SEQ_BUCKET_MIN": "9"},
            "VLLM_PROMPT_SEQ_BUCKET_MIN: 9 is above VLLM_PROMPT_SEQ_BUCKET_MAX, which is 4",
        ),
        ({"VLLM_PROMPT_BS_BUCKET_STEP": "0"}, "VLLM_PROMPT_BS_BUCKET_STEP: '0' is not an integer from 1 to"),
    ],
)
def test_buckets_name_the_variable(change: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        hpu_buckets({**ENV, **change}, 100, 100)


def test_another_phase_is_refused() -> None:
    with pytest.raises(InputError, match="phase: 'warmup' is not one of prompt, decode"):
        hpu_padded_shape(ENV, "warmup", 1, 1, 1)


def test_a_filter_speaks_ansibles_errors() -> None:
    """Whatever a filter is given, its user sees one sentence."""
    with pytest.raises(AnsibleFilterError, match="phase: 'x' is not one of prompt, decode"):
        as_filter(hpu_padded_shape)(ENV, "x", 1, 1, 1)


def test_plain_vllm_on_several_cards_gets_what_collectives_need() -> None:
    wish = {"launch_profile": "vllm", "max_num_batched_tokens": 4096, "limit_mm_per_prompt": {"image": 5}}
    base = model(**wish)
    one = only(planned({key: value for key, value in base.items() if not key.endswith("_range")}))
    assert one["env"]["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert one["env"]["PT_HPU_ENABLE_LAZY_COLLECTIVES"] == "true"
    assert one["env"]["PT_HPU_LAZY_MODE"] == "1"
    assert one["args"][one["args"].index("--limit-mm-per-prompt") + 1] == '{"image":5}'
    assert one["memory"]["fits"]
    assert (one["graphs"], one["warmup_s"], one["warmup_cached_s"]) == (None, None, None)
    assert one["start_timeout_s"] >= 600 + 240 * 60
    assert any("graphs and warm-up are unknown" in text for text in one["warnings"])


def test_interleaved_cards_get_cores_of_their_own_and_the_plan_reports_it() -> None:
    host = gaudi_host()
    for number, module in enumerate(host["modules"]):
        module["numa_node"] = number % 2
        module["cpus"] = ["0-39"] if number % 2 == 0 else ["40-79"]
    one = only(planned(model(), modules=host["modules"]))
    assert (one["module_ids"], one["cpus"]) == ([0, 2], ["0-9", "10-19"])
    assert any(
        "cards [0, 2] get cores 0-9,10-19: the vendor's rule (0-9,20-29) would" in text for text in one["warnings"]
    )


def test_a_host_with_fewer_cores_than_cards_binds_none() -> None:
    host = gaudi_host()
    for module in host["modules"]:
        module["cpus"] = ["5"]
    one = only(planned(model(), modules=host["modules"]))
    assert (one["numactl"], one["cpus"]) == (None, None)
    assert "this host has more cards than cores on a NUMA node: no core binding" in one["warnings"]


def test_a_full_cache_is_reported_with_both_numbers() -> None:
    # Two cards hold 2,816 blocks; 64 requests of 6,144 tokens want 48 each.
    one = only(planned(model(max_num_seqs=64)))
    assert one["warnings"][-1] == (
        "the KV cache (2816 blocks) has room for 58 requests of 6144 tokens, of max_num_seqs 64: "
        "under full load the others wait or start over"
    )


def test_a_recipe_cache_can_be_taken_as_it_is() -> None:
    one = only(planned(model(recipe_cache_path="/data/c", recipe_cache_exact=True)))
    assert one["env"]["PT_HPU_RECIPE_CACHE_CONFIG"] == "/data/c,false,16384"


def test_a_skipped_warmup_takes_no_time() -> None:
    one = only(planned(model(skip_warmup=True)))
    assert (one["warmup_s"], one["warmup_cached_s"], one["env"]["VLLM_SKIP_WARMUP"]) == (0, 0, "True")


def test_the_catalog_stands_in_for_weights_that_are_not_there_yet() -> None:
    config = {"num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8}
    wish = model(weights="/data/later", config=config, weight_bytes=145_412_000_000)
    assert only(planned({**wish, "tensor_parallel_size": 4}))["memory"]["weights_gib"] == 33.9
    assert (
        "gives each card 135.4 GiB of weights" in planned({**wish, "tensor_parallel_size": 1})["errors"][0]["message"]
    )


def test_cards_that_are_not_free_are_refused_by_the_launch_itself() -> None:
    host = gaudi_host()
    host["modules"][1]["in_use"] = True
    spec = {"weights": "/data/m", "module_ids": [1], "tensor_parallel_size": 1}
    with pytest.raises(InputError, match=r"m: module_ids: \[1\] are not free; free on this host: \[0, 2,"):
        vllm_launch(spec, host)
    with pytest.raises(InputError, match=r"m: module_ids: \[0, 2\] has 2 cards, but tensor_parallel_size is 1"):
        vllm_launch({**spec, "module_ids": [0, 2]}, host)
    with pytest.raises(InputError, match="m: launch_profile: 'fast' is not one of aice_1_21, aice_1_22, "):
        vllm_launch({**spec, "launch_profile": "fast"}, host)


def test_what_is_not_known_is_reported() -> None:
    unknown = only(planned(model(weights="/data/elsewhere")))
    assert unknown["memory"] is None
    assert any("memory is not checked" in text and "config and weight_bytes" in text for text in unknown["warnings"])
    assert any("a model of 8 billion parameters" in text for text in unknown["warnings"])
    sized = only(planned(model(weights="/data/elsewhere", weight_bytes=144_000_000_000)))
    assert any("set config, or download" in text for text in sized["warnings"])
    assert any("a model of 72 billion parameters" in text for text in sized["warnings"])
    assert not any("not checked" in text for text in only(planned(model()))["warnings"])


def test_keys_without_a_use_in_the_profile_are_named() -> None:
    base = {key: value for key, value in model().items() if not key.endswith("_range")}
    one = only(planned({**base, "launch_profile": "vllm", "reduce_warmup": {"max_num_seqs": 8, "max_seq_len": 1024}}))
    assert "profile vllm ignores reduce_warmup" in one["warnings"]


def test_without_a_warm_up_there_are_no_graphs() -> None:
    one = only(planned(model(skip_warmup=True)))
    assert (one["graphs"], one["warmup_s"], one["buckets"]["decode"]) == (0, 0, 0)


def test_deepseek_warms_up_in_a_quarter_of_the_measured_hour() -> None:
    wish = {"launch_profile": "deepseek_r1", "tensor_parallel_size": 8, "max_model_len": 16384, "max_num_seqs": 128}
    base = {key: value for key, value in model().items() if not key.endswith(("_range", "_tokens"))}
    deep = {**QWQ, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128}
    one = only(planned({**base, **wish}, weights={"/data/QwQ-32B": {"config": deep, "bytes": 688_000_000_000}}))
    assert one["dtype"] == "fp8"
    assert one["graphs"] == 2560 // 4
    assert 12 <= one["warmup_s"] / 60 <= 18
    assert one["warmup_cached_s"] is not None


def test_a_download_that_is_not_whole_counts_with_all_of_it() -> None:
    host = {"weights": {"/data/QwQ-32B": {"config": QWQ, "bytes": 4_000_000_000}}}
    source = {"kind": "hub", "repo": "Qwen/QwQ-32B"}
    one = only(planned(model(source=source, weight_bytes=65_000_000_000), **host))
    assert one["memory"]["weights_gib"] == 30.3
    assert "the folder has 4 of 65 GB; the estimate includes the rest" in one["warnings"]
    # A model that serves has all its files.
    serving = {"services": live_of({"models": [one]})}
    one = only(planned(model(source=source, weight_bytes=65_000_000_000), **host, **serving))
    assert not [text for text in one["warnings"] if "the folder has" in text]


def test_an_empty_key_that_takes_away_a_value_is_reported() -> None:
    catalog = {"entry": {"recipe_cache_path": "/data/cache"}}
    plan = vllm_plan([model(model="entry", recipe_cache_path=None)], gaudi_host(), catalog)
    (note,) = (text for text in only(plan)["warnings"] if "is empty" in text)
    assert note == "recipe_cache_path is empty, which removes '/data/cache'; leave it out to use that"


def test_a_cpu_host_has_no_cards_that_weights_could_be_too_large_for() -> None:
    host = {"accelerator": "cpu", "device_name": None, "modules": []}
    one = only(planned(model(launch_profile="vllm", tensor_parallel_size=1, weight_bytes=800_000_000_000), **host))
    assert (one["weights_gib"], one["device_gib"]) == (60.5, None)
