"""Buckets planned for the trace of a production service have the figures that the documentation promises."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from gaudi_serve.buckets.bucket_plan import bounds_of, hpu_bucket_plan, plan_of
from gaudi_serve.buckets.compared import Strategy
from gaudi_serve.buckets.linear import BucketRanges, bucket_rows, padded
from gaudi_serve.buckets.plan_limits import Goal, PlanLimits, read_limits
from gaudi_serve.buckets.plugin import hpu_plugin_buckets, plugin_buckets
from gaudi_serve.buckets.plugin_server import PluginServer
from gaudi_serve.buckets.traffic import SPEEDS, Traffic, fitting, read_trace, shapes_of, traffic_of
from helpers.traces import azure

AZURE = {
    **{"max_num_seqs": 128, "max_model_len": 16384, "max_num_batched_tokens": 16384, "num_hpu_blocks": 4096},
    "prefix_caching": False,
}
SHARES = ("prompt_tokens", "decode_batch", "decode_blocks")


@cache
def steps() -> tuple[PlanLimits, Traffic]:
    """Return the server of the aims, and the steps that it runs for the trace at each of its speeds."""
    limits = read_limits({**AZURE, "like": "exp"})[0]
    return limits, traffic_of(fitting(read_trace(azure()), limits)[0], limits)


@cache
def plan_of_trace() -> dict[str, Any]:
    """Return the plan of the whole trace."""
    return hpu_bucket_plan(azure(), {**AZURE, "like": "exp"})


def excess(rows: list[dict[str, Any]], like: str) -> dict[float, float]:
    """Return, by speed, how much more than a strategy a plan pads at most, as a part of what the strategy pads."""
    return {
        row["speed"]: max(row["padding"][share] / row["compared"][like][share] - 1 for share in SHARES) for row in rows
    }


def code(seed: int) -> list[dict[str, Any]]:
    """Return made-up requests for completions of code: long prompts, short answers, in bursts."""
    random, found, now = Random(seed), [], 0.0  # noqa: S311
    for row in range(600):
        now += random.expovariate(12) if row % 60 else 8
        prompt, answer = random.lognormvariate(7.3, 1), random.lognormvariate(3, 0.8)
        found.append({"arrival_s": now, "input_tokens": 1 + int(prompt), "output_tokens": 1 + int(answer)})
    return found


def test_fewer_graphs_pad_no_more_than_the_default_at_any_speed() -> None:
    plan = plan_of_trace()
    assert [plan["compared"][name]["graphs"] for name in ("exp", "pad", "lin")] == [99, 460, 16_636]
    assert plan["graphs"] <= 0.75 * 99 and plan["uncovered"] == [] and plan["same_as"] is None
    assert plan["compiled_while_serving"] == 0
    for share, padding in plan["compared"]["exp"]["padding"].items():
        assert plan["padding"][share] <= padding, share
    assert all(1 < faster / slower <= 1.4 for slower, faster in pairwise(SPEEDS))
    assert (min(SPEEDS), max(SPEEDS)) == (0.25, 4)
    more = excess(plan["speeds"], "exp")
    assert list(more) == [round(speed, 3) for speed in SPEEDS] and max(more.values()) <= 1e-6, more
    assert plan["speeds"][SPEEDS.index(1)]["padding"] == plan["padding"]


def test_a_plan_keeps_its_bound_between_the_speeds_that_it_was_made_for_and_for_requests_after_it() -> None:
    plan = plan_of_trace()
    limits, traffic_then = steps()
    own = PluginServer(limits.server("file", plan["file"]))
    exp, pad = (Strategy.of(name, limits) for name in ("exp", "pad"))
    requests = fitting(read_trace(azure()), limits)[0]
    for speed in (0.54, 0.65, 0.92, 1.54, 1.84):
        shapes = shapes_of(requests, limits, speed)
        one, other = (Strategy(of.given, of.buckets).compared(shapes).padding for of in (own, exp))
        for share in SHARES:
            assert getattr(one, share) <= (1 + 1e-9) * getattr(other, share), (speed, share)
    held_out, parted = plan["held_out"], traffic_then.held_out()
    assert parted and held_out["graphs"] <= 0.75 * 99
    for shapes, row in zip(parted[1].shapes, held_out["speeds"], strict=True):
        for share in SHARES:
            most = max(getattr(one.compared(shapes).padding, share) for one in (exp, pad))
            assert row["padding"][share] <= most + 1e-6, (row["speed"], share)


@pytest.mark.parametrize(("seed", "rate"), [(0, 1 / 3), (1, 1), (2, 3)])
def test_a_plan_for_conversations_keeps_its_promise_for_code_at_any_rate(seed: int, rate: float) -> None:
    limits = steps()[0]
    own = limits.server("file", plan_of_trace()["file"])
    rows = [{**row, "arrival_s": row["arrival_s"] / rate} for row in code(seed)]
    shapes = shapes_of(fitting(read_trace(rows), limits)[0], limits)
    exp, pad = (Strategy.of(name, limits).compared(shapes).padding for name in ("exp", "pad"))
    plan = Strategy(own, plugin_buckets(own)).compared(shapes).padding
    assert plan.prompt_tokens <= exp.prompt_tokens
    assert plan.decode_batch <= exp.decode_batch + 1e-9
    assert 1 + plan.decode_blocks <= 1.5 * (1 + max(exp.decode_blocks, pad.decode_blocks))


def test_a_quarter_of_the_graphs_pads_no_more_than_pad_at_any_speed() -> None:
    limits, traffic_then = steps()
    pad, goal = Strategy.of("pad", limits), Goal(like="pad")
    plan = plan_of(limits, traffic_then.shapes, goal, bounds_of(goal, limits, pad, traffic_then), "a trace")
    assert plan.graphs <= 460 / 4
    for shapes in traffic_then.shapes:
        one, other = plan.server.compared(shapes).padding, pad.compared(shapes).padding
        assert all(getattr(one, share) <= getattr(other, share) + 1e-9 for share in SHARES), (one, other)


def test_the_plan_of_the_trace_is_what_the_server_makes_of_its_file() -> None:
    plan = plan_of_trace()
    env = {"VLLM_BUCKETING_FROM_FILE": "b.txt", "VLLM_CONTIGUOUS_PA": "false"}
    asked = {key: value for key, value in AZURE.items() if key != "prefix_caching"}
    found = hpu_plugin_buckets(
        {**asked, "max_num_prefill_seqs": 1, "block_size": 128, "env": env, "file": plan["file"]}
    )
    assert (found["prompt"], found["decode"]) == (plan["prompt"], plan["decode"])
    assert plan["graphs"] == len(plan["prompt"]) + len(plan["decode"])
    own = PluginServer(read_limits({**AZURE, "like": "exp"})[0].server("file", plan["file"]))
    for batch in range(1, 129):
        for blocks in {batch, 2 * batch, 129, 300, 1000, min(4096, 128 * batch)}:
            if batch <= blocks <= min(4096, 128 * batch):
                assert own.decode(batch, blocks).warmed, (batch, blocks)
    for query in (*range(1, 600), *range(600, 16_385, 97), 16_384):
        for context in {0, 1, 5, -(-(16_384 - query) // 128)}:
            if context <= -(-(16_384 - query) // 128):
                assert own.prompt(1, query, context).warmed, (query, context)


def test_the_best_ranges_cover_everything_too() -> None:
    ranges = plan_of_trace()["ranges"]
    own = BucketRanges.read(ranges["env"])
    prompts, decodes, _ = bucket_rows(own, 16384, 4096)
    warm = {
        (batch, length) for batch, lengths in (*prompts, *decodes) for length in (min(one, 4096) for one in lengths)
    }
    lengths = dict(prompts)[1]
    assert all(padded(query, *own.prompt_seq) in lengths for query in range(1, 16_385))
    for batch in range(1, 129):
        for blocks in range(batch, min(4096, batch * 128) + 1, 7):
            pair = (padded(batch, *own.decode_bs), min(padded(blocks, *own.decode_block), 4096))
            assert pair in warm, (batch, blocks)
    assert ranges["graphs"] == sum(len(found) for _, found in (*prompts, *decodes))
    for share, padding in plan_of_trace()["compared"]["exp"]["padding"].items():
        assert ranges["padding"][share] <= padding
    assert ranges["graphs"] < plan_of_trace()["compared"]["aice_1_21"]["graphs"]
