"""Redaction of passwords: they stay on the host, and the controller sees marks instead."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from typing import Any

from .run import read_text

# user:password@ of a URL in a JSON text.
CREDENTIALS = re.compile(r"(://[^/\s\"@:]*:)([^/\s\"@]+)@")
MARK = re.compile(r"gaudi-serve-redacted-[0-9a-f]{16}")


# A user or password before the host of an address. With http, a user alone can be a token; ssh needs a user. A number
# after a colon is a port. A password that is not encoded can contain any character, also slashes.
LOGIN = re.compile(r"https?://[^/\s@]*@|\w+://[^/\s@:]*:(?!\d+(?:/|\s|$))\S*@", re.IGNORECASE)


def has_login(text: str) -> bool:
    """Return whether an address in a text has a user or a password, which must stay hidden."""
    return LOGIN.search(text) is not None


def without_credentials(value: Any) -> Any:
    """Return a value for a reader, with ``***`` for the user and password of each address.

    It hides everything before the last @ of a word, because a password can contain any character.
    """
    if isinstance(value, str):
        return re.sub(r"\S+", lambda word: _hidden(word[0]), value) if "@" in value and ":" in value else value
    if isinstance(value, Mapping):
        return {without_credentials(key): without_credentials(one) for key, one in value.items()}
    return [without_credentials(one) for one in value] if isinstance(value, (list, tuple)) else value


def _hidden(word: str) -> str:
    scheme, colon, rest = word.partition("://")
    if colon:
        return f"{scheme}://***{rest[rest.rindex('@') :]}" if "@" in rest else word
    login, at, host = word.rpartition("@")
    # An image name has no scheme and can have a digest after its @. ssh names only a user.
    return f"***@{host}" if at and ":" in login and not re.match(r"sha\d+:", host) else word


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
