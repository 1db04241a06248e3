"""Speculative decoding: the number of predicted tokens per step, and the weights of the draft model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import Problem, is_whole
from .architecture import Architecture
from .host import Host

MOST_GUESSED = 1024  # tokens per step
# Methods without a draft model: they need no weights, or use the model's own.
WITHOUT_WEIGHTS = ("ngram", "[ngram]", "mtp")
# Parsers that lose parts of a tool call if several tokens arrive at once, and the shortest match that avoids this.
MANGLED, LEAST_LOOKUP, LARGEST_LOOKUP = ("qwen3_coder", "qwen3_xml", "mimo"), 8, 10_000


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

    @property
    def by_head(self) -> bool:
        """Return whether a head in the model's own weights predicts tokens."""
        return self.method == "mtp" or self.method.endswith("_mtp")


def draft_model(spec: Mapping[str, Any]) -> str | None:
    """Return the folder or hub name of a draft model with its own weights, or None."""
    guesses = Speculation.of(spec)
    name = (guesses.config or {}).get("model")
    own = isinstance(name, str) and name not in ("", *WITHOUT_WEIGHTS, spec.get("weights"))
    return str(name) if own and guesses.method not in WITHOUT_WEIGHTS and not guesses.by_head else None


def draft_problems(spec: Mapping[str, Any], architecture: Architecture) -> list[Problem]:
    """Return the problem if the model's config.json has no head for the method of its speculative decoding."""
    guesses = Speculation.of(spec)
    # Gemma's head is a model of its own.
    elsewhere = (guesses.config or {}).get("model") not in (None, spec["weights"])
    if not guesses.by_head or architecture.guesses or elsewhere:
        return []
    allowed = f"has method {guesses.method}, and the model's config.json has no layers for it; choose another method"
    return [("speculative_config", spec["speculative_config"], allowed)]


def draft_warnings(spec: Mapping[str, Any]) -> list[str]:
    """Return a warning if users have reported wrong tool calls for the speculative decoding of a model."""
    guesses, parser = Speculation.of(spec), spec.get("tool_call_parser")
    least = (guesses.config or {}).get("prompt_lookup_min")
    if not guesses.method.startswith("ngram") or parser not in MANGLED or is_whole(least, LEAST_LOOKUP, LARGEST_LOOKUP):
        return []
    return [
        f"speculative_config: {guesses.method} with tool_call_parser {parser} can mangle arguments of tool calls "
        f"(vllm-project/vllm#56077, #40875); set prompt_lookup_min to {LEAST_LOOKUP} or more, or leave it out"
    ]


def draft_bytes(spec: Mapping[str, Any], host: Host) -> int:
    """Return the bytes of a draft model's weights on the host; 0 if there is none or the size is unknown."""
    found = host.weights.get(draft_model(spec) or "")
    return found.bytes if found else 0
