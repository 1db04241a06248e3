"""The planned buckets for the requests of a model, next to today's buckets of its servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..buckets.best_ranges import best_ranges
from ..buckets.bucket_plan import answer, planned, speeds_told
from ..buckets.compared import Compared, Strategy, of_ranges, of_strategy
from ..buckets.linear import BucketRanges, bucket_rows
from ..buckets.plan_limits import Goal, Padding, PlanLimits, goal_of
from ..buckets.plugin_input import STRATEGIES
from ..buckets.traffic import Request, Shapes, Traffic, decode_step_of, fitting, traffic_of
from ..core.errors import InputError
from ..core.words import counted
from .target import Target, Today

GOALS = {"tune_like": "like", "tune_max_graphs": "max_graphs", "tune_max_padding": "max_padding"}


@dataclass(frozen=True)
class Proposal:
    """The result of a plan.

    source: the origin of the requests, in words. taken, uncovered: the number of requests that the servers accept and
    refuse. shapes: the steps. today: the present buckets. planned: the padding of the plan. prompt: (tokens, blocks of
    context) and decode: (sequences, blocks), its buckets. strategies: those of the plugin, by name. text: the file to
    review. speed: the assumed speed of the server, in words. beside: the buckets with which speeds and held_out are
    compared, as hpu_bucket_plan returns them. note: what the plan promises for other requests.
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
    note: str


def read_goal(asked: Mapping[str, Any]) -> Goal | None:
    """Return the goal of a run from tune_like, tune_max_graphs, tune_max_padding; None without any.

    Raises:
        InputError: A value is invalid, or more than one is set. The message names the variable.
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
    """Return the plan for some requests.

    Args:
        target: The model.
        requests: Its requests.
        wanted: The goal. Default: no more padding than exp, or than today for the fork, which has no exp.
        source: The origin of the requests, in words.
        token_s: Seconds between two tokens of running servers; 0 if unknown.

    Raises:
        InputError: The servers accept none of the requests, or the goal cannot be reached.
    """
    limits = target.limits
    taken, uncovered = fitting(list(requests), limits)
    if not taken:
        raise InputError(f"model {target.name}: {source}: no request fits: {uncovered[0]['reason']}")
    step, speed = _speed(target, taken, token_s)
    traffic = traffic_of(taken, limits, step)
    shapes = traffic.assumed
    strategies = {name: answer(partial(of_strategy, name, limits, shapes)) for name in STRATEGIES}
    made_from = f"{counted(len(taken), 'request')} ({source})"
    try:
        found = (_planned_ranges if target.ranges else _planned_list)(target, traffic, wanted, made_from)
    except InputError as problem:
        raise InputError(f"model {target.name}: {problem}") from None
    return Proposal(
        target=target,
        source=source,
        taken=len(taken),
        uncovered=len(uncovered),
        shapes=shapes,
        today=target.today(shapes),
        strategies=strategies,
        speed=speed,
        **found,
    )


def _speed(target: Target, taken: list[Request], token_s: float) -> tuple[float, str]:
    """Return the seconds of a decode step of one sequence, and the assumed speed of the servers in words."""
    step, why = target.decode_step()
    if token_s:
        step = decode_step_of(taken, target.limits, token_s)
        why = f"its answers have a token every {1000 * token_s:.1f} ms"
    return step, f"a decode step of one sequence takes about {1000 * step:.1f} ms: {why}"


def _planned_list(target: Target, traffic: Traffic, wanted: Goal | None, made_from: str) -> dict[str, Any]:
    # The list covers the most blocks of any host. Its padding is counted over the steps of this one.
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
        "note": found.plan.note,
    }


@dataclass(frozen=True)
class _Ranges:
    """Servers that accept only ranges: their limits, the goal, and the strategy of the goal or exp."""

    target: Target
    server: PlanLimits
    goal: Goal | None
    strategy: Strategy | InputError

    @property
    def beside(self) -> str:
        """Return the name of the buckets with which the ranges are compared."""
        return self.goal.like if self.goal and self.goal.like else "today"

    def other(self, steps: Shapes) -> Compared | None:
        """Return the padding of today's ranges, or of the strategy if it is the goal or there are no ranges today."""
        today = self.target.today(steps).compared if self.beside == "today" else None
        if isinstance(today, Compared):
            return today
        return None if isinstance(self.strategy, InputError) else self.strategy.compared(steps)

    def best(self, part: Traffic) -> BucketRanges:
        """Return the best ranges for some steps.

        Raises:
            InputError: No ranges reach the goal.
        """
        most: list[Padding] | None = None
        if self.goal is None or self.goal.like:
            others = [other.padding for steps in part.shapes if (other := self.other(steps))]
            if len(others) < len(part.shapes):
                raise InputError(f"there is nothing to compare with: {self.strategy}")
            most = others
        elif self.goal.max_padding:
            most = [self.goal.max_padding] * len(part.shapes)
        ranges = best_ranges(self.server, part.shapes, self.goal.max_graphs if self.goal else None, most)
        if ranges is None:
            raise InputError("no ranges reach this goal; allow more graphs, or more padding")
        return ranges

    def told(self, ranges: BucketRanges, part: Traffic) -> list[dict[str, Any]]:
        """Return the padding of ranges by speed, as the filter returns it."""
        found = [of_ranges(ranges, self.server, steps) for steps in part.shapes]
        return speeds_told(found, self.beside, [self.other(steps) for steps in part.shapes])

    def held_out(self, traffic: Traffic) -> dict[str, Any] | None:
        """Return the padding of the last part of the steps, for ranges that were made without it."""
        parted = traffic.held_out()
        ranges = answer(partial(self.best, parted[0])) if parted else None
        if parted is None or not isinstance(ranges, BucketRanges):
            return None
        graphs = of_ranges(ranges, self.server, parted[1].assumed).graphs
        return {"graphs": graphs, "speeds": self.told(ranges, parted[1])}


def _planned_ranges(target: Target, traffic: Traffic, wanted: Goal | None, made_from: str) -> dict[str, Any]:
    server = replace(target.limits, num_hpu_blocks=target.covered)
    strategy = answer(partial(Strategy.of, wanted.like if wanted and wanted.like else "exp", target.limits))
    asked = _Ranges(target, server, wanted, strategy)
    ranges = asked.best(traffic)
    prompts, decodes, _ = bucket_rows(ranges, server.max_num_batched_tokens, server.num_hpu_blocks)
    return {
        "planned": of_ranges(ranges, server, traffic.assumed),
        "prompt": frozenset((length, 0) for _, lengths in prompts for length in lengths),
        "decode": frozenset((batch, length) for batch, lengths in decodes for length in lengths),
        "text": _env_text(ranges, made_from),
        "beside": asked.beside,
        "speeds": asked.told(ranges, traffic),
        "held_out": asked.held_out(traffic),
        "note": "These ranges are for these requests: others may have more padding than today.",
    }


def _env_text(ranges: BucketRanges, made_from: str) -> str:
    lines = [f'{name}: "{value}"' for name, value in ranges.env().items()]
    return "\n".join([f"# Planned by playbooks/tune.yml from {made_from}.", *lines]) + "\n"


__all__ = ["Proposal", "proposed", "read_goal"]
