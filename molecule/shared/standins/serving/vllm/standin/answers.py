"""What the stand-in says. It knows three capitals and otherwise repeats what it was asked."""

from __future__ import annotations

import os
import re
from typing import Any

MOST_MIB = 2048  # of the fault out_of_memory
CAPITALS = "1. France - Paris\n2. Japan - Tokyo\n3. Egypt - Cairo"


class Refused(Exception):
    """A request that vLLM would answer with an error."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


def words_of(text: str) -> list[str]:
    """Split a text into what counts as tokens here."""
    return re.findall(r"\s*\S+", text)


def prompt_of(request: dict[str, Any], chat: bool) -> tuple[str, list[dict[str, Any]]]:
    """Return the text that was asked, and the parts of the message that are no text."""
    if not chat:
        prompt = request.get("prompt")
        if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
            return " ".join(f"token{token}" for token in prompt), []
        if not isinstance(prompt, str):
            raise Refused(400, "BadRequestError", "prompt: Field required")
        return prompt, []
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "BadRequestError", "messages: Field required")
    content = messages[-1].get("content", "")
    if not isinstance(content, list):
        return str(content), []
    text = " ".join(part.get("text", "") for part in content)
    return text, [part for part in content if part.get("type") != "text"]


def reply(prompt: str, seen: list[str], limit: int, fault: str) -> tuple[list[str], str]:
    """Return the words of the answer and the reason of its end."""
    if fault == "empty_answer":
        return [], "stop"
    if fault == "out_of_memory" and "everything" in prompt:
        # Ends by the kernel's hand where memory is limited, and by itself where it is not.
        kept = [os.urandom(1 << 20) for _ in range(MOST_MIB)]
        return [str(len(kept))], "stop"
    capital = re.search(r"countries and their capitals", prompt, re.IGNORECASE)
    text = CAPITALS if capital else f"You said: {' '.join(prompt.split()[:20])}"
    text = f"It is {' and '.join(seen)}." if seen else text
    if fault == "garbled_answer":
        # What wrong results of a device look like: words, but no sense.
        text = "the the of of lkj !!!! 0 0 0"
    words = words_of(text)
    return words[:limit], "length" if len(words) > limit else "stop"


def limit_of(request: dict[str, Any], asked: int, context: int) -> int:
    """Return how many tokens the answer may have, and refuse what the context cannot hold."""
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise Refused(400, "BadRequestError", f"max_tokens must be at least 1, got {limit}.")
    total = asked + (limit or 1)
    if total > context:
        raise Refused(
            400,
            "BadRequestError",
            f"This model's maximum context length is {context} tokens. However, you requested {total} tokens "
            f"({asked} in the messages, {limit or 1} in the completion). Please reduce the length of the messages "
            "or completion.",
        )
    return limit or context - asked
