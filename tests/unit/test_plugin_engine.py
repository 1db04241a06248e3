"""Engine plugin: what it is started with, what of it would not start, and what its buckets cost."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import pytest
from gaudi_serve.buckets.plugin import hpu_plugin_buckets
from gaudi_serve.catalog.files import model_catalog
from gaudi_serve.catalog.merge import model_weights
from gaudi_serve.engines import ENGINES
from gaudi_serve.engines.plugin import DEFAULTS
from gaudi_serve.plan.changes import vllm_plan_changes
from gaudi_serve.plan.fleet import vllm_fleet_plan
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.stages.service import vllm_service_files
from helpers.plans import QWQ, TINY, cluster, gaudi_host, live_of
from helpers.services import TEMPLATE, changes, live

CATALOG = model_catalog([], builtin=True)
# Every step of this model on one card, which has 3,264 blocks.
FILE = "# of July\n(1, [512, 8192], 64)\n([4, 32], 1, 3264)\n"


def plan(host: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Plan QwQ-32B of the catalog with the plugin."""
    wish = {"name": "m", "model": "qwq-32b", "image": "vllm:1", "launch_profile": "plugin", **more}
    release = "1.21.3" if wish["launch_profile"] == "aice_1_21" else "1.24.1"
    return vllm_plan([wish], host or gaudi_host(), CATALOG, host_name="g", release=release)


