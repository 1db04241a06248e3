"""Buckets from traffic: the file with the fewest graphs, or the least padding, for the requests that a server gets.

What is made least: with ``max_graphs`` the sum of three shares of padding, those of prompt work, decode sequences and
decode blocks; else the number of graphs, with each share within what is allowed. Prompt work is tokens times
(1 + context / 256 blocks): tokens alone would let every prompt run with the largest context that there is.
bucket_search.py has the method, traffic.py the steps that padding is summed over, plan_limits.py what can be asked of a
server at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ..core.errors import InputError, refusal
from .best_ranges import best_ranges
from .bucket_grid import Bucket, BucketGrid
from .bucket_search import Shares, best, fewest
from .compared import Compared, of_plugin, of_ranges, of_strategy, prompt_work, script_ranges, told
from .linear import BucketRanges
from .plan_limits import Goal, Padding, PlanLimits, read_limits
from .plugin import PluginBuckets, plugin_buckets
from .plugin_input import STRATEGIES
from .plugin_server import PluginServer
from .shape_field import Phase
from .traffic import Request, Shapes, fitting, read_trace, shapes_of

# Where padding is limited, nobody says how much of context. Prompt work may be padded so much more than the strategy's,
# or than the tokens: twice the part of the prompt steps that have context, and no more than this. Where hardly any has,
# nearly all prompts keep buckets without it.
CONTEXT_ROOM = 0.1
Answer = Compared | InputError  # of a strategy


@dataclass(frozen=True)
class BucketPlan:
    """A planned bucket file, the buckets that the server keeps of it, and what they pad."""

    file: str
    buckets: PluginBuckets
    compared: Compared


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
        ``refused``. ``ranges``: the best ranges for the fork under the same goal: prompt_bs, prompt_seq, decode_bs,
        decode_block, each [min, step, max], ``env``, graphs, padding; None where no ranges reach the goal.
        ``uncovered``: the rows of the trace that the server would refuse: row, input_tokens, reason.

    Raises:
        InputError: for a trace or limits with a key or value that is none, and a goal that cannot be reached.
    """
    return _answered(read_trace(trace), *read_limits(limits))


def _answered(requests: list[Request], server: PlanLimits, goal: Goal) -> dict[str, Any]:
    taken, uncovered = fitting(requests, server)
    if not taken:
        raise refusal("", "trace", None, f"has no request that fits: {uncovered[0]['reason']}")
    shapes = shapes_of(taken, server)
    strategies = {name: _tried(name, server, shapes) for name in STRATEGIES}
    most = allowed(goal, strategies, shapes)
    plan = plan_of(server, shapes, goal, most, f"{len(taken)} requests, {shapes.steps} steps")
    padding = None if most is None else most[0]
    ranges = best_ranges(server, shapes, goal.max_graphs, padding)
    return {
        "prompt": [list(bucket) for bucket in plan.buckets.prompt],
        "decode": [list(bucket) for bucket in plan.buckets.decode],
        "file": plan.file,
        **plan.compared.as_dict(),
        "compared": {
            **{name: told(strategies[name]) for name in ("exp", "pad", "lin")},
            "aice_1_21": told(_answer(lambda: of_ranges(script_ranges(taken, server), server, shapes))),
        },
        "ranges": None if ranges is None else _ranges_told(ranges, of_ranges(ranges, server, shapes)),
        "uncovered": uncovered,
    }


def _answer(ask: Callable[[], Compared]) -> Answer:
    try:
        return ask()
    except InputError as problem:
        return problem


def _tried(name: str, server: PlanLimits, shapes: Shapes) -> Answer:
    return _answer(lambda: of_strategy(name, server, shapes))


def _ranges_told(ranges: BucketRanges, found: Compared) -> dict[str, Any]:
    names = ("prompt_bs", "prompt_seq", "decode_bs", "decode_block")
    return {**{name: list(getattr(ranges, name)) for name in names}, "env": ranges.env(), **found.as_dict()}


