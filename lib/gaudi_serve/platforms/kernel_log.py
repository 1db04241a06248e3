"""The kernel's log of this boot: from the journal, or from the kernel's own buffer."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ..core.run import Result, run

# The journal has the whole boot; it does the search, since a log of months may be large.
JOURNAL = ["journalctl", "--dmesg", "--boot", "--no-pager", "--output=json", "--output-fields=MESSAGE"]
BUFFER = ["dmesg", "--time-format=iso"]
NO_MATCH = 1  # status of journalctl without any match
STAMPED = re.compile(r"(\d{4}-\d\d-\d\dT[\d:.,]+[+-]\d\d:\d\d) (.*)")
WORDS = 100  # characters of a record in a message


@dataclass(frozen=True)
class Record:
    """One record of the log: its text, which may have several lines, and its time such as 2026-11-27 00:41:09 UTC."""

    text: str
    at: str


def kernel_log(pattern: str) -> tuple[list[Record], list[str]]:
    """Return the records that match a pattern, oldest first, and a sentence if no log can be read.

    The pattern must suit both Python and PCRE, and have a capital letter: journalctl ignores case without one.
    """
    journal = run([*JOURNAL, f"--grep={pattern}"])
    found = _journal(journal.out)
    if found:
        return found, []
    # A journal may lack the kernel's records, or this user may lack the permission to read them.
    buffer = run(BUFFER)
    if buffer.status == 0:
        return [record for record in _buffer(buffer.out) if re.search(pattern, record.text)], []
    if journal.status in (0, NO_MATCH) and not journal.err.strip():
        return [], []
    reasons = f"{_reason(journal, 'journalctl')}; {_reason(buffer, 'dmesg')}"
    return [], [f"the kernel's log, which has errors of cards, cannot be read: {reasons}"]


def _journal(text: str) -> list[Record]:
    """Return the records of journalctl's JSON, one a line; other lines are skipped."""
    found = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
            moment = datetime.fromtimestamp(int(row["__REALTIME_TIMESTAMP"]) // 10**6, timezone.utc)
            found.append(Record(_text(row["MESSAGE"]), _at(moment)))
        except (ValueError, LookupError, TypeError):
            continue
    return found


def _text(message: Any) -> str:
    """Return a message; journalctl gives its bytes if it is not plain text."""
    return message if isinstance(message, str) else bytes(message).decode(errors="replace")


def _buffer(text: str) -> list[Record]:
    """Return the records of dmesg; continuation lines of a record have no time."""
    found: list[Record] = []
    for line in text.splitlines():
        stamped = STAMPED.match(line)
        if stamped:
            moment = datetime.fromisoformat(stamped[1].replace(",", ".")).astimezone(timezone.utc)
            found.append(Record(stamped[2], _at(moment)))
        elif found:
            found[-1] = Record(f"{found[-1].text}\n{line.strip()}", found[-1].at)
    return found


def _at(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def _reason(result: Result, name: str) -> str:
    last = (result.err.strip() or result.out.strip() or f"status {result.status}").splitlines()[-1]
    return last if last.startswith(name) else f"{name}: {last}"


def words_of(text: str) -> str:
    """Return a record's text for a message: on one line and shortened."""
    line = "".join(sign if sign.isprintable() else " " for sign in text)
    line = " ".join(line.split()).rstrip(". ")
    return line if len(line) <= WORDS else f"{line[: WORDS - 3]}..."
