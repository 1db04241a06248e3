"""Words that depend on a number. Standard library only: the programs for weights have this file beside them."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 host`` or ``2 hosts``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
