"""Versions such as 0.26.0, as Python compares them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.version import Version


@cache
def comparable(text: str) -> Version:
    """Return a version as an object that compares; for a text that is none, a ValueError is raised."""
    # Only the controller compares versions; modules that share this package have no packaging.
    from packaging.version import Version

    return Version(text)
