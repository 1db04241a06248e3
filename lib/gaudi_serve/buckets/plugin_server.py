"""The bucket to which a running server of the vendor's plugin pads a shape."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import known, mapping, refusal, whole
from .bucket_grid import Bucket, BucketGrid
from .plugin import PluginBuckets, plugin_buckets
from .plugin_input import LARGEST, PluginInput

# A shape without a bucket is rounded up to multiples of these.
BATCH_STEP, QUERY_STEP, BLOCK_STEP = 2, 32, 32


@dataclass(frozen=True)
class Padded:
    """A bucket, and whether it was warmed up. If not, it compiles while serving."""

    bucket: Bucket
    warmed: bool


def fallback(value: int, step: int) -> int:
    """Return a part of a shape without a bucket, rounded up by the server: larger values have larger steps."""
    if value <= 1:
        return value
    size = math.ceil(math.pow(value, 1 / 3)) * step
    return math.ceil(value / size) * size


class PluginServer:
    """A server that pads shapes and remembers those without a bucket, like the vendor's."""

    def __init__(self, given: PluginInput, buckets: PluginBuckets | None = None) -> None:
        """Store a server and its warmed-up buckets, by default those that it makes itself.

        Raises:
            InputError: See plugin_buckets.
        """
        self.given = given
        self.buckets = plugin_buckets(given) if buckets is None else buckets
        ends, most = given.rules.fallback_context, self.buckets.decode.most_blocks() or LARGEST
        # No decode step is searched with more blocks than the largest bucket has.
        self._most_looked_up = most if ends == "sequence" else LARGEST
        self._most_blocks = given.num_hpu_blocks if ends == "device" else most
        a_sequence = math.ceil((given.max_model_len - 1) / given.block_size)
        self._most_context = a_sequence if ends == "sequence" else self._most_blocks
        self._added = {"prompt": BucketGrid(()), "decode": BucketGrid(())}

    def prompt(self, batch: int, query: int, ctx: int) -> Padded:
        """Return the bucket of a prompt step.

        Args:
            batch: Sequences of the step.
            query: Tokens of the longest one in this step.
            ctx: KV cache blocks before these tokens.
        """
        if not self.given.settings.enabled:
            return Padded((batch, query, ctx), False)
        wanted = (batch, query, ctx)
        return self._first("prompt", wanted) or self._add("prompt", self._made_up(wanted, self._most_context))

    def decode(self, batch: int, blocks: int, *, seed_buckets: bool = False) -> Padded:
        """Return the bucket of a decode step.

        Args:
            batch: Sequences of the step.
            blocks: KV cache blocks of all of them; with contiguous paged attention the highest block id + 1.
            seed_buckets: Search the buckets from before speculative decoding first.
        """
        if not self.given.settings.enabled:
            return Padded((batch, 1, blocks), False)
        wanted = (batch, 1, min(blocks, self._most_looked_up))
        # Without speculative decoding there are no seeds.
        seeded = seed_buckets and self.given.num_speculative_tokens and self.given.rules.seeds
        seed = self.buckets.seeds.first(*wanted) if seeded else None
        if seed is not None:
            return Padded(seed, True)
        return self._first("decode", wanted) or self._add("decode", self._made_up(wanted, self._most_blocks))

    def _first(self, phase: str, wanted: Bucket) -> Padded | None:
        warmed = self._warmed(phase).first(*wanted)
        added = self._added[phase].first(*wanted) if self._added[phase].rows else None
        if added is not None and (warmed is None or added < warmed):
            return Padded(added, False)
        return None if warmed is None else Padded(warmed, True)

    def _warmed(self, phase: str) -> BucketGrid:
        return self.buckets.prompt if phase == "prompt" else self.buckets.decode

    def _add(self, phase: str, bucket: Bucket) -> Padded:
        """Remember a bucket that compiles now. If the limits reduced it, it may already exist."""
        warmed = bucket in self._warmed(phase)
        if not warmed and bucket not in self._added[phase]:
            self._added[phase] = BucketGrid.of([*self._added[phase], bucket])
        return Padded(bucket, warmed)

    def _made_up(self, wanted: Bucket, most_blocks: int) -> Bucket:
        batch, query, ctx = wanted
        settings, rules = self.given.settings, self.given.rules
        chunk = self.given.mamba_chunk_size if rules.checks_chunk else 0
        if settings.slice_tokens and query >= settings.sliced_from:
            tokens = math.ceil(query / settings.slice_tokens) * settings.slice_tokens
        else:
            tokens = min(fallback(query, max(QUERY_STEP, chunk)), self.given.max_num_batched_tokens)
        sequences = fallback(batch, BATCH_STEP)
        sequences = min(sequences, self.given.max_num_seqs) if rules.bounds_sequences else sequences
        return sequences, tokens, min(fallback(ctx, BLOCK_STEP), most_blocks)


def hpu_plugin_padded_shape(
    given: Mapping[str, Any], shape: Any, remember: bool = True
) -> dict[str, Any] | list[dict[str, Any]]:
    """Return the bucket to which a server of the vendor's plugin pads a running shape.

    Args:
        given: See hpu_plugin_buckets.
        shape: ``{phase: prompt, batch, query, ctx}`` (sequences, tokens, KV cache blocks of context) or
            ``{phase: decode, batch, blocks}``, with ``seed_buckets: true`` if the buckets from before speculative
            decoding come first. A single shape is for a newly started server. A list is for one server, one shape
            after the other: a shape without a bucket is compiled and remembered, and later shapes may use it.
        remember: False: each shape of a list is for a newly started server.

    Returns:
        ``bucket``: [sequences, tokens, blocks]; ``warmed``: false if it compiles while serving. A list for a list.

    Raises:
        InputError: A shape has an invalid key or value. See also hpu_plugin_buckets.
    """
    if not isinstance(remember, bool):
        raise refusal("", "remember", remember, "is not true or false")
    server = PluginServer(PluginInput.read(given))
    if not isinstance(shape, (list, tuple)):
        return _answer(server, "shape", shape)
    answers = []
    for index, one in enumerate(shape):
        answers.append(_answer(server, f"shape[{index}]", one))
        server = server if remember else PluginServer(server.given, server.buckets)
    return answers


def _answer(server: PluginServer, key: str, shape: Any) -> dict[str, Any]:
    parts = mapping("", key, shape, "a mapping with phase, batch, and query and ctx, or blocks")
    phase = parts.get("phase")
    if phase not in ("prompt", "decode"):
        raise refusal("", f"{key}.phase", phase, "is not one of prompt, decode")
    names = ("batch", "query", "ctx") if phase == "prompt" else ("batch", "blocks")
    known(f"{key} of a {phase} step", parts, {"phase", *names, *(["seed_buckets"] if phase == "decode" else [])})
    numbers = [whole("", f"{key}.{name}", parts.get(name), 1 if name in names[:-1] else 0, LARGEST) for name in names]
    if phase == "prompt":
        found = server.prompt(*numbers)
    else:
        seed = parts.get("seed_buckets", False)
        if not isinstance(seed, bool):
            raise refusal("", f"{key}.seed_buckets", seed, "is not true or false")
        found = server.decode(*numbers, seed_buckets=seed)
    return {"bucket": list(found.bucket), "warmed": found.warmed}
