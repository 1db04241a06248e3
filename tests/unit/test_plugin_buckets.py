"""The buckets of the vendor's plugin, beyond what its golden vectors reach, and every way in which its server stops."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from gaudi_serve.buckets.bucket_grid import Bucket, BucketGrid
from gaudi_serve.buckets.from_file import file_buckets
from gaudi_serve.buckets.padded import padded_ranges
from gaudi_serve.buckets.plugin import hpu_plugin_buckets, plugin_buckets
from gaudi_serve.buckets.plugin_input import DIMENSIONS, PARTS, PluginInput, PluginRange, PluginRanges, PluginSettings
from gaudi_serve.buckets.plugin_linear import linear_ranges
from gaudi_serve.buckets.plugin_server import PluginServer, fallback, hpu_plugin_padded_shape
from gaudi_serve.core.errors import InputError
from helpers.bad_values import FOREVER_S, GARBAGE, sentence
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

QUICK = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
SERVER = {
    "max_num_seqs": 8,
    "max_num_prefill_seqs": 1,
    "block_size": 128,
    "max_num_batched_tokens": 2048,
    "max_model_len": 4096,
    "num_hpu_blocks": 300,
    "env": {},
}
FILE = {"VLLM_BUCKETING_FROM_FILE": "b.txt"}
LINES = "(1, 256, 0)\n(1, 1, 128)\n"
PROMPT = {"phase": "prompt", "batch": 1, "query": 200, "ctx": 0}
DECODE = {"phase": "decode", "batch": 3, "blocks": 40}


def server(*, env: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """Return a small server; strategy exp where ``env`` chooses none."""
    return {**SERVER, **fields, "env": env or {}}


def strategy(name: str, **variables: Any) -> dict[str, Any]:
    """Return a server of a strategy, by the parts of its variables' names between VLLM_ and _BUCKET_."""
    named = {f"VLLM_{key.replace('__', '_BUCKET_')}": str(value) for key, value in variables.items()}
    return server(env={"VLLM_BUCKETING_STRATEGY": name, **named})


def of_file(text: str | None, **fields: Any) -> dict[str, Any]:
    """Return a server that reads its buckets from a file."""
    return {**server(env=FILE, **fields), "file": text}


