"""Buckets that the golden vectors do not reach."""

from __future__ import annotations

from itertools import pairwise

import pytest
from gaudi_serve.buckets.linear import bucket_values, hpu_buckets
from gaudi_serve.core.errors import InputError


def environment(batches: tuple[int, int, int], blocks: tuple[int, int, int]) -> dict[str, str]:
    """Return the variables of a launch with these ranges of decode buckets."""
    ranges = {"PROMPT_BS": (1, 1, 1), "PROMPT_SEQ": (128, 128, 128), "DECODE_BS": batches, "DECODE_BLOCK": blocks}
    return {
        f"VLLM_{dimension}_BUCKET_{part}": str(value)
        for dimension, values in ranges.items()
        for part, value in zip(("MIN", "STEP", "MAX"), values, strict=True)
    }


def as_the_server(batches: tuple[int, int, int], blocks: tuple[int, int, int], most: int) -> list[list[int]]:
    """Return the decode buckets by the rule's own words (facts/parameters.md), one value after the other."""
    found = []
    for batch in bucket_values(*batches):
        for value in bucket_values(*blocks):
            if batch > value:
                continue
            found.append([batch, min(value, most)])
            if value >= most:
                break
    return sorted(found, key=lambda pair: (pair[0] * pair[1], pair[1], pair[0]))


@pytest.mark.parametrize("most", [1, 100, 128, 229, 256, 300, 384, 4000])
@pytest.mark.parametrize("blocks", [(128, 128, 2304), (128, 128, 256), (1, 128, 300), (1, 512, 300), (256, 128, 512)])
def test_decode_buckets_by_the_rule(blocks: tuple[int, int, int], most: int) -> None:
    batches = (1, 16, 288)
    assert hpu_buckets(environment(batches, blocks), 8192, most)["decode"] == as_the_server(batches, blocks, most)


def test_a_batch_beyond_the_blocks_of_the_device_has_one_bucket() -> None:
    decode = hpu_buckets(environment((1, 16, 288), (128, 128, 2304)), 8192, 229)["decode"]
    assert isinstance(decode, list)
    assert [pair for pair in decode if pair[0] in (256, 272, 288)] == [[256, 229], [272, 229], [288, 229]]
    assert all(first <= second for first, second in pairwise(pair[0] * pair[1] for pair in decode))


def test_a_step_that_does_not_divide_the_minimum_is_as_at_the_server() -> None:
    """Figures of the vendor's own code (vllm-hpu-extension, branch aice/v1.21.0)."""
    given = environment((32, 2, 36), (1024, 100, 2048))
    assert hpu_buckets(given, 512, 1000)["decode"] == [[32, 1000], [34, 1000], [36, 1000]]
    given |= {f"VLLM_PROMPT_BS_BUCKET_{part}": value for part, value in (("MIN", "64"), ("STEP", "3"), ("MAX", "64"))}
    with pytest.raises(InputError, match="VLLM_PROMPT_BS_BUCKET_STEP: 3 has no multiple"):
        hpu_buckets(given, 2048, 1)
