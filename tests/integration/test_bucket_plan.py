"""Buckets planned from a trace: every shape is covered, none that the server drops, near the optimum, and in time."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from random import Random
from typing import Any

import pytest
from gaudi_serve.buckets.bucket_grid import Bucket, BucketGrid
from gaudi_serve.buckets.bucket_plan import bounds_of, hpu_bucket_plan, phases_of, plan_of
from gaudi_serve.buckets.bucket_search import best
from gaudi_serve.buckets.compared import Compared, Strategy, of_ranges
from gaudi_serve.buckets.coverage import uncovered
from gaudi_serve.buckets.linear import BucketRanges
from gaudi_serve.buckets.plan_limits import PlanLimits, read_limits
from gaudi_serve.buckets.plugin import plugin_buckets
from gaudi_serve.buckets.plugin_server import PluginServer
from gaudi_serve.buckets.shape_field import Phase, ShapeField
from gaudi_serve.buckets.traffic import Shapes, fitting, read_trace, shapes_of, traffic_of
from helpers.bad_values import GARBAGE, sentence
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

QUICK = settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
AZURE = {
    **{"max_num_seqs": 128, "max_model_len": 16384, "max_num_batched_tokens": 16384, "num_hpu_blocks": 4096},
    "prefix_caching": False,
}
SERVER = {"max_num_seqs": 8, "max_model_len": 1024, "max_num_batched_tokens": 512, "num_hpu_blocks": 40}
ROW = {"arrival_s": 0.5, "input_tokens": 700, "output_tokens": 20}
LIKE = {**SERVER, "like": "exp"}
SHARES = {"prompt_tokens": 0.2, "decode_batch": 0.2, "decode_blocks": 0.2}


def traffic(count: int, longest: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return made-up requests: many short ones, few long ones."""
    random, found, now = Random(seed), [], 0.0  # noqa: S311
    for _ in range(count):
        now += random.expovariate(20)
        length = min(longest, 1 + int(random.lognormvariate(4, 1.2)))
        found.append({"arrival_s": now, "input_tokens": length, "output_tokens": random.randrange(1, longest)})
    return found


def server_of(limits: Mapping[str, Any], plan: Mapping[str, Any]) -> PluginServer:
    """Return a server that was started with the planned file."""
    return PluginServer(read_limits({**limits, "like": "exp"})[0].server("file", plan["file"]))


def test_more_graphs_pad_less_and_a_padding_is_kept() -> None:
    rows = traffic(300, 300)
    few, many = (hpu_bucket_plan(rows, {**SERVER, "max_graphs": most}) for most in (6, 24))
    assert (few["graphs"], many["graphs"]) == (6, 24)
    assert all(many["padding"][share] < few["padding"][share] for share in SHARES)
    plan = hpu_bucket_plan(rows, {**SERVER, "max_padding": SHARES})
    assert all(plan["padding"][share] <= 0.2 for share in SHARES) and 6 < plan["graphs"] < 24


@pytest.mark.parametrize("rows", [traffic(100, 40, 1), [{"arrival_s": 0, "input_tokens": 3, "output_tokens": 2}]])
@pytest.mark.parametrize("most", [2, 3])
def test_so_many_graphs_and_no_more_also_where_padding_is_many_times_the_work(
    rows: list[dict[str, Any]], most: int
) -> None:
    plan = hpu_bucket_plan(rows, {**AZURE, "use_contiguous_pa": True, "max_graphs": most})
    assert plan["graphs"] == most


def test_no_padding_at_all_can_be_asked_for() -> None:
    rows = [{"arrival_s": 0, "input_tokens": 100 * one, "output_tokens": 5 * one} for one in range(1, 9)]
    none = dict.fromkeys(SHARES, 0)
    plan = hpu_bucket_plan(rows, {**SERVER, "max_padding": none})
    assert plan["padding"] == none
    assert plan["ranges"] is None
    single = [{"arrival_s": 0, "input_tokens": 1, "output_tokens": 5}]
    text = sentence(lambda: hpu_bucket_plan(single, {**SERVER, "max_padding": none}))
    assert text == "limits: no bucket plan was found that pads prompt_tokens by no more than 0; allow more"


