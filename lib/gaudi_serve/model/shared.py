"""The models of one entry that one server loads on one card: ``shares_card_with``, and which keys each of them has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHARED = "shares_card_with"
# Keys that each of the models has for itself. All others are of the server, and belong in the entry.
OWN = ("name", "model", "weights", "source", "config", "weight_bytes", "smoke", "task", "hf_overrides")
# A model that does not have these takes those of the entry.
TAKEN = ("max_model_len", "gpu_memory_utilization")
MOST = 7  # models of one card, by the vendor's rule for their shares of its memory
EXAMPLE = "[{name: bge-reranker, weights: /data/bge-reranker}]"


def members(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the models that share the card of an entry, without its first one; of a wrong list only what is sound.

    A key without a value is left out, as in an entry.
    """
    given = spec.get(SHARED)
    models = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    return [{key: value for key, value in one.items() if value is not None} for one in models]


def named_key(spec: Mapping[str, Any], place: int, key: str) -> tuple[str, str]:
    """Return how messages call a key of one of the models, and for which model it is where the entry has the value."""
    if place == 0 or key not in TAKEN or key in members(spec)[place - 1]:
        return key_of(place, key), ""
    return key, f"of {members(spec)[place - 1]['name']}: "


def shared_problem(value: Any) -> str | None:
    """Return what a list of such models must be; None for one that can be looked at model by model."""
    fits = isinstance(value, list) and 0 < len(value) < MOST and all(isinstance(one, Mapping) for one in value)
    allowed = f"must be a list of 1 to {MOST - 1} mappings, one for each further model on the card, such as {EXAMPLE}"
    return None if fits else allowed


def key_of(place: int, key: str) -> str:
    """Return how messages call a key of one of the models of an entry; the first is the entry itself."""
    return key if place == 0 else f"{SHARED}[{place - 1}].{key}"


def of_server(key: str) -> str:
    """Return what is allowed where one of the models has a key of the server."""
    return f"applies to the server and belongs in the entry itself; a model in this list takes {_keys()}"


def _keys() -> str:
    return ", ".join((*OWN, *TAKEN))
