"""The differences between two versions of a configuration file, for people: key, old value, new value."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import takewhile

Line = tuple[str, str]  # section, setting


def text_changes(before: str, after: str, left_out: tuple[str, ...] = (), most: int = 8) -> list[str]:
    """Return the settings that differ between two texts, a line each.

    Sections begin with lines that are not indented, settings are indented, as in haproxy.cfg.

    Args:
        before: the present text.
        after: the planned text.
        left_out: first words of settings that are reported elsewhere.
        most: the most lines; a last one counts the others.
    """
    lines = [line for one, other in _pairs(_settings(before), _settings(after)) for line in _described(one, other)]
    lines = [line for line in lines if not line.partition(": ")[2].lstrip("-+ ").startswith(left_out or ("\0",))]
    more = len(lines) - most
    return lines if more <= 0 else [*lines[:most], f"and {more} more"]


def _settings(text: str) -> list[Line]:
    section, found = "", []
    for line in text.splitlines():
        words = " ".join(line.split())
        if not words or words.startswith("#"):
            continue
        if line[:1].isspace():
            found.append((section, words))
        else:
            section = words
    return found


def _pairs(before: list[Line], after: list[Line]) -> Iterator[tuple[Line | None, Line | None]]:
    """Yield the lines that differ: those that replace each other together, the others with None."""
    for kind, start, end, begin, stop in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        old, new = before[start:end], after[begin:stop]
        for one in old:
            other = next((line for line in new if line[0] == one[0] and _key(line[1], one[1])), None)
            yield one, other
            new = [line for line in new if line != other]
        for line in new:
            yield None, line


def _key(one: str, other: str) -> str:
    """Return the words with which two settings begin; empty if none are common."""
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(one.split(), other.split(), strict=False))
    return " ".join(word for word, _ in pairs)


def _described(old: Line | None, new: Line | None) -> Iterator[str]:
    if old and new:
        key = _key(old[1], new[1])
        now, then = (line[1][len(key) :].strip() or "not set" for line in (old, new))
        yield f"{new[0]}: {key}: {now} -> {then}"
    elif old:
        yield f"{old[0]}: - {old[1]}"
    elif new:
        yield f"{new[0]}: + {new[1]}"