def test_the_file_reports_what_it_was_made_from() -> None:
    rows = [{**ROW, "arrival_s": one} for one in range(3)]
    assert hpu_bucket_plan(rows, {**SERVER, "max_graphs": 4})["file"] == (
        "# Planned by hpu_bucket_plan from 3 requests, 63 steps.\n"
        "# For these requests only: others may have more padding than with exp or pad.\n"
        "# For max_num_seqs 8, max_num_prefill_seqs 1, max_model_len 1024, max_num_batched_tokens 512,\n"
        "# block_size 128, num_hpu_blocks 40, contiguous PA off, prefix caching on.\n"
        "# 2 prompt buckets: (sequences, tokens, blocks of context)\n"
        "(1, 189, 4)\n(1, 512, 8)\n"
        "# 2 decode buckets: (sequences, 1, blocks of all)\n"
        "(1, 1, 6)\n(8, 1, 64)\n"
    )


# Limits, and how little of everything a server may have.
LIMITS = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 9),
        "max_num_prefill_seqs": st.integers(1, 4),
        "max_model_len": st.integers(2, 60),
        "max_num_batched_tokens": st.integers(2, 70),
        "block_size": st.sampled_from([1, 3, 4, 16]),
        "num_hpu_blocks": st.integers(1, 60),
    }
)
SWITCHES = st.sampled_from([(False, False), (False, True), (True, False)])
GOALS = st.sampled_from(
    [
        {"max_graphs": 2},
        {"max_graphs": 9},
        {"max_padding": dict.fromkeys(SHARES, 0.5)},
        {"like": "exp"},
        {"like": "pad"},
    ]
)


