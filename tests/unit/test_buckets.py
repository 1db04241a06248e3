"""Buckets that the golden vectors do not reach."""

from __future__ import annotations

from itertools import pairwise

import pytest
from gaudi_serve.buckets.linear import bucket_values, hpu_buckets


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
