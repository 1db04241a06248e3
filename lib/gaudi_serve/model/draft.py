"""Speculative decoding: the number of predicted tokens per step, and the weights of the draft model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import is_whole
from .host import Host

MOST_GUESSED = 1024  # tokens per step
# Methods without a draft model: they need no weights, or use the model's own.
WITHOUT_WEIGHTS = ("ngram", "[ngram]", "mtp")


@dataclass(frozen=True)
class Speculation:
    """The speculative decoding of a model: its ``speculative_config``; empty without it, None if it is invalid."""

    config: Mapping[str, Any] | None

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Speculation:
        """Return the speculative decoding of a model, from a mapping or its text."""
        config = spec.get("speculative_config")
        if isinstance(config, str):
            try:
                config = json.loads(config)
            except ValueError:
                return cls(None)
        return cls(config if isinstance(config, Mapping) else {} if not config else None)

    @property
    def tokens(self) -> int:
        """Return the predicted tokens per step; 0 without speculative decoding, -1 if the number is not set."""
        if self.config is not None and not self.config:
            return 0
        number = (self.config or {}).get("num_speculative_tokens")
        return number if is_whole(number, 1, MOST_GUESSED) else -1

    @property
    def method(self) -> str:
        """Return the method that predicts tokens, or an empty text if it is not set."""
        return str((self.config or {}).get("method") or "")


def draft_model(spec: Mapping[str, Any]) -> str | None:
    """Return the folder or hub name of a draft model with its own weights, or None."""
    config = Speculation.of(spec).config or {}
    name, method = config.get("model"), str(config.get("method"))
    own = isinstance(name, str) and name not in ("", *WITHOUT_WEIGHTS, spec.get("weights"))
    return str(name) if own and method not in WITHOUT_WEIGHTS and not method.endswith("_mtp") else None


def draft_bytes(spec: Mapping[str, Any], host: Host) -> int:
    """Return the bytes of a draft model's weights on the host; 0 if there is none or the size is unknown."""
    found = host.weights.get(draft_model(spec) or "")
    return found.bytes if found else 0
