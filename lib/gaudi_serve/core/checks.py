"""Rules for what users write: the allowed values of a key, and its default."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from copy import copy
from typing import Any, NamedTuple

from .errors import Problem, is_number, is_whole, unknown

Check = Callable[[Any], bool]
Wrong = Callable[[Any], str | None]  # Returns what is allowed if the value is wrong, else None.
REQUIRED = object()


class Rule(NamedTuple):
    """The rule for one key.

    good: the check. allowed: the end of the message. default: the value of a key that is missing or null.
    """

    good: Check
    allowed: str
    default: Any = REQUIRED


def must(good: Check, allowed: str) -> Wrong:
    """Return a function that returns ``allowed`` if a check refuses the value, else None."""
    return lambda value: None if good(value) else allowed


def filled(
    given: Any, rules: Mapping[str, Rule], where: str, beside: Collection[str] | None = None
) -> tuple[dict[str, Any], list[Problem]]:
    """Return a mapping with its defaults filled in, and its problems.

    Args:
        given: The mapping as the user wrote it. Another type is a problem.
        rules: The rule for each key.
        where: The path of the mapping in messages.
        beside: Keys that are allowed without a rule; None allows every key.
    """
    if not isinstance(given, Mapping):
        return {}, [(where, given, f"must be a mapping of {', '.join(rules)}")]
    complete = dict(given)
    names = given if beside is None else (*rules, *beside)
    problems: list[Problem] = [(where, str(key), unknown(key, names)) for key in given if key not in names]
    for key, rule in rules.items():
        value = given.get(key)
        if value is None and rule.default is not REQUIRED:
            complete[key] = copy(rule.default)
        elif value is None or not rule.good(value):
            problems.append((f"{where}.{key}" if where else key, value, rule.allowed))
    return complete, problems


def filled_each(
    items: list[Any], rules: Mapping[str, Rule], where: str, beside: Collection[str] | None = None
) -> tuple[list[dict[str, Any]], list[Problem]]:
    """Return the mappings of a list, each filled in by ``filled``, and their problems."""
    pairs = [filled(item, rules, f"{where}[{number}]", beside) for number, item in enumerate(items)]
    return [item for item, _ in pairs], [problem for _, problems in pairs for problem in problems]


def is_flag(value: Any) -> bool:
    """Return whether a value is true or false."""
    return isinstance(value, bool)


def is_flag_text(value: Any) -> bool:
    """Return whether a value is true or false, or a text for one: ``-e key=value`` sets texts.

    Ansible's filter ``bool`` reads the same words, but it reads y and t as false.
    """
    words = ("true", "yes", "on", "1", "false", "no", "off", "0")
    return isinstance(value, bool) or is_whole(value, 0, 1) or (isinstance(value, str) and value.lower() in words)


def is_true(value: Any) -> bool:
    """Return whether Ansible reads a value as true."""
    # Programs that run alone on a host have no Ansible, and use other checks of this file.
    from ansible.module_utils.parsing.convert_bool import boolean

    return bool(boolean(value, strict=False))


def same(one: Any, other: Any) -> bool:
    """Return whether two values mean the same for a variable. ``-e key=value`` and surveys set texts."""
    empty = (None, "")
    if one in empty or other in empty:
        return one in empty and other in empty
    if is_flag_text(one) and is_flag_text(other):
        return is_true(one) == is_true(other)
    return bool(one == other) or str(one) == str(other)


def is_line(value: Any) -> bool:
    """Return whether a value is a text of one line."""
    return isinstance(value, str) and value.isprintable()


def whole(low: int, high: int) -> Check:
    """Return a check for integers within limits."""
    return lambda value: is_whole(value, low, high)


def within(low: float, high: float) -> Check:
    """Return a check for numbers within limits."""
    return lambda value: is_number(value, low, high)


def matching(pattern: str) -> Check:
    """Return a check for texts that match a pattern."""
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII) is not None


def one_of(*allowed: str) -> Check:
    """Return a check for one of these texts."""
    return lambda value: isinstance(value, str) and value in allowed


def list_of(good: Check) -> Check:
    """Return a check for lists whose items pass another check."""
    return lambda value: isinstance(value, list) and all(map(good, value))


def mapping_of(names: Check, values: Check) -> Check:
    """Return a check for mappings whose keys and values pass their checks."""
    return lambda value: isinstance(value, Mapping) and all(names(key) and values(one) for key, one in value.items())


def empty_or(good: Check) -> Check:
    """Return a check that also takes the empty text."""
    return lambda value: value == "" or good(value)


def is_address(text: str) -> bool:
    """Return whether an address can be parsed. An address with a single bracket cannot."""
    try:
        urllib.parse.urlsplit(text)
    except ValueError:
        return False
    return True
