"""The plugin's buckets from a file: one tuple per line, such as ``(1, [256, 512], range(0, 8, 4))``.

The server replaces ranges with lists, then reads a line as a Python literal.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from itertools import product
from typing import Any

from ..core.errors import InputError, refusal, shown
from .bucket_grid import Bucket
from .plugin_input import LARGEST, MOST_BUCKETS

MOST_OF_A_FIELD = 10_000  # Values. The server stops at a longer range.
LONGEST_LINE = 400_000  # Characters: more than three fields with the most values need.
RANGE = re.compile(r"range\(\s*(-?\d{1,18})\s*,\s*(-?\d{1,18})\s*(?:,\s*(-?\d{1,18})\s*)?\)")
FORM = "a line is a tuple such as (1, [256, 512], range(0, 8, 4)): a number, list or range three times"
Fields = tuple[list[int], list[int], list[int]]


def file_buckets(text: str) -> tuple[list[Bucket], list[Bucket]]:
    """Return the prompt and the decode buckets of a bucket file as they are written. A query of 1 is a decode step.

    Args:
        text: The text of the file. Blank lines and those that begin with # are ignored.

    Raises:
        InputError: A line stops the server (its number and text are in the message), a field has more than 10,000
            values, or the file has no line for prompts or none for decode steps.
    """
    prompt: list[Bucket] = []
    decode: list[Bucket] = []
    count = 0
    for number, line in _lines(text):
        parts = _fields(number, line)
        count += len(parts[0]) * len(parts[1]) * len(parts[2])
        if count > MOST_BUCKETS:
            raise _wrong(number, line, f"makes the file have {count:,} buckets, above {MOST_BUCKETS:,}")
        for bucket in product(*parts):
            (decode if bucket[1] == 1 else prompt).append(bucket)
    for phase, found, example in (("prompt", prompt, "(1, 256, 0)"), ("decode", decode, "(1, 1, 128)")):
        if not found:
            stops = f"has no line of a {phase} bucket, such as {example}: the server stops at start; write one"
            raise refusal("", "file", None, stops)
    return prompt, decode


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        content = line.strip()
        if content and not content.startswith("#"):
            yield number, content


def _fields(number: int, line: str) -> Fields:
    if len(line) > LONGEST_LINE:
        raise _wrong(number, line, f"is longer than {LONGEST_LINE:,} characters; write ranges, or several lines")
    written = RANGE.sub(lambda found: _written_out(number, line, found), line)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # It warns about an escape that Python does not know.
            found = ast.literal_eval(written)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise _wrong(number, line, f"cannot be read by the server; {FORM}") from None
    if not isinstance(found, tuple) or len(found) != 3:
        raise _wrong(number, line, f"is not a tuple of three; {FORM}")
    one, two, three = (_numbers(number, line, part) for part in found)
    return one, two, three


def _written_out(number: int, line: str, found: re.Match[str]) -> str:
    """Return a range as the text of a list."""
    start, stop, step = (int(part) if part else 1 for part in found.groups())
    if step == 0:
        raise _wrong(number, line, f"has {found.group(0)}, whose step is 0; write 1 or more")
    values = range(start, stop, step)
    if values and len(values) > MOST_OF_A_FIELD:
        several = f"above {MOST_OF_A_FIELD:,}; write several ranges, or a larger step"
        raise _wrong(number, line, f"has {found.group(0)} of {len(values):,} values, {several}")
    return repr(list(values))


def _numbers(number: int, line: str, part: Any) -> list[int]:
    values: list[Any] = part if isinstance(part, list) else [part]
    if len(values) > MOST_OF_A_FIELD:
        raise _wrong(number, line, f"has a list of {len(values):,} values, above {MOST_OF_A_FIELD:,}")
    found = []
    for value in values:
        try:
            found.append(int(value))  # The server does the same, which also accepts 256.0 and '256'.
        except (TypeError, ValueError, OverflowError):
            raise _wrong(number, line, f"has {shown(value)} instead of a number; {FORM}") from None
        if not 0 <= found[-1] <= LARGEST:
            raise _wrong(number, line, f"has {shown(value)}, which is not from 0 to {LARGEST}")
    return found


def _wrong(number: int, line: str, what: str) -> InputError:
    return refusal("", f"file, line {number}", line, f"{what}; with this line the server stops at start")
