"""Versions such as 0.26.0, compared by their numbers."""

from __future__ import annotations


def numbers(version: str) -> list[int]:
    """Return the numbers of a version, by which versions are compared."""
    return [int(part) for part in version.split(".")]
