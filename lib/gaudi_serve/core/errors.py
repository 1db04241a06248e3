"""Errors and findings: how the toolkit reports a wrong input."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import wraps
from typing import Any, TypeGuard

from .hide import HIDDEN, without_credentials
from .tiers import rank

# Texts of ansible-core and ssh for a module whose result is cut off: the host was paused, lost or restarted.
BROKE = "the connection to the host broke during this task"
BROKEN = re.compile(
    r"deserialization failed|connection to \S+ closed|broken pipe|connection reset by peer", re.IGNORECASE
)
LONGEST_VALUE = 80  # characters of a value or line that a message shows
MISSPELT = 0.9  # The likeness from which a word is a name with a typing error.
ABOUT = 0.1  # Names whose likeness to a word differs by less are about equally similar.
DIGITS = re.compile(r"[0-9]{1,18}")
# Texts that are never a secret; and those that are none where a secret would be a part of a mapping or of a list.
SWITCH = re.compile(r"true|false|yes|no|on|off|auto|none", re.IGNORECASE)
PLAIN_WORD = re.compile(r"[a-z]{1,20}")
# A user or password before the host of an address. With http, a user alone can be a token; ssh needs a user. A number
# after a colon is a port. A password that is not encoded can contain any character, also slashes.
LOGIN = re.compile(r"https?://[^/\s@]*@|\w+://[^/\s@:]*:(?!\d+(?:/|\s|$))\S*@", re.IGNORECASE)


# A key of a model, its value, and what is allowed. The message leaves out a value of None.
Problem = tuple[str, Any, str]


@dataclass(frozen=True)
class Default:
    """A value that nobody has written, for messages."""

    value: Any


@dataclass(frozen=True)
class Finding:
    """One mistake that a plan found: its place and its message. It contains no secret."""

    host: str
    key: str
    message: str
    model: str | None = None
    value: Any = None
    allowed: str | None = None

    @classmethod
    def of_model(cls, host: str, spec: Any, key: str, value: Any, allowed: str) -> Finding:
        """Return the finding for one key of a model."""
        model = readable(label(spec)) if isinstance(spec, Mapping) else "?"
        value, default = (value.value, " (default)") if isinstance(value, Default) else (value, "")
        written = "" if value is None else f" {value}" if value == "(hidden)" else f" {shown(value)}{default}"
        message = f"{host}: model {model}: {readable(key)}{written}: {allowed}"
        return cls(host, key, message, model, plain(value), allowed)

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as the dict that filters return."""
        return asdict(self)


class InputError(ValueError):
    """A user's mistake. The message names the key, the value and what is allowed."""

    finding: tuple[str, Any, str] | None = None


def refusal(label: str, key: str, value: Any, allowed: str) -> InputError:
    """Return the error for one key of a model. Its ``finding`` has the parts, by which a plan sorts."""
    # The name itself can be the mistake, so it can contain anything.
    sound = label.isprintable() and len(label) <= LONGEST_VALUE
    where = f"{label if sound else shown(label)}: {key}" if label else key
    error = InputError(f"{where}: {allowed}" if value is None else f"{where}: {shown(value)} {allowed}")
    error.finding = (key, value, allowed)
    return error


def label(spec: Mapping[str, Any]) -> str:
    """Return the name of a model in messages: ``name``, or the last part of its weights."""
    return str(spec.get("name") or str(spec.get("weights", "?")).rstrip("/").rpartition("/")[2])


def shown(value: Any) -> str:
    """Return a value for a message: one line of JSON, cut to 80 characters, without credentials."""
    if isinstance(value, (str, bytes)):
        text = repr(without_credentials(value)[: LONGEST_VALUE + 1])
    else:
        try:
            text = one_line(json.dumps(without_credentials(value), ensure_ascii=False, skipkeys=True, default=str))
        except (ValueError, RecursionError):
            # Too deep, or an integer of more digits than Python writes.
            text = f"a value of type {type(value).__name__}"
    return text if len(text) <= LONGEST_VALUE + 2 else text[:LONGEST_VALUE] + "..."


def seen(value: Any, words: re.Pattern[str] = SWITCH) -> Any:
    """Return a value that may be a secret for a message: hidden, unless it is a switch or one of these plain words."""
    plain_word = isinstance(value, str) and words.fullmatch(value)
    return value if value is None or isinstance(value, bool) or plain_word else HIDDEN