# What is asked, and the whole sentence.
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        strategy("lin", PROMPT_QUERY__MIN=4096),
        "VLLM_PROMPT_QUERY_BUCKET_MIN: 4096 is above VLLM_PROMPT_QUERY_BUCKET_MAX, which is 2048: the server stops at "
        "start; lower the minimum or raise the maximum",
    ),
    (
        strategy("pad", PROMPT_SEQ__MIN=4096, PROMPT_SEQ__MAX=1024),
        "VLLM_PROMPT_SEQ_BUCKET_MIN: 4096 is above VLLM_PROMPT_SEQ_BUCKET_MAX, which is 1024: the server stops at "
        "start; lower the minimum or raise the maximum",
    ),
    (
        strategy("lin", DECODE_BS__MIN=-1),
        "VLLM_DECODE_BS_BUCKET_MIN: -1 is below 0: the server would not stop counting; write 0 or more",
    ),
    (
        strategy("lin", DECODE_BLOCK__STEP=0),
        "VLLM_DECODE_BLOCK_BUCKET_STEP: 0 is not a step: the server stops at start; write 1 or more",
    ),
    (
        strategy("pad", DECODE_BS__STEP=0),
        "VLLM_DECODE_BS_BUCKET_STEP: 0 is below 1: the server stops at start; write 1 or more",
    ),
    (
        strategy("pad", PROMPT_CTX__PAD_PERCENT=51),
        "VLLM_PROMPT_CTX_BUCKET_PAD_PERCENT: 51 is not from 0 to 50 percent: the server stops at start; write 25, or "
        "leave it out",
    ),
    (
        strategy("lin", PROMPT_QUERY__MIN=2001, PROMPT_QUERY__STEP=2000),
        "VLLM_PROMPT_QUERY_BUCKET_MIN: leaves no value up to its maximum: the server stops at start; lower it",
    ),
    (
        strategy("exp", DECODE_BS__MAX="8k"),
        "VLLM_DECODE_BS_BUCKET_MAX: '8k' is not an integer: the server reads it at start, used or not, and stops; "
        "write an integer, or leave it out",
    ),
    (
        strategy("exp", DECODE_BS__MAX=10**13),
        "VLLM_DECODE_BS_BUCKET_MAX: '10000000000000' is not an integer up to 1000000000000",
    ),
    (
        strategy("exponential"),
        "VLLM_BUCKETING_STRATEGY: 'exponential' is not one of exp, lin, pad: the server stops at start",
    ),
    (
        server(env={"VLLM_BUCKETING_STRATEGY": "line", **FILE}),
        "VLLM_BUCKETING_STRATEGY: 'line' is not one of exp, lin, pad: the server stops at start; did you mean lin?",
    ),
    (
        server(env={"PT_HPU_SDPA_QKV_SLICE_MODE_FWD": "1", "PT_HPU_SDPA_BC_FACTOR": "0"}),
        "PT_HPU_SDPA_BC_FACTOR: 0 is below 1: the server divides by it; write 1 or more, or leave it out, "
        "which is 1024",
    ),
    (server(env={"A": None}), "A: is not the text of an environment variable"),
    (server(env={"A": 10**5000}), "A: a value of type int is above 1000000000000"),
    (
        server(max_num_prefill_seqs=0),
        "max_num_prefill_seqs: 0 is not above 0: the server stops at start; set VLLM_PROMPT_BS_BUCKET_MAX to 1 or "
        "more, or leave it out",
    ),
    (
        server(max_num_prefill_seqs=0, env={"VLLM_MERGED_PREFILL": "1", "VLLM_BUCKETING_STRATEGY": "lin"}),
        "max_num_prefill_seqs: 0 is not above 0: with merged prefill it is max_num_seqs",
    ),
    (
        server(max_num_batched_tokens=1),
        "max_num_batched_tokens: 1 is not above 1: with strategy exp the server stops at start",
    ),
    (
        server(mamba_chunk_size=256, max_num_batched_tokens=2000),
        "max_num_batched_tokens: 2000 is not a multiple of mamba_chunk_size 256: the server stops at start; "
        "1792 is one",
    ),
    (
        strategy("lin", PROMPT_QUERY__MIN=4097, PROMPT_QUERY__STEP=4100, PROMPT_QUERY__MAX=8000, PROMPT_CTX__MAX=1),
        "VLLM_PROMPT_*_BUCKET_*: no prompt bucket is within max_model_len 4096 and max_num_batched_tokens 2048: the "
        "server stops at start; allow shorter queries and less context",
    ),
    (
        strategy("lin", DECODE_BS__MIN=8, DECODE_BLOCK__MAX=7),
        "VLLM_DECODE_*_BUCKET_*: no decode bucket has as many blocks as sequences: the server stops at start; allow "
        "fewer sequences or more blocks",
    ),
    (
        of_file(None),
        "VLLM_BUCKETING_FROM_FILE: 'b.txt' names a missing file: the server stops at start; set its text as "
        "file, or unset it",
    ),
    (
        of_file("(1, 9999, 0)\n(1, 1, 1)"),
        "file: no prompt bucket is within max_model_len 4096 and max_num_batched_tokens 2048: the server stops at "
        "start; allow shorter queries and less context",
    ),
    (
        of_file("(1, 1, 1)"),
        "file: has no line of a prompt bucket, such as (1, 256, 0): the server stops at start; write one",
    ),
    ({**server(), "file": ""}, "file: is set, but VLLM_BUCKETING_FROM_FILE names none: the server reads none"),
    (of_file(7), "file: 7 is not the text of a bucket file"),  # type: ignore[arg-type]
    (
        server(strategy="lin"),
        "strategy: 'lin' is not what env chooses, which is exp; set VLLM_BUCKETING_STRATEGY, or leave strategy out",
    ),
    (server(max_num_sequences=1), "max_num_sequences: is not a known name; did you mean max_num_seqs"),
    ({**server(), "block_size": None}, "block_size: is required: an integer from 1 to 1000000000000"),
    (server(skip_decode_block_clamp="yes"), "skip_decode_block_clamp: 'yes' is not true or false"),
    ({key: value for key, value in SERVER.items() if key != "env"}, "env: is required: a mapping of environment"),
]


