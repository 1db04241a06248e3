"""Speculative decoding: how many tokens are guessed a step, and the weights of the model that guesses them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import is_whole
from .host import Host

MOST_GUESSED = 1024  # tokens a step
# These guess without weights of their own, or by what the model's own weights have for it.
WITHOUT_WEIGHTS = ("ngram", "[ngram]", "mtp")


@dataclass(frozen=True)
class Speculation:
    """The speculative decoding of a model: its ``speculative_config``, empty without it, None for what is neither."""

    config: Mapping[str, Any] | None

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Speculation:
        """Return what a model says of it, as a mapping or as the text of one."""
        config = spec.get("speculative_config")
        if isinstance(config, str):
            try:
                config = json.loads(config)
            except ValueError:
                return cls(None)
        return cls(config if isinstance(config, Mapping) else {} if not config else None)

    @property
    def tokens(self) -> int:
        """Return the tokens that are guessed a step; 0 without speculative decoding, -1 where nobody says how many."""
        if self.config is not None and not self.config:
            return 0
        number = (self.config or {}).get("num_speculative_tokens")
        return number if is_whole(number, 1, MOST_GUESSED) else -1

    @property
    def method(self) -> str:
        """Return by what tokens are guessed; empty where nobody says it."""
        return str((self.config or {}).get("method") or "")


def draft_model(spec: Mapping[str, Any]) -> str | None:
    """Return the folder, or the name in a hub, of a draft model with weights of its own; None where there is none."""
    config = Speculation.of(spec).config or {}
    name, method = config.get("model"), str(config.get("method"))
    own = isinstance(name, str) and name not in ("", *WITHOUT_WEIGHTS, spec.get("weights"))
    return str(name) if own and method not in WITHOUT_WEIGHTS and not method.endswith("_mtp") else None


def draft_bytes(spec: Mapping[str, Any], host: Host) -> int:
    """Return the bytes of a draft model's weights on the host; 0 where there is none, or nothing is known of it."""
    found = host.weights.get(draft_model(spec) or "")
    return found.bytes if found else 0
