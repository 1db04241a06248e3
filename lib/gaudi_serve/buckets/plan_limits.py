"""The input of a bucket plan: the limits of a server of the plugin, and the goal of the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import known, mapping, number, refusal, whole
from .plugin_input import LARGEST, STRATEGIES, PluginInput, PluginSettings

GOALS = ("max_graphs", "max_padding", "like")
PADDINGS = ("prompt_tokens", "decode_batch", "decode_blocks")
# Decode steps whose sequences share blocks may count more blocks than the device has. This is the plugin's own bound.
SHARED_TIMES = 3
DECODE_S = 0.012  # Seconds of a decode step of one sequence, for an 8B model on one card.


@dataclass(frozen=True)
class Padding:
    """Padded minus real, divided by real, over all steps: of prompt tokens, decode sequences, decode blocks."""

    prompt_tokens: float
    decode_batch: float
    decode_blocks: float

    def as_dict(self) -> dict[str, float]:
        """Return the padding as the dict that filters return, rounded to a millionth."""
        return {key: round(getattr(self, key), 6) for key in PADDINGS}


@dataclass(frozen=True)
class Goal:
    """The goal of a plan. One of the three is set.

    max_graphs: most graphs. max_padding: most padding. like: a strategy of the plugin whose padding is the limit.
    """

    max_graphs: int | None = None
    max_padding: Padding | None = None
    like: str | None = None


@dataclass(frozen=True)
class PlanLimits:
    """The limits of a server for its buckets, by the vendor's names.

    max_num_seqs, max_num_prefill_seqs: most sequences of a decode step and of a prompt step. max_model_len: tokens of
    one sequence. max_num_batched_tokens: tokens of one step. block_size: tokens of a KV cache block. num_hpu_blocks:
    blocks on the device. use_contiguous_pa: the blocks of a decode step are its highest block id + 1. prefix_caching:
    sequences may share blocks, which count for each of them.
    """

    max_num_seqs: int
    max_num_prefill_seqs: int
    max_model_len: int
    max_num_batched_tokens: int
    block_size: int
    num_hpu_blocks: int
    use_contiguous_pa: bool
    prefix_caching: bool

    def server(self, strategy: str, file: str | None = None) -> PluginInput:
        """Return the server with a strategy. ``file`` is the text of its bucket file."""
        settings = PluginSettings(
            strategy=strategy, use_contiguous_pa=self.use_contiguous_pa, from_file="" if file is None else "buckets.txt"
        )
        return PluginInput(
            self.max_num_seqs,
            self.max_num_prefill_seqs,
            self.block_size,
            self.max_num_batched_tokens,
            self.max_model_len,
            self.num_hpu_blocks,
            settings,
            file=file,
        )

    @property
    def blocks_a_sequence(self) -> int:
        """Return the most blocks of one sequence."""
        return -(-self.max_model_len // self.block_size)

    @property
    def most_tokens(self) -> int:
        """Return the most tokens of one prompt step of one sequence."""
        return min(self.max_num_batched_tokens, self.max_model_len)

    @property
    def most_sequences(self) -> int:
        """Return the most sequences of a decode step. Each has at least one block."""
        return min(self.max_num_seqs, self._on_device)

    @property
    def _on_device(self) -> int:
        return self.num_hpu_blocks * (SHARED_TIMES if self.prefix_caching else 1)

    def most_context(self, tokens: int) -> int:
        """Return the most blocks of context of a prompt step with ``tokens`` tokens of one sequence."""
        return -(-(self.max_model_len - tokens) // self.block_size)

    def most_blocks(self, batch: int) -> int:
        """Return the most blocks of a decode step of ``batch`` sequences."""
        return self.num_hpu_blocks if self.use_contiguous_pa else min(batch * self.blocks_a_sequence, self._on_device)

    def kept_blocks(self, batch: int, blocks: int) -> int:
        """Return the blocks of a decode bucket in the server: no more than its sequences can have."""
        return blocks if self.use_contiguous_pa else min(blocks, batch * self.blocks_a_sequence)

    def prompt_batches(self) -> list[tuple[int, int]]:
        """Return the fewest (sequences, tokens) that cover every prompt step of several sequences.

        Steps of b sequences have up to max_num_batched_tokens / b tokens each. The server drops a bucket whose
        sequences times tokens exceed max_num_batched_tokens.
        """
        found, tokens = [], self.max_num_batched_tokens
        most, batch = min(self.max_num_prefill_seqs, tokens // 2), 2
        while batch <= most:
            length = tokens // batch
            widest = min(most, tokens // length)
            found.append((widest, min(length, self.max_model_len)))
            batch = widest + 1
        return found


NUMBERS: dict[str, tuple[int, int, int | None]] = {  # Least, most, default. None is required.
    "max_num_seqs": (1, 65_536, None),
    "max_num_prefill_seqs": (1, 4096, 1),
    "max_model_len": (2, 10**7, None),
    "max_num_batched_tokens": (2, 10**7, None),
    "block_size": (1, 16_384, 128),
    "num_hpu_blocks": (1, 10**9, None),
}


def read_limits(given: Any) -> tuple[PlanLimits, Goal, float]:
    """Return the limits of a mapping, its goal, and the seconds of a decode step of one sequence.

    Raises:
        InputError: A name is unknown, a value is invalid, contiguous blocks are combined with prefix caching, or there
            is not exactly one goal.
    """
    names = mapping("", "limits", given, "a mapping with max_num_seqs, max_model_len and so on")
    known("limits", names, {*NUMBERS, *GOALS, "use_contiguous_pa", "prefix_caching", "decode_step_s"})
    numbers: dict[str, int] = {
        key: whole("", f"limits.{key}", names.get(key, default), least, most)
        for key, (least, most, default) in NUMBERS.items()
    }
    contiguous = _flag(names, "use_contiguous_pa", False)
    caching = _flag(names, "prefix_caching", not contiguous)
    if contiguous and caching:
        off = "cannot be with use_contiguous_pa, which turns prefix caching off; set one of them to false"
        raise refusal("", "limits.prefix_caching", True, off)
    step = number("", "limits.decode_step_s", names.get("decode_step_s", DECODE_S), 1e-5, 100)
    return PlanLimits(**numbers, use_contiguous_pa=contiguous, prefix_caching=caching), goal_of(names), step


def goal_of(names: Mapping[Any, Any]) -> Goal:
    """Return the goal of a mapping, which may have other keys too.

    Raises:
        InputError: A value is invalid, or there is not exactly one goal.
    """
    said = [key for key in GOALS if names.get(key) is not None]
    if len(said) != 1:
        many = f"{' and '.join(said)} are set" if said else "none is set"
        raise refusal("", "limits", None, f"needs exactly one of {', '.join(GOALS)}; {many}")
    value = names[said[0]]
    if said[0] == "max_graphs":
        return Goal(max_graphs=whole("", "limits.max_graphs", value, 2, LARGEST))
    if said[0] == "like":
        if value not in STRATEGIES:
            raise refusal("", "limits.like", value, f"is not one of {', '.join(STRATEGIES)}")
        return Goal(like=value)
    key = "limits.max_padding"
    shares = mapping("", key, value, f"a mapping with {', '.join(PADDINGS)}, each from 0 to 1")
    known(key, shares, PADDINGS)
    return Goal(max_padding=Padding(*(number("", f"{key}.{one}", shares.get(one), 0, 1) for one in PADDINGS)))


def _flag(names: Mapping[Any, Any], key: str, default: bool) -> bool:
    value = names.get(key, default)
    if not isinstance(value, bool):
        raise refusal("", f"limits.{key}", value, "is not true or false")
    return value
