"""Passwords in texts of a host: they stay on the host, and the controller sees marks in their place."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from typing import Any

from .run import read_text

# user:password@ of a URL, as it stands in a JSON text.
CREDENTIALS = re.compile(r"(://[^/\s\"@:]*:)([^/\s\"@]+)@")
MARK = re.compile(r"gaudi-serve-redacted-[0-9a-f]{16}")


# A user or password in front of an address' host. With http a user alone may be a token; ssh asks for one. What follows
# a colon is a port where it is a number; a password that nobody has encoded may hold any sign, slashes too.
LOGIN = re.compile(r"https?://[^/\s@]*@|\w+://[^/\s@:]*:(?!\d+(?:/|\s|$))\S*@", re.IGNORECASE)


def has_login(text: str) -> bool:
    """Tell whether an address in a text has a user or a password that is to be seen nowhere."""
    return LOGIN.search(text) is not None


def without_credentials(value: Any) -> Any:
    """Return a value, to be shown to a reader, with ``***`` for user and password of all addresses in it.

    What stands before the last @ of a word goes, since a password may have any sign: rather more than is needed.
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
    # Without a scheme, as in the name of an image, after whose @ may stand its digest; ssh names a user alone.
    return f"***@{host}" if at and ":" in login and not re.match(r"sha\d+:", host) else word


def mark(password: str) -> str:
    """Return what stands for a password: the same on this host always, and nothing to guess it by elsewhere."""
    if MARK.fullmatch(password):
        return password
    key = (read_text("/etc/machine-id") or "").encode()
    return f"gaudi-serve-redacted-{hmac.new(key, password.encode(), hashlib.sha256).hexdigest()[:16]}"


def redacted(text: str | None) -> str | None:
    """Return a text with marks for the passwords of its URLs."""
    return text and CREDENTIALS.sub(lambda found: f"{found[1]}{mark(found[2])}@", text)


def restored(text: str, sources: Iterable[str | None]) -> str:
    """Return a text with the passwords that its marks stand for.

    Args:
        text: with marks, or without.
        sources: texts of this host that may have the passwords.

    Raises:
        ValueError: where a password is in none of the sources.
    """
    known = {mark(found[2]): found[2] for one in sources if one for found in CREDENTIALS.finditer(one)}
    if lost := sorted({one for one in MARK.findall(text) if one not in known}):
        raise ValueError(f"the password that {lost[0]} stands for is in no file of this host any more")
    return MARK.sub(lambda found: known[found[0]], text)
