"""The filters against what the vendor's own code gave for the same inputs."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from gaudi_serve.buckets.linear import hpu_buckets, hpu_padded_shape
from gaudi_serve.buckets.plugin import hpu_plugin_buckets
from gaudi_serve.buckets.plugin_server import hpu_plugin_padded_shape
from gaudi_serve.core.errors import InputError
from gaudi_serve.plan.launch import vllm_launch
from helpers.golden import vectors

LAUNCHES = [
    *vectors("launch_aice_1_21"),
    *vectors("launch_deepseek_r1"),
    *vectors("manual_commands"),
]
LAUNCHES_1_22 = vectors("launch_aice_1_22")
# Of the plugin as it was in August 2026, and of each of its versions.
PLUGIN = [*vectors("buckets_plugin"), *vectors("buckets_plugin_releases")]


def test_vectors_are_all_there() -> None:
    assert (len(LAUNCHES), len(vectors("buckets_linear_1_21"))) == (610, 490)
    assert len(LAUNCHES_1_22) == 300
    assert len(PLUGIN) == 428 + 646


@pytest.mark.parametrize("row", [row for row in LAUNCHES + LAUNCHES_1_22 if "expect_error" not in row])
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


@pytest.mark.parametrize("row", [row for row in LAUNCHES_1_22 if "expect_error" in row])
def test_launch_refuses_what_the_script_of_1_22_or_its_vllm_refuses(row: dict) -> None:
    key = next(
        key
        for key, words in (
            ("max_padding_ratio", "max_padding_ratio"),
            ("max_num_prefill_seqs", "--max-num-prefill-seqs"),
            ("dtype", "dtype"),
            ("module_ids", "module"),
        )
        if words in row["expect_error"]
    )
    with pytest.raises(InputError, match=rf"\b{key}: "):
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


def given(row: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a vector that its filters take."""
    return {key: value for key, value in row.items() if key not in ("expect", "expect_error")}


def asked(shapes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return shapes without their answers."""
    return [{key: value for key, value in shape.items() if key not in ("bucket", "warmed")} for shape in shapes]


def answers(shapes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the answers alone."""
    return [{"bucket": shape["bucket"], "warmed": shape["warmed"]} for shape in shapes]


@pytest.mark.parametrize("row", [row for row in PLUGIN if "expect_error" not in row])
def test_buckets_of_the_plugin(row: dict[str, Any]) -> None:
    server, expect = given(row), row["expect"]
    found = hpu_plugin_buckets(server)
    assert found["use_contiguous_pa"] == expect["use_contiguous_pa"]
    for phase in ("prompt", "decode"):
        assert len(found[phase]) == expect[phase]["count"]
        if "buckets" in expect[phase]:
            assert found[phase] == expect[phase]["buckets"]
        else:
            text = json.dumps(found[phase], separators=(",", ":"))
            assert hashlib.sha256(text.encode()).hexdigest() == expect[phase]["sha256"]
    shapes, in_order = expect.get("padded", []), expect.get("padded_in_order", [])
    assert hpu_plugin_padded_shape(server, asked(shapes), remember=False) == answers(shapes)
    assert [hpu_plugin_padded_shape(server, shape) for shape in asked(shapes[:2])] == answers(shapes[:2])
    assert hpu_plugin_padded_shape(server, asked(in_order)) == answers(in_order)


@pytest.mark.parametrize("row", [row for row in PLUGIN if "expect_error" in row])
def test_what_stops_the_server_of_the_plugin_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        hpu_plugin_buckets(given(row))
    with pytest.raises(InputError):
        hpu_plugin_padded_shape(given(row), {"phase": "decode", "batch": 1, "blocks": 1})
