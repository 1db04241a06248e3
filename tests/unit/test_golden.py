"""The filters against what the vendor's own code gave for the same inputs."""

from __future__ import annotations

import pytest
from gaudi_serve.buckets.linear import hpu_buckets, hpu_padded_shape
from gaudi_serve.core.errors import InputError
from gaudi_serve.plan.launch import vllm_launch
from golden import vectors

LAUNCHES = [
    *vectors("launch_aice_1_21"),
    *vectors("launch_deepseek_r1"),
    *vectors("manual_commands"),
]


def test_vectors_are_all_there() -> None:
    assert (len(LAUNCHES), len(vectors("buckets_linear_1_21"))) == (610, 490)


@pytest.mark.parametrize("row", [row for row in LAUNCHES if "expect_error" not in row])
def test_launch(row: dict) -> None:
    launch = vllm_launch(row["spec"], row["host"])
    assert launch["env"] == row["expect"]["env"]
    assert launch["args"] == row["expect"]["args"]
    assert launch["numactl"] == row["expect"]["numactl"]


@pytest.mark.parametrize("row", [row for row in LAUNCHES if "expect_error" in row])
def test_launch_refuses_what_vllm_would_die_of(row: dict) -> None:
    dimension = row["expect_error"].rpartition(" ")[2]
    low, high = (row["expect"]["env"][f"{dimension}_{part}"] for part in ("MIN", "MAX"))
    with pytest.raises(InputError, match=f"{dimension}: minimum {low} is above maximum {high}"):
        vllm_launch(row["spec"], row["host"])


@pytest.mark.parametrize("row", vectors("buckets_linear_1_21"))
def test_buckets_linear_1_21(row: dict) -> None:
    blocks, expect = row["num_hpu_blocks"], row["expect"]
    buckets = hpu_buckets(row["env"], row["max_num_batched_tokens"], blocks)
    assert len(buckets["prompt"]) == expect["prompt_count"]
    assert len(buckets["decode"]) == expect["decode_count"]
    assert buckets["omitted"] == expect["omitted_count"]
    for phase in ("prompt", "decode"):
        if expect[phase] is not None:
            assert buckets[phase] == expect[phase]
    for shape in expect["padded"]:
        for phase, length in (("prompt", shape["seq"]), ("decode", shape["blocks"])):
            assert hpu_padded_shape(row["env"], phase, shape["batch"], length, blocks) == shape[phase]