@pytest.mark.parametrize(("asked", "message"), REFUSED)
def test_what_stops_the_server_gets_one_sentence(asked: dict[str, Any], message: str) -> None:
    assert sentence(lambda: hpu_plugin_buckets(asked)).startswith(message)
    assert sentence(lambda: hpu_plugin_padded_shape(asked, PROMPT)).startswith(message)


FORM = "a line is a tuple such as (1, [256, 512], range(0, 8, 4)): a number, list or range three times"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1, 256, 0]", f"'[1, 256, 0]' is not a tuple of three; {FORM}"),
        ("(1, 256)", f"'(1, 256)' is not a tuple of three; {FORM}"),
        ("(1, 256 0)", f"'(1, 256 0)' cannot be read by the server; {FORM}"),
        ("(" * 9999, "'((((("),
        ("range (1, 2), 3, 4", "'range (1, 2), 3, 4' cannot be read by the server"),
        ("(1, (2, 3), 4)", f"'(1, (2, 3), 4)' has [2, 3] instead of a number; {FORM}"),
        ("(1, 'many', 4)", "\"(1, 'many', 4)\" has 'many' instead of a number"),
        ("(1, 1e999, 4)", "'(1, 1e999, 4)' has Infinity instead of a number"),
        ("(1, -2, 4)", "'(1, -2, 4)' has -2, which is not from 0 to 1000000000000"),
        ("(1, 2, range(8, 64, 0))", "'(1, 2, range(8, 64, 0))' has range(8, 64, 0), whose step is 0; write 1 or more"),
        ("(1, 2, range(0, 10001))", "'(1, 2, range(0, 10001))' has range(0, 10001) of 10,001 values, above 10,000"),
        ("(1, 2, range(0, 999999999999))", "'(1, 2, range(0, 999999999999))' has range(0, 999999999999) of 999,999,"),
        (f"(1, {[3] * 10001}, 2)", "'(1, [3, 3, 3"),
        (f"(1, {'9' * 400000}, 2)", "'(1, 9999"),
        ("(range(0, 10000), range(2, 999), 2)", "'(range(0, 10000), range(2, 999), 2)' makes the file have 9,970,000"),
    ],
)
def test_a_wrong_line_of_a_file_is_named(line: str, message: str) -> None:
    text = sentence(lambda: hpu_plugin_buckets(of_file(f"# mine\n\n{line}\n{LINES}")))
    assert text.startswith(f"file, line 3: {message}")
    assert text.endswith("; with this line the server stops at start")


def test_a_line_may_be_written_in_several_ways() -> None:
    text = "range(1,3), [256], 0x2  # bare\r\n  (1, 256.0, '4')\n#(1, 9, 9)\n\n(2, 1, range(7, 3, -2))\n(1, [], 3)"
    assert file_buckets(text) == ([(1, 256, 2), (2, 256, 2), (1, 256, 4)], [(2, 1, 7), (2, 1, 5)])


