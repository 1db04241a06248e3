"""Device memory: the vendor's numbers, and beside them the truth."""

from __future__ import annotations

import math
from typing import Any

import pytest
from gaudi_serve.core.errors import InputError
from gaudi_serve.memory.autocalc import hpu_memory
from gaudi_serve.memory.fit import plan_memory
from gaudi_serve.model.architecture import Architecture
from gaudi_serve.model.host import Host
from gaudi_serve.model.spec import Spec
from helpers.golden import vectors
from helpers.plans import LLAMA

ROWS = vectors("memory_autocalc")


def test_rows_are_all_there() -> None:
    assert len(ROWS) == 300


@pytest.mark.parametrize("row", ROWS)
def test_the_vendors_numbers(row: dict[str, Any]) -> None:
    found = hpu_memory(row["input"])
    for name, value in row.get("output", {}).items():
        same = math.isclose(found[name], value, rel_tol=1e-9) if isinstance(value, float) else found[name] == value
        assert same, (name, found[name], value)
    if "error" in row:
        assert "MAX_NUM_SEQS" not in found
        assert not found["fit"]["fits"]
    if found["USABLE_MEM"] <= 0:
        assert not found["fit"]["fits"]


@pytest.mark.parametrize("row", [row for row in ROWS if not hpu_memory(row["input"])["fit"]["fits"]])
def test_every_suggestion_fits_and_nothing_else_is_claimed(row: dict[str, Any]) -> None:
    fit = hpu_memory(row["input"])["fit"]
    assert fit["short_by_gib"] > 0
    for change in fit["suggestions"]:
        names = {key.upper(): value for key, value in change.items()}
        assert hpu_memory({**row["input"], **names})["fit"]["fits"], change


def test_a_model_that_fits_reports_how_often() -> None:
    fit = hpu_memory(LLAMA)["fit"]
    # 96 - 2 - 14.96 GiB, of which 5 stay free; 1 GiB a sequence of 8,192 tokens, less the graphs.
    assert fit["fits"]
    assert 60 < fit["sequences"] < 74
    assert (fit["short_by_gib"], fit["suggestions"]) == (0.0, [])


def test_kv_heads_are_not_split_further_than_their_number() -> None:
    wide = {**LLAMA, "NUM_KEY_VALUE_HEADS": 2, "MAX_NUM_SEQS": 1}
    two, eight = (hpu_memory({**wide, "TENSOR_PARALLEL_SIZE": cards})["fit"]["sequences"] for cards in (2, 8))
    # The vendor's rules would quadruple it; each of eight cards holds the same as each of two.
    assert eight < two * 1.5


def test_latent_attention_has_its_own_formula() -> None:
    deepseek = {
        **{"MODEL": "r1", "MAX_MODEL_LEN": 16384, "MODEL_MEM_FROM_CONFIG": 688e9, "TENSOR_PARALLEL_SIZE": 8},
        **{"NUM_HIDDEN_LAYERS": 61, "HIDDEN_SIZE": 7168, "NUM_KEY_VALUE_HEADS": 128, "NUM_ATTENTION_HEADS": 128},
        **{"KV_LORA_RANK": 512, "QK_ROPE_HEAD_DIM": 64},
    }
    found = hpu_memory(deepseek)
    assert found["KV_CACHE_PER_SEQ"] == pytest.approx(16384 * 61 * 576 * 2 / 2**30)
    assert found["fit"]["fits"]


@pytest.mark.parametrize("usable", [5.0, 5.02, 0.0, 3.0])
def test_cards_that_are_nearly_full_raise_nothing(usable: float) -> None:
    weights = (96 - 2 - usable) * 2**30
    fit = hpu_memory({**LLAMA, "MODEL_MEM_FROM_CONFIG": weights})["fit"]
    assert not fit["fits"]
    assert fit["short_by_gib"] > 0


