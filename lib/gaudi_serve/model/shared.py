"""The models that one server loads on one card: an entry with ``shares_card_with``, and the keys of each model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHARED = "shares_card_with"
# Keys that each model has for itself. All other keys are of the server and belong in the entry.
OWN = ("name", "model", "weights", "source", "config", "weight_bytes", "smoke", "task", "hf_overrides")
# A model without these keys uses those of the entry.
TAKEN = ("max_model_len", "gpu_memory_utilization")
MOST = 7  # Models per card, from the vendor's rule for their shares of its memory.
EXAMPLE = "[{name: bge-reranker, weights: /data/bge-reranker}]"


def with_name(model: Any) -> Any:
    """Return a user's model. Without a name of its own, it has that of its catalog entry."""
    if not isinstance(model, Mapping) or model.get("name") is not None or not isinstance(model.get("model"), str):
        return model
    return {**model, "name": model["model"]}


def members(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the further models of an entry that share its card. Invalid list items are left out.

    Keys without a value are left out, as in an entry.
    """
    given = spec.get(SHARED)
    models = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    return [{key: value for key, value in one.items() if value is not None} for one in models]


def named_key(spec: Mapping[str, Any], place: int, key: str) -> tuple[str, str]:
    """Return the name of a model's key in messages, and the model if the value comes from the entry."""
    if place == 0 or key not in TAKEN or key in members(spec)[place - 1]:
        return key_of(place, key), ""
    return key, f"of {members(spec)[place - 1]['name']}: "


def shared_problem(value: Any) -> str | None:
    """Return what ``shares_card_with`` must be, or None if each of its models can be checked."""
    fits = isinstance(value, list) and 0 < len(value) < MOST and all(isinstance(one, Mapping) for one in value)
    allowed = f"must be a list of 1 to {MOST - 1} mappings, one for each further model on the card, such as {EXAMPLE}"
    return None if fits else allowed


def key_of(place: int, key: str) -> str:
    """Return the name in messages of a key of the model at ``place``. Place 0 is the entry itself."""
    return key if place == 0 else f"{SHARED}[{place - 1}].{key}"


def of_server(key: str) -> str:
    """Return the message for a model in the list that sets a key of the server."""
    return f"applies to the server and belongs in the entry itself; a model in this list takes {_keys()}"


def _keys() -> str:
    return ", ".join((*OWN, *TAKEN))
