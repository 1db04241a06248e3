"""What hccl_demo prints, in the forms of its releases."""

from __future__ import annotations

import pytest
from gaudi_serve.core.errors import InputError
from gaudi_serve.host.hccl import hccl_benchmark
from helpers.tool_output import LATENCY, LATENCY_TABLE, NEW, OLD, TABLE


def test_one_size() -> None:
    assert hccl_benchmark(OLD) == {
        "collective": "all_reduce",
        "dtype": "float",
        "iterations": 1000,
        "results": [{"size_bytes": 33554432, "count": 8388608, "nw_gb_s": 258.259144, "algo_gb_s": 147.576654}],
        "nw_gb_s": 258.259144,
        "algo_gb_s": 147.576654,
    }


def test_newer_release_and_other_units() -> None:
    found = hccl_benchmark(NEW)
    assert (found["collective"], found["dtype"], found["iterations"]) == ("reduce_scatter", "bfloat16", 10)
    assert found["results"][0]["size_bytes"] == 33554432
    assert (found["nw_gb_s"], found["algo_gb_s"]) == (pytest.approx(0.9505), 1.5)


def test_latency() -> None:
    found = hccl_benchmark(LATENCY)
    assert (found["host_latency_ms"], found["device_latency_ms"]) == (0.25, pytest.approx(0.012))
    assert found["results"][0]["size_bytes"] == 1024


@pytest.mark.parametrize("text", [TABLE, TABLE.replace("[BANDWIDTH SUMMARY", "[SUMMARY"), TABLE.replace(" GB/s", "")])
def test_range_of_sizes(text: str) -> None:
    found = hccl_benchmark(text)
    assert [row["size_bytes"] for row in found["results"]] == [1048576, 33554432]
    assert (found["collective"], found["nw_gb_s"], found["algo_gb_s"]) == ("all_reduce", 258.25, 147.57)


def test_latency_of_a_range() -> None:
    found = hccl_benchmark(LATENCY_TABLE)
    assert (found["collective"], found["host_latency_ms"], found["device_latency_ms"]) == ("all_gather", 0.5, 0.25)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "''"),
        ("Segmentation fault (core dumped)\n", "Segmentation fault"),
        (OLD.replace("258.259144 GB/s", "nan"), "NW Bandwidth   : nan"),
        (OLD.replace("258.259144", "1.2.3"), "1.2.3"),
        (OLD.replace("GB/s", "parsecs"), "parsecs"),
        ("[BENCHMARK]     NW Bandwidth   : 1 GB/s\n", "NW Bandwidth   : 1 GB/s"),
        (OLD.split("[BENCHMARK]     NW", maxsplit=1)[0], "hcclAllReduce"),
        (TABLE.replace("59.19 GB/s", ""), "1048576"),
        (TABLE.replace("59.19 GB/s", "59.19 furlongs"), "furlongs"),
        (TABLE.replace("nw_bw", "speed"), "speed"),
        (TABLE.replace("59.19", "5.9.1.9"), "5.9.1.9"),
    ],
)
def test_garbage_is_refused_with_its_line(text: str, line: str) -> None:
    with pytest.raises(InputError) as raised:
        hccl_benchmark(text)
    assert line in str(raised.value)
