"""Credentials of package sources: apt reads them from files of root instead of world-readable addresses."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..core.errors import InputError, has_login, shown

# Debian's names of the kernel's machine types.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# apt reads auth.conf for http and https only.
SCHEMES = ("http", "https")


class Access(NamedTuple):
    """An address without its credentials, and the decoded credentials, which are empty if it has none."""

    uri: str
    user: str = ""
    password: str = ""


def access(address: Any) -> Access:
    """Split an address of a package source into address and credentials.

    Raises:
        InputError: if apt cannot read the credentials from auth.conf.d; the message omits their value.
    """
    if not isinstance(address, str):
        raise InputError(f"{shown(address)}: must be an address such as https://mirror.example/x")
    scheme, colon, rest = address.partition("://")
    place, slash, path = rest.partition("/")
    login, at, host = place.rpartition("@")
    if not colon or (not at and not has_login(address)):
        return Access(address)
    user, _, password = (urllib.parse.unquote(part) for part in login.partition(":"))
    if scheme.lower() not in SCHEMES or not host or not all(re.fullmatch(r"[!-~]+", one) for one in (user, password)):
        raise InputError(
            f"{shown(address)}: credentials in it must be user:password@ of an http or https address, percent-encoded, "
            "without blanks"
        )
    return Access(f"{scheme}://{host}{slash}{path}", user, password)


def apt_access(uris: Sequence[str] | str) -> dict[str, Any]:
    """Separate addresses of package sources from their credentials.

    Args:
        uris: an address, or several.

    Returns:
        ``uris``: the addresses without credentials; ``auth``: the text of a file of mode 0600 in /etc/apt/auth.conf.d,
        empty if no address has credentials; ``logins``: ``{user, password}`` of each address.

    Raises:
        InputError: as for access.
    """
    found = [access(one) for one in ([uris] if isinstance(uris, str) else uris)]
    secret = sorted({one for one in found if one.user}, key=lambda one: -len(one.uri))
    return {
        "uris": [one.uri for one in found],
        # Entries need the scheme: without it apt does not use them for http. The longest comes first, since apt takes
        # the first match.
        "auth": "".join(f"machine {one.uri} login {one.user} password {one.password}\n" for one in secret),
        "logins": [{"user": one.user, "password": one.password} for one in found],
    }


def package_architecture(system: Mapping[str, Any], host: Mapping[str, Any] | None = None) -> str:
    """Return the architecture of a host's packages; empty if the facts lack it.

    Args:
        system: ``gaudi_system``.
        host: ``gaudi_host``, which older saved facts have it in.
    """
    said = str(system.get("architecture") or ((host or {}).get("cpu") or {}).get("architecture") or "")
    last = str(system.get("kernel") or "").rpartition("-")[2]
    return ARCHITECTURES.get(said, said) or (last if last in ARCHITECTURES.values() else "")