def connection_broke(text: str, result: Mapping[str, Any]) -> bool:
    """Return whether a task failed because its result was cut off, and not because its module failed.

    Args:
        text: the reason that the result gives.
        result: of the task, which has the traceback of a module that failed.
    """
    traced = any("Traceback" in str(result.get(key)) for key in ("module_stderr", "module_stdout"))
    return not traced and BROKEN.search(text) is not None


def has_login(text: str) -> bool:
    """Return whether an address in a text has a user or a password, which must stay hidden."""
    return LOGIN.search(text) is not None


def plain(value: Any) -> Any:
    """Return a value without credentials, or its text if JSON cannot carry the value."""
    try:
        value = without_credentials(value)
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return shown(value)
    return value


def readable(key: Any) -> str:
    """Return a name or path for a message, quoted if it is long or cannot be printed on one line."""
    if not isinstance(key, str):
        return shown(key)
    return key if key.strip() and key.isprintable() and len(key) <= LONGEST_VALUE else shown(key)


def one_line(text: str) -> str:
    """Return a text on one line, with escapes for characters that cannot be printed."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def mapping(label: str, key: str, value: Any, what: str) -> Mapping[Any, Any]:
    """Return the value if it is a mapping.

    Raises:
        InputError: The value is not a mapping. ``what`` describes the expected one.
    """
    if not isinstance(value, Mapping):
        raise refusal(label, key, value, f"is not {what}" if value is not None else f"is required: {what}")
    return value


def is_whole(value: Any, low: int, high: int) -> TypeGuard[int]:
    """Return whether a value is an integer within limits. Booleans are not integers."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_number(value: Any, low: float, high: float) -> TypeGuard[float]:
    """Return whether a value is a number within limits. Booleans and NaN are not numbers."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


# Names that users knew, and what they are called now where it is not similar.
RENAMED = {"rollout_tolerance": "rollout_least_speed"}


def near(key: Any, names: Iterable[str], most: int = 3) -> str:
    """Return the question whether a similar name was meant, or an empty text if no name is similar.

    Of names that are about equally similar, everyday ones come first, unless one of them is only misspelt.
    """
    word, names = str(key)[:LONGEST_VALUE], sorted(names)
    if RENAMED.get(word) in names:
        return f"; did you mean {RENAMED[word]}?"
    likeness = {
        name: difflib.SequenceMatcher(None, name, word).ratio()
        for name in difflib.get_close_matches(word, names, n=len(names) or 1, cutoff=0.6)
    }
    best = max(likeness.values(), default=0.0)
    least = best if best >= MISSPELT else best - ABOUT
    close = sorted(likeness, key=lambda name: (0, rank(name)) if likeness[name] >= least else (1, 0))[:most]
    return f"; did you mean {' or '.join(close)}?" if close else ""


def whole(label: str, key: str, value: Any, low: int, high: int) -> int:
    """Return an integer, which the user may have written as text.

    Raises:
        InputError: The value is not an integer, is a boolean, or is out of its limits.
    """
    number = int(value) if isinstance(value, str) and DIGITS.fullmatch(value) else value
    if not is_whole(number, low, high):
        allowed = f"an integer from {low} to {high}"
        raise refusal(label, key, value, f"is required: {allowed}" if value is None else f"is not {allowed}")
    return number


def number(label: str, key: str, value: Any, low: float, high: float) -> float:
    """Return a number, with or without a fraction.

    Raises:
        InputError: The value is a text, a boolean or NaN, or is out of its limits.
    """
    if not is_number(value, low, high):
        allowed = f"a number from {low:g} to {high:g}"
        raise refusal(label, key, value, f"is required: {allowed}" if value is None else f"is not {allowed}")
    return value


def unknown(key: Any, names: Iterable[str]) -> str:
    """Return the message for an unknown key, with similar names or else with all known names."""
    names = sorted(names)
    hint = near(key, names) or f"; known are {', '.join(names)}"
    return f"is not a known name{hint}"


def known(label: str, keys: Iterable[Any], allowed: Iterable[str]) -> None:
    """Refuse keys that are not allowed.

    Raises:
        InputError: for the first unknown key. The message has similar allowed names.
    """
    names = sorted(allowed)
    for key in keys:
        if key not in names:
            raise refusal(label, str(key)[:LONGEST_VALUE], None, unknown(key, names))


def as_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a Jinja filter that calls a pure function.

    Raises:
        AnsibleFilterError: The function raised an InputError. The message is the same, so that a user sees one
            sentence and no traceback.
    """
    from ansible.errors import AnsibleFilterError

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except InputError as problem:
            raise AnsibleFilterError(str(problem)) from None

    return call
