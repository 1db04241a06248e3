"""Checks of values that several files share."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable
from typing import Any

from .errors import is_whole

Check = Callable[[Any], bool]


def is_flag(value: Any) -> bool:
    """Tell whether a value is true or false."""
    return isinstance(value, bool)


def is_flag_text(value: Any) -> bool:
    """Tell whether a value is true or false, also as text: ``-e key=value`` gives nothing else."""
    text = isinstance(value, str) and value.lower() in ("true", "yes", "on", "1", "false", "no", "off", "0")
    return isinstance(value, bool) or text or is_whole(value, 0, 1)


def is_true(value: Any) -> bool:
    """Tell whether a value means yes, also as text: ``-e key=value`` gives nothing else."""
    return str(value).lower() in ("true", "yes", "on", "1")


def whole(low: int, high: int) -> Check:
    """Return a check for integers within limits."""
    return lambda value: is_whole(value, low, high)


def matching(pattern: str) -> Check:
    """Return a check for texts that match a pattern."""
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII) is not None


def one_of(*allowed: str) -> Check:
    """Return a check for one of these texts."""
    return lambda value: isinstance(value, str) and value in allowed


def is_address(text: str) -> bool:
    """Return whether an address can be split into its parts; one with a lone bracket cannot."""
    try:
        urllib.parse.urlsplit(text)
    except ValueError:
        return False
    return True
