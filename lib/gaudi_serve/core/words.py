"""Words that depend on a number. Standard library only: the programs for weights have a copy of this file."""

from __future__ import annotations

from collections.abc import Sequence

NAMED = 3  # The most hosts that a sentence names if there are many.


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 host`` or ``2 hosts``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def some_names(hosts: Sequence[str]) -> str:
    """Return the names of hosts for a sentence: all if they are few, else the first and the number of the others."""
    if len(hosts) <= NAMED + 1:
        return ", ".join(hosts)
    return f"{', '.join(hosts[:NAMED])} and {len(hosts) - NAMED} more"
