"""Speculative decoding: how many tokens are guessed a step, and the weights of the model that guesses them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..core.errors import is_whole
from .host import Host

MOST_GUESSED = 1024  # tokens a step
# These guess without weights of their own, or by what the model's own weights have for it.
WITHOUT_WEIGHTS = ("ngram", "[ngram]", "mtp")


def speculation(spec: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what a model says of speculative decoding, nothing without it; None for what is neither."""
    config = spec.get("speculative_config")
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except ValueError:
            return None
    return config if isinstance(config, Mapping) else {} if not config else None


def guessed_tokens(spec: Mapping[str, Any]) -> int:
    """Return the tokens that are guessed a step; 0 without speculative decoding, -1 where nobody says how many."""
    config = speculation(spec)
    if config is not None and not config:
        return 0
    number = (config or {}).get("num_speculative_tokens")
    return number if is_whole(number, 1, MOST_GUESSED) else -1


def draft_model(spec: Mapping[str, Any]) -> str | None:
    """Return the folder, or the name in a hub, of a draft model with weights of its own; None where there is none."""
    config = speculation(spec) or {}
    name, method = config.get("model"), str(config.get("method"))
    own = isinstance(name, str) and name not in ("", *WITHOUT_WEIGHTS, spec.get("weights"))
    return str(name) if own and method not in WITHOUT_WEIGHTS and not method.endswith("_mtp") else None


def draft_bytes(spec: Mapping[str, Any], host: Host) -> int:
    """Return the bytes of a draft model's weights on the host; 0 where there is none, or nothing is known of it."""
    found = host.weights.get(draft_model(spec) or "")
    return found.bytes if found else 0
