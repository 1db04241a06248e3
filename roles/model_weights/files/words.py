"""Words that depend on a number. Standard library only: the programs for weights have this file beside them."""

from __future__ import annotations

from collections.abc import Sequence

NAMED = 3  # hosts that a sentence of many names


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 host`` or ``2 hosts``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def some_names(hosts: Sequence[str]) -> str:
    """Return the hosts that share a sentence: all of few, of many the first and how many more there are."""
    if len(hosts) <= NAMED + 1:
        return ", ".join(hosts)
    return f"{', '.join(hosts[:NAMED])} and {len(hosts) - NAMED} more"
