"""Versions such as 0.26.0, compared as Python compares them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.version import Version


@cache
def comparable(text: str) -> Version:
    """Return a version that can be compared. A text that is not a version raises ValueError."""
    # Only the controller compares versions. Modules that share this package have no packaging.
    from packaging.version import Version

    return Version(text)
