"""The buckets of the vendor's linear bucketing (vLLM extension, branch aice/v1.21.0).

Every bucket is one graph that a server compiles while it warms up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from ..core.errors import InputError, mapping, refusal, whole
from .base import BucketCounts, Rounding

Bucket = list[int]
Range = tuple[int, int, int]  # min, step, max
Row = tuple[int, list[int]]  # Sequences, and the lengths with which they are warmed up.
DIMENSIONS = ("PROMPT_BS", "PROMPT_SEQ", "DECODE_BS", "DECODE_BLOCK")
# The model keys from which a launch computes each maximum, for messages about what to lower.
SOURCES = {
    "PROMPT_BS": "max_num_seqs and max_num_batched_tokens",
    "PROMPT_SEQ": "input_range or reduce_warmup",
    "DECODE_BS": "max_num_seqs or reduce_warmup",
    "DECODE_BLOCK": "input_range, output_range and max_num_seqs, or reduce_warmup",
}
LARGEST = 10**12  # The largest number allowed here.
# Large servers warm up some thousand buckets, in about an hour. A range above these numbers is a mistake, and would
# need too much memory and time on the machine that plans.
MOST_VALUES, MOST_BUCKETS = 100_000, 1_000_000
# Profile deepseek_r1 leaves out buckets by a padding ratio. At 0.25, a quarter of the hour remains (measured). For
# other ratios this is used as a power, because nothing about it is published.
PADDING_RATIO_SHARE, MEASURED_RATIO = 0.25, 0.25


@dataclass(frozen=True)
class BucketRanges:
    """The four ranges of linear buckets, each (min, step, max).

    prompt_bs, decode_bs: sequences of one step. prompt_seq: tokens of a prompt. decode_block: KV cache blocks of 128
    tokens. padding_limit: the part of a shape that may be padding; buckets beyond it are left out.
    """

    prompt_bs: Range
    prompt_seq: Range
    decode_bs: Range
    decode_block: Range
    padding_limit: float | None = None

    @classmethod
    def read(cls, env: Mapping[str, str]) -> BucketRanges:
        """Return the ranges of a user's environment.

        Raises:
            InputError: See bucket_range.
        """
        prompt_bs, prompt_seq, decode_bs, decode_block = (bucket_range(env, dimension) for dimension in DIMENSIONS)
        return cls(prompt_bs, prompt_seq, decode_bs, decode_block)

    def of(self, dimension: str) -> Range:
        """Return the range of a dimension such as ``PROMPT_SEQ``."""
        found: Range = getattr(self, dimension.lower())
        return found

    def env(self) -> dict[str, str]:
        """Return the variables that set these ranges for a server."""
        limit = () if self.padding_limit is None else (self.padding_limit,)
        return {
            f"VLLM_{dimension}_BUCKET_{part}": str(value)
            for dimension in DIMENSIONS
            for part, value in zip(("MIN", "STEP", "MAX", "LIMIT"), (*self.of(dimension), *limit), strict=False)
        }

    def changed_by(self, env: Mapping[str, str]) -> BucketRanges:
        """Return the ranges with the changes of a user's environment.

        Raises:
            InputError: See bucket_range.
        """
        told = self.env()
        own = {name: value for name, value in env.items() if name in told}
        found = BucketRanges.read({**told, **own}) if own else self
        return replace(found, padding_limit=self.padding_limit)

    @property
    def rounding(self) -> Rounding:
        """Return the rounding to complete steps of decode_block, in which the fork allocates its KV cache."""
        return Rounding(self.decode_block[1])

    def counts(self, max_num_batched_tokens: int, num_hpu_blocks: int | None) -> BucketCounts:
        """Return the number of graphs that a start warms up.

        Raises:
            InputError: See bucket_rows.
        """
        most = self.decode_block[2]
        return bucket_counts(self, max_num_batched_tokens, min(most, num_hpu_blocks or most))


@cache
def bucket_counts(ranges: BucketRanges, max_num_batched_tokens: int, num_hpu_blocks: int) -> BucketCounts:
    """Return the number of graphs that a launch warms up. It is cached, because hosts of a fleet have the same ranges.

    Raises:
        InputError: See bucket_rows.
    """
    prompts, decodes, omitted = bucket_rows(ranges, max_num_batched_tokens, num_hpu_blocks)
    prompt, decode = (sum(len(lengths) for _, lengths in rows) for rows in (prompts, decodes))
    if ranges.padding_limit is not None:
        share = PADDING_RATIO_SHARE ** (float(ranges.padding_limit) / MEASURED_RATIO)
        prompt, decode = (max(1, round(number * share)) for number in (prompt, decode))
    return BucketCounts(prompt, decode, omitted, ranges.padding_limit is not None)


def bucket_range(env: Mapping[str, str], dimension: str) -> tuple[int, int, int]:
    """Return (min, step, max) of a dimension such as ``PROMPT_SEQ``.

    Raises:
        InputError: A variable is missing or not an integer, or the minimum is above the maximum. Its ``finding`` names
            the variable.
    """
    variables = _variables(env)
    names = [f"VLLM_{dimension}_BUCKET_{part}" for part in ("MIN", "STEP", "MAX")]
    low, step, high = (whole("", name, variables.get(name), 1, LARGEST) for name in names)
    if low > high:
        raise refusal("", names[0], low, f"is above {names[2]}, which is {high}")
    return low, step, high


def _variables(env: Mapping[str, str]) -> Mapping[str, str]:
    return mapping("", "env", env, "a mapping with the variables VLLM_*_BUCKET_{MIN,STEP,MAX}")


def bucket_values(low: int, step: int, high: int) -> list[int]:
    """Return a dimension's values: min, 2 min, 4 min ... below step, then the multiples of step."""
    values = []
    value = low
    while value < step and value <= high:
        values.append(value)
        value *= 2
    values += [value for value in range(step, high + 1, step) if value >= low]
    return values


