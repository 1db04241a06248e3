"""One way to say that an input is wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


class InputError(ValueError):
    """A user's mistake. The message names the key, the value and what is allowed."""

    finding: tuple[str, Any, str] | None = None


def refusal(label: str, key: str, value: Any, allowed: str) -> InputError:
    """Return the error for one key of a model; ``finding`` keeps its parts, for a plan to sort."""
    error = InputError(f"{label}: {key}: {allowed}" if value is None else f"{label}: {key}: {value!r} {allowed}")
    error.finding = (key, value, allowed)
    return error


def as_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a pure function as a Jinja filter.

    Raises:
        AnsibleFilterError: with the text of the InputError that ``function`` raised, so that a
            user sees one sentence and no traceback.
    """
    from ansible.errors import AnsibleFilterError

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except InputError as problem:
            raise AnsibleFilterError(str(problem)) from None

    return call
