"""The models of one server: usually one, or several that share a card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def served_names(name: str, command: Sequence[Any]) -> tuple[str, ...]:
    """Return the names under which clients use a server's models, from its command.

    Args:
        name: The name of the model, if the command has no name.
        command: Program and arguments.
    """
    words = [str(word) for word in command]
    for option in ("--models", "--served-model-name"):
        if option in words:
            rest = words[words.index(option) + 1 :]
            values = rest[: next((place for place, word in enumerate(rest) if word.startswith("--")), len(rest))]
            return tuple(values) or (name,)
    return (name,)


def served_models(model: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the models that a server serves. If there are several, each has its own name and smoke requests."""
    return [{**model, **one} for one in model.get("served") or [{}]]
