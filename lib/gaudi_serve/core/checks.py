"""The one engine of rules for what people write: what a value may be, and what a key that is left out means."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from copy import copy
from typing import Any, NamedTuple

from ansible.module_utils.parsing.convert_bool import boolean

from .errors import Problem, is_number, is_whole, unknown

Check = Callable[[Any], bool]
Wrong = Callable[[Any], str | None]  # what is allowed in place of a value; None where it is right
REQUIRED = object()


class Rule(NamedTuple):
    """What a key may have.

    good: the check. allowed: completes a sentence. default: what a key that is missing or null means.
    """

    good: Check
    allowed: str
    default: Any = REQUIRED


def must(good: Check, allowed: str) -> Wrong:
    """Return what answers with what is allowed, where a check does not take a value."""
    return lambda value: None if good(value) else allowed


def filled(
    given: Any, rules: Mapping[str, Rule], where: str, beside: Collection[str] | None = None
) -> tuple[dict[str, Any], list[Problem]]:
    """Return a mapping with what it leaves out, and what is wrong with it.

    Args:
        given: the mapping, or something else in its place.
        rules: its keys.
        where: its path.
        beside: keys that it may have as well, whatever their value; None lets it have any.
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
    """Return the mappings of a list, each as ``filled`` returns it, and what is wrong with them."""
    pairs = [filled(item, rules, f"{where}[{number}]", beside) for number, item in enumerate(items)]
    return [item for item, _ in pairs], [problem for _, problems in pairs for problem in problems]


def is_flag(value: Any) -> bool:
    """Tell whether a value is true or false."""
    return isinstance(value, bool)


def is_flag_text(value: Any) -> bool:
    """Tell whether a value is true or false, also as text: ``-e key=value`` gives nothing else.

    These are the words that Ansible's filter bool reads too, of which it takes y and t for false.
    """
    words = ("true", "yes", "on", "1", "false", "no", "off", "0")
    return isinstance(value, bool) or is_whole(value, 0, 1) or (isinstance(value, str) and value.lower() in words)


def is_true(value: Any) -> bool:
    """Tell whether Ansible reads a value as true; what is neither true nor false is not."""
    return bool(boolean(value, strict=False))


def same(one: Any, other: Any) -> bool:
    """Tell whether two values mean the same for a variable; ``-e key=value`` and surveys give texts."""
    empty = (None, "")
    if one in empty or other in empty:
        return one in empty and other in empty
    if is_flag_text(one) and is_flag_text(other):
        return is_true(one) == is_true(other)
    return bool(one == other) or str(one) == str(other)


def is_line(value: Any) -> bool:
    """Tell whether a value is a text of one line."""
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
    """Return a check for lists of what another check takes."""
    return lambda value: isinstance(value, list) and all(map(good, value))


def mapping_of(names: Check, values: Check) -> Check:
    """Return a check for mappings, by checks of their keys and values."""
    return lambda value: isinstance(value, Mapping) and all(names(key) and values(one) for key, one in value.items())


def empty_or(good: Check) -> Check:
    """Return a check that also takes the empty text."""
    return lambda value: value == "" or good(value)


def is_address(text: str) -> bool:
    """Return whether an address can be split into its parts; one with a lone bracket cannot."""
    try:
        urllib.parse.urlsplit(text)
    except ValueError:
        return False
    return True
