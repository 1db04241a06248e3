"""Weights that a server cannot load are refused before anything is fetched, and what nobody has tried is reported."""

from __future__ import annotations

from typing import Any

import pytest
from gaudi_serve.engines import ENGINES
from gaudi_serve.engines.architectures import SERVED, architecture
from gaudi_serve.model.architecture import Architecture
from gaudi_serve.plan.host import vllm_plan
from helpers.plans import gaudi_host

QWQ = gaudi_host()["weights"]["/data/QwQ-32B"]["config"]
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
FP8 = {"quant_method": "modelopt", "quant_algo": "FP8"}
FLOATS = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"type": "float"}}}}
INTEGERS = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"type": "int"}}}}
CPU = {"accelerator": "cpu", "cores": [[0, 7]], "memory_mib": 2**20, "machine": "x86_64"}
ALL = "1.21 (aice_1_21, deepseek_r1, vllm), 1.22 (aice_1_22, aice_1_21, deepseek_r1, "
GAUDI_METHODS = "awq, compressed-tensors, fp8, gptq, inc, modelopt FP8, mxfp4"


def plan(quantisation: Any, engine: str, release: str, **more: Any) -> dict[str, Any]:
    """Plan a model whose config.json shows how its weights are quantised."""
    config = {**QWQ, **({"quantization_config": quantisation} if quantisation else {}), **more.pop("config", {})}
    host = gaudi_host(weights={"/data/m": {"config": config, "bytes": 10**9}})
    if engine == "cpu":
        engine, host = "vllm", {**host, **CPU, "modules": []}
    wish = {"name": "m", "weights": "/data/m", "image": "vllm:1", "launch_profile": engine, **more}
    if engine == "plugin":
        wish |= {"max_num_seqs": 16, "max_model_len": 8192}
    return vllm_plan([wish], host, host_name="g", release=release)


def of_loading(found: dict[str, Any]) -> list[str]:
    """Return the errors of loading weights."""
    return [error["message"] for error in found["errors"] if " is not loaded by " in error["message"]]


@pytest.mark.parametrize(
    ("quantisation", "engine", "release", "sentence"),
    [
        (
            NVFP4,
            "plugin",
            "1.24.1",
            "g: model m: weights '/data/m': its config.json: quantization_config.quant_method 'modelopt', quant_algo "
            "'NVFP4' is not loaded by plugin of release 1.24.1; nothing on Gaudi does; use weights that are "
            f"not quantised, or one of {GAUDI_METHODS}",
        ),
        (
            {"quant_method": "bitsandbytes"},
            "plugin",
            "1.24.1",
            "g: model m: weights '/data/m': its config.json: quantization_config.quant_method 'bitsandbytes' is not "
            f"loaded by plugin of release 1.24.1; releases that load it: {ALL}vllm)",
        ),
        (
            FP8,
            "plugin",
            "1.22.2",
            "g: model m: weights '/data/m': its config.json: quantization_config.quant_method 'modelopt', quant_algo "
            "'FP8' is not loaded by plugin of release 1.22.2; releases that load it: 1.23 (plugin), 1.24.0 (plugin), "
            "1.24.1 (plugin)",
        ),
        (
            {"quant_method": "mxfp4"},
            "aice_1_21",
            "1.21.3",
            "g: model m: weights '/data/m': its config.json: quantization_config.quant_method 'mxfp4' is not loaded by "
            "aice_1_21 of release 1.21; releases that load it: 1.23 (plugin), 1.24.0 (plugin), 1.24.1 (plugin)",
        ),
        (
            {"quant_method": "fp8"},
            "cpu",
            "1.24.1",
            "g: model m: weights '/data/m': its config.json: quantization_config.quant_method 'fp8' is not loaded by "
            "vllm on a CPU host; nothing on CPU does; use weights that are not quantised, or one of awq, "
            "compressed-tensors with integers, gptq",
        ),
        (
            FLOATS,
            "cpu",
            "1.24.1",
            "g: model m: weights '/data/m': its config.json: quantization_config.quant_method 'compressed-tensors' "
            "with floating-point weights is not loaded by vllm on a CPU host; nothing on CPU does; use weights "
            "that are not quantised, or one of awq, compressed-tensors with integers, gptq",
        ),
    ],
)
def test_weights_that_the_engine_of_a_release_cannot_load_are_refused(
    quantisation: Any, engine: str, release: str, sentence: str
) -> None:
    assert of_loading(plan(quantisation, engine, release)) == [sentence]


