"""What is planned for the requests that a model gets, beside what its servers warm up today."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..buckets.best_ranges import best_ranges
from ..buckets.bucket_plan import allowed, plan_of
from ..buckets.compared import Compared, of_plugin, of_ranges, of_strategy
from ..buckets.linear import BucketRanges, bucket_rows
from ..buckets.plan_limits import Goal, goal_of
from ..buckets.plugin_input import STRATEGIES
from ..buckets.plugin_server import PluginServer
from ..buckets.traffic import Request, Shapes, fitting, shapes_of
from ..core.errors import InputError
from .target import Target, Today

GOALS = {"tune_like": "like", "tune_max_graphs": "max_graphs", "tune_max_padding": "max_padding"}


@dataclass(frozen=True)
class Proposal:
    """What is planned.

    source: where the requests come from, in words. taken, uncovered: how many of them the servers take, and do not.
    shapes: the steps. today: what servers warm up now. planned: what the plan pads. prompt: (tokens, blocks of
    context) and decode: (sequences, blocks), its buckets. strategies: those of the plugin, by name. text: the file to
    review.
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


def _usual(target: Target, today: Today) -> Goal:
    """Return the goal of who names none: as exp; for the fork, which has no exp, no more padding than today."""
    if target.ranges and isinstance(today.compared, Compared):
        return Goal(max_padding=today.compared.padding)
    return Goal(like="exp")


def proposed(target: Target, requests: Sequence[Request], wanted: Goal | None, source: str) -> Proposal:
    """Return what is planned for some requests.

    Raises:
        InputError: where the servers take none of the requests, and for a goal that cannot be reached.
    """
    limits = target.limits
    taken, uncovered = fitting(list(requests), limits)
    if not taken:
        raise InputError(f"model {target.name}: {source}: no request fits: {uncovered[0]['reason']}")
    shapes = shapes_of(taken, limits)
    strategies = {name: _tried(name, target, shapes) for name in STRATEGIES}
    made_from = f"{len(taken)} requests ({source})"
    today = target.today(shapes)
    goal = wanted or _usual(target, today)
    try:
        find = _planned_ranges if target.ranges else _planned_list
        planned, prompt, decode, text = find(target, shapes, goal, strategies, made_from)
    except InputError as problem:
        raise InputError(f"model {target.name}: {problem}") from None
    return Proposal(
        target, source, len(taken), len(uncovered), shapes, today, planned, prompt, decode, strategies, text
    )


Found = tuple[Compared, frozenset[tuple[int, int]], frozenset[tuple[int, int]], str]


def _planned_list(
    target: Target, shapes: Shapes, goal: Goal, strategies: Mapping[str, Compared | InputError], made_from: str
) -> Found:
    # The list covers as many blocks as any of the hosts may have; its padding is counted over the steps of this one.
    server = replace(target.limits, num_hpu_blocks=target.covered)
    plan = plan_of(server, shapes, goal, allowed(goal, strategies, shapes), made_from)
    found = of_plugin(PluginServer(server.server("file", plan.file), plan.buckets), shapes)
    prompt = frozenset((query, context) for _, query, context in plan.buckets.prompt)
    return found, prompt, frozenset((batch, blocks) for batch, _, blocks in plan.buckets.decode), plan.file


def _planned_ranges(
    target: Target, shapes: Shapes, goal: Goal, strategies: Mapping[str, Compared | InputError], made_from: str
) -> Found:
    server = replace(target.limits, num_hpu_blocks=target.covered)
    most = allowed(goal, strategies, shapes)
    ranges = best_ranges(server, shapes, goal.max_graphs, None if most is None else most[0])
    if ranges is None:
        raise InputError("no ranges reach this goal; allow more graphs, or more padding")
    prompts, decodes, _ = bucket_rows(ranges, server.max_num_batched_tokens, server.num_hpu_blocks)
    return (
        of_ranges(ranges, server, shapes),
        frozenset((length, 0) for _, lengths in prompts for length in lengths),
        frozenset((batch, length) for batch, lengths in decodes for length in lengths),
        _env_text(ranges, made_from),
    )


def _env_text(ranges: BucketRanges, made_from: str) -> str:
    lines = [f'{name}: "{value}"' for name, value in ranges.env().items()]
    return "\n".join([f"# Planned by playbooks/tune.yml from {made_from}.", *lines]) + "\n"


def _tried(name: str, target: Target, shapes: Shapes) -> Compared | InputError:
    try:
        return of_strategy(name, target.limits, shapes)
    except InputError as problem:
        return problem


__all__ = ["Proposal", "proposed", "read_goal"]