@pytest.mark.parametrize(
    ("asked", "variable"),
    [
        (
            strategy("lin", PROMPT_BS__MAX=10**9),
            "VLLM_PROMPT_BS_BUCKET_MAX: 1000000000 gives 1,000,000,000 values, above",
        ),
        (strategy("pad", DECODE_BS__MAX=10**12), "VLLM_DECODE_BS_BUCKET_MAX: 1000000000000 gives"),
        (
            strategy("lin", PROMPT_CTX__MAX=10**5, PROMPT_QUERY__STEP=1) | {"max_model_len": 10**9},
            "VLLM_PROMPT_CTX_BUCKET_MAX: 100000 raises",
        ),
        (
            strategy("lin", PROMPT_BS__MAX=512) | {"max_model_len": 131072, "max_num_batched_tokens": 131072},
            "VLLM_PROMPT_QUERY_BUCKET_MAX: 131072 raises the prompt buckets to 6,905,762",
        ),
        (
            strategy("lin", DECODE_BS__STEP=1, DECODE_BLOCK__STEP=1) | {"max_num_seqs": 512, "max_model_len": 131072},
            "VLLM_DECODE_BLOCK_BUCKET_MAX: 524288 raises the decode buckets to",
        ),
        (
            strategy("lin", DECODE_BS__STEP=1, DECODE_BLOCK__STEP=1, DECODE_BLOCK__MAX=40_000, CONTIGUOUS_PA=1)
            | {"max_num_seqs": 50, "num_hpu_blocks": 40_000, "num_speculative_tokens": 3},
            "VLLM_DECODE_BLOCK_BUCKET_MAX: 40000 raises the decode buckets to",
        ),
        (
            strategy("lin", PROMPT_BS__MAX=10**4, PROMPT_QUERY__STEP=1)
            | {"max_num_batched_tokens": 30_000, "max_model_len": 8000},
            "VLLM_PROMPT_QUERY_BUCKET_MAX",
        ),
    ],
)
def test_too_many_plugin_buckets_are_refused_before_they_are_made(asked: dict[str, Any], variable: str) -> None:
    start = time.process_time()
    assert sentence(lambda: plugin_buckets(PluginInput.read(asked))).startswith(variable)
    assert time.process_time() - start < FOREVER_S  # 0.1 s on an idle machine


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (7, "shape: 7 is not a mapping with phase, batch"),
        ("prompt", "shape: 'prompt' is not a mapping"),
        ([PROMPT, None], "shape[1]: is required: a mapping with phase"),
        ({**PROMPT, "phase": "x"}, "shape.phase: 'x' is not one of prompt, decode"),
        ({"phase": "prompt", "batch": 1, "query": 1}, "shape.ctx: is required: an integer from 0"),
        ({**DECODE, "batch": 0}, "shape.batch: 0 is not an integer from 1"),
        ({**DECODE, "ctx": 0}, "shape of a decode step: ctx: is not a known name"),
        ({**DECODE, "seed_buckets": 1}, "shape.seed_buckets: 1 is not true or false"),
    ],
)
def test_a_wrong_shape_is_named(shape: Any, message: str) -> None:
    assert sentence(lambda: hpu_plugin_padded_shape(server(), shape)).startswith(message)


def test_remember_is_true_or_false() -> None:
    text = sentence(lambda: hpu_plugin_padded_shape(server(), [], "no"))  # type: ignore[arg-type]
    assert text == "remember: 'no' is not true or false"


VARIABLES = [f"VLLM_{dimension}_BUCKET_{part}" for dimension in DIMENSIONS for part in PARTS]


@QUICK
@given(st.sampled_from([*SERVER, *VARIABLES, "file", "strategy", "mamba_chunk_size"]), GARBAGE, st.sampled_from("elp"))
def test_plugin_buckets_of_anything(key: str, value: Any, name: str) -> None:
    asked = strategy({"e": "exp", "l": "lin", "p": "pad"}[name])
    asked = {**asked, "env": {**asked["env"], key: value}} if key in VARIABLES else {**asked, key: value}
    functions: list[Callable[[], Any]] = [
        lambda: plugin_buckets(PluginInput.read(asked)),
        lambda: hpu_plugin_padded_shape(asked, DECODE),
    ]
    for function in functions:
        text = sentence(function)
        assert not text or key in text or "_BUCKET_" in text or "max_num_" in text


@QUICK
@given(st.text(alphabet="(),[]0123 -+'range#e.\t\n_", max_size=60))
def test_a_file_of_anything(text: str) -> None:
    assert isinstance(sentence(lambda: file_buckets(text)), str)


PARTS_OF = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 9))


def first_of(buckets: list[Bucket], wanted: Bucket) -> Bucket | None:
    """Return the first bucket by the rule's own words: in sorted order, every part at least the wanted one."""
    fitting = (one for one in sorted(buckets) if all(have >= want for have, want in zip(one, wanted, strict=True)))
    return next(fitting, None)