@pytest.mark.parametrize(
    ("method", "engine", "release"),
    [
        *((method, engine, "1.22.2") for method in ("fp8", "awq", "gptq") for engine in ENGINES),
        *(("bitsandbytes", engine, "1.22.2") for engine in ("aice_1_21", "aice_1_22", "deepseek_r1", "vllm")),
        *(
            (method, "plugin", "1.24.1")
            for method in (FP8, "mxfp4", "compressed_tensors", "gpt_oss_mxfp4", "awq_hpu", INTEGERS, FLOATS, "inc")
        ),
        *((method, "cpu", "1.24.1") for method in ("awq", "gptq", INTEGERS)),
        *((method, "plugin", "1.24.1") for method in (None, 7, ["fp8"], {"quant_method": ["fp8"]}, {})),
    ],
)
def test_weights_that_it_loads_are_planned_without_a_word(method: Any, engine: str, release: str) -> None:
    found = plan({"quant_method": method} if isinstance(method, str) else method, engine, release)
    assert of_loading(found) == []
    assert not any("needs an image with vLLM" in text or "not known to load" in text for text in found["warnings"])


def test_a_quantisation_that_the_user_asks_for_is_compared_too() -> None:
    (sentence,) = of_loading(plan(None, "plugin", "1.24.1", quantization="bitsandbytes"))
    assert sentence == (
        "g: model m: quantization 'bitsandbytes': is not loaded by plugin of release 1.24.1; releases that load it: "
        f"{ALL}vllm)"
    )
    assert of_loading(plan(FP8, "plugin", "1.24.1", quantization="modelopt")) == []


def test_what_only_some_images_of_a_release_load_or_nobody_has_tried_is_a_warning() -> None:
    needs = (
        "g: model m: its config.json: quantization_config.quant_method 'modelopt', quant_algo 'FP8' needs an image "
        "with vLLM 0.16.0 or newer; release 1.23 has 0.11.2 and 0.13.0 to 0.17.1"
    )
    for image, warned in (("vllm:1", True), ("vllm-0.17.1", False)):
        found = plan(FP8, "plugin", "1.23.0", image=image)
        assert of_loading(found) == []
        assert any(needs in text for text in found["warnings"]) == warned, found["warnings"]
    groups = {"group_0": {"weights": {"type": "float", "num_bits": 4}}}
    packed = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": groups}
    told = plan(packed, "plugin", "1.24.1")
    assert [text for text in (*of_loading(told), *told["warnings"]) if "floating-point weights of 4 bits" in text]
    found = plan({"quant_method": "auto-round"}, "cpu", "1.24.1")
    assert of_loading(found) == []
    assert any(
        "quantization_config.quant_method 'auto-round' may not load with vllm on a CPU host; try it on one host" in text
        for text in found["warnings"]
    )


@pytest.mark.parametrize(
    ("config", "warned"),
    [
        ({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}, None),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, None),
        ({}, None),
        ({"architectures": [7], "model_type": ["qwen2"]}, None),
        ({"model_type": "rwkv6", "architectures": ["Rwkv6ForCausalLM"]}, "Rwkv6ForCausalLM"),
        ({"architectures": ["Rwkv6ForCausalLM"]}, "Rwkv6ForCausalLM"),
        ({"model_type": "rwkv6"}, "rwkv6"),
    ],
)
def test_an_architecture_that_nobody_is_known_to_serve_is_a_warning(config: dict[str, Any], warned: str | None) -> None:
    found = plan(None, "plugin", "1.24.1", config=config)
    assert found["errors"] == []
    said = [text for text in found["warnings"] if "architecture" in text]
    assert bool(said) == bool(warned)
    if warned:
        assert said[0].endswith(
            f"architecture {warned!r} of its config.json is on no list of architectures for Gaudi; try it on one host "
            "first"
        )
    assert not any("architecture" in text for text in plan(None, "cpu", "1.24.1", config=config)["warnings"])


def test_names_of_architectures_are_found_by_their_class_too() -> None:
    for name, kind in (
        ("LlamaForCausalLM", "llama"),
        ("GraniteMoeHybridForCausalLM", "granitemoehybrid"),
        ("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl"),
        ("GPTBigCodeForCausalLM", "gpt_bigcode"),
    ):
        found = architecture(Architecture.of({"architectures": [name]}))
        assert found and found[0] == kind and kind in SERVED["gaudi"], found
