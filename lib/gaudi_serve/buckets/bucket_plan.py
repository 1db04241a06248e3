"""Buckets from traffic: the file with the fewest graphs, or the least padding, for a server's requests.

With ``max_graphs``, the plan minimises the sum of three shares of padding (prompt work, decode sequences, decode
blocks), as the mean of all speeds of the server. Otherwise it minimises the graphs, with each share at every speed
within its limit. Prompt work is tokens times (1 + context / 256 blocks): with tokens alone, every prompt would run with
the largest context.

bucket_search.py has the method, traffic.py the steps over which padding is summed, plan_limits.py the possible inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from itertools import groupby, product
from typing import Any, TypeVar

from ..core.errors import InputError, refusal
from ..core.words import counted
from .best_ranges import best_ranges
from .bucket_grid import Bucket, BucketGrid
from .bucket_search import Search, Shares, best, fewest
from .compared import Compared, Strategy, of_ranges, of_strategy, told
from .linear import BucketRanges
from .other_traffic import BLOCKS, WORK, OtherTraffic
from .plan_limits import Goal, Padding, PlanLimits, read_limits
from .plugin import PluginBuckets, plugin_buckets
from .plugin_input import STRATEGIES
from .script_ranges import script_ranges
from .shape_field import Phase, Places
from .traffic import ASSUMED, CONTEXT_WORTH, SPEEDS, Request, Shapes, Traffic, fitting, read_trace, traffic_of

# If padding is limited, there is no limit for context. Prompt work may then have this much more padding than the
# strategy's, or than the tokens': twice the part of the prompt steps with context, and at most this number. With hardly
# any context, nearly all prompts keep buckets without it.
CONTEXT_ROOM = 0.1


# A plan like a strategy should pad no more with later traffic either. So it pads no more in any part of the trace, and
# with prompts that are longer or shorter by these factors, while its graphs are within the strategy's divided by FEW.
# Whatever the graphs, other_traffic.py bounds each possible step.
STRETCHED = ((0.8, 0.9, 1.1), (0.9, 1.1))
FEW = {"exp": 2, "lin": 5, "pad": 5}
ANY = 1e9  # Of a share: no bound.
# What the file promises for requests that the trace does not have.
ONLY = "For these requests only: others may have more padding than with exp or pad."
OTHERS = "For any requests: prompts and sequences are padded as by exp or less, blocks to {:g} times exp or pad."
SAME = "These are the buckets of strategy {}, and what it does not cover: no fewer graphs bound other requests."
T = TypeVar("T")


@dataclass(frozen=True)
class Bound:
    """Steps, and the padding that a plan may have for them: the most padding, and the most of prompt work."""

    steps: Shapes
    most: Padding
    work: float


Levels = Sequence[Sequence[Bound]]


@dataclass(frozen=True)
class Bounds:
    """The limits of a plan.

    prompt, decode: from the preferred limits to the required ones. graphs: the most graphs for more than the required.
    other: the bound for requests that the trace does not have; None if only the trace counts.
    """

    prompt: Levels
    decode: Levels
    graphs: float = 0
    other: OtherTraffic | None = None


@dataclass(frozen=True)
class BucketPlan:
    """A planned bucket file, and the buckets of a server that has read it."""

    file: str
    server: Strategy
    note: str  # What it promises for requests that its trace does not have.
    same_as: str = ""  # The strategy with the same buckets.

    @property
    def buckets(self) -> PluginBuckets:
        """Return the buckets that the server uses from the file."""
        return self.server.buckets

    @property
    def graphs(self) -> int:
        """Return the number of graphs."""
        return self.server.graphs


def hpu_bucket_plan(trace: Any, limits: Any) -> dict[str, Any]:
    """Return the best buckets for a trace on a server of the vendor's plugin.

    Args:
        trace: A list of ``{arrival_s, input_tokens, output_tokens}``: seconds since any start, tokens.
        limits: The server, by the vendor's names: max_num_seqs, max_model_len, max_num_batched_tokens, num_hpu_blocks.
            Optional are block_size (128), max_num_prefill_seqs (1), use_contiguous_pa (false), prefix_caching (true
            unless use_contiguous_pa is). One goal: ``max_graphs``; ``max_padding`` with prompt_tokens, decode_batch,
            decode_blocks as shares from 0 to 1; or ``like``: exp, pad or lin, whose padding no share may exceed.
            decode_step_s (0.012): the assumed speed of the server, as seconds of a decode step of one sequence.

    Returns:
        ``prompt``: [batch, query, ctx] lists. ``decode``: [batch, 1, blocks] lists. ``file``: the text of the bucket
        file. ``same_as``: the strategy whose buckets these are, or None. ``graphs``: their number. ``padding``: the
        three shares. ``compared``: graphs and padding of exp, pad,
        lin, and of aice_1_21 with the ranges of its launch script; an impossible strategy has None, and ``refused``.
        These are for the assumed speed. ``speeds``: a list of ``{speed, padding, compared: {strategy: padding}}``, with
        speed as a multiple of the assumed one, and the strategy of ``like`` or exp. ``held_out``: for a plan from the
        first two thirds of the requests, ``graphs``, and ``speeds`` with the shares of the last third; None for fewer
        than 60 requests, or if two thirds cannot reach the goal. ``ranges``: the best ranges for the fork with the same
        goal: prompt_bs, prompt_seq, decode_bs, decode_block, each [min, step, max], ``env``, graphs, padding; None if
        no ranges reach the goal. ``uncovered``: rows of the trace that the server would refuse: row, input_tokens,
        reason.

    Raises:
        InputError: The trace or the limits have an invalid key or value, or the goal cannot be reached.
    """
    return _answered(read_trace(trace), *read_limits(limits))


def _answered(requests: list[Request], server: PlanLimits, goal: Goal, decode_step_s: float) -> dict[str, Any]:
    taken, uncovered = fitting(requests, server)
    if not taken:
        raise refusal("", "trace", None, f"has no request that fits: {uncovered[0]['reason']}")
    traffic = traffic_of(taken, server, decode_step_s)
    shapes = traffic.assumed
    strategies = {name: answer(partial(of_strategy, name, server, shapes)) for name in STRATEGIES}
    found = planned(server, traffic, goal, f"{counted(len(taken), 'request')}, {counted(shapes.steps, 'step')}")
    most = None if found.bounds is None else [one.most for one in found.bounds.decode[-1][: len(traffic.shapes)]]
    ranges = best_ranges(server, traffic.shapes, goal.max_graphs, most)
    return {
        "prompt": [list(bucket) for bucket in found.plan.buckets.prompt],
        "decode": [list(bucket) for bucket in found.plan.buckets.decode],
        "file": found.plan.file,
        "same_as": found.plan.same_as or None,
        **found.compared.as_dict(),
        "compared": {
            **{name: told(strategies[name]) for name in ("exp", "pad", "lin")},
            "aice_1_21": told(answer(lambda: of_ranges(script_ranges(taken, server), server, shapes))),
        },
        "speeds": found.speeds,
        "held_out": found.held_out,
        "ranges": None if ranges is None else _ranges_told(ranges, of_ranges(ranges, server, shapes)),
        "uncovered": uncovered,
    }


@dataclass(frozen=True)
class Planned:
    """A plan, its bounds, its padding at the assumed speed, at all speeds, and for held-out requests."""

    plan: BucketPlan
    bounds: Bounds | None
    compared: Compared
    speeds: list[dict[str, Any]]
    held_out: dict[str, Any] | None


def planned(
    server: PlanLimits, traffic: Traffic, goal: Goal, made_from: str, counted: PlanLimits | None = None
) -> Planned:
    """Return the plan for some traffic, with its padding at every speed.

    Args:
        server: The server that the buckets must cover.
        traffic: The steps.
        goal: The goal of the plan.
        made_from: The origin of the traffic, for a comment in the file.
        counted: The server for which the strategies are counted; None: ``server``.

    Raises:
        InputError: The goal cannot be reached, or a strategy is impossible.
    """
    name = goal.like or "exp"
    counted = counted or server
    strategy = answer(partial(Strategy.of, name, counted))
    if goal.like and isinstance(strategy, InputError):
        raise refusal("", "limits.like", goal.like, f"is not a plan to compare with: {strategy}")

    def told_by_speed(plan: BucketPlan, part: Traffic) -> list[dict[str, Any]]:
        others = None if isinstance(strategy, InputError) else [strategy.compared(steps) for steps in part.shapes]
        return speeds_told([plan.server.compared(steps) for steps in part.shapes], name, others)

    bounds = bounds_of(goal, counted, strategy, traffic, server)
    held_out, parted, times = None, traffic.held_out(), BLOCKS[-1]
    if parted is not None:
        earlier = bounds_of(goal, counted, strategy, parted[0], server)
        part = answer(lambda: _tested(server, parted, goal, earlier, made_from))
        if not isinstance(part, InputError):
            held_out = {"graphs": part[0].graphs, "speeds": told_by_speed(part[0], parted[1])}
            times = part[1]
    plan = plan_of(server, traffic.shapes, goal, bounds, made_from, times)
    return Planned(plan, bounds, plan.server.compared(traffic.assumed), told_by_speed(plan, traffic), held_out)


def _tested(
    server: PlanLimits, parted: tuple[Traffic, Traffic], goal: Goal, bounds: Bounds | None, made_from: str
) -> tuple[BucketPlan, float]:
    """Return the plan for a part of the requests with the fewest graphs that keeps the bound for the other part.

    Also return its times. They are 0 for the buckets of the strategy, if no plan keeps the bound.
    """
    found = _found(server, parted[0].shapes, goal, bounds)
    for times in (*BLOCKS, 0):
        plan = _plan(server, found, goal, bounds, made_from, times)
        if bounds is None or bounds.other is None or bounds.other.kept(plan.server, parted[1]):
            break
    return plan, times


def speeds_told(
    compared: Sequence[Compared], name: str, others: Sequence[Compared | None] | None
) -> list[dict[str, Any]]:
    """Return the padding of a plan by speed, next to that of a strategy if it is possible."""
    return [
        {
            "speed": round(speed, 3),
            "padding": plan.padding.as_dict(),
            "compared": {name: strategy and strategy.padding.as_dict()},
        }
        for speed, plan, strategy in zip(SPEEDS, compared, others or [None] * len(compared), strict=True)
    ]


def answer(ask: Callable[[], T]) -> T | InputError:
    """Return the result of a function, or its InputError."""
    try:
        return ask()
    except InputError as problem:
        return problem


def _ranges_told(ranges: BucketRanges, found: Compared) -> dict[str, Any]:
    names = ("prompt_bs", "prompt_seq", "decode_bs", "decode_block")
    return {**{name: list(getattr(ranges, name)) for name in names}, "env": ranges.env(), **found.as_dict()}


def bounds_of(
    goal: Goal,
    limits: PlanLimits,
    strategy: Strategy | InputError,
    traffic: Traffic,
    server: PlanLimits | None = None,
) -> Bounds | None:
    """Return the allowed padding at every speed; None if the graphs are limited instead.

    Args:
        goal: The goal of the plan. Its padding applies only to the whole trace.
        limits: The server for which the strategy is counted.
        strategy: The strategy of ``like``.
        traffic: The steps.
        server: The server that the buckets must cover; None: ``limits``.
    """
    if goal.max_padding is not None:
        most = goal.max_padding
        every = [Bound(steps, most, most.prompt_tokens + _room(steps.prompt)) for steps in traffic.shapes]
        return Bounds([every], [every])
    if goal.like is None or isinstance(strategy, InputError):
        return None

    def bound(steps: Shapes) -> Bound:
        compared = strategy.compared(steps)
        return Bound(steps, compared.padding, compared.prompt_work + _room(steps.prompt))

    other = OtherTraffic.of(server or limits)
    every = [*(bound(steps) for steps in traffic.shapes), Bound(other.corners(), Padding(0, 0, ANY), ANY)]
    parts = [bound(part) for parts in traffic.parts for part in parts]
    # The speed of a server only affects how prompts are split.
    some = (traffic.parts[0], traffic.parts[ASSUMED], traffic.parts[-1])
    longer = {
        times: [bound(_stretched(reduce(Shapes.with_, parts), times, limits)) for parts in some]
        for times in sorted({times for level in STRETCHED for times in level})
    }
    best_kept, kept = ([*every, *(one for times in level for one in longer[times])] for level in STRETCHED)
    best_kept += [bound(part) for parts in some for part in parts]
    levels = [best_kept, kept, every], [[*parts, every[-1]], every]
    return Bounds(*levels, strategy.graphs / FEW[goal.like], other)


def _stretched(steps: Shapes, times: float, limits: PlanLimits) -> Shapes:
    """Return the prompt steps for prompts of ``times`` the length."""
    found: Counter[tuple[int, int]] = Counter()
    for (tokens, context), count in steps.prompt.items():
        longer = max(1, min(limits.most_tokens, round(tokens * times)))
        found[longer, min(limits.most_context(longer), round(context * times))] += count
    return Shapes(found, {})


def _room(prompt: Mapping[tuple[int, int], int]) -> float:
    steps = sum(prompt.values())
    with_context = sum(count for (_, context), count in prompt.items() if context)
    return min(CONTEXT_ROOM, 2 * with_context / steps) if steps else 0.0


def phases_of(server: PlanLimits, prompts: Sequence[Shapes], decodes: Sequence[Shapes]) -> tuple[Phase, Phase]:
    """Return the requirements for the buckets of prompts and of decode steps."""
    prompt = Phase(
        shapes=[steps.prompt for steps in prompts],
        least_x=2,  # A query of 1 is a decode step.
        most_x=server.most_tokens,
        top=server.most_context,
        falling=True,
        least_y=lambda _: 0,
        measures=(lambda tokens, _: tokens, lambda tokens, blocks: tokens * (CONTEXT_WORTH + blocks)),
        worth=(0, 1),
    )
    decode = Phase(
        shapes=[steps.decode for steps in decodes],
        least_x=1,
        most_x=server.most_sequences,
        top=server.most_blocks,
        falling=False,
        least_y=(lambda _: 1) if server.use_contiguous_pa else (lambda batch: batch),
        measures=(lambda batch, _: batch, lambda _, blocks: blocks),
        worth=(1, 1),
    )
    return prompt, decode


def plan_of(
    server: PlanLimits,
    shapes: Sequence[Shapes],
    goal: Goal,
    bounds: Bounds | None,
    made_from: str,
    times: float = BLOCKS[0],
) -> BucketPlan:
    """Return the plan for some steps.

    Args:
        server: Its limits.
        shapes: The steps, by speed.
        goal: Its max_graphs applies if ``bounds`` is None.
        bounds: The allowed padding.
        made_from: The origin of the traffic, for a comment in the file.
        times: The most times of blocks, as OtherTraffic has it; 0: the buckets of ``like``.

    Raises:
        InputError: The goal cannot be reached.
    """
    return _plan(server, _found(server, shapes, goal, bounds), goal, bounds, made_from, times)


def _several(server: PlanLimits) -> list[Bucket]:
    # A trace has no information about several prompts per step. All possible ones get the fewest buckets.
    return [(batch, query, server.most_context(1)) for batch, query in server.prompt_batches()]


def _found(
    server: PlanLimits, shapes: Sequence[Shapes], goal: Goal, bounds: Bounds | None
) -> list[list[tuple[int, int]]]:
    """Return the buckets of prompts and of decode steps with which a trace has the goal."""
    several = len(_several(server))
    if bounds is not None:
        return _within_bounds(server, bounds, bounds.graphs - several)
    graphs = (goal.max_graphs or 0) - several
    if graphs < 2:
        least = f"is below {2 + several}, the fewest that cover every step of this server"
        raise refusal("", "limits.max_graphs", goal.max_graphs, least)
    return [search.values(places) for search, places in best(phases_of(server, shapes, shapes), graphs)]


def _plan(
    server: PlanLimits,
    found: list[list[tuple[int, int]]],
    goal: Goal,
    bounds: Bounds | None,
    made_from: str,
    times: float,
) -> BucketPlan:
    other, note = bounds.other if bounds else None, ONLY
    if other is not None:
        prompts, decodes = phases_of(server, [], [])
        found = [other.guarded(found[0], prompts, WORK), other.guarded(found[1], decodes, times or BLOCKS[-1])]
        note = OTHERS.format(times or BLOCKS[-1])
    prompt: list[Bucket] = [(1, query, ctx) for query, ctx in found[0]]
    decode: list[Bucket] = [(batch, 1, server.kept_blocks(batch, blocks)) for batch, blocks in found[1]]
    plan = _read(server, BucketGrid.of([*prompt, *_several(server)]), BucketGrid.of(decode), made_from, note)
    same = other.completed(goal.like, found) if other and goal.like else None
    if goal.like is None or same is None or (times and plan.graphs < sum(map(len, same))):
        return plan
    return replace(_read(server, *same, made_from, SAME.format(goal.like)), same_as=goal.like)


def _read(server: PlanLimits, prompt: BucketGrid, decode: BucketGrid, made_from: str, note: str) -> BucketPlan:
    text = _text(prompt, decode, server, made_from, note)
    given = server.server("file", text)
    return BucketPlan(text, Strategy(given, plugin_buckets(given)), note)


def _within_bounds(server: PlanLimits, bounds: Bounds, graphs: float) -> list[list[tuple[int, int]]]:
    """Return the buckets that keep the most preferred limits within a number of graphs."""

    fixed = bounds.other.corners() if bounds.other else Shapes({}, {})

    @cache
    def prompts(level: int) -> list[tuple[int, int]] | None:
        kept = bounds.prompt[level]
        most = [(one.most.prompt_tokens, one.work) for one in kept]
        found = fewest(replace(phases_of(server, [one.steps for one in kept], [])[0], fixed=[*fixed.prompt]), most)
        return _values("prompt_tokens", found, most, level == len(bounds.prompt) - 1)

    @cache
    def decodes(level: int) -> list[tuple[int, int]] | None:
        kept = bounds.decode[level]
        most = [(one.most.decode_batch, one.most.decode_blocks) for one in kept]
        found = fewest(replace(phases_of(server, [], [one.steps for one in kept])[1], fixed=[*fixed.decode]), most)
        return _values("decode_batch and decode_blocks", found, most, level == len(bounds.decode) - 1)

    plans = []
    for decode, prompt in product(range(len(bounds.decode)), range(len(bounds.prompt))):
        one, two = prompts(prompt), decodes(decode)
        if one is not None and two is not None:
            plans.append([one, two])
            if len(one) + len(two) <= graphs:
                return plans[-1]
    # If not even the required limits fit the graphs, the plan keeps the most preferred possible ones.
    return plans[0]


def _values(
    what: str, found: tuple[Search, Places] | None, most: Shares, required: bool
) -> list[tuple[int, int]] | None:
    if found is not None:
        return found[0].values(found[1])
    if not required:
        return None
    shares = " and ".join(f"{share:.4g}" for share in dict.fromkeys(min(most, key=sum)))
    raise refusal("", "limits", None, f"no bucket plan was found that pads {what} by no more than {shares}; allow more")


def _text(prompt: BucketGrid, decode: BucketGrid, server: PlanLimits, made_from: str, note: str) -> str:
    """Return the bucket file, with one line per set of values that forms a product."""
    lines = [
        f"# Planned by hpu_bucket_plan from {made_from}.",
        f"# {note}",
        f"# For max_num_seqs {server.max_num_seqs}, max_num_prefill_seqs {server.max_num_prefill_seqs}, "
        f"max_model_len {server.max_model_len}, max_num_batched_tokens {server.max_num_batched_tokens},",
        f"# block_size {server.block_size}, num_hpu_blocks {server.num_hpu_blocks}, "
        f"contiguous PA {_on(server.use_contiguous_pa)}, prefix caching {_on(server.prefix_caching)}.",
        f"# {len(prompt)} prompt buckets: (sequences, tokens, blocks of context)",
        *_lines(prompt),
        f"# {len(decode)} decode buckets: (sequences, 1, blocks of all)",
        *_lines(decode),
    ]
    return "\n".join(lines) + "\n"


def _on(switch: bool) -> str:
    return "on" if switch else "off"


def _lines(grid: BucketGrid) -> Iterable[str]:
    """Yield the buckets as tuples: one line for adjacent rows that differ only in their tokens or sequences."""
    for _, rows in groupby(grid.rows, key=lambda row: (row[0] if row[1] > 1 else 0, row[2])):
        same = list(rows)
        fields = ([*dict.fromkeys(row[0] for row in same)], [*dict.fromkeys(row[1] for row in same)], [*same[0][2]])
        yield f"({', '.join(str(field[0]) if len(field) == 1 else str(field) for field in fields)})"


__all__ = ["answer", "bounds_of", "hpu_bucket_plan", "phases_of", "plan_of", "planned", "speeds_told"]
