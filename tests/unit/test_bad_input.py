"""Whatever the public filters are given: an answer, or one sentence that names what is wrong."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from gaudi_serve.buckets.linear import (
    DIMENSIONS,
    MOST_BUCKETS,
    bucket_values,
    count_values,
    hpu_buckets,
    hpu_padded_shape,
)
from gaudi_serve.core.errors import LONGEST_VALUE, shown
from gaudi_serve.host.hccl import hccl_benchmark
from gaudi_serve.memory.autocalc import DEFAULTS, LIMITS, hpu_memory
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.plan.launch import vllm_launch
from gaudi_serve.platforms.hl_smi import hl_smi_links, hl_smi_modules, hl_smi_topology
from helpers.bad_values import FOREVER_S, GARBAGE, sentence
from helpers.plans import LLAMA, gaudi_host, model
from helpers.tool_output import CARDS, LATENCY, LATENCY_TABLE, NEW, OLD, TABLE, TOPOLOGY
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

QUICK = settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
SPEC = {**model(), "module_ids": [0, 1], "reduce_warmup": {"max_num_seqs": 4, "max_seq_len": 2048}}
LINKS = "port  0:        UP\nport  1:      DOWN\n"
PARSERS: dict[Callable[[Any], Any], list[str]] = {
    hl_smi_modules: [CARDS],
    hl_smi_topology: [TOPOLOGY],
    hl_smi_links: [LINKS],
    hccl_benchmark: [OLD, NEW, LATENCY, TABLE, LATENCY_TABLE],
}
SAMPLES = [(parser, text) for parser, texts in PARSERS.items() for text in texts]


def environment(prompt_bs: Any = 1, prompt_seq: Any = 1, decode_bs: Any = 1, decode_block: Any = 1) -> dict[str, str]:
    """Return bucket variables by their maxima; minimum and step are 1."""
    maxima = zip(DIMENSIONS, (prompt_bs, prompt_seq, decode_bs, decode_block), strict=True)
    return {
        f"VLLM_{dimension}_BUCKET_{part}": str(value)
        for dimension, most in maxima
        for part, value in (("MIN", 1), ("STEP", 1), ("MAX", most))
    }


@QUICK
@given(st.sampled_from([*LIMITS, *DEFAULTS]), GARBAGE, st.sampled_from([{}, {"MAX_NUM_SEQS": 64}, {"HEAD_DIM": 64}]))
def test_memory_of_anything(key: str, value: Any, more: dict[str, Any]) -> None:
    text = sentence(lambda: hpu_memory({**LLAMA, **more, key: value}))
    assert not text or f"{key}: " in text


@QUICK
@given(st.dictionaries(st.sampled_from(sorted(LIMITS)), st.floats(0, 1), max_size=30), st.booleans())
def test_memory_within_its_limits_always_has_an_answer(shares: dict[str, float], exponential: bool) -> None:
    values: dict[str, Any] = {}
    for key, share in shares.items():
        low, high = LIMITS[key]
        value = max(low, min(high, low * (high / low) ** share if low else high * share))
        values[key] = value if isinstance(low, float) else round(value)
    found = hpu_memory({**LLAMA, **values, "VLLM_EXPONENTIAL_BUCKETING": exponential})
    assert isinstance(found["fit"]["fits"], bool) and math.isfinite(found["fit"]["short_by_gib"])


@QUICK
@given(st.sampled_from([*environment(), "tokens", "blocks", "batch", "length", "phase"]), GARBAGE)
def test_buckets_of_anything(key: str, value: Any) -> None:
    numbers = {"tokens": 64, "blocks": 8, "batch": 2, "length": 3, "phase": "decode", **environment(4, 4, 4, 4)}
    numbers[key] = value
    env = {name: content for name, content in numbers.items() if name.startswith("VLLM")}
    text = sentence(lambda: hpu_buckets(env, numbers["tokens"], numbers["blocks"]))
    assert not text or any(word in text for word in (key, "max_num_batched_tokens", "num_hpu_blocks"))
    shape = [numbers[name] for name in ("phase", "batch", "length", "blocks")]
    assert key == "tokens" or isinstance(sentence(lambda: hpu_padded_shape(env, *shape)), str)


def test_very_many_prompt_graphs_leave_the_others_a_share() -> None:
    odd = {"MAX_MODEL_LEN": 10**9, "MAX_NUM_BATCHED_TOKENS": 10**9, "VLLM_PROMPT_BS_BUCKET_MAX": 10**9}
    small = {"BLOCK_SIZE": 1, "CACHE_DTYPE_BYTES": 0.125, "GPU_MEM_UTILIZATION": 0.01, "HEAD_DIM": 1}
    more = {"APPROX_MEM_PER_GRAPH_MB": 0.001, "GPU_FREE_MEM_TARGET": 0.0, "VLLM_EXPONENTIAL_BUCKETING": False}
    assert not hpu_memory({**LLAMA, **odd, **small, **more})["fit"]["fits"]


def test_a_name_that_is_the_mistake_does_not_break_the_sentence() -> None:
    assert sentence(lambda: vllm_launch({**SPEC, "name": "a\nb"}, gaudi_host())).startswith("'a\\nb': name: 'a\\nb' is")
    assert sentence(lambda: hpu_memory({**LLAMA, "MODEL": "\n", "HIDDEN_SIZE": 10**400})).startswith(
        "'\\n': HIDDEN_SIZE"
    )
    assert "MODEL_MEM_FROM_CONFIG: 1000" in sentence(lambda: hpu_memory({**LLAMA, "MODEL_MEM_FROM_CONFIG": 10**400}))


@pytest.mark.parametrize("value", [None, [], "x", 7, True, b"x"])
def test_what_is_no_mapping_is_refused_by_name(value: Any) -> None:
    for function, key in (
        (lambda: hpu_memory(value), "input"),
        (lambda: hpu_buckets(value, 1, 1), "env"),
        (lambda: hpu_padded_shape(value, "prompt", 1, 1, 1), "env"),
        (lambda: vllm_launch(value, gaudi_host()), "vllm_launch: model"),
        (lambda: vllm_launch(SPEC, value), "qwq: host"),
    ):
        assert f"{key}: " in sentence(function)


@QUICK
@given(st.sampled_from(sorted({*SPEC, "launch_profile", "skip_warmup", "max_num_prefill_seqs", "env"})), GARBAGE)
def test_a_launch_of_anything(key: str, value: Any) -> None:
    for profile in ("aice_1_21", "deepseek_r1", "vllm"):
        text = sentence(
            lambda profile=profile: vllm_launch({**SPEC, "launch_profile": profile, key: value}, gaudi_host())
        )
        assert not text or key in text or "module_ids" in text or "buckets" in text or "launch_profile" in text


@QUICK
@given(st.sampled_from(["ip", "interface", "device_name", "modules", "accelerator"]), GARBAGE)
def test_a_launch_on_anything(key: str, value: Any) -> None:
    for profile in ("aice_1_21", "deepseek_r1", "vllm"):
        sentence(lambda profile=profile: vllm_launch({**SPEC, "launch_profile": profile}, gaudi_host(**{key: value})))


@QUICK
@given(st.sampled_from(["module_id", "numa_node", "cpus", "in_use"]), GARBAGE)
def test_a_launch_on_any_card(key: str, value: Any) -> None:
    host = gaudi_host()
    host["modules"][1][key] = value
    text = sentence(lambda: vllm_launch(SPEC, host))
    assert not text or f"host.modules[1].{key}: " in text or "module_ids" in text or "came before" in text


@QUICK
@given(st.integers(1, 70), st.integers(1, 70), st.integers(0, 900))
def test_values_are_counted_as_they_are_made(low: int, step: int, more: int) -> None:
    assert count_values(low, step, low + more) == len(bucket_values(low, step, low + more))


@pytest.mark.parametrize(
    ("env", "blocks", "variable"),
    [
        (environment(prompt_seq=10**9), 10, "VLLM_PROMPT_SEQ_BUCKET_MAX: 1000000000 gives"),
        (environment(decode_bs=10**12), 10, "VLLM_DECODE_BS_BUCKET_MAX"),
        (environment(prompt_bs=1001, prompt_seq=1000), 10, "1,001,000 buckets, above 1,000,000"),
        (environment(prompt_bs=99999, prompt_seq=99999), 10, "VLLM_PROMPT_BS_BUCKET_MAX"),
        (environment(decode_bs=9999, decode_block=99999), 10**9, "VLLM_DECODE_BLOCK_BUCKET_MAX"),
    ],
)
def test_too_many_buckets_are_refused_before_they_are_made(env: dict[str, str], blocks: int, variable: str) -> None:
    start = time.process_time()
    assert variable in sentence(lambda: hpu_buckets(env, 10**9, blocks))
    assert time.process_time() - start < FOREVER_S  # 0.05 s on an idle machine


def test_as_many_buckets_as_allowed_are_made() -> None:
    found = hpu_buckets(environment(prompt_bs=1000, prompt_seq=1000), 10**9, 10)
    assert isinstance(found["prompt"], list) and len(found["prompt"]) == MOST_BUCKETS
    # A device of few blocks ends the rows, whatever the maximum is.
    assert hpu_buckets(environment(decode_block=10**9), 1, 3)["decode"] == [[1, 1], [1, 2], [1, 3]]


@pytest.mark.parametrize(
    ("change", "start"),
    [
        ({"max_num_seqs": 65536, "input_range": [1, 10**7]}, "max_num_seqs: 65536 makes too many buckets"),
        ({"max_num_seqs": 512, "input_range": [1, 10**7]}, "input_range: [1, 10000000] makes too many buckets"),
        ({"max_num_seqs": 512, "output_range": [1, 10**7]}, "output_range: [1, 10000000] makes too many buckets"),
        ({"reduce_warmup": {"max_num_seqs": 9999, "max_seq_len": 10**7}}, 'reduce_warmup: {"max_num_seqs": 9999'),
        ({"input_range": [30000, 40000]}, "input_range: [30000, 40000] empties VLLM_PROMPT_BS_BUCKET: minimum 1 is"),
        ({"max_num_batched_tokens": 3}, "max_num_batched_tokens: 3 empties VLLM_PROMPT_BS_BUCKET: minimum 1 is above"),
        ({"reduce_warmup": {"max_num_seqs": 1, "max_seq_len": 9}}, 'reduce_warmup: {"max_num_seqs": 1, "max_seq_len"'),
        ({"max_num_prefill_seqs": "many", "launch_profile": "deepseek_r1"}, "max_num_prefill_seqs: 'many' is"),
        ({"max_model_len": 100, "launch_profile": "deepseek_r1"}, "max_model_len: 100 is below 128"),
        ({"max_num_sequences": 4}, "max_num_sequences: 4 is refused: is neither a key of this toolkit nor an option"),
        ({"weights": None}, "weights: is required"),
        ({"max_num_seqs": "x" * 10**6}, "max_num_seqs: '" + "x" * (LONGEST_VALUE - 1) + "... is refused"),
    ],
)
def test_a_launch_names_the_key_that_was_written(change: dict[str, Any], start: str) -> None:
    begin = time.process_time()
    assert sentence(lambda: vllm_launch({"name": "m", "weights": "/m", **change}, gaudi_host())).startswith(
        f"m: {start}"
    )
    assert time.process_time() - begin < FOREVER_S


def test_a_plan_names_the_variable_of_env_that_was_written() -> None:
    plan = vllm_plan([model(env={"VLLM_PROMPT_BS_BUCKET_MIN": "99"})], gaudi_host(), host_name="g")
    (error,) = plan["errors"]
    assert (error["key"], error["value"]) == ("VLLM_PROMPT_BS_BUCKET_MIN", 99)
    assert error["allowed"].startswith("is above VLLM_PROMPT_BS_BUCKET_MAX, which is ")


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("value", [None, b"index, module_id\n0, 1\n", 7, [], {}, "", "\n \r\n", "\x1b[32m\x1b[0m"])
def test_what_is_no_output_is_refused(parser: Callable[[Any], Any], value: Any) -> None:
    assert sentence(lambda: parser(value))


@QUICK
@given(st.sampled_from(SAMPLES), st.text(max_size=40), st.data())
def test_parsers_of_anything(sample: tuple[Callable[[Any], Any], str], text: str, data: Any) -> None:
    parser, good = sample
    at, end = (data.draw(st.integers(0, len(good))) for _ in range(2))
    for broken in (text, good[:at] + text + good[at:], good[:at] + good[end:]):
        sentence(lambda broken=broken: parser(broken))


@pytest.mark.parametrize(("parser", "good"), SAMPLES)
def test_line_ends_tabs_and_colours_do_not_matter(parser: Callable[[Any], Any], good: str) -> None:
    expected = parser(good)
    assert parser(good.replace("\n", "\r\n")) == parser(f"\n\n{good}\n\n") == expected
    lines = "\n".join(f"\x1b[1;32m{line}\x1b[0m" for line in good.splitlines())
    assert parser(lines) == expected
    if parser is not hccl_benchmark:
        assert parser(good.replace("  ", "\t")) == expected


# A table of sixteen that is cut between two lines is one of fewer, too.
@pytest.mark.parametrize("count", [1, 16])
@pytest.mark.parametrize("threads", [True, False])
def test_a_table_cut_anywhere_never_loses_a_card_of_its_whole_lines(count: int, threads: bool) -> None:
    modules = "index, module_id, bus_id\n" + "".join(f"{n}, {15 - n}, 0000:{n:02x}:00.0\n" for n in range(count))
    topology = TOPOLOGY.split("0  ")[0] + "".join(f"{n}   0-39{', 80-119' * threads}   0\n" for n in range(count))
    for parser, text in ((hl_smi_modules, modules), (hl_smi_topology, topology)):
        assert len(parser(text)) == count
        for end in range(len(text)):
            cut = text[:end]
            rows = len(text[:end].splitlines()) - (1 if parser is hl_smi_modules else 2)
            # Whole lines are a whole table.
            assert not (cut.endswith("\n") and rows > 0) or len(parser(cut)) == rows
            assert sentence(lambda parser=parser, cut=cut: parser(cut)) or len(parser(cut)) == rows


@pytest.mark.parametrize(
    ("parser", "text", "message"),
    [
        (hl_smi_modules, "index, module_id\n0, -1\n", "hl-smi: line 2: not a line of index, module_id: '0, -1'"),
        (hl_smi_modules, "index, module_id\n0, 99999999999\n", "line 2: not a line of index, module_id"),
        (hl_smi_modules, "index, module_id\n0, ²\n", "line 2: not a line of index, module_id"),
        (hl_smi_modules, "index, module_id\n0, 1\n0, 2\n", "line 3: an index or module_id that came before: '0, 2'"),
        (hl_smi_modules, "index, module_id\n", "line 1: no line of a card follows the header"),
        (hl_smi_modules, "index, module_id, index\n0, 1, 2\n", "line 1: the header names a column twice"),
        (
            hl_smi_modules,
            "index, module_id\n0, 1\n\n2, " + "9" * 200,
            "line 4: not a line of index, module_id: '2, 999",
        ),
        (hl_smi_topology, "0   0-39\n", "hl-smi topo: line 1: not a line of module, CPU affinity, NUMA node"),
        (hl_smi_topology, "0   0-39, 80-119\n", "line 1: not a line"),
        (hl_smi_topology, "0   0-39,   0\n", "line 1: not a line"),
        (hl_smi_topology, "0   39-0   0\n", "line 1: not a line"),
        (hl_smi_topology, "0   0-39   0\n0   40-79   0\n", "line 2: a module that came before"),
        (hl_smi_topology, "-1   0-39   0\n", "line 1: not a line"),
        (hl_smi_links, "port  0:        UP\nport 1:\n", "hl-smi -n link: line 2: not a line of a port"),
        (hl_smi_links, "port 99999: UP\n", "line 1: not a line of a port"),
        (hccl_benchmark, OLD.replace("count=8388608", "count=many"), "hccl_demo: line 4: 'many' is not an integer"),
        (hccl_benchmark, OLD.replace("iterations=1000", "iterations=1.5"), "line 4: '1.5' is not an integer"),
        (hccl_benchmark, OLD.replace("258.259144", "1e999"), "line 5: '1e999' is not a number"),
        (hccl_benchmark, OLD.replace("258.259144", "-258"), "line 5: not a line of a figure"),
        (hccl_benchmark, OLD + "[BENCHMARK] " + "x" * 10**6, "line 8: longer than "),
        (hccl_benchmark, TABLE + "(src collective=" + "," * 10**6, "line 8: longer than "),
        (hccl_benchmark, TABLE.replace("59.19", "-59.19"), "line 6: not a row of size, count, type, redop"),
        (hccl_benchmark, TABLE.replace("33554432", "-33554432"), "line 7: '-33554432' is not an integer"),
        (hccl_benchmark, OLD + OLD.splitlines()[3], "line 8: '[BENCHMARK] hcclAllReduce"),
    ],
)
def test_the_line_is_named_by_number_and_text(parser: Callable[[Any], Any], text: str, message: str) -> None:
    found = sentence(lambda: parser(text))
    assert message in found
    assert len(found) < 3 * LONGEST_VALUE + 60


LONG = [
    "x",
    " ",
    "0",
    "\t",
    ",",
    "0,",
    "0-",
    "1.",
    "\x1b[",
    "\x1b[0",
    "a=",
    "port ",
    "port 0" + " " * 50,
    "[BENCHMARK] ",
]
BEGIN = ["", "0, ", "0  ", "port 0 : ", "[BENCHMARK] hccl", "[BENCHMARK] NW Bandwidth : 1", "(src collective=", "size "]


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("begin", BEGIN)
def test_a_line_of_a_megabyte_takes_no_time(parser: Callable[[Any], Any], begin: str) -> None:
    for filling in LONG:
        line = begin + filling * (10**6 // len(filling))
        for text in (line, PARSERS[parser][-1] + line, line + "!"):
            start = time.process_time()
            sentence(lambda text=text: parser(text))
            assert time.process_time() - start < FOREVER_S, (begin, filling)  # 0.05 s on an idle machine


def test_values_are_shown_short() -> None:
    assert shown("a") == "'a'"
    assert len(shown("a" * 10**6)) == len(shown([1] * 10**6)) == LONGEST_VALUE + 3
    assert shown(10**5000) == "a value of type int"