def _largest(low: int, step: int, high: int) -> int:
    """Return the last value of bucket_values without computing the others; 0 if there is none."""
    multiple = high // step * step
    if multiple >= max(low, step):
        return multiple
    return low << ((high // low).bit_length() - 1) if low < step else 0


def count_values(low: int, step: int, high: int) -> int:
    """Return the number of values of bucket_values without computing them."""
    doubling = 0
    while low << doubling < step and low << doubling <= high:
        doubling += 1
    return doubling + max(0, high // step - max(1, -(-low // step)) + 1)


def hpu_buckets(
    env: Mapping[str, str], max_num_batched_tokens: int, num_hpu_blocks: int
) -> dict[str, list[Bucket] | int]:
    """Return the buckets that a server warms up.

    Args:
        env: The twelve ``VLLM_*_BUCKET_{MIN,STEP,MAX}`` variables.
        max_num_batched_tokens: Tokens of one prompt step. Larger prompt buckets are omitted.
        num_hpu_blocks: KV cache blocks (128 tokens each) on the device. They limit the decode rows.

    Returns:
        ``prompt``: [batch, tokens] pairs, ``decode``: [batch, blocks] pairs, both sorted by
        (batch * length, length, batch); ``omitted``: number of omitted prompt pairs.

    Raises:
        InputError: See bucket_rows.
    """
    prompt, decode, omitted = bucket_rows(BucketRanges.read(env), max_num_batched_tokens, num_hpu_blocks)
    most = int(num_hpu_blocks)
    return {
        "prompt": _sorted([[batch, tokens] for batch, row in prompt for tokens in row]),
        "decode": _sorted([[batch, min(blocks, most)] for batch, row in decode for blocks in row]),
        "omitted": omitted,
    }


def bucket_rows(
    wanted: BucketRanges, max_num_batched_tokens: int, num_hpu_blocks: int
) -> tuple[list[Row], list[Row], int]:
    """Return (batch, lengths) of the prompt and of the decode buckets, and the number of omitted prompt pairs.

    Raises:
        InputError: A number is invalid, a dimension has more than 100,000 values, or a phase has more than 1,000,000
            buckets. These are counted before they are computed. Its ``finding`` names the variable.
    """
    tokens = whole("", "max_num_batched_tokens", max_num_batched_tokens, 1, LARGEST)
    most = whole("", "num_hpu_blocks", num_hpu_blocks, 1, LARGEST)
    ranges = {dimension: wanted.of(dimension) for dimension in DIMENSIONS}
    low, step, high = ranges["DECODE_BLOCK"]
    # A row of decode buckets ends with the first value beyond the device's blocks, which is a multiple of the step.
    used = {**ranges, "DECODE_BLOCK": (low, step, min(high, -(-max(low, most) // step) * step))}
    refuse_wide(used)
    batches, lengths = bucket_values(*ranges["PROMPT_BS"]), bucket_values(*ranges["PROMPT_SEQ"])
    for dimension, found in (("PROMPT_BS", batches), ("PROMPT_SEQ", lengths)):
        if not found:
            stops = "has no multiple from the minimum to the maximum: the server stops at start; lower it"
            raise refusal("", f"VLLM_{dimension}_BUCKET_STEP", ranges[dimension][1], stops)
    ends = [bisect_right(lengths, tokens // batch) for batch in batches]
    kept = sum(ends)
    if not kept:
        # If no bucket is within the token limit, the server keeps all of them.
        ends, kept = [len(lengths)] * len(batches), len(lengths) * len(batches)
    _refuse_many(kept, "PROMPT_BS", "PROMPT_SEQ", ranges)
    rows, blocks = bucket_values(*used["DECODE_BS"]), bucket_values(*used["DECODE_BLOCK"])
    blocks = blocks[: bisect_left(blocks, most) + 1]
    starts = [bisect_left(blocks, batch) for batch in rows]
    # A larger batch skips all of them. Its first value is also beyond the device's blocks and ends its row.
    last = blocks[-1] if blocks else most
    ends_of = {batch: [most] for batch in rows if most <= last < batch <= _largest(low, step, high)}
    count = len(blocks) * len(starts) - sum(starts) + len(ends_of)
    _refuse_many(count, "DECODE_BS", "DECODE_BLOCK", ranges)
    prompt = [(batch, lengths[:end]) for batch, end in zip(batches, ends, strict=True)]
    decode = [(batch, ends_of.get(batch, blocks[start:])) for batch, start in zip(rows, starts, strict=True)]
    return prompt, decode, len(batches) * len(lengths) - kept


def refuse_wide(ranges: Mapping[str, Range]) -> None:
    """Refuse a dimension with more than 100,000 values before they are computed.

    Raises:
        InputError: Its ``finding`` names the variable.
    """
    for dimension, limits in ranges.items():
        if count_values(*limits) > MOST_VALUES:
            raise _too_many(dimension, limits, f"above {MOST_VALUES:,}")


def _refuse_many(count: int, first: str, second: str, ranges: Mapping[str, Range]) -> None:
    if count > MOST_BUCKETS:
        larger = max(first, second, key=lambda dimension: count_values(*ranges[dimension]))
        raise _too_many(larger, ranges[larger], f"and {count:,} buckets, above {MOST_BUCKETS:,}")


def _too_many(dimension: str, limits: Range, above: str) -> InputError:
    gives = f"gives {count_values(*limits):,} values in steps of {limits[1]}, {above}"
    allowed = f"{gives}; profile aice_1_21 computes it from {SOURCES[dimension]}"
    return refusal("", f"VLLM_{dimension}_BUCKET_MAX", limits[2], allowed)


def _sorted(buckets: list[Bucket]) -> list[Bucket]:
    return sorted(buckets, key=lambda pair: (pair[0] * pair[1], pair[1], pair[0]))


def hpu_padded_shape(env: Mapping[str, str], phase: str, batch: int, length: int, num_hpu_blocks: int) -> Bucket:
    """Return [batch, length] of a running batch with its padding, warmed up or not.

    Args:
        env: The ``VLLM_*_BUCKET_{MIN,STEP,MAX}`` variables.
        phase: ``prompt`` (length in tokens) or ``decode`` (length in KV cache blocks).
        batch: Running sequences.
        length: Tokens of the longest prompt, or blocks of all sequences together.
        num_hpu_blocks: KV cache blocks on the device. They limit the decode length.

    Raises:
        InputError: The phase is unknown, or a number is below 1. See also bucket_range.
    """
    if phase not in ("prompt", "decode"):
        raise refusal("", "phase", phase, "is not one of prompt, decode")
    given = {"batch": batch, "length": length, "num_hpu_blocks": num_hpu_blocks}
    sequences, long, most = (whole("", key, value, 1, LARGEST) for key, value in given.items())
    second = "PROMPT_SEQ" if phase == "prompt" else "DECODE_BLOCK"
    padded_batch = padded(sequences, *bucket_range(env, f"{phase.upper()}_BS"))
    padded_length = padded(long, *bucket_range(env, second))
    return [padded_batch, min(padded_length, most) if phase == "decode" else padded_length]


def padded(value: int, low: int, step: int, _high: int) -> int:
    """Return a running value with the padding of one dimension.

    The maximum does not limit it. The server pads beyond it and compiles while serving.
    """
    if value <= low:
        return low
    power = low
    while power < value:
        power *= 2
    return power if power <= step else -(-value // step) * step
