"""The mirror of a site without internet, as a host that fetches from it sees it."""

from __future__ import annotations

import hashlib
import json
import ssl
import urllib.error
import urllib.request
from typing import Any

MANIFEST = "manifest.json"
MOST = 64 * 2**20  # bytes of one answer


def read(url: str, authority: str, system: str, timeout: float = 20) -> dict[str, Any]:
    """Return the contents of a mirror.

    Args:
        url: its address.
        authority: the CA certificate of the mirror, in PEM.
        system: the name of the host's package repository.
        timeout: seconds for each answer.

    Returns:
        ``problem``: why it cannot be used, empty if it can; ``release``: SHA-256 of the signed index of the repository,
        empty if there is none; ``items``: kind, name, version and system of each item.
    """
    nothing: dict[str, Any] = {"release": "", "items": []}
    try:
        trusted = ssl.create_default_context(cadata=authority)
    except (ssl.SSLError, ValueError):
        return {**nothing, "problem": "its authority is not a certificate in PEM"}
    # A proxy of the host leads out of the site.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted))
    try:
        known = json.loads(_fetched(opener, f"{url}/{MANIFEST}", timeout))
        items = [[str(one[key]) for key in ("kind", "name", "version", "system")] for one in known["items"]]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        return {**nothing, "problem": _said(problem, MANIFEST)}
    try:
        index = _fetched(opener, f"{url}/apt/{system}/InRelease", timeout)
    except urllib.error.HTTPError as problem:
        problem.close()
        return {"release": "", "items": items, "problem": ""}
    except (OSError, ValueError) as problem:
        return {**nothing, "problem": _said(problem, "InRelease")}
    return {"release": hashlib.sha256(index).hexdigest(), "items": items, "problem": ""}


def _fetched(opener: urllib.request.OpenerDirector, url: str, timeout: float) -> bytes:
    with opener.open(url, timeout=timeout) as answer:
        body: bytes = answer.read(MOST + 1)
    if len(body) > MOST:
        raise ValueError(f"it is longer than {MOST} bytes")
    return body


def _said(problem: Exception, name: str) -> str:
    if isinstance(problem, urllib.error.HTTPError):
        problem.close()
        return f"it answers {name} with status {problem.code}"
    if isinstance(problem, urllib.error.URLError):
        return f"it cannot be reached: {problem.reason}"
    return f"{name} cannot be read: {problem or type(problem).__name__}"
