"""One way to say that an input is wrong."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import wraps
from typing import Any, TypeGuard

from .redact import without_credentials

LONGEST_VALUE = 80  # characters of a value or line that a message shows
DIGITS = re.compile(r"[0-9]{1,18}")


# A key of a model, its value, and what is allowed; said without a value where that is none.
Problem = tuple[str, Any, str]


@dataclass(frozen=True)
class Finding:
    """One mistake that a plan has found: where, and the sentence for a reader. No secret is in it."""

    host: str
    key: str
    message: str
    model: str | None = None
    value: Any = None
    allowed: str | None = None

    @classmethod
    def of_model(cls, host: str, spec: Any, key: str, value: Any, allowed: str) -> Finding:
        """Return what is wrong with one key of a model."""
        model = readable(label(spec)) if isinstance(spec, Mapping) else "?"
        written = "" if value is None else f" {value}" if value == "(hidden)" else f" {shown(value)}"
        message = f"{host}: model {model}: {readable(key)}{written}: {allowed}"
        return cls(host, key, message, model, plain(value), allowed)

    def as_dict(self) -> dict[str, Any]:
        """Return it as filters do."""
        return asdict(self)


class InputError(ValueError):
    """A user's mistake. The message names the key, the value and what is allowed."""

    finding: tuple[str, Any, str] | None = None


def refusal(label: str, key: str, value: Any, allowed: str) -> InputError:
    """Return the error for one key of a model; ``finding`` keeps its parts, for a plan to sort."""
    # A name that is itself the mistake may hold anything.
    sound = label.isprintable() and len(label) <= LONGEST_VALUE
    where = f"{label if sound else shown(label)}: {key}" if label else key
    error = InputError(f"{where}: {allowed}" if value is None else f"{where}: {shown(value)} {allowed}")
    error.finding = (key, value, allowed)
    return error


def label(spec: Mapping[str, Any]) -> str:
    """Return the name by which messages call a model: ``name``, or the last part of its weights."""
    return str(spec.get("name") or str(spec.get("weights", "?")).rstrip("/").rpartition("/")[2])


def shown(value: Any) -> str:
    """Return a value as messages show it: of one line, as YAML has it, cut to 80 characters, without credentials."""
    if isinstance(value, (str, bytes)):
        text = repr(without_credentials(value)[: LONGEST_VALUE + 1])
    else:
        try:
            text = one_line(json.dumps(without_credentials(value), ensure_ascii=False, skipkeys=True, default=str))
        except (ValueError, RecursionError):
            # Too deep, or an integer of more digits than Python writes.
            text = f"a value of type {type(value).__name__}"
    return text if len(text) <= LONGEST_VALUE + 2 else text[:LONGEST_VALUE] + "..."


def plain(value: Any) -> Any:
    """Return a value as it is, but for credentials, where JSON can carry it, else the text of messages."""
    try:
        value = without_credentials(value)
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return shown(value)
    return value


def readable(key: Any) -> str:
    """Return a name or path as messages show it: as it is, unless it would break or fill the line."""
    if not isinstance(key, str):
        return shown(key)
    return key if key.strip() and key.isprintable() and len(key) <= LONGEST_VALUE else shown(key)


def one_line(text: str) -> str:
    """Return a text with escapes in place of what cannot be printed on one line."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def mapping(label: str, key: str, value: Any, what: str) -> Mapping[Any, Any]:
    """Return a mapping.

    Raises:
        InputError: when the value is none; ``what`` says which is wanted.
    """
    if not isinstance(value, Mapping):
        raise refusal(label, key, value, f"is not {what}" if value is not None else f"is required: {what}")
    return value


def is_whole(value: Any, low: int, high: int) -> TypeGuard[int]:
    """Tell whether a value is an integer within its limits; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_number(value: Any, low: float, high: float) -> TypeGuard[float]:
    """Tell whether a value is a number within its limits; true, false and NaN are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def near(key: Any, names: Iterable[str], most: int = 3) -> str:
    """Return the end of a sentence that asks whether a near name was meant; empty where none is near."""
    close = difflib.get_close_matches(str(key)[:LONGEST_VALUE], sorted(names), n=most, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def whole(label: str, key: str, value: Any, low: int, high: int) -> int:
    """Return an integer, also one that is written as text.

    Raises:
        InputError: for anything else, true and false included, and for a number out of its limits.
    """
    number = int(value) if isinstance(value, str) and DIGITS.fullmatch(value) else value
    if not is_whole(number, low, high):
        allowed = f"an integer from {low} to {high}"
        raise refusal(label, key, value, f"is required: {allowed}" if value is None else f"is not {allowed}")
    return number


def number(label: str, key: str, value: Any, low: float, high: float) -> float:
    """Return a number that need not be whole.

    Raises:
        InputError: for texts, true and false, NaN, and for a number out of its limits.
    """
    if not is_number(value, low, high):
        allowed = f"a number from {low:g} to {high:g}"
        raise refusal(label, key, value, f"is required: {allowed}" if value is None else f"is not {allowed}")
    return value


def unknown(key: Any, names: Iterable[str]) -> str:
    """Return what is wrong with a key that is none of some names, with those that are near it, else with all."""
    names = sorted(names)
    hint = near(key, names) or f"; known are {', '.join(names)}"
    return f"is not a known name{hint}"


def known(label: str, keys: Iterable[Any], allowed: Iterable[str]) -> None:
    """Refuse keys that are not allowed.

    Raises:
        InputError: for the first such key, with the allowed names that are near it.
    """
    names = sorted(allowed)
    for key in keys:
        if key not in names:
            raise refusal(label, str(key)[:LONGEST_VALUE], None, unknown(key, names))


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