@pytest.mark.parametrize(
    ("key", "given", "held"),
    [
        ("TENSOR_PARALLEL_SIZE", 16, 8),
        ("TENSOR_PARALLEL_SIZE", 0, 1),
        ("MAX_MODEL_LEN", -5, 1),
        ("MAX_NUM_BATCHED_TOKENS", 0, 1),
    ],
)
def test_the_vendors_rules_hold_these_within_limits(key: str, given: int, held: int) -> None:
    assert hpu_memory({**LLAMA, key: given}) == hpu_memory({**LLAMA, key: held})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"DEVICE_NAME": "A100"}, "llama-8b: DEVICE_NAME: 'A100' is not one of GAUDI2, GAUDI3"),
        ({"NUM_HIDDEN_LAYERS": None}, "llama-8b: NUM_HIDDEN_LAYERS: is required: an integer from 1 to 100000"),
        ({"HIDDEN_SIZE": "4096"}, "llama-8b: HIDDEN_SIZE: '4096' is a text, not an integer from 1 to 1000000"),
        ({"MAX_NUM_SEQS": 0}, "llama-8b: MAX_NUM_SEQS: 0 is not an integer from 1 to 1000000000"),
        ({"MAX_MODEL_LEN": True}, "llama-8b: MAX_MODEL_LEN: true is not an integer from 1 to 1000000000"),
        ({"MODEL_MEM_FROM_CONFIG": math.nan}, "llama-8b: MODEL_MEM_FROM_CONFIG: NaN is not a number from 1 to 1e+15"),
        ({"GPU_MEM_UTILIZATION": 90}, "llama-8b: GPU_MEM_UTILIZATION: 90 is not a number from 0 to 1"),
        ({"ENABLE_PREFIX_CACHING": "false"}, "llama-8b: ENABLE_PREFIX_CACHING: 'false' is not true or false"),
        ({"MAX_NUM_SEQ": 1}, "llama-8b: MAX_NUM_SEQ: is not a known name; did you mean MAX_NUM_SEQS?"),
        ({"MODEL": ["x"]}, 'the model: MODEL: ["x"] is not a text'),
    ],
)
def test_bad_numbers_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as raised:
        hpu_memory({**LLAMA, **change})
    assert str(raised.value) == message


def fit_of(**more: Any) -> dict[str, Any] | None:
    """Return the memory of an 8B model on one Gaudi2 card with the fork's figures."""
    config = {key.lower(): value for key, value in LLAMA.items()}
    spec = {"name": "m", "weights": "/m", "tensor_parallel_size": 1, "max_model_len": 8192, **more.pop("spec", {})}
    env = {"VLLM_GPU_MEMORY_UTILIZATION": "0.5", "VLLM_GRAPH_RESERVED_MEM": "0.4", **more.pop("env", {})}
    size = more.pop("size", 16_060_522_496)
    host, args = Host(device_name="HL-225"), more.pop("args", [])
    return plan_memory(Spec(spec), env, args, host, Architecture.of({**config, **more}), size, cards_left=0)


def test_the_fork_divides_a_card_as_its_log_shows() -> None:
    found = fit_of()
    assert found is not None
    # Its log of this model: 79.16 GiB free (0.6 more than planned), 15.83 for graphs, 23.75 for the cache.
    assert found["graphs_gib"] == pytest.approx(15.83, abs=0.5)
    assert found["kv_cache_gib"] == pytest.approx(23.75, abs=0.5)
    # 64 blocks of 128 tokens a GiB.
    assert found["num_hpu_blocks"] == pytest.approx(found["kv_cache_gib"] * 64, abs=4)
    assert found["sequences"] == found["num_hpu_blocks"] // 64


def test_options_of_the_user_count() -> None:
    plain, more, fp8, less = (
        fit_of(),
        fit_of(spec={"gpu_memory_utilization": 0.9}),
        fit_of(args=["--kv-cache-dtype", "fp8_inc"]),
        fit_of(spec={"dtype": "fp8"}),
    )
    assert plain and more and fp8 and less
    assert more["kv_cache_gib"] > plain["kv_cache_gib"] * 1.7
    assert fp8["kv_tokens"] == pytest.approx(2 * plain["kv_tokens"], rel=0.01)
    assert less["weights_gib"] == pytest.approx(plain["weights_gib"] / 2, abs=0.1)


def test_float32_takes_four_bytes() -> None:
    plain, wide, stored, cache = (
        fit_of(),
        fit_of(spec={"dtype": "float32"}),
        fit_of(spec={"dtype": "float32"}, torch_dtype="float32"),
        fit_of(spec={"dtype": "float32"}, args=["--kv-cache-dtype", "bfloat16"]),
    )
    assert plain and wide and stored and cache
    assert wide["weights_gib"] == pytest.approx(2 * plain["weights_gib"], abs=0.2)
    assert wide["kv_tokens"] / wide["kv_cache_gib"] == pytest.approx(
        plain["kv_tokens"] / plain["kv_cache_gib"] / 2, rel=0.01
    )
    # What is stored in four bytes keeps its size, and a cache may have a dtype of its own.
    assert stored["weights_gib"] == plain["weights_gib"]
    assert cache["kv_tokens"] == pytest.approx(2 * wide["kv_tokens"], rel=0.01)


def test_what_is_not_known_is_not_guessed() -> None:
    assert fit_of(size=0) is None
    assert fit_of(num_hidden_layers=None) is None
    assert fit_of(spec={"tensor_parallel_size": 16}) is None