def one(host: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Return the planned model."""
    found = plan(host, **more)
    assert found["errors"] == []
    return dict(found["models"][0])


def refused(host: dict[str, Any] | None = None, **more: Any) -> str:
    """Return the one sentence by which a request is refused."""
    (error,) = plan(host, **more)["errors"]
    return str(error["message"])


def option(model: dict[str, Any], name: str) -> str:
    """Return the value of an option."""
    assert model["args"].count(name) == 1
    return str(model["args"][model["args"].index(name) + 1])


def test_everything_that_small_device_defaults_would_get_wrong_is_reported() -> None:
    model = one(max_model_len=None, max_num_seqs=None, max_num_batched_tokens=None)
    for key in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization"):
        assert option(model, "--" + key.replace("_", "-")) == str(DEFAULTS[key])
    assert option(model, "--block-size") == "128"
    assert "--no-enable-prefix-caching" in model["args"]
    assert model["env"]["VLLM_CONTIGUOUS_PA"] == "true"
    assert model["env"]["VLLM_BUCKETING_STRATEGY"] == "exp"
    assert model["env"]["PT_HPU_LAZY_MODE"] == "0"
    assert option(model, "--distributed-executor-backend") == "mp"
    assert "--device" not in model["args"]


def test_graphs_are_those_of_the_vendors_rules_with_the_blocks_that_there_are() -> None:
    model = one(bucketing={"strategy": "pad", "decode_bs": {"step": 4}, "prompt_query": {"max": 4096}})
    env = {name: text for name, text in model["env"].items() if "BUCKET" in name or name == "VLLM_CONTIGUOUS_PA"}
    assert env["VLLM_DECODE_BS_BUCKET_STEP"] == "4"
    found = hpu_plugin_buckets(
        {
            **{"max_num_seqs": 32, "max_num_prefill_seqs": 1, "block_size": 128, "max_num_batched_tokens": 8192},
            **{"max_model_len": 8192, "num_hpu_blocks": model["memory"]["num_hpu_blocks"], "env": env},
        }
    )
    assert (model["buckets"]["prompt"], model["buckets"]["decode"]) == (len(found["prompt"]), len(found["decode"]))
    assert model["graphs"] == len(found["prompt"]) + len(found["decode"])
    assert not model["buckets"]["approximate"]


def test_an_executor_is_reported_once() -> None:
    assert option(one(distributed_executor_backend="uni"), "--distributed-executor-backend") == "uni"


def test_prefix_caching_and_contiguous_pa_are_one_decision() -> None:
    model = one(enable_prefix_caching=True)
    assert "--enable-prefix-caching" in model["args"]
    assert model["env"]["VLLM_CONTIGUOUS_PA"] == "false"


def test_blocks_by_which_a_server_dies_in_warm_up_are_refused_with_what_fits() -> None:
    said = refused(enable_prefix_caching=True, max_num_seqs=256, max_model_len=40960)
    assert said.startswith("g: model m: max_num_seqs 256: makes decode buckets of 81920 blocks at max_model_len 40960")
    fitting = int(said.partition("max_num_seqs 256")[2].partition("; max_num_seqs ")[2].split()[0])
    assert one(enable_prefix_caching=True, max_num_seqs=fitting, max_model_len=40960)["graphs"]
    assert one(max_num_seqs=256, max_model_len=40960)["graphs"]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"speculative_config": '{"method": "ngram", "num_speculative_tokens": "3"}'},
            "must set num_speculative_tokens, an integer from 1 to 1024: buckets depend on it",
        ),
        (
            {"speculative_config": {"method": "medusa", "model": "/m", "num_speculative_tokens": 2}},
            "has method medusa, at which the plugin stops; allowed are ngram, eagle, eagle3 and mtp",
        ),
        ({"speculative_config": {"method": "ngram"}}, "must set num_speculative_tokens"),
        (
            {"bucketing": {"strategy": "lin"}, "max_num_seqs": 256, "max_model_len": 40960, "warmup_budget_minutes": 9},
            "lower max_num_seqs or max_model_len, set bucketing.strategy to exp or file, or allow more minutes",
        ),
        ({"dtype": "float16"}, "dtype 'float16': the plugin would silently serve in bfloat16"),
        ({"dtype": "float32"}, "dtype 'float32': the plugin would silently serve in bfloat16"),
        ({"dtype": "fp8"}, "dtype 'fp8': FP8 weights are served unchanged with bfloat16"),
        ({"dtype": "awq"}, "dtype 'awq': the weights themselves determine their quantisation"),
        ({"max_num_batched_tokens": 16}, "max_num_batched_tokens 16: is below max_num_seqs 32"),
        (
            {"kv_cache_dtype": "fp8_e4m3"},
            "kv_cache_dtype 'fp8_e4m3': is not a cache of the plugin: the server stops; set fp8_inc",
        ),
        ({"quantization": "inc"}, "quantization 'inc': needs QUANT_CONFIG in env"),
        (
            {"env": {"PT_HPU_LAZY_MODE": 1}, "image": "vault/habanalabs/vllm-0.26.0-ptupstream-2.11.0:latest"},
            "env: PT_HPU_LAZY_MODE 1: needs Gaudi's own PyTorch, and the image has upstream's, which knows no lazy",
        ),
        ({"block_size": 64}, "block_size 64: must be 128"),
        ({"device": "hpu"}, "device 'hpu': is an option of the fork only: the server stops at it; leave it out"),
        (
            {"max_num_prefill_seqs": 4},
            "max_num_prefill_seqs 4: is an option of the fork only: the server stops at it; set bucketing: {pro",
        ),
        ({"task": "embed"}, "task 'embed': is an option of the fork only: the server stops at it; a model without"),
        (
            {"distributed_executor_backend": "ray"},
            "distributed_executor_backend 'ray': is not validated with the plugin: leave it out, which means mp",
        ),
        (
            {"bucketing": {"strategy": "pad", "decode_bs": {"min": 64, "max": 32}}},
            "bucketing.decode_bs.min 64: is above bucketing.decode_bs.max, which is 32: the server stops at start",
        ),
        ({"bucketing": {"strategy": "lin", "prompt_ctx": {"step": 0}}}, "bucketing.prompt_ctx.step 0: "),
        ({"env": {"VLLM_BUCKETING_STRATEGY": "linear"}}, "env: VLLM_BUCKETING_STRATEGY 'linear': is not one of exp"),
        ({"bucketing": {"strategy": "file", "file": "(1, 128)\n"}}, "bucketing.file, line 1 "),
        ({"bucketing": {"strategy": "exponential"}}, "must have a strategy of exp, lin, pad, file"),
        (
            {"bucketing": {"strategy": "pad", "decode_batch": {}}},
            "has 'decode_batch', which is not one of strategy, file",
        ),
        (
            {"bucketing": {"strategy": "pad", "decode_bs": {"min": "8k"}}},
            "must have integers from 0 for min",
        ),
        (
            {"bucketing": {"strategy": "file", "file": FILE.replace("8192", "4096")}},
            "bucketing.file: has no bucket for a prompt step of 1 x 4097 tokens after 32 blocks of context, which",
        ),
        (
            {"bucketing": {"strategy": "file", "file": FILE.replace("3264", "2900")}},
            "bucketing.file: has no bucket for a decode step of 4 sequences and 3264 blocks, which would compile while",
        ),
        ({"env": {"VLLM_CONTIGUOUS_PA": "true"}, "enable_prefix_caching": True}, "env: VLLM_CONTIGUOUS_PA 'true': "),
        ({"bucketing": {"file": FILE}}, "must have file if strategy is file, and only then"),
        (
            {"source": {"kind": "hub", "repo": "Qwen/QwQ-32B", "convert": "g2"}},
            "must have no convert: the plugin serves the original weights on Gaudi2 and on Gaudi3",
        ),
    ],
)
def test_what_would_not_start_is_refused_by_the_key_that_the_user_wrote(more: dict[str, Any], sentence: str) -> None:
    said = refused(**more)
    assert said.startswith("g: model m: ")
    assert sentence in said


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ({}, "text"),
        ({"runner": "pooling"}, "embedding"),
        ({"runner": "pooling", "convert": "embed"}, "embedding"),
        ({"runner": "pooling", "convert": "classify"}, "rerank"),
        ({"runner": "pooling", "smoke": ["rerank"]}, "rerank"),
    ],
)
def test_a_model_without_text_is_asked_for_what_it_gives(said: dict[str, Any], asked: str) -> None:
    assert one(**said)["smoke"] == [asked]


def test_measurements_of_the_other_generation_are_refused() -> None:
    inc = {"quantization": "inc", "env": {"QUANT_CONFIG": "/data/inc/maxabs_quant_g2.json"}}
    assert one(**inc)["args"].count("inc") == 1
    three = gaudi_host(device_name="HL-325L")
    assert "env: QUANT_CONFIG: uses /data/inc/" in refused(three, **inc)
    assert "is for GAUDI2: measurements of one generation do not work on the other" in refused(three, **inc)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"env": {"QUANT_CONFIG": "/q.json"}},
            "env: QUANT_CONFIG makes INC convert the weights, but the plan counts bfloat16",
        ),
        (
            {"kv_cache_dtype": "fp8_inc"},
            "kv_cache_dtype fp8_inc without QUANT_CONFIG stores keys and values in FP8 unchanged",
        ),
        ({"kv_cache_dtype": "fp8_inc", "quantization": "inc", "env": {"QUANT_CONFIG": "/q.json"}}, ""),
    ],
)
def test_quantisation_that_is_asked_for_by_half_is_reported(more: dict[str, Any], sentence: str) -> None:
    told = [text for text in one(**more)["warnings"] if "QUANT_CONFIG" in text]
    assert len(told) == bool(sentence)
    assert sentence in " ".join(told)
    # Weights that are quantised themselves contain their scales, and cannot be declared as INC's.
    host = gaudi_host()
    host["weights"]["/data/hf_models/QwQ-32B"] = {
        "config": {**QWQ, "quantization_config": {"quant_method": "fp8"}},
        "bytes": 3e10,
    }
    own = {key: value for key, value in more.items() if key != "quantization"}
    assert "QUANT_CONFIG" not in " ".join(one(host, **own)["warnings"])


@pytest.mark.parametrize("device", ["HL-225", "HL-325L"])
@pytest.mark.parametrize(
    ("said", "more", "precision"),
    [
        (None, {}, "bfloat16"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, {}, "fp8"),
        ({"quant_method": "awq"}, {}, "awq"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            {},
            "fp8",
        ),
        (None, {"quantization": "inc", "env": {"QUANT_CONFIG": "/q.json"}}, "fp8"),
    ],
)
def test_the_precision_is_the_one_that_is_served(
    device: str, said: dict[str, Any] | None, more: dict[str, Any], precision: str
) -> None:
    weights = {"/data/hf_models/QwQ-32B": {"config": {**QWQ, "quantization_config": said}, "bytes": 34_000_000_000}}
    assert one(gaudi_host(device_name=device, weights=weights), **more)["dtype"] == precision


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"num_nextn_predict_layers": 1}, {}),
        ({"mtp_num_hidden_layers": 1}, {}),
        ({"num_mtp_modules": 3}, {}),
        ({"model_type": "mimo_v2_flash"}, {}),
        # Gemma's head is a model of its own.
        ({}, {"model": "/data/head"}),
    ],
)
def test_a_model_with_a_head_guesses_with_it(config: dict[str, Any], said: dict[str, Any]) -> None:
    weights = {"/data/hf_models/QwQ-32B": {"config": {**QWQ, **config}, "bytes": 34_000_000_000}}
    guesses = {"method": "mtp", "num_speculative_tokens": 1, **said}
    assert one(gaudi_host(weights=weights), speculative_config=guesses)["graphs"]
    weights["/data/hf_models/QwQ-32B"]["config"] = {**QWQ, "num_nextn_predict_layers": 0}
    guesses.pop("model", None)
    text = "has method mtp, and the model's config.json has no layers for it; choose another method"
    assert text in refused(gaudi_host(weights=weights), speculative_config=guesses)


def test_speculation_that_mangles_tool_calls_is_warned_of() -> None:
    def warnings(parser: str, **said: Any) -> str:
        guesses = {"method": "ngram", "num_speculative_tokens": 3, **said}
        return " ".join(one(speculative_config=guesses, tool_call_parser=parser)["warnings"])

    assert "ngram with tool_call_parser qwen3_coder can mangle arguments" in warnings("qwen3_coder")
    assert "mangle" not in warnings("hermes") + warnings("qwen3_coder", prompt_lookup_min=8, prompt_lookup_max=9)


FETCHES = [
    ({"speculative_config": {"method": "eagle3", "model": "org/head"}}, "speculative_config org/head: "),
    ({"speculative_config": {"method": "mtp", "model": "org/head"}}, "speculative_config org/head: "),
    ({"tokenizer": "org/name"}, "tokenizer org/name: "),
]


@pytest.mark.parametrize(("more", "begin"), FETCHES)
def test_what_a_server_fetches_at_its_start_is_reported_and_refused_without_internet(
    more: dict[str, Any], begin: str
) -> None:
    def planned() -> dict[str, Any]:
        model = {"name": "m", "weights": "/m", **more}
        facts = {"a": {"weights": {"/m": {"config": TINY, "bytes": 6_000_000}}}}
        variables = cluster(["a"], [], "cuda", facts, vllm_models=[model])
        variables["a"] |= {"gaudi_offline": offline}
        found = vllm_fleet_plan(variables, ["a"], [])
        return {**found["hosts"]["a"], "errors": [one["message"] for one in found["errors"]]}

    offline = False
    assert [text for text in planned()["models"][0]["warnings"] if text.startswith(begin) and "internet" in text]
    offline = True
    errors = planned()["errors"]
    assert len(errors) == 1
    assert errors[0].replace("'", "").startswith(f"a: model m: {begin}")
    assert "the server fetches it from the internet at its start, and gaudi_offline is true" in errors[0]


def test_guessed_tokens_count_however_they_are_written() -> None:
    config = {"method": "ngram", "num_speculative_tokens": 3}
    graphs = [one(speculative_config=said)["graphs"] for said in (config, json.dumps(config))]
    assert graphs[0] == graphs[1] > one()["graphs"]


@pytest.mark.parametrize("more", [{}, {"quantization": "inc", "env": {"QUANT_CONFIG": "/q/maxabs_quant.json"}}])
def test_weights_of_a_draft_model_count_as_they_are(more: dict[str, Any]) -> None:
    said = {"method": "eagle3", "model": "/data/draft", "num_speculative_tokens": 2}
    host = gaudi_host()
    host["weights"]["/data/draft"] = {"config": {}, "bytes": 8 * 2**30}
    mounts = [{"source": "/data/draft", "target": "/data/draft"}]
    plain, drafted = one(**more), one(host, speculative_config=said, mounts=mounts, **more)
    for found in (drafted, drafted["memory"]):
        assert found["weights_gib"] == pytest.approx(plain["weights_gib"] + 8 / 2, abs=0.11)
    assert drafted["memory"]["num_hpu_blocks"] < plain["memory"]["num_hpu_blocks"]
    assert not [text for text in drafted["warnings"] if "draft" in text]
    # Written as text, and where nothing is known of it.
    told = " ".join(one(speculative_config=json.dumps(said), **more)["warnings"])
    assert (
        "the estimate leaves out the weights of draft model /data/draft: this host has no facts about its folder"
        in told
    )
    assert (
        "speculative_config: /data/draft must be in the image: no mount provides it, and vLLM ends without it" in told
    )


@pytest.mark.parametrize(
    ("said", "folders"),
    [
        ({"method": "eagle", "model": "/data/draft"}, ["/data/draft", "/w"]),
        ({"method": "ngram", "model": "ngram"}, ["/w"]),
        ({"method": "deepseek_mtp", "model": "/w"}, ["/w"]),
        ("{", ["/w"]),
        (7, ["/w"]),
    ],
)
def test_the_folder_of_a_draft_model_is_looked_at(said: Any, folders: list[str]) -> None:
    assert model_weights([{"weights": "/w", "speculative_config": said}], {}, {}) == folders


def of_entry(model: str, release: str = "1.24.1", **more: Any) -> dict[str, Any]:
    """Plan a model of the catalog on Gaudi3."""
    host = gaudi_host(device_name="HL-325L", weights=more.pop("on_host", {}))
    return vllm_plan([{"name": "m", "model": model, "image": "i", **more}], host, CATALOG, release=release)


NATIVE = {"HPU_MXFP4_NATIVE": "1"}


def test_weights_that_the_server_widens_are_counted_as_they_are_loaded() -> None:
    found = of_entry("gpt-oss-20b")
    (loaded,) = found["models"]
    assert (loaded["memory"]["weights_gib"], loaded["weights_gib"], loaded["read_gib"]) == (39.0, 39.0, 12.8)
    assert loaded["dtype"] == "bfloat16"
    sentence = "its weights of 14 GB become 42 GB of BF16 while they are loaded"
    assert any(f"{sentence}; env: {{HPU_MXFP4_NATIVE: '1'}} keeps them" in text for text in found["warnings"])
    kept = of_entry("gpt-oss-20b", env=NATIVE)
    (model,) = kept["models"]
    assert (model["memory"]["weights_gib"], model["dtype"]) == (12.8, "mxfp4")
    assert not any(sentence in text for text in kept["warnings"])
    # Of the release before, one image is older than the variable.
    (old,) = of_entry("gpt-oss-20b", "1.24.0", env=NATIVE)["models"]
    assert (old["memory"]["weights_gib"], old["dtype"]) == (39.0, "bfloat16")


def test_what_is_refused_reports_that_weights_grow() -> None:
    (error,) = of_entry("gpt-oss-120b", tensor_parallel_size=1)["errors"]
    said = "217.6 GiB of weights (the 61 GiB of its files, converted to a wider type at load), of 128 GiB"
    assert said in error["message"]
    assert of_entry("gpt-oss-120b", tensor_parallel_size=1, env=NATIVE)["errors"] == []


def test_no_remedy_is_longer_than_the_models_context() -> None:
    large = of_entry("mistral-large-3-675b-instruct-2512", tensor_parallel_size=4, max_model_len=1_048_576)
    told = [error["message"] for error in large["errors"]]
    assert any("max_model_len 1048576: is above 294912" in text for text in told)
    (remedy,) = [text.partition("what fits: ")[2] for text in told if "what fits" in text]
    assert remedy == "tensor_parallel_size 8"


@pytest.mark.parametrize("stored", ["mxfp4", ["mxfp4"], {"quant_method": ["mxfp4"]}, 7])
def test_a_quantisation_that_is_none_raises_nothing(stored: Any) -> None:
    config = {**CATALOG["gpt-oss-20b"]["config"], "quantization_config": stored}
    here = {CATALOG["gpt-oss-20b"]["weights"]: {"config": config, "bytes": 13_761_264_768}}
    (model,) = of_entry("gpt-oss-20b", on_host=here)["models"]
    assert model["memory"]["weights_gib"] == 12.8


def test_a_model_that_came_later_wants_a_release_that_has_it() -> None:
    (error,) = of_entry("gemma-4-31b-it", "1.24.0")["errors"]
    assert error["message"].endswith(
        "least_vllm '0.26.0': is the first vLLM with this model, of release 1.24.1; accelerator_release is 1.24.0, "
        "which has 0.17.1 or 0.19.0 to 0.21.0"
    )
    note = "needs an image with vLLM 0.26.0 or newer; release 1.24.1 has 0.24.0 and 0.26.0"
    assert any(note in text for text in of_entry("gemma-4-31b-it")["warnings"])
    named = of_entry("gemma-4-31b-it", image="vendor/vllm-0.26.0-ptupstream-2.11.0:latest")
    assert not any("needs an image" in text for text in named["warnings"])
    (wrong,) = of_entry("gemma-4-31b-it", least_vllm="newest")["errors"]
    assert "least_vllm 'newest': must be a quoted version of vLLM, such as '0.26.0'" in wrong["message"]


@pytest.mark.parametrize(("model", "chunk"), [("qwen3.5-35b-a3b", 128), ("granite-4.0-h-small", 256)])
def test_tokens_of_a_step_that_are_no_whole_chunks_of_a_hybrid_are_refused(model: str, chunk: int) -> None:
    (error,) = of_entry(model, max_num_batched_tokens=8200)["errors"]
    assert f"is not a multiple of mamba_chunk_size {chunk}: the server stops at start; 8192 is one" in error["message"]
    text = CATALOG[model]["config"]
    here = {CATALOG[model]["weights"]: {"config": {"text_config": text}, "bytes": CATALOG[model]["weight_bytes"]}}
    (error,) = of_entry(model, max_num_batched_tokens=8200, on_host=here)["errors"]
    assert f"mamba_chunk_size {chunk}" in error["message"]


def test_buckets_of_a_hybrid_are_counted_by_the_layers_that_have_a_cache() -> None:
    found = of_entry("granite-4.0-h-small", enable_prefix_caching=True)
    # Of 2,715 blocks, as if all forty layers had one, this would be refused.
    assert found["errors"] == []


def test_a_file_of_measurements_that_the_plugin_takes_no_notice_of_halves_no_weights() -> None:
    assert one(quant_config="/data/q.json")["memory"] == one()["memory"]


@pytest.mark.parametrize(
    ("said", "unread"),
    [
        ({"decode_bs": {"min": 1, "max": 64}}, "exp ignores decode_bs.min, decode_bs.max"),
        ({"strategy": "exp", "prompt_query": {"min": 64}}, "exp ignores prompt_query.min"),
        ({"strategy": "lin", "decode_bs": {"pad_max": 4, "max": 32}}, "lin ignores decode_bs.pad_max"),
        ({"strategy": "file", "file": FILE, "decode_bs": {"max": 32}}, "file ignores decode_bs.max"),
        ({"prompt_query": {"min": 1}, "prompt_bs": {"max": 2}, "prompt_ctx": {"max": 64}}, ""),
        ({"strategy": "pad", "decode_bs": {"pad_max": 4, "pad_percent": 20, "step": 2}}, ""),
    ],
)
def test_what_of_bucketing_counts_for_nothing_is_reported(said: dict[str, Any], unread: str) -> None:
    told = [text for text in one(bucketing=said)["warnings"] if "bucketing.strategy" in text]
    assert told == ([f"bucketing.strategy {unread}"] if unread else [])


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (
            {"VLLM_PROMPT_QUERY_BUCKET_STEP": "256"},
            "env: VLLM_PROMPT_QUERY_BUCKET_STEP 256 contradicts bucketing.prompt_query.step 512; set only "
            "bucketing.prompt_query.step, and remove VLLM_PROMPT_QUERY_BUCKET_STEP from env",
        ),
        (
            {"VLLM_BUCKETING_STRATEGY": "pad"},
            "env: VLLM_BUCKETING_STRATEGY pad contradicts bucketing.strategy lin; set only bucketing.strategy, and "
            "remove VLLM_BUCKETING_STRATEGY from env",
        ),
        (
            {"VLLM_PREFIX_CACHING": "true"},
            "env: VLLM_PREFIX_CACHING true contradicts enable_prefix_caching false; set only "
            "enable_prefix_caching, and remove VLLM_PREFIX_CACHING from env",
        ),
        ({"VLLM_PROMPT_QUERY_BUCKET_STEP": "512", "VLLM_PREFIX_CACHING": "no"}, None),
    ],
)
def test_an_environment_that_contradicts_the_models_keys_is_reported(env: dict[str, str], sentence: str | None) -> None:
    sizes = {"max_num_seqs": 8, "max_model_len": 4096, "max_num_batched_tokens": 4096}
    bucketing = {"strategy": "lin", "prompt_query": {"step": 512}, "decode_block": {"step": 256}}
    told = [text for text in one(**sizes, bucketing=bucketing, env=env)["warnings"] if "contradicts" in text]
    assert [text[text.index("env:") :] for text in told] == ([sentence] if sentence else [])


def test_a_step_without_values_is_named_where_nobody_wrote_the_minimum() -> None:
    found = refused(bucketing={"strategy": "lin", "prompt_query": {"step": 100, "max": 150}})
    assert (
        "bucketing.prompt_query.step: leaves no value up to its maximum: the server stops at start; lower it" in found
    )
    assert ".min" not in found


@pytest.mark.parametrize(("release", "mode", "count"), [("1.24.1", "1", 1), ("1.24.1", "0", 0), ("1.23.0", "1", 0)])
def test_lazy_mode_is_reported_where_ready_images_have_none(release: str, mode: str, count: int) -> None:
    wish = {"name": "m", "model": "qwq-32b", "image": "vllm:1", "launch_profile": "plugin"}
    wish |= {"env": {"PT_HPU_LAZY_MODE": mode}}
    found = vllm_plan([wish], gaudi_host(), CATALOG, host_name="g", release=release)
    assert found["errors"] == []
    told = "env: PT_HPU_LAZY_MODE 1 works where the image has Gaudi's own PyTorch; the vendor's ready images of 1.24.1"
    assert sum(told in text for text in found["warnings"]) == count


KEY = "VLLM_DECODE_BLOCK_BUCKET_MAX"


@pytest.mark.parametrize("strategy", ["lin", "pad"])
@pytest.mark.parametrize(
    ("ranges", "env", "written", "named"),
    [
        ({}, {}, "", "bucketing.decode_block.max"),
        ({"max": 60000}, {}, " by bucketing.decode_block.max 60000", "bucketing.decode_block.max"),
        ({}, {KEY: 60000}, f" by env: {KEY} 60000", f"env: {KEY}"),
    ],
)
def test_ranges_that_go_far_beyond_the_blocks_of_the_cards_are_reported_with_what_would_do(
    strategy: str, ranges: dict[str, int], env: dict[str, int], written: str, named: str
) -> None:
    wish = {"enable_prefix_caching": True, "max_num_seqs": 256, "max_model_len": 40960, "warmup_budget_minutes": 10**5}
    said = {"strategy": strategy, "decode_bs": {"step": 64}, "decode_block": {"step": 2048, **ranges}}
    model = one(**wish, bucketing=said, env=env)
    held = model["memory"]["num_hpu_blocks"]
    (told,) = [text for text in model["warnings"] if "fail in the warm-up" in text]
    assert (
        f" blocks{written}, and the cards have {held}: with prefix caching no step needs more than {3 * held}" in told
    )
    assert told.endswith(f"; set {named} {3 * held}, or enable_prefix_caching: false")
    done = {KEY: 3 * held} if env else {}
    said["decode_block"] |= {} if env else {"max": 3 * held}
    for more in ({"bucketing": said, "env": done}, {"bucketing": said, "env": done, "enable_prefix_caching": False}):
        text = " ".join(one(**{**wish, **more})["warnings"])
        assert "die in warm-up" not in text
        assert "compile while serving" not in text


def test_ranges_beyond_the_blocks_without_shared_ones_need_no_more_than_there_are() -> None:
    wish = {"max_num_seqs": 256, "max_model_len": 40960, "bucketing": {"strategy": "pad"}}
    model = one(**wish, env={"VLLM_CONTIGUOUS_PA": "false"})
    held = model["memory"]["num_hpu_blocks"]
    (told,) = [text for text in model["warnings"] if "fail in the warm-up" in text]
    ends = (
        f"no step needs more than {held}, and the server may fail in the warm-up; set bucketing.decode_block.max {held}"
    )
    assert told.endswith(f"the cards have {held}: {ends}, or leave VLLM_CONTIGUOUS_PA out of env")


@pytest.mark.parametrize(
    ("ranges", "sentence"),
    [
        ({"decode_bs": {"max": 8}}, "more than 8 requests at a time, of max_num_seqs 32, compile while serving"),
        ({"prompt_query": {"max": 512}}, "prompt steps above 512 tokens, of up to 8192, compile while serving"),
        (
            {"decode_block": {"max": 512}},
            "decode steps above 512 KV-cache blocks, of up to 2048, compile while serving",
        ),
        ({"decode_block": {"max": 2048}}, ""),
    ],
)
def test_what_ranges_do_not_cover_is_reported(ranges: dict[str, Any], sentence: str) -> None:
    told = one(enable_prefix_caching=True, bucketing={"strategy": "pad", **ranges})["warnings"]
    assert [text for text in told if "compile while serving" in text] == ([sentence] if sentence else [])
    assert not [text for text in one()["warnings"] if "compile while serving" in text]


def test_blocks_that_a_user_bounds_count_for_memory_too() -> None:
    model = one(num_gpu_blocks_override=512)
    assert (model["memory"]["num_hpu_blocks"], model["memory"]["sequences"]) == (512, 8)
    for value in ("abc", -5, 1.5, True):
        assert "num_gpu_blocks_override" in refused(num_gpu_blocks_override=value)


def test_a_gaudi3_card_holds_more() -> None:
    two, three = (one(gaudi_host(device_name=device))["memory"] for device in ("HL-225", "HL-325L"))
    assert (two["device_gib"], three["device_gib"]) == (96, 128)
    assert three["num_hpu_blocks"] > two["num_hpu_blocks"]


def test_a_start_without_graphs_has_their_memory_and_warms_nothing() -> None:
    plain, eager = one(), one(enforce_eager=True)
    assert (eager["graphs"], eager["memory"]["graphs_gib"]) == (0, 0.0)
    # Of the blocks that there is room for, the plugin keeps one to pad with: 9 of 10 parts, and that one more.
    rooms = [model["memory"]["num_hpu_blocks"] + 1 for model in (plain, eager)]
    assert rooms[0] in (rooms[1] * 9 // 10, rooms[1] * 9 // 10 + 1)


def test_a_bucket_file_goes_to_the_host_and_another_one_is_another_launch() -> None:
    model, other = (one(bucketing={"strategy": "file", "file": text}) for text in (FILE, FILE + "(2, 1, 128)\n"))
    assert (model["graphs"], other["graphs"]) == (4, 5)
    assert model["digest"] != other["digest"]
    path = model["env"]["VLLM_BUCKETING_FROM_FILE"]
    mount = {"source": "/etc/gaudi-serve/m.buckets", "target": path, "read_only": True}
    assert mount in model["mounts"]
    files = vllm_service_files([model], TEMPLATE)
    assert files["/etc/gaudi-serve/m.buckets"] == {"model": "m", "content": FILE, "mode": "0644"}
    served = live([model])
    assert [file["path"] for file in changes([model], served)["write"]] == ["/etc/gaudi-serve/m.buckets"]
    served["units"]["m"]["buckets_sha256"] = hashlib.sha256(FILE.encode()).hexdigest()
    assert not changes([model], served)["due"]
    # Without it, the file goes; the supervisor's restart takes its mount away.
    plain = one()
    left = changes([plain], served)
    assert (left["absent"], left["restart"]) == (["/etc/gaudi-serve/m.buckets"], ["m"])


def test_a_bucket_file_may_be_short_of_what_is_known_of_the_blocks_and_no_more() -> None:
    short = {"strategy": "file", "file": FILE.replace("3264", "3000")}
    model = one(bucketing=short)
    assert [line for line in model["warnings"] if line.endswith("set num_gpu_blocks_override: 3000")]
    assert not [line for line in one(bucketing={**short, "file": FILE})["warnings"] if "bucketing.file" in line]
    bound = one(bucketing={**short, "file": FILE.replace("3264", "900")}, num_gpu_blocks_override=900)
    assert option(bound, "--num-gpu-blocks-override") == "900"
    # Prompts that are neither cut nor begin in the prefix cache have no context.
    whole = {"strategy": "file", "file": FILE.replace(", 64)", ", 0)")}
    assert one(bucketing=whole, enable_chunked_prefill=False)["graphs"] == 4
    assert "after 64 blocks of context" in refused(bucketing=whole)


@pytest.mark.parametrize("words", [{"VLLM_MERGED_PREFILL": "yes"}, {"VLLM_PROMPT_BS_BUCKET_MAX": "4"}])
def test_what_a_user_reports_of_prompts_of_one_step_counts(words: dict[str, str]) -> None:
    pad = {"strategy": "pad"}
    assert one(env=words, bucketing=pad)["graphs"] != one(bucketing=pad)["graphs"]


def test_a_model_of_the_fork_changes_as_the_plan_reports_and_not_by_itself() -> None:
    fork = plan(launch_profile="aice_1_21")["models"]
    served = live_of({"models": fork})
    again = vllm_plan_changes(plan(gaudi_host(services=served), launch_profile="aice_1_21")["models"], served, set())
    assert again == []
    lines = vllm_plan_changes(plan(gaudi_host(services=served))["models"], served, set())
    assert lines[0] == "~ m: restart"
    assert any("VLLM_BUCKETING_STRATEGY" in line for line in lines)


def test_its_warm_up_is_reported_while_it_goes_on() -> None:
    # Bars end with a phase, and docker logs gives no line before its end; so does Python with what it keeps back. Then
    # the journal would get four states of a bar a graph, all at once.
    told = {"VLLM_DEVELOPER_MODE": "true", "PYTHONUNBUFFERED": "1", "TQDM_DISABLE": "1"}
    assert one()["env"].items() >= told.items()
    lines = {
        "(EngineCore pid=96) [Warmup][Decode][3/45] batch_size:4 query_len:1 num_blocks:512": "Decode 3 45",
        "Prompt warmup processing:   8%|▊         | 2/25 [00:20<03:50, 10.02s/item, 1/25]": "Prompt 2 25",
        "(EngineCore pid=96) Decode warmup processing: 100%|██████████| 45/45 [07:30<00:00]": "Decode 45 45",
    }
    for line, words in lines.items():
        found = [match for pattern, _ in ENGINES["plugin"].progress if (match := re.search(pattern, line))]
        assert " ".join(found[0].groups()) == words
