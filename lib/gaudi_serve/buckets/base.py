"""What the plan asks of buckets, whichever way a server makes them: each one is a graph that it warms up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class BucketCounts:
    """Graphs that a launch warms up: of prompts and decode steps; prompts left out; whether that is an estimate.

    notes: sentences on what these buckets do not hold.
    """

    prompt: int = 0
    decode: int = 0
    omitted: int = 0
    approximate: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rounding:
    """Which of the KV-cache blocks that there is room for a server has: a multiple of step, without the spare ones."""

    step: int = 1
    spare: int = 0

    def held(self, room: int) -> int:
        """Return how many blocks a server has that has room for so many."""
        return max(0, room - self.spare) // self.step * self.step

    def room(self, wanted: int) -> int:
        """Return for how many there must be room, so that a server has this many."""
        return -(-wanted // self.step) * self.step + self.spare


class Buckets(Protocol):
    """The buckets of a launch, before they are variables of its environment."""

    @property
    def rounding(self) -> Rounding:
        """Return which blocks the server has of those that there is room for."""

    def env(self) -> dict[str, str]:
        """Return the variables that set this for a server."""

    def changed_by(self, env: Mapping[str, str]) -> Buckets:
        """Return the buckets with what a user's own environment says of them.

        Raises:
            InputError: for a variable that the server would not take.
        """

    def counts(self, max_num_batched_tokens: int, num_hpu_blocks: int | None) -> BucketCounts:
        """Return how many graphs a start warms up, with so many KV-cache blocks on the device; None: as many as asked.

        Raises:
            InputError: for what stops the server, and for more buckets than anybody can wait for.
        """


def ceil(value: int, by: int) -> int:
    """Return a quotient, rounded up."""
    return -(-value // by)


def up(value: int, step: int) -> int:
    """Return the next multiple of step."""
    return ceil(value, step) * step
