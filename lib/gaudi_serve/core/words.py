"""Words that depend on a number. Standard library only: the programs for weights have a copy of this file."""

from __future__ import annotations

from collections.abc import Sequence

NAMED = 3  # hosts that a sentence names


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 host`` or ``2 hosts``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def some_names(hosts: Sequence[str]) -> str:
    """Return the hosts of a sentence: all of a few, or the first ones and the number of the others."""
    if len(hosts) <= NAMED + 1:
        return ", ".join(hosts)
    return f"{', '.join(hosts[:NAMED])} and {len(hosts) - NAMED} more"


def short_digest(digest: str) -> str:
    """Return the beginning of a digest, for a message that compares two of them."""
    kind, colon, digits = digest.rpartition(":")
    return f"{kind}{colon}{digits[:12]}..." if len(digits) > 16 else digest
