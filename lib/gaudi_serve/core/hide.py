"""Hides secrets in texts that come from elsewhere: answers of servers, outputs of programs.

It imports nothing of the toolkit, because programs that run alone on a host have a copy of this file.
"""

from __future__ import annotations

import base64
import html.entities
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

HIDDEN = "(hidden)"
# Scheme, and user and password before the host of an address. A number after a colon is a port.
LOGIN_PART = re.compile(r"(\w+)://([^/\s@:]*(?::(?!\d+/)[^\s@]*)?)@")
ESCAPES = {"\t": "t", "\n": "n", "\r": "r", "\b": "b", "\f": "f"}
LEAST_CODED = 6  # characters of base64 that identify a secret; fewer are in many other texts


def hidden(text: str, secrets: Iterable[Any]) -> str:
    """Return a text without secrets and without the logins of its addresses, with ``(hidden)`` or ``***`` in place.

    A secret is also found in another spelling: other letter case, other white space, as JSON, Python, a URL or HTML
    write it, and inside base64, such as a header with a login. Hide before a text is cut: a half of a secret stays.

    Args:
        text: A text of a remote side or of a program.
        secrets: Texts that must not be seen. Empty ones and None are ignored.
    """
    spans: list[tuple[int, int]] = []
    for secret in {str(one) for one in secrets if one}:
        spans += [found.span(1) for found in _spelled(secret).finditer(text) if found[1]]
    parts, end = [], 0
    for first, last in sorted(spans):
        # Overlapping secrets are hidden together.
        if first >= end:
            parts += [text[end:first], HIDDEN]
        end = max(end, last)
    return str(without_credentials("".join([*parts, text[end:]])))


def logins(*texts: Any) -> set[str]:
    """Return the secrets in the addresses of texts: each login, its password, and both as they are before encoding."""
    from urllib.parse import unquote

    parts = [part for text in texts for part in LOGIN_PART.findall(str(text or ""))]
    found = {password for _, login in parts if (password := login.partition(":")[2])}
    # With http a user alone can be a token; ssh needs a user.
    found |= {login for scheme, login in parts if ":" in login or scheme.lower().startswith("http")}
    return {one for each in found if each for one in (each, unquote(each))}


def without_credentials(value: Any) -> Any:
    """Return a value for a reader, with ``***`` for the user and password of each address.

    It hides everything before the last @ of a word, because a password can contain any character.
    """
    if isinstance(value, str):
        return re.sub(r"\S+", lambda word: _anonymous(word[0]), value) if "@" in value and ":" in value else value
    if isinstance(value, Mapping):
        return {without_credentials(key): without_credentials(one) for key, one in value.items()}
    return [without_credentials(one) for one in value] if isinstance(value, (list, tuple)) else value


def _anonymous(word: str) -> str:
    scheme, colon, rest = word.partition("://")
    if colon:
        return f"{scheme}://***{rest[rest.rindex('@') :]}" if "@" in rest else word
    login, at, host = word.rpartition("@")
    # An image name has no scheme and can have a digest after its @. ssh names only a user.
    return f"***@{host}" if at and ":" in login and not re.match(r"sha\d+:", host) else word


@lru_cache(maxsize=256)
def _spelled(secret: str) -> re.Pattern[str]:
    """Return a pattern whose group 1 is the secret in any spelling. It also finds overlapping places."""
    pieces = [_any_piece(one) for one in re.findall(r"\s+|\S", secret.strip() or secret)]
    spellings = ["".join(pieces), *(_any_alphabet(one) for one in _coded(secret))]
    return re.compile(f"(?=({'|'.join(spellings)}))", re.IGNORECASE)


def _any_piece(piece: str) -> str:
    """Return a pattern for a character, or for any amount of white space, in any spelling."""
    found = "|".join(_any_character(one) for one in piece)
    return rf"(?:[\s+]|{found})+" if piece.isspace() else f"(?:{found})"


def _any_character(character: str) -> str:
    octets, number = character.encode("utf-8", "surrogatepass"), ord(character)
    # JSON writes a pair of these for some characters.
    units = [one.hex() for one in _pairs(character.encode("utf-16-be", "surrogatepass"))]
    spellings = [
        *([rf"\\+{ESCAPES[character]}"] if character in ESCAPES else []),
        "".join(f"%{one:02x}" for one in octets),
        "".join(rf"\\+u{one}" for one in units),
        rf"\\+(?:U{number:08x}|x{number:02x})",
        f"&#(?:x0*{number:x}|0*{number});",
    ]
    if name := html.entities.codepoint2name.get(number):
        spellings.append(f"&{name};")
    # Formats put a backslash before some characters, and several when they are nested. The character itself is last,
    # because other spellings of & and % begin with it.
    spellings.append(re.escape(character) if character.isalnum() else rf"\\*{re.escape(character)}")
    return "|".join(spellings)


def _pairs(octets: bytes) -> list[bytes]:
    return [octets[at : at + 2] for at in range(0, len(octets), 2)]


def _coded(secret: str) -> list[str]:
    """Return the parts of base64 that only this secret makes: it can begin at each of three places in a group."""
    octets, found = secret.encode("utf-8", "surrogatepass"), []
    for before in range(3):
        text = base64.b64encode(b"\0" * before + octets).decode()
        part = text[(before * 8 + 5) // 6 : (before + len(octets)) * 8 // 6]
        found += [part] if len(part) >= LEAST_CODED else []
    return found


def _any_alphabet(text: str) -> str:
    """Return a pattern for base64 in the usual alphabet and in that of URLs."""
    return "".join({"+": "[+-]", "/": "[/_]"}.get(one, one) for one in text)