@QUICK
@given(st.lists(PARTS_OF, max_size=40), st.lists(PARTS_OF, min_size=1, max_size=20))
def test_the_grid_finds_the_first_that_holds_a_shape(buckets: list[Bucket], shapes: list[Bucket]) -> None:
    grid = BucketGrid.of(buckets)
    assert list(grid) == sorted(set(buckets)) and len(grid) == len(set(buckets))
    assert grid == BucketGrid.of(reversed(buckets)) and hash(grid) == hash(BucketGrid.of(buckets))
    assert grid.most_blocks() == max((ctx for _, _, ctx in buckets), default=0)
    for shape in shapes:
        assert grid.first(*shape) == first_of(buckets, shape)
        assert (shape in grid) == (shape in buckets)


@QUICK
@given(
    st.sampled_from(["exp", "lin", "pad"]),
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 5000), st.integers(0, 400)), max_size=12),
)
def test_a_server_remembers_what_it_had_no_bucket_for(name: str, shapes: list[Bucket]) -> None:
    own = PluginServer(PluginInput.read(strategy(name, PROMPT_BS__MAX=2)))
    lists = {"prompt": list(own.buckets.prompt), "decode": list(own.buckets.decode)}
    warmed = {phase: set(found) for phase, found in lists.items()}
    most = max(blocks for _, _, blocks in lists["decode"])
    for batch, query, ctx in shapes:
        wanted = {"prompt": (batch, query, ctx), "decode": (batch, 1, min(ctx, most))}
        answers = {"prompt": own.prompt(batch, query, ctx), "decode": own.decode(batch, ctx)}
        for phase, answer in answers.items():
            expected = first_of(lists[phase], wanted[phase])
            assert expected in (None, answer.bucket)
            assert answer.warmed == (answer.bucket in warmed[phase])
            lists[phase].append(answer.bucket)


def test_a_list_is_asked_of_one_server_unless_it_is_reported_not_to() -> None:
    shapes = [{**PROMPT, "batch": 3, "query": 900}, {**PROMPT, "batch": 2, "query": 700}]
    asked = strategy("exp")
    remembered = hpu_plugin_padded_shape(asked, shapes)
    fresh = hpu_plugin_padded_shape(asked, shapes, remember=False)
    assert isinstance(remembered, list) and isinstance(fresh, list)
    assert remembered[0] == fresh[0] == hpu_plugin_padded_shape(asked, shapes[0])
    assert fresh[1] == hpu_plugin_padded_shape(asked, shapes[1])
    assert remembered[1] == remembered[0] != fresh[1]


def test_lookups_are_quick() -> None:
    asked = PluginInput.read(
        strategy("lin") | {"max_num_seqs": 128, "max_num_batched_tokens": 16384, "max_model_len": 16384}
    )
    own = PluginServer(asked)
    start = time.process_time()
    for number in range(5_000):
        own.decode(number % 128 + 1, number % 12_000 + 1)
        own.prompt(1, number % 16384 + 1, number % 100)
    assert time.process_time() - start < FOREVER_S  # 0.1 s on an idle machine


def test_without_bucketing_nothing_is_warm_and_nothing_padded() -> None:
    asked = server(env={"VLLM_ENABLE_BUCKETING": "false"})
    assert hpu_plugin_buckets(asked) == {"use_contiguous_pa": False, "prompt": [], "decode": []}
    assert hpu_plugin_padded_shape(asked, PROMPT) == {"bucket": [1, 200, 0], "warmed": False}
    assert hpu_plugin_padded_shape(asked, DECODE) == {"bucket": [3, 1, 40], "warmed": False}


def test_the_made_up_shape_is_coarse_by_its_cube_root() -> None:
    assert [fallback(*one) for one in ((0, 32), (1, 32), (31, 32), (4001, 32), (3, 2))] == [0, 1, 128, 4096, 4]


def test_a_range_of_nothing_but_0() -> None:
    found = hpu_plugin_buckets(strategy("lin", PROMPT_CTX__MAX=0, DECODE_BS__MIN=0, DECODE_BS__MAX=1))
    assert {ctx for _, _, ctx in found["prompt"]} == {0}
    assert found["decode"][0] == [0, 1, 0]
    assert {ctx for _, _, ctx in hpu_plugin_buckets(strategy("pad", PROMPT_CTX__MAX=0))["prompt"]} == {0}


