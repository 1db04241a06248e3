"""Engine aice_1_22 in a plan: what the script forgets is added, what it drops or vLLM dies of is refused."""

from __future__ import annotations

from typing import Any

import pytest
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.plan.launch import vllm_launch
from helpers.plans import gaudi_host


def wish(**more: Any) -> dict[str, Any]:
    """Return a model that names the engine."""
    weights = {"name": "m", "weights": "/data/Qwen3-8B", "image": "vllm:1"}
    return {**weights, "launch_profile": "aice_1_22", "max_model_len": 4096, "max_num_seqs": 16, **more}


def plan(machine: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Plan one model."""
    return vllm_plan([wish(**more)], machine or gaudi_host(), host_name="g", release="1.22.0")


def test_a_plan_adds_the_interfaces_that_the_script_leaves_empty() -> None:
    host = gaudi_host()
    spec = {key: value for key, value in wish(host="0.0.0.0").items() if key not in ("name", "image")}
    assert vllm_launch(spec, host)["env"]["HCCL_SOCKET_IFNAME"] == ""
    env = plan(host, host="0.0.0.0")["models"][0]["env"]
    assert (env["GLOO_SOCKET_IFNAME"], env["HCCL_SOCKET_IFNAME"]) == (host["interface"], host["interface"])


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"dtype": "float16"}, "dtype 'float16': the script silently serves it in bfloat16; set bfloat16"),
        ({"dtype": "awq", "quant_config": "/opt/q.json"}, "makes the script serve in fp8 and ignore this model's own"),
        ({"max_padding_ratio": 0.75}, "max_padding_ratio 0.75: must be a number from 0 to 0.5"),
        ({"extra_args": ["--port", "1"]}, "extra_args '--port': belongs in the model's key port"),
        ({"extra_args": ["--served-model-name=x"]}, "belongs in the model's key served_model_name"),
        ({"extra_args": ["-tp", "2"]}, "extra_args '-tp': is the short form of an option; write the long one"),
        ({"extra_args": ["--seeed", "7"]}, "extra_args '--seeed': is not an option of vLLM"),
        (
            {"extra_args": ["--override-generation-config", '{"temperature": 0.5}']},
            "loses its quotes in the script; set the option by its own name",
        ),
        ({"max_num_prefill_seqs": ""}, "max_num_prefill_seqs '': must be an integer from 1 to 65536 sequences"),
    ],
)
def test_what_the_script_drops_or_vllm_dies_of_is_refused(more: dict[str, Any], sentence: str) -> None:
    (error,) = plan(**more)["errors"]
    assert sentence in error["message"]


def test_measurements_of_gaudi2_are_refused_on_gaudi3_and_ones_that_no_mount_fetches_are_reported() -> None:
    three = gaudi_host(device_name="HL-325L")
    (error,) = plan(three, dtype="fp8")["errors"]
    assert error["key"] == "dtype"
    assert "measurements of one generation do not work on the other" in error["message"]
    own = {"quant_config": "/data/inc/maxabs_quant_g3.json"}
    found = plan(three, **own)
    assert found["errors"] == []
    assert any("must be in the image: no mount provides it" in text for text in found["warnings"])
    assert not any("no mount" in text for text in plan(three, **own, mounts=[mount()])["warnings"])


def mount() -> dict[str, str]:
    """Return the mount of a folder with measurements."""
    return {"source": "/data/inc", "target": "/data/inc"}


def test_graphs_are_reported_as_an_estimate() -> None:
    (model,) = plan()["models"]
    assert model["buckets"]["approximate"]
    assert model["graphs"] > 1
    ignored = [text for text in plan(input_range=[1, 100])["warnings"] if "ignores input_range" in text]
    assert len(ignored) == 1


def test_measurements_of_gaudi2_are_refused_on_gaudi3_with_the_script_of_1_21_too() -> None:
    spec = {"launch_profile": "aice_1_21", "dtype": "fp8", "max_num_batched_tokens": 4096}
    ranges = {"input_range": [128, 2048], "output_range": [128, 2048]}
    two, three = (plan(gaudi_host(device_name=name), **spec, **ranges) for name in ("HL-225", "HL-325L"))
    assert two["errors"] == []
    (error,) = three["errors"]
    assert "measurements of one generation do not work on the other" in error["message"]
