"""The servers that refuse the key of a gateway. HAProxy asks only for /health, which vLLM answers without a key."""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from .fleet import Entry
from .runtime import State

REFUSED = (401, 403)
TIMEOUT_S = 5.0
MOST = 16  # requests at a time


def refusals(states: Sequence[State], entries: Sequence[Entry], keys: Mapping[str, str]) -> dict[str, int]:
    """Return ``{server: HTTP status}`` of the servers that are up and refuse the gateway's key, or its lack of one.

    Args:
        states: the servers in HAProxy.
        entries: the servers that the gateway serves.
        keys: the key by backend.
    """
    places = {one.name: (one.address, one.port) for one in entries}
    asked = {
        one.name: (*places[one.name], keys.get(one.backend, "")) for one in states if one.up and one.name in places
    }
    with ThreadPoolExecutor(MOST) as pool:
        found = dict(zip(asked, pool.map(_status, asked.values()), strict=True))
    return {name: status for name, status in found.items() if status in REFUSED}


def _status(server: tuple[str, int, str]) -> int:
    """Return the HTTP status with which a server answers a request that does no work; 0 if it does not answer."""
    address, port, key = server
    connection = http.client.HTTPConnection(address, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"} if key else {})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