def shapes_asked(limits: PlanLimits) -> tuple[list[Bucket], list[tuple[int, int]]]:
    """Return every prompt step and every decode step that can be asked for, by the words of docs/guides/buckets.md."""
    size, length, tokens = limits.block_size, limits.max_model_len, limits.max_num_batched_tokens
    prompts = [
        (batch, query, ctx)
        for batch in range(1, max(1, min(limits.max_num_prefill_seqs, tokens // 2)) + 1)
        for query in range(1, min(tokens // batch, length) + 1)
        for ctx in range(length)
        if ctx == 0 or (ctx - 1) * size + 1 + query <= length
    ]
    held = limits.num_hpu_blocks * (3 if limits.prefix_caching else 1)
    decodes = [
        (batch, blocks)
        for batch in range(1, min(limits.max_num_seqs, held) + 1)
        for blocks in range(
            1 if limits.use_contiguous_pa else batch,
            (limits.num_hpu_blocks if limits.use_contiguous_pa else min(held, batch * -(-length // size))) + 1,
        )
    ]
    return prompts, decodes


@QUICK
@given(LIMITS, SWITCHES, GOALS, st.integers(0, 9))
def test_every_shape_that_can_be_asked_for_is_warm(
    limits: dict[str, Any], switches: tuple[bool, bool], goal: dict[str, Any], seed: int
) -> None:
    said = {**limits, "use_contiguous_pa": switches[0], "prefix_caching": switches[1], **goal}
    rows = [*traffic(12, 50, seed), {"arrival_s": 0, "input_tokens": 1, "output_tokens": 3}]
    try:
        plan = hpu_bucket_plan(rows, said)
    except ValueError as problem:
        assert str(problem).startswith(("limits", "trace: has no request that fits")), problem
        return
    own = server_of({**limits, "use_contiguous_pa": switches[0], "prefix_caching": switches[1]}, plan)
    assert uncovered(own.buckets, read_limits(said)[0]) is None
    assert [list(one) for one in own.buckets.prompt] == plan["prompt"]
    assert [list(one) for one in own.buckets.decode] == plan["decode"]
    prompts, decodes = shapes_asked(own_limits := read_limits({**said})[0])
    assert own_limits.max_num_seqs == limits["max_num_seqs"]
    assert not [one for one in prompts if not own.prompt(*one).warmed]
    assert not [one for one in decodes if not own.decode(*one).warmed]
    # The server cuts what is wanted to its largest bucket: nothing that can be asked for may need that.
    assert own.buckets.decode.most_blocks() >= max(blocks for _, blocks in decodes)


def taken(buckets: list[tuple[int, int]], x: int, y: int) -> tuple[int, int] | None:
    """Return the first bucket, by the lookup rule's own words."""
    return next((one for one in sorted(buckets) if one[0] >= x and one[1] >= y), None)


FIELDS = st.lists(st.integers(1, 70), min_size=1, max_size=3).map(sorted)


@settings(QUICK, max_examples=150)
@given(LIMITS, SWITCHES, st.lists(st.tuples(FIELDS, FIELDS, FIELDS), min_size=1, max_size=4), st.booleans())
def test_a_file_is_known_to_hold_every_step_or_not(
    limits: dict[str, Any], switches: tuple[bool, bool], lines: list[tuple[list[int], ...]], context: bool
) -> None:
    said = {**limits, "use_contiguous_pa": switches[0], "prefix_caching": switches[1], "max_graphs": 99}
    server = read_limits(said)[0]
    # With one row that holds much, both answers are frequent.
    wide = "(range(1, 5), [2, 35, 70], range(0, 62))\n(range(1, 10), 1, range(1, 200))\n"
    text = "".join(f"({batch}, {query}, {ctx})\n({batch}, 1, {ctx})\n" for batch, query, ctx in lines)
    for file in (text, wide + text):
        try:
            buckets = plugin_buckets(server.server("file", file))
        except ValueError:
            continue
        prompts, decodes = shapes_asked(server)
        lacks = [
            *(one for one in prompts if (context or not one[2]) and buckets.prompt.first(*one) is None),
            *((batch, 1, blocks) for batch, blocks in decodes if buckets.decode.first(batch, 1, blocks) is None),
        ]
        found = uncovered(buckets, server, context=context)
        assert (found is None) == (not lacks), (found, lacks[:3])


PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), min_size=1, max_size=8, unique=True)
STEPS = st.dictionaries(st.tuples(st.integers(1, 9), st.integers(1, 12)), st.integers(1, 5), max_size=20)


@QUICK
@given(PAIRS, STEPS, STEPS)
def test_padded_work_is_that_of_the_lookup_rule_at_every_speed(
    places: Any, steps: dict[tuple[int, int], int], more: dict[tuple[int, int], int]
) -> None:
    phase = Phase([steps, more], 9, lambda _: 12, False, lambda _: 1, 1, (lambda x, _: x, lambda x, y: x * y), (1, 1))
    grid = ShapeField(phase, [1, 3, 4, 7, 9], [1, 2, 5, 6, 11, 12])
    places = tuple(sorted({*places, (4, 5)}))
    buckets = [(grid.xs[i], grid.ys[j]) for i, j in places]
    expected = []
    for lane in (steps, more):
        found = [(taken(buckets, *shape) or (0, 0), count) for shape, count in lane.items()]
        expected.append((sum(x * count for (x, _), count in found), sum(x * y * count for (x, y), count in found)))
    assert [*zip(*map(grid.lanes, grid.padded(places) or ()), strict=True)] == expected
    less = grid.padded(tuple(one for one in places if one != (4, 5)))
    assert less is None or next(zip(*map(grid.lanes, less), strict=True))[0] == expected[0][0]


def losses(phase: Phase, places: list[tuple[int, int]], asked: list[tuple[int, int]], most: int) -> list[float]:
    """Return, by the number of buckets, the least loss that any choice of them has; infinite for none."""
    found = [float("inf")]
    (real,), (shapes,) = phase.real(), phase.shapes
    for count in range(1, most + 1):
        least = float("inf")
        for chosen in combinations(places, count):
            if any(taken(list(chosen), *shape) is None for shape in asked):
                continue
            work = [0.0, 0.0]
            for shape, times in shapes.items():
                bucket = taken(list(chosen), *shape)
                assert bucket
                work = [sum_ + one(*bucket) * times for sum_, one in zip(work, phase.measures, strict=True)]
            shares = zip(phase.worth, work, real, strict=True)
            least = min(least, sum(worth * (have / want - 1) for worth, have, want in shares))
        found.append(least)
    return found


KINDS = {  # tokens of prompts and of answers, each with its deviation, and requests a second
    "short": ((60, 0.5), (40, 0.6), 30),
    "long": ((1500, 0.4), (500, 0.3), 3),
    "both": ((60, 0.3), (1500, 0.2), 6),
}


def of_kind(kind: str, seed: int) -> list[dict[str, Any]]:
    """Return made-up requests whose lengths are of a kind; of kind both, every other one swaps them."""
    (prompt, answer, rate), random, now, found = KINDS[kind], Random(seed), 0.0, []  # noqa: S311
    for row in range(300):
        now += random.expovariate(rate)
        lengths = [max(1, int(mean * random.lognormvariate(0, deviation))) for mean, deviation in (prompt, answer)]
        one, two = lengths if kind != "both" or row % 2 else reversed(lengths)
        found.append({"arrival_s": now, "input_tokens": min(3000, one), "output_tokens": min(1000, two)})
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_unseen_requests_of_every_kind_seed_and_rate_keep_the_promise(kind: str) -> None:
    said = {"max_num_seqs": 32, "max_model_len": 4096, "max_num_batched_tokens": 4096, "num_hpu_blocks": 900}
    limits, goal, _ = read_limits({**said, "like": "exp"})
    exp, pad = (Strategy.of(name, limits) for name in ("exp", "pad"))
    known = traffic_of(fitting(read_trace(of_kind(kind, 0)), limits)[0], limits)
    plan = plan_of(limits, known.shapes, goal, bounds_of(goal, limits, exp, known), "a trace")
    assert plan.graphs < exp.graphs / 2
    assert all(within(plan.server.compared(one), exp.compared(one)) for one in known.shapes)
    # Every step of the other kinds too, at a third of the rate, the same, and three times the rate.
    others = [(other, seed, speed) for seed, speed in ((1, 1 / 3), (2, 1), (3, 3)) for other in KINDS]
    for other, seed, speed in others:
        shapes = shapes_of(fitting(read_trace(of_kind(other, seed)), limits)[0], limits, speed)
        one, *both = (found.compared(shapes).padding for found in (plan.server, exp, pad))
        assert one.prompt_tokens <= both[0].prompt_tokens + 1e-9, (other, seed)
        assert one.decode_batch <= both[0].decode_batch + 1e-9, (other, seed)
        most = max(padding.decode_blocks for padding in both)
        assert one.decode_blocks <= (most + 1e-9 if other == kind else 1.5 * (1 + most) - 1), (other, seed)


def within(one: Compared, other: Compared) -> bool:
    """Return whether no share of padding is larger than another server's."""
    return all(getattr(one.padding, share) <= getattr(other.padding, share) + 1e-9 for share in SHARES)


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("like", ["exp", "pad"])
def test_no_possible_step_has_more_than_the_promise(like: str, contiguous: bool) -> None:
    said = {**SERVER, "max_num_seqs": 12, "use_contiguous_pa": contiguous, "max_num_prefill_seqs": 1, "like": like}
    limits = read_limits(said)[0]
    plan = hpu_bucket_plan(traffic(100, 300), said)
    times = float(plan["file"].split(" or less, blocks to ")[1].split()[0])
    assert plan["same_as"] is None and times <= 1.5
    own = server_of(said, plan).buckets
    exp, pad = (Strategy.of(name, limits).buckets for name in ("exp", "pad"))
    prompts, decodes = shapes_asked(limits)
    for shape in prompts:
        one, other = own.prompt.first(*shape), exp.prompt.first(*shape)
        assert one and (other is None or one[1] <= other[1]), (shape, one, other)
    for batch, blocks in decodes:
        one, *both = (found.decode.first(batch, 1, blocks) for found in (own, exp, pad))
        assert one and both[0] and one[0] <= both[0][0], (batch, blocks, one, both)
        assert one[2] <= max(one[0], times * max(found[2] for found in both if found)), (batch, blocks, one, both)


@pytest.mark.parametrize(("first", "last"), [("short", "long"), ("short", "both")])
def test_held_out_requests_of_another_kind_stay_within_the_worse_of_both(first: str, last: str) -> None:
    said = {"max_num_seqs": 32, "max_model_len": 4096, "max_num_batched_tokens": 4096, "num_hpu_blocks": 900}
    rows = of_kind(first, 0)[:100]
    rows += [{**row, "arrival_s": row["arrival_s"] + rows[-1]["arrival_s"]} for row in of_kind(last, 1)[:50]]
    limits = read_limits({**said, "like": "exp"})[0]
    taken, pad = traffic_of(fitting(read_trace(rows), limits)[0], limits), Strategy.of("pad", limits)
    held_out, parted = hpu_bucket_plan(rows, {**said, "like": "exp"})["held_out"], taken.held_out()
    assert parted is not None
    for shapes, at_speed in zip(parted[1].shapes, held_out["speeds"], strict=True):
        for share, padding in at_speed["padding"].items():
            worse = max(at_speed["compared"]["exp"][share], getattr(pad.compared(shapes).padding, share))
            assert padding <= worse + 1e-6, (at_speed["speed"], share)


def test_a_plan_that_would_not_bound_other_requests_with_fewer_graphs_is_the_strategy_itself() -> None:
    said = {**SERVER, "max_num_seqs": 1, "max_model_len": 128, "max_num_batched_tokens": 128, "like": "exp"}
    plan = hpu_bucket_plan(traffic(100, 100), said)
    assert plan["same_as"] == "exp" and plan["graphs"] == plan["compared"]["exp"]["graphs"]
    assert plan["padding"] == plan["compared"]["exp"]["padding"]
    assert "\n# These are the buckets of strategy exp, " in plan["file"]


@pytest.mark.parametrize("seed", range(4))
def test_small_plans_are_within_five_percent_of_the_best_there_is(seed: int) -> None:
    said = {"max_num_seqs": 3, "max_model_len": 12, "max_num_batched_tokens": 5, "block_size": 4, "num_hpu_blocks": 9}
    limits = read_limits({**said, "prefix_caching": False, "max_graphs": 5})[0]
    shapes = shapes_of(fitting(read_trace(traffic(30, 11, seed)), limits)[0], limits)
    phases = phases_of(limits, [shapes], [shapes])
    prompts, decodes = shapes_asked(limits)
    asked = ([(query, ctx) for _, query, ctx in prompts], decodes)
    corners = [
        [one for one in those if not any(o != one and o[0] >= one[0] and o[1] >= one[1] for o in those)]
        for those in asked
    ]
    places = ([(x, y) for x in range(2, 6) for y in range(4)], [(x, y) for x, y in decodes])
    one, two = (losses(*parts, 4) for parts in zip(phases, places, corners, strict=True))
    for most in (2, 3, 4, 5):
        least = min(one[count] + two[most - count] for count in range(max(1, most - 4), min(4, most - 1) + 1))
        found = sum(search.loss(search.shares(chosen)) for search, chosen in best(phases, most))
        assert found <= least * 1.05 + 1e-9, (most, found, least)


def test_a_step_is_as_the_page_reports() -> None:
    """Two prompts in one step, the second cut; blocks that begin, a preemption, and a sequence of one token."""
    said = {"max_num_seqs": 2, "max_model_len": 32, "max_num_batched_tokens": 10, "block_size": 4, "num_hpu_blocks": 8}
    limits = read_limits({**said, "like": "exp"})[0]
    rows = [
        {"arrival_s": 0, "input_tokens": length, "output_tokens": answer} for length, answer in ((7, 3), (8, 2), (4, 1))
    ]
    shapes = shapes_of(read_trace(rows), limits)
    assert shapes == Shapes({(7, 0): 1, (3, 0): 1, (5, 1): 1, (4, 0): 1}, {(1, 2): 1, (2, 6): 1})
    # The first decodes alone while the second is computed; then both, of 9 tokens each, in three blocks.
    rows = [
        {"arrival_s": 0, "input_tokens": 8, "output_tokens": 12},
        {"arrival_s": 0, "input_tokens": 8, "output_tokens": 9},
    ]
    again = shapes_of(read_trace(rows), limits)
    assert sum(tokens * count for (tokens, _), count in again.prompt.items()) > 16  # one was computed again
    assert max(blocks for _, blocks in again.decode) <= 8
    assert sum(batch * count for (batch, _), count in again.decode.items()) == 11 + 8 - 1  # its end gave a token


def test_requests_beyond_the_limits_are_cut_or_reported() -> None:
    rows = [ROW, {**ROW, "input_tokens": 1024}, {**ROW, "output_tokens": 9999}]
    plan = hpu_bucket_plan(rows, LIKE)
    reason = "a prompt of 1024 tokens leaves no room for an answer within 1024, max_model_len"
    assert plan["uncovered"] == [{"row": 1, "input_tokens": 1024, "reason": reason}]
    limits = read_limits(LIKE)[0]
    assert [one.output_tokens for one in fitting(read_trace(rows), limits)[0]] == [20, 324]


def test_ranges_of_a_hundred_graphs() -> None:
    plan = hpu_bucket_plan(traffic(200, 300), {**SERVER, "max_graphs": 20})
    assert plan["ranges"]["graphs"] <= 20 and plan["graphs"] == 20
    assert sum(plan["padding"].values()) < sum(plan["ranges"]["padding"].values())


def test_a_strategy_that_stops_the_server_has_no_figures() -> None:
    wide = {**SERVER, "max_num_batched_tokens": 10**5, "max_model_len": 10**6, "num_hpu_blocks": 10**5}
    plan = hpu_bucket_plan([ROW], {**wide, "max_graphs": 6})
    assert plan["compared"]["lin"]["graphs"] is None and plan["compared"]["exp"]["graphs"] > 6
    assert plan["compared"]["lin"]["refused"].startswith("VLLM_PROMPT_CTX_BUCKET_MAX: ")
    text = sentence(lambda: hpu_bucket_plan([ROW], {**wide, "like": "lin"}))
    assert text.startswith("limits.like: 'lin' is not a plan to compare with: VLLM_PROMPT_CTX_BUCKET_MAX: ")


GOAL = "limits: needs exactly one of max_graphs, max_padding, like; "


@pytest.mark.parametrize(
    ("trace", "limits", "message"),
    [
        (None, LIKE, "trace: is required: a list of {arrival_s, input_tokens, output_tokens}, at least one"),
        ([], LIKE, "trace: [] is not a list of {arrival_s, input_tokens, output_tokens}, at least one"),
        ([ROW, 7], LIKE, "trace[1]: 7 is not a mapping with arrival_s, input_tokens and output_tokens"),
        ([{**ROW, "input_tokens": 0}], LIKE, "trace[0].input_tokens: 0 is not an integer from 1 to 1000000000000"),
        ([{**ROW, "arrival_s": "now"}], LIKE, "trace[0].arrival_s: 'now' is not a number from -1e+12 to 1e+12"),
        ([{"arrival_s": 1, "input_tokens": 1}], LIKE, "trace[0].output_tokens: is required: an integer from 0"),
        ([{**ROW, "tokens": 1}], LIKE, "trace[0]: tokens: is not a known name; did you mean"),
        (
            [{**ROW, "input_tokens": 2000}],
            LIKE,
            "trace: has no request that fits: a prompt of 2000 tokens leaves no room for an answer within 1024, max_",
        ),
        ([ROW], None, "limits: is required: a mapping with max_num_seqs, max_model_len and so on"),
        ([ROW], {**LIKE, "max_num_sequences": 8}, "limits: max_num_sequences: is not a known name; did you mean"),
        ([ROW], {**LIKE, "max_num_seqs": None}, "limits.max_num_seqs: is required: an integer from 1 to"),
        ([ROW], {**LIKE, "max_num_batched_tokens": 1}, "limits.max_num_batched_tokens: 1 is not an integer from 2"),
        ([ROW], {**LIKE, "prefix_caching": 1}, "limits.prefix_caching: 1 is not true or false"),
        ([ROW], {**LIKE, "decode_step_s": 0}, "limits.decode_step_s: 0 is not a number from 1e-05 to 100"),
        (
            [ROW],
            {**LIKE, "use_contiguous_pa": True, "prefix_caching": True},
            "limits.prefix_caching: true cannot be with use_contiguous_pa, which turns prefix caching off; set one of",
        ),
        ([ROW], SERVER, f"{GOAL}none is set"),
        ([ROW], {**LIKE, "max_graphs": 8}, f"{GOAL}max_graphs and like are set"),
        ([ROW], {**SERVER, "max_graphs": 1}, "limits.max_graphs: 1 is not an integer from 2 to"),
        (
            [ROW],
            {**SERVER, "max_num_prefill_seqs": 3, "max_graphs": 3},
            "limits.max_graphs: 3 is below 4, the fewest that cover every step of this server",
        ),
        ([ROW], {**SERVER, "like": "file"}, "limits.like: 'file' is not one of exp, lin, pad"),
        (
            [ROW],
            {**SERVER, "max_padding": 0.1},
            "limits.max_padding: 0.1 is not a mapping with prompt_tokens, decode_b",
        ),
        (
            [ROW],
            {**SERVER, "max_padding": {**SHARES, "decode_batch": 1.5}},
            "limits.max_padding.decode_batch: 1.5 is not a number from 0 to 1",
        ),
        ([ROW], {**SERVER, "max_padding": {}}, "limits.max_padding.prompt_tokens: is required: a number from 0 to 1"),
    ],
)
def test_bad_input_gets_one_sentence(trace: Any, limits: Any, message: str) -> None:
    assert sentence(lambda: hpu_bucket_plan(trace, limits)).startswith(message)


@QUICK
@given(
    st.sampled_from([*LIKE, *ROW, "max_padding", "max_graphs", "block_size", "use_contiguous_pa", "decode_step_s"]),
    GARBAGE,
)
def test_a_plan_of_anything(key: str, value: Any) -> None:
    rows, limits = ([{**ROW, key: value}], LIKE) if key in ROW else ([ROW], {**LIKE, key: value})
    text = sentence(lambda: hpu_bucket_plan(rows, limits))
    assert not text or key in text or text.startswith("limits") or "max_model_len" in text


def test_figures_of_ranges_know_no_context() -> None:
    limits = read_limits(LIKE)[0]
    ranges = BucketRanges((1, 1, 1), (128, 128, 512), (1, 1, 8), (8, 8, 40))
    found = of_ranges(ranges, limits, Shapes({(100, 0): 1, (200, 3): 2}, {(3, 9): 4}))
    assert found.padding.prompt_tokens == pytest.approx((28 + 2 * 56) / 500)
    assert (found.padding.decode_batch, found.padding.decode_blocks) == (0, pytest.approx(7 / 9))
    assert BucketGrid.of([]).most_blocks() == 0
