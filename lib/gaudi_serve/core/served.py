"""What one server answers for: one model as a rule, several where they share a card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def served_names(name: str, command: Sequence[Any]) -> tuple[str, ...]:
    """Return the names for clients of what a server serves, by the command that it was started with.

    Args:
        name: of the model, which a server without any has.
        command: program and arguments.
    """
    words = [str(word) for word in command]
    for option in ("--models", "--served-model-name"):
        if option in words:
            rest = words[words.index(option) + 1 :]
            values = rest[: next((place for place, word in enumerate(rest) if word.startswith("--")), len(rest))]
            return tuple(values) or (name,)
    return (name,)


def served_models(model: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what a server answers for: of several models each with its name for clients and what it is asked."""
    return [{**model, **one} for one in model.get("served") or [{}]]
