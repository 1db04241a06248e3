"""Redaction of passwords: they stay on the host, and the controller sees marks instead."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable

from .run import read_text

# user:password@ of a URL in a JSON text.
CREDENTIALS = re.compile(r"(://[^/\s\"@:]*:)([^/\s\"@]+)@")
MARK = re.compile(r"gaudi-serve-redacted-[0-9a-f]{16}")


def mark(password: str) -> str:
    """Return the mark of a password: always the same on this host, and no help to guess the password elsewhere."""
    if MARK.fullmatch(password):
        return password
    key = (read_text("/etc/machine-id") or "").encode()
    return f"gaudi-serve-redacted-{hmac.new(key, password.encode(), hashlib.sha256).hexdigest()[:16]}"


def redacted(text: str | None) -> str | None:
    """Return a text with marks in place of the passwords of its URLs."""
    return text and CREDENTIALS.sub(lambda found: f"{found[1]}{mark(found[2])}@", text)


def restored(text: str, sources: Iterable[str | None]) -> str:
    """Return a text with the passwords in place of their marks.

    Args:
        text: The text, with or without marks.
        sources: Texts of this host that may contain the passwords.

    Raises:
        ValueError: No source contains a password that a mark stands for.
    """
    known = {mark(found[2]): found[2] for one in sources if one for found in CREDENTIALS.finditer(one)}
    if lost := sorted({one for one in MARK.findall(text) if one not in known}):
        raise ValueError(f"no file of this host contains the password of the mark {lost[0]} any more")
    return MARK.sub(lambda found: known[found[0]], text)