def test_numbers_of_yaml_are_variables_too() -> None:
    said = {"VLLM_BUCKETING_STRATEGY": "lin", "VLLM_PROMPT_CTX_BUCKET_MAX": 4, "VLLM_CONTIGUOUS_PA": True}
    found = hpu_plugin_buckets(server(env=said))
    assert found == hpu_plugin_buckets(server(env={name: str(value) for name, value in said.items()}))
    assert found["use_contiguous_pa"] and max(ctx for _, _, ctx in found["prompt"]) == 4


@pytest.mark.parametrize(
    ("env", "contiguous"),
    [
        ({}, False),
        ({"VLLM_PREFIX_CACHING": "false"}, True),
        ({"VLLM_PREFIX_CACHING": "On"}, False),
        ({"VLLM_PREFIX_CACHING": "false", "VLLM_CONTIGUOUS_PA": "0"}, False),
        ({"VLLM_CONTIGUOUS_PA": "Y"}, True),
        ({"VLLM_CONTIGUOUS_PA": ""}, False),
    ],
)
def test_contiguous_blocks(env: dict[str, str], contiguous: bool) -> None:
    assert PluginSettings.read(env).use_contiguous_pa is contiguous


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({}, "exp"),
        ({"VLLM_BUCKETING_STRATEGY": "pad"}, "pad"),
        ({"VLLM_BUCKETING_STRATEGY": "pad", "VLLM_EXPONENTIAL_BUCKETING": "0"}, "lin"),
        ({"VLLM_BUCKETING_STRATEGY": "pad", "VLLM_EXPONENTIAL_BUCKETING": "T"}, "exp"),
        ({"VLLM_EXPONENTIAL_BUCKETING": "0", **FILE}, "file"),
        ({"VLLM_BUCKETING_FROM_FILE": ""}, "exp"),
    ],
)
def test_the_strategy_in_force(env: dict[str, str], name: str) -> None:
    assert PluginSettings.read(env).strategy == name


NUMBER = st.none() | st.integers(0, 9000)
RANGE = st.builds(PluginRange, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER)


@QUICK
@given(
    st.builds(
        PluginSettings,
        strategy=st.sampled_from(["exp", "lin", "pad"]),
        ranges=st.builds(PluginRanges, RANGE, RANGE, RANGE, RANGE, RANGE, RANGE),
        use_contiguous_pa=st.booleans(),
        merged_prefill=st.booleans(),
        enabled=st.booleans(),
        slice_tokens=st.sampled_from([0, 1024, 100]),
        sliced_from=st.sampled_from([8192, 1]),
    )
)
def test_settings_are_read_back_from_their_variables(wanted: PluginSettings) -> None:
    assert PluginSettings.read(wanted.env()) == wanted


def test_a_file_is_read_back_from_its_variable() -> None:
    wanted = PluginSettings(strategy="file", from_file="/b.txt")
    assert wanted.env() == {"VLLM_CONTIGUOUS_PA": "false", "VLLM_BUCKETING_FROM_FILE": "/b.txt"}
    assert PluginSettings.read(wanted.env()) == wanted


def test_the_ranges_in_force_are_the_table_of_the_page() -> None:
    own = PluginInput.read(server(max_num_prefill_seqs=5))
    assert linear_ranges(own) == PluginRanges(
        prompt_bs=PluginRange(1, 1, 5),
        prompt_query=PluginRange(128, 128, 2048),
        prompt_ctx=PluginRange(0, 1, 31),
        decode_bs=PluginRange(1, 32, 8),
        decode_block=PluginRange(1, 128, 256),
    )
    assert padded_ranges(own) == PluginRanges(
        prompt_bs=PluginRange(1, 1, 5, 2, 25),
        prompt_query=PluginRange(128, 128, 2048, 512, 25),
        prompt_ctx=PluginRange(0, 2, 31, 16, 25),
        decode_bs=PluginRange(1, 2, 8, 2, 25),
        decode_block=PluginRange(128, 128, 256, 64, 25),
    )


def test_an_error_reports_which_variable_it_is() -> None:
    with pytest.raises(InputError) as problem:
        hpu_plugin_buckets(strategy("pad", PROMPT_BS__STEP=0))
    assert problem.value.finding is not None
    assert problem.value.finding[:2] == ("VLLM_PROMPT_BS_BUCKET_STEP", 0)
