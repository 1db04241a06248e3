"""The interface of buckets for the plan, independent of how a server makes them. Each bucket is one graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class BucketCounts:
    """The number of graphs that a launch warms up: prompts, decode steps, omitted prompts; and whether it is estimated.

    notes: sentences about requests that these buckets do not cover.
    """

    prompt: int = 0
    decode: int = 0
    omitted: int = 0
    approximate: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rounding:
    """The KV cache blocks that a server uses of its memory: a multiple of step, without the spare ones."""

    step: int = 1
    spare: int = 0

    def held(self, room: int) -> int:
        """Return the number of blocks of a server whose memory has room for ``room`` blocks."""
        return max(0, room - self.spare) // self.step * self.step

    def room(self, wanted: int) -> int:
        """Return for how many blocks there must be room so that a server has ``wanted`` blocks."""
        return -(-wanted // self.step) * self.step + self.spare


class Buckets(Protocol):
    """The buckets of a launch, before they become variables of its environment."""

    @property
    def rounding(self) -> Rounding:
        """Return which part of the blocks in its memory the server uses."""

    def env(self) -> dict[str, str]:
        """Return the variables that set these buckets for a server."""

    def changed_by(self, env: Mapping[str, str]) -> Buckets:
        """Return the buckets with the changes of a user's environment.

        Raises:
            InputError: The server would not accept a variable.
        """

    def counts(self, max_num_batched_tokens: int, num_hpu_blocks: int | None) -> BucketCounts:
        """Return the graphs that a start warms up with a number of KV cache blocks; None: as many as requested.

        Raises:
            InputError: The server would stop, or there are far too many buckets.
        """


def ceil(value: int, by: int) -> int:
    """Return a quotient, rounded up."""
    return -(-value // by)


def up(value: int, step: int) -> int:
    """Return the next multiple of step."""
    return ceil(value, step) * step
