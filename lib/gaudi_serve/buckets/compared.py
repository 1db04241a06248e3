"""The padding and the number of graphs of each strategy on the same steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..core.errors import InputError
from .bucket_grid import Bucket, BucketGrid
from .linear import BucketRanges, bucket_rows, padded
from .plan_limits import Padding, PlanLimits
from .plugin import PluginBuckets, plugin_buckets
from .plugin_input import PluginInput
from .plugin_server import PluginServer
from .traffic import CONTEXT_WORTH, Shapes

Step = tuple[int, tuple[int, int], tuple[int, int]]  # Count, shape, padded shape.


@dataclass(frozen=True)
class Compared:
    """The result of a strategy.

    graphs: warmed up. padding: its padding. prompt_work: its padding of prompt work, which is tokens weighted by their
    context. compiled: shapes without a bucket, which were compiled while serving.
    """

    graphs: int
    padding: Padding
    prompt_work: float
    compiled: int

    def as_dict(self) -> dict[str, Any]:
        """Return the result as the dict that filters return."""
        return {"graphs": self.graphs, "padding": self.padding.as_dict(), "compiled_while_serving": self.compiled}


def prompt_work(tokens: int, context: int) -> float:
    """Return the work of a prompt step, in tokens without context."""
    return tokens * (1 + context / CONTEXT_WORTH)


def of_plugin(server: PluginServer, shapes: Shapes) -> Compared:
    """Return the padding of a server of the plugin. If it has no bucket, it makes one and remembers it."""
    prompts = [(count, one, server.prompt(1, *one)) for one, count in sorted(shapes.prompt.items())]
    decodes = [(count, one, server.decode(*one)) for one, count in sorted(shapes.decode.items())]
    return _compared(
        len(server.buckets.prompt) + len(server.buckets.decode),
        len({found.bucket for _, _, found in (*prompts, *decodes) if not found.warmed}),
        [(count, real, (found.bucket[0] * found.bucket[1], found.bucket[2])) for count, real, found in prompts],
        [(count, real, (found.bucket[0], found.bucket[2])) for count, real, found in decodes],
    )


def of_ranges(ranges: BucketRanges, limits: PlanLimits, shapes: Shapes) -> Compared:
    """Return the padding of a server of the fork. It has no context, so a prompt step only has tokens."""
    most = limits.num_hpu_blocks
    rows = bucket_rows(ranges, limits.max_num_batched_tokens, most)
    prompts = [
        (count, (query, 0), (padded(query, *ranges.prompt_seq), 0)) for (query, _), count in shapes.prompt.items()
    ]
    decodes = [
        (count, (batch, blocks), (padded(batch, *ranges.decode_bs), min(padded(blocks, *ranges.decode_block), most)))
        for (batch, blocks), count in shapes.decode.items()
    ]
    prompt_rows, decode_rows, _ = rows
    warm = {(1, length) for batch, lengths in prompt_rows if batch == 1 for length in lengths}
    warm_decodes = {(batch, min(length, most)) for batch, lengths in decode_rows for length in lengths}
    cold = {(1, tokens) for _, _, (tokens, _) in prompts} - warm
    cold_decodes = {found for _, _, found in decodes} - warm_decodes
    graphs = sum(len(lengths) for _, lengths in (*prompt_rows, *decode_rows))
    return _compared(graphs, len(cold) + len(cold_decodes), prompts, decodes)


@dataclass(frozen=True)
class Strategy:
    """A server with its buckets, for the steps of several speeds.

    seen: results of earlier searches. Most steps of one speed are also steps of the next.
    """

    given: PluginInput
    buckets: PluginBuckets
    seen: dict[Bucket, Bucket | None] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, name: str, limits: PlanLimits) -> Strategy:
        """Return a strategy by its name.

        Raises:
            InputError: The server stops with it, or has far too many buckets.
        """
        given = limits.server(name)
        return cls(given, plugin_buckets(given))

    @property
    def graphs(self) -> int:
        """Return the number of graphs that are warmed up."""
        return len(self.buckets.prompt) + len(self.buckets.decode)

    def compared(self, shapes: Shapes) -> Compared:
        """Return its padding for some steps."""
        prompts = [self._warmed(self.buckets.prompt, (1, *shape)) for shape in shapes.prompt]
        decodes = [self._warmed(self.buckets.decode, (shape[0], 1, shape[1])) for shape in shapes.decode]
        if None in prompts or None in decodes:
            return of_plugin(PluginServer(self.given, self.buckets), shapes)
        one, two = zip(prompts, shapes.prompt.items(), strict=True), zip(decodes, shapes.decode.items(), strict=True)
        return _compared(
            self.graphs,
            0,
            [(count, real, (bucket[1], bucket[2])) for bucket, (real, count) in one if bucket],
            [(count, real, (bucket[0], bucket[2])) for bucket, (real, count) in two if bucket],
        )

    def _warmed(self, grid: BucketGrid, shape: Bucket) -> Bucket | None:
        """Return the warmed-up bucket for a shape, or None."""
        if shape not in self.seen:
            self.seen[shape] = grid.first(*shape)
        return self.seen[shape]


def of_strategy(name: str, limits: PlanLimits, shapes: Shapes) -> Compared:
    """Return the padding of a strategy of the plugin with its defaults.

    Raises:
        InputError: See Strategy.of.
    """
    return Strategy.of(name, limits).compared(shapes)


def told(found: Compared | InputError) -> dict[str, Any]:
    """Return a strategy's result as filters do. An impossible strategy has no numbers, but the reason."""
    if isinstance(found, InputError):
        return {"graphs": None, "padding": None, "refused": str(found)}
    return found.as_dict()


def _compared(graphs: int, compiled: int, prompts: list[Step], decodes: list[Step]) -> Compared:
    tokens = work = batch = blocks = 0.0
    real_tokens = real_work = real_batch = real_blocks = 0.0
    for count, (one, context), (padded_one, padded_context) in prompts:
        own = prompt_work(one, context)
        tokens += count * (padded_one - one)
        work += count * (prompt_work(padded_one, padded_context) - own)
        real_tokens += count * one
        real_work += count * own
    for count, (one, two), (padded_one, padded_two) in decodes:
        batch += count * (padded_one - one)
        blocks += count * (padded_two - two)
        real_batch += count * one
        real_blocks += count * two
    padding = Padding(tokens / (real_tokens or 1), batch / (real_batch or 1), blocks / (real_blocks or 1))
    return Compared(graphs, padding, work / (real_work or 1), compiled)
