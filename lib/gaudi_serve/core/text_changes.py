"""The differences between two versions of a configuration file, for people: key, old value, new value."""

from __future__ import annotations

from collections import Counter
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
    old, new = ([line for line in _settings(text) if not line[1].startswith(left_out)] for text in (before, after))
    lines = [line for one, other in _pairs(old, new) for line in _described(one, other)]
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
    often = _first_words(before) | _first_words(after)
    for kind, start, end, begin, stop in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        old, new = before[start:end], after[begin:stop]
        for one in old:
            # If several lines of a section begin with a word, such as timeout, the next word also belongs to the key.
            least = 1 if often[one[0], one[1].split()[0]] < 2 else 2
            keys = {line: len(_key(line[1], one[1]).split()) for line in new if line[0] == one[0]}
            other = max(keys, key=lambda line: keys[line], default=None)
            other = other if other and keys[other] >= least else None
            yield one, other
            new = [line for line in new if line != other]
        for line in new:
            yield None, line


def _first_words(lines: list[Line]) -> Counter[Line]:
    """Return how many lines of a section begin with a word."""
    return Counter((section, words.split()[0]) for section, words in lines)


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
