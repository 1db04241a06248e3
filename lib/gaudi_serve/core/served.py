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


def smallest_request(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return the smallest request that shows that a model works: ``{path, body}``, for one of served_models."""
    served = one["served_model_name"]
    if "embedding" in one["smoke"]:
        return {"path": "/v1/embeddings", "body": {"model": served, "input": "a"}}
    if "rerank" in one["smoke"]:
        return {"path": "/v1/rerank", "body": {"model": served, "query": "a", "documents": ["a"]}}
    # A prompt of one token ID: no client sends this, so that logs can distinguish it from traffic.
    return {"path": "/v1/completions", "body": {"model": served, "prompt": [1], "max_tokens": 1}}
