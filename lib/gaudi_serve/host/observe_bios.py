"""What earlier runs have kept on a host of its BIOS: what they sent, and what did not stick."""

from __future__ import annotations

import json
from typing import Any

from ..core.run import read_text

RECORD = "/var/lib/gaudi-serve/bios.json"


def observe(path: str = RECORD) -> dict[str, Any]:
    """Return what is kept; each of both is empty where nothing is.

    ``failed``: settings that did not stick, with the version of the BIOS (``bios``, ``settings``). ``sent``: those that
    the next reset takes over, with the boot in which they were sent, whether the BMC has accepted them, and its job
    (``bios``, ``settings``, ``boot``, ``accepted``, ``job``).
    """
    return read_record(read_text(path) or "{}")


def read_record(text: str) -> dict[str, Any]:
    """Return the text of a record as observe does."""
    try:
        found = json.loads(text)
    except ValueError:
        found = {}
    parts = found if isinstance(found, dict) else {}
    return {key: parts[key] if isinstance(parts.get(key), dict) else {} for key in ("failed", "sent")}
