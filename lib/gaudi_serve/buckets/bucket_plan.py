"""Buckets from traffic: the file with the fewest graphs, or the least padding, for the requests that a server gets.

What is made least: with ``max_graphs`` the sum of three shares of padding, those of prompt work, decode sequences and
decode blocks, as the mean of all speeds of the server; else the number of graphs, with each share within what is allowed
at every speed. Prompt work is tokens times (1 + context / 256 blocks): tokens alone would let every prompt run with the
largest context that there is.
bucket_search.py has the method, traffic.py the steps that padding is summed over, plan_limits.py what can be asked of a
server at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from ..core.errors import InputError, refusal
from .best_ranges import best_ranges
from .bucket_grid import Bucket, BucketGrid
from .bucket_search import Shares, best, fewest
from .compared import Compared, of_plugin, of_ranges, of_strategy, script_ranges, told
from .linear import BucketRanges
from .plan_limits import Goal, Padding, PlanLimits, read_limits
from .plugin import PluginBuckets, plugin_buckets
from .plugin_input import STRATEGIES
from .plugin_server import PluginServer
from .shape_field import Phase
from .traffic import ASSUMED, CONTEXT_WORTH, SPEEDS, Request, Shapes, Traffic, fitting, read_trace, traffic_of

# Where padding is limited, nobody says how much of context. Prompt work may be padded so much more than the strategy's,
# or than the tokens: twice the part of the prompt steps that have context, and no more than this. Where hardly any has,
# nearly all prompts keep buckets without it.
CONTEXT_ROOM = 0.1


# Like a strategy, a plan keeps this part below its padding, since neither the speed nor the coming traffic is exactly what
# was simulated: the first part with which it has no more than a quarter of the strategy's graphs.
MARGINS = (0.1, 0.05, 0.02, 0.0)
FEW = 4
DECODES = "decode_batch and decode_blocks"
T = TypeVar("T")


@dataclass(frozen=True)
class Bounds:
    """What a plan may pad, by speed, and how much of it a margin may take.

    most: the most padding, and the most of prompt work. graphs: up to which a margin is kept; 0 for no margin.
    """

    most: Sequence[tuple[Padding, float]]
    graphs: float = 0


@dataclass(frozen=True)
class BucketPlan:
    """A planned bucket file, and the buckets that the server keeps of it."""

    file: str
    buckets: PluginBuckets

    def compared(self, server: PlanLimits, shapes: Sequence[Shapes]) -> list[Compared]:
        """Return what it pads of some steps, by speed."""
        given = server.server("file", self.file)
        return [of_plugin(PluginServer(given, self.buckets), steps) for steps in shapes]


def hpu_bucket_plan(trace: Any, limits: Any) -> dict[str, Any]:
    """Return the buckets that serve a trace best on a server of the vendor's plugin.

    Args:
        trace: list of ``{arrival_s, input_tokens, output_tokens}``: seconds since any begin, tokens.
        limits: the server by the vendor's names: max_num_seqs, max_model_len, max_num_batched_tokens, num_hpu_blocks;
            optional are block_size (128), max_num_prefill_seqs (1), use_contiguous_pa (false), prefix_caching (true
            unless use_contiguous_pa is). And one of ``max_graphs``; ``max_padding``: prompt_tokens, decode_batch,
            decode_blocks, shares from 0 to 1; ``like``: exp, pad or lin, whose padding none of the three may exceed.

    Returns:
        ``prompt``: [batch, query, ctx] lists; ``decode``: [batch, 1, blocks] lists; ``file``: the text of the bucket
        file that makes them; ``graphs``: how many; ``padding``: the three shares; ``compared``: graphs and padding of
        exp, pad, lin, and aice_1_21 with the ranges of its launch script; a strategy that cannot be has None, and
        ``refused``. All that at the assumed speed. ``speeds``: by times the assumed speed, ``{speed, padding, compared:
        {strategy: padding}}``, where the strategy is that of ``like``, or exp. ``held_out``: for a plan made of the
        first two thirds of the requests alone, ``graphs``, and ``speeds`` with the shares of the last third; None for
        fewer than 60 requests, and where the goal cannot be reached with two thirds. ``ranges``: the best ranges for the fork under the same goal: prompt_bs, prompt_seq, decode_bs,
        decode_block, each [min, step, max], ``env``, graphs, padding; None where no ranges reach the goal.
        ``uncovered``: the rows of the trace that the server would refuse: row, input_tokens, reason.

    Raises:
        InputError: for a trace or limits with a key or value that is none, and a goal that cannot be reached.
    """
    return _answered(read_trace(trace), *read_limits(limits))


def _answered(requests: list[Request], server: PlanLimits, goal: Goal, decode_step_s: float) -> dict[str, Any]:
    taken, uncovered = fitting(requests, server)
    if not taken:
        raise refusal("", "trace", None, f"has no request that fits: {uncovered[0]['reason']}")
    traffic = traffic_of(taken, server, decode_step_s)
    shapes = traffic.assumed
    strategies = {name: answer(partial(of_strategy, name, server, shapes)) for name in STRATEGIES}
    found = planned(server, traffic, goal, f"{len(taken)} requests, {shapes.steps} steps")
    ranges = best_ranges(server, traffic.shapes, goal.max_graphs, found.bounds and [one for one, _ in found.bounds.most])
    return {
        "prompt": [list(bucket) for bucket in found.plan.buckets.prompt],
        "decode": [list(bucket) for bucket in found.plan.buckets.decode],
        "file": found.plan.file,
        **found.compared[ASSUMED].as_dict(),
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
    """A plan, what it was bound to, what it pads by speed, and both shares in the words of the filter."""

    plan: BucketPlan
    bounds: Bounds | None
    compared: list[Compared]
    speeds: list[dict[str, Any]]
    held_out: dict[str, Any] | None


def planned(
    server: PlanLimits, traffic: Traffic, goal: Goal, made_from: str, counted: PlanLimits | None = None
) -> Planned:
    """Return the plan for some traffic, and what it pads at every speed.

    Args:
        server: what the list has to cover.
        traffic: the steps.
        goal: of the plan.
        made_from: what the file says of where it comes from.
        counted: the server that the strategies are counted for; that of the list where it is None.

    Raises:
        InputError: where the goal cannot be reached, and for a strategy that cannot be.
    """
    name = goal.like or "exp"

    def beside(shapes: Sequence[Shapes]) -> Sequence[Compared] | InputError:
        return answer(lambda: [of_strategy(name, counted or server, steps) for steps in shapes])

    def made(shapes: Sequence[Shapes]) -> tuple[BucketPlan, Bounds | None]:
        bounds = allowed(goal, beside(shapes), shapes)
        return plan_of(server, shapes, goal, bounds, made_from), bounds

    plan, bounds = made(traffic.shapes)
    compared = plan.compared(server, traffic.shapes)
    speeds = speeds_told(compared, name, beside(traffic.shapes))
    held_out = None
    if traffic.learned and traffic.held_out:
        part = answer(lambda: made(traffic.learned or ())[0])
        if isinstance(part, BucketPlan):
            shares = part.compared(server, traffic.held_out)
            rows = speeds_told(shares, name, beside(traffic.held_out))
            held_out = {"graphs": shares[ASSUMED].graphs, "speeds": rows}
    return Planned(plan, bounds, compared, speeds, held_out)


def speeds_told(
    compared: Sequence[Compared], name: str, other: Sequence[Compared] | InputError
) -> list[dict[str, Any]]:
    """Return what a plan pads by speed, beside a strategy where that can be."""
    others = [None] * len(compared) if isinstance(other, InputError) else other
    return [
        {
            "speed": round(speed, 3),
            "padding": plan.padding.as_dict(),
            "compared": {name: strategy and strategy.padding.as_dict()},
        }
        for speed, plan, strategy in zip(SPEEDS, compared, others, strict=True)
    ]


def answer(ask: Callable[[], T]) -> T | InputError:
    """Return an answer, or why there is none."""
    try:
        return ask()
    except InputError as problem:
        return problem


def _ranges_told(ranges: BucketRanges, found: Compared) -> dict[str, Any]:
    names = ("prompt_bs", "prompt_seq", "decode_bs", "decode_block")
    return {**{name: list(getattr(ranges, name)) for name in names}, "env": ranges.env(), **found.as_dict()}


def allowed(goal: Goal, strategy: Sequence[Compared] | InputError, shapes: Sequence[Shapes]) -> Bounds | None:
    """Return what may be padded at every speed; None where graphs are limited instead.

    Args:
        goal: of the plan.
        strategy: what the strategy of ``like`` pads, by speed.
        shapes: the steps, by speed.

    Raises:
        InputError: for a strategy that cannot be.
    """
    rooms = [_room(steps.prompt) for steps in shapes]
    if goal.max_padding is not None:
        return Bounds([(goal.max_padding, goal.max_padding.prompt_tokens + room) for room in rooms])
    if goal.like is None:
        return None
    if isinstance(strategy, InputError):
        raise refusal("", "limits.like", goal.like, f"is no plan to compare with: {strategy}")
    most = [(one.padding, one.prompt_work + room) for one, room in zip(strategy, rooms, strict=True)]
    return Bounds(most, strategy[0].graphs / FEW)


def _room(prompt: Mapping[tuple[int, int], int]) -> float:
    steps = sum(prompt.values())
    with_context = sum(count for (_, context), count in prompt.items() if context)
    return min(CONTEXT_ROOM, 2 * with_context / steps)


def phases_of(server: PlanLimits, shapes: Sequence[Shapes]) -> tuple[Phase, Phase]:
    """Return what is asked of the buckets of prompts and of decode steps."""
    prompt = Phase(
        shapes=[steps.prompt for steps in shapes],
        least_x=2,  # query 1 is decode
        most_x=server.most_tokens,
        top=server.most_context,
        falling=True,
        least_y=lambda _: 0,
        measures=(lambda tokens, _: tokens, lambda tokens, blocks: tokens * (CONTEXT_WORTH + blocks)),
        worth=(0, 1),
    )
    decode = Phase(
        shapes=[steps.decode for steps in shapes],
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
    server: PlanLimits, shapes: Sequence[Shapes], goal: Goal, bounds: Bounds | None, made_from: str
) -> BucketPlan:
    """Return the plan for some steps.

    Args:
        server: its limits.
        shapes: the steps, by speed.
        goal: its max_graphs counts where ``bounds`` is None.
        bounds: what may be padded.
        made_from: what the file says of where it comes from.

    Raises:
        InputError: where the goal cannot be reached.
    """
    phases = phases_of(server, shapes)
    # Of several prompts a step a trace tells nothing: what can be asked for gets the fewest buckets.
    several = [(batch, query, server.most_context(1)) for batch, query in server.prompt_batches()]
    if bounds is None:
        graphs = (goal.max_graphs or 0) - len(several)
        if graphs < 2:
            least = f"is below {2 + len(several)}, the fewest that cover every step of this server"
            raise refusal("", "limits.max_graphs", goal.max_graphs, least)
        plans = [search.values(places) for search, places in best(phases, graphs)]
    else:
        plans = _within_bounds(phases, bounds, len(several))
    prompt: list[Bucket] = [(1, query, ctx) for query, ctx in plans[0]]
    decode: list[Bucket] = [(batch, 1, server.kept_blocks(batch, blocks)) for batch, blocks in plans[1]]
    text = _text(BucketGrid.of([*prompt, *several]), BucketGrid.of(decode), server, made_from)
    return BucketPlan(text, plugin_buckets(server.server("file", text)))


Plans = list[list[tuple[int, int]]]


def _within_bounds(phases: tuple[Phase, Phase], bounds: Bounds, several: int) -> Plans:
    """Return the buckets of the largest margin that costs few enough graphs; those without one where none does."""
    for margin in MARGINS:
        if margin and not bounds.graphs:
            continue
        part = 1 - margin
        prompt = [(one.prompt_tokens * part, work * part) for one, work in bounds.most]
        decode = [(one.decode_batch * part, one.decode_blocks * part) for one, _ in bounds.most]
        plans: Plans = []
        for what, phase, most in zip(("prompt_tokens", DECODES), phases, (prompt, decode), strict=True):
            found = fewest(phase, most)
            if found is None and not margin:
                raise _out_of_reach(what, most)
            if found is None:
                break
            plans.append(found[0].values(found[1]))
        if len(plans) == len(phases) and (not margin or sum(map(len, plans)) + several <= bounds.graphs):
            return plans
    raise AssertionError("the last margin is none")


def _out_of_reach(what: str, most: Shares) -> InputError:
    least = min(most, key=sum)
    shares = " and ".join(f"{share:.4g}" for share in dict.fromkeys(least))
    return refusal("", "limits", None, f"no bucket plan was found that pads {what} by no more than {shares}; allow more")


def _text(prompt: BucketGrid, decode: BucketGrid, server: PlanLimits, made_from: str) -> str:
    """Return the bucket file: a line for each set of values that makes up a product."""
    lines = [
        f"# Planned by hpu_bucket_plan from {made_from}.",
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
    """Yield the buckets as tuples: one line for neighbouring rows that differ in their tokens, or sequences, alone."""
    for _, rows in groupby(grid.rows, key=lambda row: (row[0] if row[1] > 1 else 0, row[2])):
        same = list(rows)
        fields = ([*dict.fromkeys(row[0] for row in same)], [*dict.fromkeys(row[1] for row in same)], [*same[0][2]])
        yield f"({', '.join(str(field[0]) if len(field) == 1 else str(field) for field in fields)})"


__all__ = ["allowed", "hpu_bucket_plan", "answer", "phases_of", "plan_of", "planned", "speeds_told"]
