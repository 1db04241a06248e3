"""What each strategy pads on the same steps, and how many graphs it has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..core.errors import InputError
from ..spec.model import Spec
from .linear import BucketRanges, bucket_rows, padded
from .plan_limits import Padding, PlanLimits
from .plugin_server import PluginServer
from .traffic import CONTEXT_WORTH, Request, Shapes

Step = tuple[int, tuple[int, int], tuple[int, int]]  # how often, the shape, and what it is padded to


@dataclass(frozen=True)
class Compared:
    """A strategy.

    graphs: warmed up. padding: what it pads. prompt_work: the share of prompt work that it pads, tokens with their
    context. compiled: shapes that had no bucket, and were compiled while serving.
    """

    graphs: int
    padding: Padding
    prompt_work: float
    compiled: int

    def as_dict(self) -> dict[str, Any]:
        """Return it as filters do."""
        return {"graphs": self.graphs, "padding": self.padding.as_dict(), "compiled_while_serving": self.compiled}


def prompt_work(tokens: int, context: int) -> float:
    """Return the work of a prompt step, in tokens without context."""
    return tokens * (1 + context / CONTEXT_WORTH)


def of_plugin(server: PluginServer, shapes: Shapes) -> Compared:
    """Return what a server of the plugin pads; what it has no bucket for it makes up, and remembers."""
    prompts = [(count, one, server.prompt(1, *one)) for one, count in sorted(shapes.prompt.items())]
    decodes = [(count, one, server.decode(*one)) for one, count in sorted(shapes.decode.items())]
    return _compared(
        len(server.buckets.prompt) + len(server.buckets.decode),
        len({found.bucket for _, _, found in (*prompts, *decodes) if not found.warmed}),
        [(count, real, (found.bucket[0] * found.bucket[1], found.bucket[2])) for count, real, found in prompts],
        [(count, real, (found.bucket[0], found.bucket[2])) for count, real, found in decodes],
    )


def of_ranges(ranges: BucketRanges, limits: PlanLimits, shapes: Shapes) -> Compared:
    """Return what a server of the fork pads: it knows no context, so a prompt step's tokens are all."""
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


def script_ranges(requests: Iterable[Request], limits: PlanLimits) -> BucketRanges:
    """Return the ranges that the launch script of release 1.21 makes for requests of these lengths."""
    # The engine knows the script's rule; engines know buckets, and only here do buckets ask an engine.
    from ..engines.aice_1_21 import bucket_ranges

    lengths = [(one.input_tokens, one.output_tokens) for one in requests]
    inputs, outputs = [one for one, _ in lengths], [one for _, one in lengths]
    spec: dict[str, Any] = {
        "input_range": [min(inputs), max(inputs)],
        "output_range": [min(outputs), max(outputs)],
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
    }
    return bucket_ranges(Spec(spec))


def of_strategy(name: str, limits: PlanLimits, shapes: Shapes) -> Compared:
    """Return what a strategy of the plugin with its defaults pads.

    Raises:
        InputError: where the server stops with it, or has more buckets than anybody can wait for.
    """
    return of_plugin(PluginServer(limits.server(name)), shapes)


def told(found: Compared | InputError) -> dict[str, Any]:
    """Return a strategy as filters do; one that cannot be has no figures, and says why."""
    if isinstance(found, InputError):
        return {"graphs": None, "padding": None, "refused": str(found)}
    return found.as_dict()


def _compared(graphs: int, compiled: int, prompts: list[Step], decodes: list[Step]) -> Compared:
    work = _share((count, prompt_work(*real), prompt_work(*bucket)) for count, real, bucket in prompts)
    return Compared(
        graphs,
        Padding(
            _share((count, real[0], bucket[0]) for count, real, bucket in prompts),
            _share((count, real[0], bucket[0]) for count, real, bucket in decodes),
            _share((count, real[1], bucket[1]) for count, real, bucket in decodes),
        ),
        work,
        compiled,
    )


def _share(steps: Iterable[tuple[int, float, float]]) -> float:
    real = padding = 0.0
    for count, wanted, given in steps:
        real += count * wanted
        padding += count * (given - wanted)
    return padding / real if real else 0.0