def allowed(goal: Goal, strategies: Mapping[str, Answer], shapes: Shapes) -> tuple[Padding, float] | None:
    """Return the most padding, and the most of prompt work; None where graphs are limited instead.

    Raises:
        InputError: for a strategy that cannot be.
    """
    steps = sum(shapes.prompt.values())
    with_context = sum(count for (_, context), count in shapes.prompt.items() if context)
    room = min(CONTEXT_ROOM, 2 * with_context / steps)
    if goal.max_padding is not None:
        return goal.max_padding, goal.max_padding.prompt_tokens + room
    if goal.like is None:
        return None
    found = strategies[goal.like]
    if isinstance(found, InputError):
        raise refusal("", "limits.like", goal.like, f"is no plan to compare with: {found}")
    return found.padding, found.prompt_work + room


def phases_of(server: PlanLimits, shapes: Shapes) -> tuple[Phase, Phase]:
    """Return what is asked of the buckets of prompts and of decode steps."""
    prompt = Phase(
        shapes=shapes.prompt,
        least_x=2,  # query 1 is decode
        most_x=server.most_tokens,
        top=server.most_context,
        falling=True,
        least_y=lambda _: 0,
        measures=(lambda tokens, _: float(tokens), prompt_work),
        worth=(0, 1),
    )
    decode = Phase(
        shapes=shapes.decode,
        least_x=1,
        most_x=server.most_sequences,
        top=server.most_blocks,
        falling=False,
        least_y=(lambda _: 1) if server.use_contiguous_pa else (lambda batch: batch),
        measures=(lambda batch, _: float(batch), lambda _, blocks: float(blocks)),
        worth=(1, 1),
    )
    return prompt, decode


def plan_of(
    server: PlanLimits, shapes: Shapes, goal: Goal, most: tuple[Padding, float] | None, made_from: str
) -> BucketPlan:
    """Return the plan for some steps.

    Args:
        server: its limits.
        shapes: the steps.
        goal: its max_graphs counts where ``most`` is None.
        most: the most padding, and the most of prompt work.
        made_from: what the file says of where it comes from.

    Raises:
        InputError: where the goal cannot be reached.
    """
    phases = phases_of(server, shapes)
    # Of several prompts a step a trace tells nothing: what can be asked for gets the fewest buckets.
    several = [(batch, query, server.most_context(1)) for batch, query in server.prompt_batches()]
    if most is None:
        graphs = (goal.max_graphs or 0) - len(several)
        if graphs < 2:
            least = f"is below {2 + len(several)}, the fewest that cover every step of this server"
            raise refusal("", "limits.max_graphs", goal.max_graphs, least)
        plans = [search.values(places) for search, places in best(phases, graphs)]
    else:
        padding, work = most
        plans = [
            _within("prompt_tokens", phases[0], (padding.prompt_tokens, work)),
            _within("decode_batch and decode_blocks", phases[1], (padding.decode_batch, padding.decode_blocks)),
        ]
    prompt: list[Bucket] = [(1, query, ctx) for query, ctx in plans[0]]
    decode: list[Bucket] = [(batch, 1, server.kept_blocks(batch, blocks)) for batch, blocks in plans[1]]
    text = _text(BucketGrid.of([*prompt, *several]), BucketGrid.of(decode), server, made_from)
    given = server.server("file", text)
    buckets = plugin_buckets(given)
    return BucketPlan(text, buckets, of_plugin(PluginServer(given, buckets), shapes))


def _within(what: str, phase: Phase, most: Shares) -> list[tuple[int, int]]:
    found = fewest(phase, most)
    if found is None:
        shares = " and ".join(f"{share:.4g}" for share in dict.fromkeys(most))
        raise refusal(
            "", "limits", None, f"no bucket plan was found that pads {what} by no more than {shares}; allow more"
        )
    search, places = found
    return search.values(places)


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


__all__ = ["allowed", "hpu_bucket_plan", "phases_of", "plan_of"]
