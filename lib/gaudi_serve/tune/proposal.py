"""What is planned for the requests that a model gets, beside what its servers warm up today."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..buckets.best_ranges import best_ranges
from ..buckets.bucket_plan import answer, planned, speeds_told
from ..buckets.compared import Compared, Strategy, of_ranges, of_strategy
from ..buckets.linear import BucketRanges, bucket_rows
from ..buckets.plan_limits import Goal, Padding, goal_of
from ..buckets.plugin_input import STRATEGIES
from ..buckets.traffic import Request, Shapes, Traffic, decode_step_of, fitting, traffic_of
from ..core.errors import InputError
from .target import Target, Today

GOALS = {"tune_like": "like", "tune_max_graphs": "max_graphs", "tune_max_padding": "max_padding"}


@dataclass(frozen=True)
class Proposal:
    """What is planned.

    source: where the requests come from, in words. taken, uncovered: how many of them the servers take, and do not.
    shapes: the steps. today: what servers warm up now. planned: what the plan pads. prompt: (tokens, blocks of
    context) and decode: (sequences, blocks), its buckets. strategies: those of the plugin, by name. text: the file to
    review. speed: how fast the server is taken to be, in words. beside: with what speeds and held_out compare, as
    hpu_bucket_plan returns these.
    """

    target: Target
    source: str
    taken: int
    uncovered: int
    shapes: Shapes
    today: Today
    planned: Compared
    prompt: frozenset[tuple[int, int]]
    decode: frozenset[tuple[int, int]]
    strategies: Mapping[str, Compared | InputError]
    text: str
    speed: str
    beside: str
    speeds: Sequence[Mapping[str, Any]]
    held_out: Mapping[str, Any] | None


def read_goal(asked: Mapping[str, Any]) -> Goal | None:
    """Return the goal of a run by its variables tune_like, tune_max_graphs, tune_max_padding; None without any.

    Raises:
        InputError: for a value that is none, and for more than one of them; it names the variable.
    """
    said = {name: asked[name] for name in GOALS if asked.get(name) not in (None, "")}
    if len(said) > 1:
        raise InputError(f"{' and '.join(said)}: only one of them can be the goal; leave the others out")
    if not said:
        return None
    try:
        return goal_of({GOALS[name]: value for name, value in said.items()})
    except InputError as problem:
        raise InputError(str(problem).replace("limits.", "tune_", 1)) from None


def proposed(
    target: Target, requests: Sequence[Request], wanted: Goal | None, source: str, token_s: float = 0
) -> Proposal:
    """Return what is planned for some requests.

    Args:
        target: the model.
        requests: that it gets.
        wanted: the goal; without one, no more padding than exp, or than today for the fork, which has no exp.
        source: where the requests come from, in words.
        token_s: seconds between two tokens of running servers; 0 where nobody knows.

    Raises:
        InputError: where the servers take none of the requests, and for a goal that cannot be reached.
    """
    limits = target.limits
    taken, uncovered = fitting(list(requests), limits)
    if not taken:
        raise InputError(f"model {target.name}: {source}: no request fits: {uncovered[0]['reason']}")
    step, why = target.decode_step()
    if token_s:
        step, why = decode_step_of(taken, limits, token_s), f"its answers have a token every {1000 * token_s:.1f} ms"
    traffic = traffic_of(taken, limits, step)
    shapes = traffic.assumed
    strategies = {name: answer(partial(of_strategy, name, limits, shapes)) for name in STRATEGIES}
    made_from = f"{len(taken)} requests ({source})"
    today = target.today(shapes)
    try:
        find = _planned_ranges if target.ranges else _planned_list
        found = find(target, traffic, wanted, made_from)
    except InputError as problem:
        raise InputError(f"model {target.name}: {problem}") from None
    return Proposal(
        target=target,
        source=source,
        taken=len(taken),
        uncovered=len(uncovered),
        shapes=shapes,
        today=today,
        strategies=strategies,
        speed=f"a decode step of one sequence takes about {1000 * step:.1f} ms: {why}",
        **found,
    )


def _planned_list(target: Target, traffic: Traffic, wanted: Goal | None, made_from: str) -> dict[str, Any]:
    # The list covers as many blocks as any of the hosts may have; its padding is counted over the steps of this one.
    server, goal = replace(target.limits, num_hpu_blocks=target.covered), wanted or Goal(like="exp")
    found = planned(server, traffic, goal, made_from, target.limits)
    buckets = found.plan.buckets
    return {
        "planned": found.compared,
        "prompt": frozenset((query, context) for _, query, context in buckets.prompt),
        "decode": frozenset((batch, blocks) for batch, _, blocks in buckets.decode),
        "text": found.plan.file,
        "beside": goal.like or "exp",
        "speeds": found.speeds,
        "held_out": found.held_out,
    }


def _planned_ranges(target: Target, traffic: Traffic, wanted: Goal | None, made_from: str) -> dict[str, Any]:
    server = replace(target.limits, num_hpu_blocks=target.covered)
    strategy = answer(partial(Strategy.of, wanted.like if wanted and wanted.like else "exp", target.limits))

    def beside(steps: Shapes) -> Compared | None:
        """Return what must not be padded more: today's ranges where no goal is said."""
        if not (wanted and wanted.like):
            today = target.today(steps).compared
            if isinstance(today, Compared):
                return today
        return None if isinstance(strategy, InputError) else strategy.compared(steps)

    def made(part: Traffic) -> BucketRanges:
        most: list[Padding] | None = None
        if wanted is None or wanted.like:
            if None in (others := [beside(steps) for steps in part.shapes]):
                raise InputError(f"nothing is there to compare with: {strategy}")
            most = [other.padding for other in others if other]
        elif wanted.max_padding:
            most = [wanted.max_padding] * len(part.shapes)
        ranges = best_ranges(server, part.shapes, wanted.max_graphs if wanted else None, most)
        if ranges is None:
            raise InputError("no ranges reach this goal; allow more graphs, or more padding")
        return ranges

    name = wanted.like if wanted and wanted.like else "today"

    def told(ranges: BucketRanges, part: Traffic) -> list[dict[str, Any]]:
        others = [beside(steps) for steps in part.shapes]
        return speeds_told([of_ranges(ranges, server, steps) for steps in part.shapes], name, others)

    ranges, parted, held_out = made(traffic), traffic.held_out(), None
    part = answer(partial(made, parted[0])) if parted else None
    if parted and isinstance(part, BucketRanges):
        graphs = of_ranges(part, server, parted[1].assumed).graphs
        held_out = {"graphs": graphs, "speeds": told(part, parted[1])}
    prompts, decodes, _ = bucket_rows(ranges, server.max_num_batched_tokens, server.num_hpu_blocks)
    return {
        "planned": of_ranges(ranges, server, traffic.assumed),
        "prompt": frozenset((length, 0) for _, lengths in prompts for length in lengths),
        "decode": frozenset((batch, length) for batch, lengths in decodes for length in lengths),
        "text": _env_text(ranges, made_from),
        "beside": name,
        "speeds": told(ranges, traffic),
        "held_out": held_out,
    }


def _env_text(ranges: BucketRanges, made_from: str) -> str:
    lines = [f'{name}: "{value}"' for name, value in ranges.env().items()]
    return "\n".join([f"# Planned by playbooks/tune.yml from {made_from}.", *lines]) + "\n"


__all__ = ["Proposal", "proposed", "read_goal"]
