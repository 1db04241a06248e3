"""The records of earlier runs on a host's BIOS settings: those that were sent, and those that were not applied."""

from __future__ import annotations

import json
from typing import Any

from ..core.run import read_text

RECORD = "/var/lib/gaudi-serve/bios.json"


def observe(path: str = RECORD) -> dict[str, Any]:
    """Return the records; each is empty if nothing is recorded.

    ``failed``: settings that were not applied, with the version of the BIOS (``bios``, ``settings``). ``sent``: those
    that the next reboot applies, with the boot in which they were sent, whether the BMC has accepted them, and its job
    (``bios``, ``settings``, ``boot``, ``accepted``, ``job``).
    """
    return read_record(read_text(path) or "{}")


def read_record(text: str) -> dict[str, Any]:
    """Parse the text of a record; the result is as for observe."""
    try:
        found = json.loads(text)
    except ValueError:
        found = {}
    parts = found if isinstance(found, dict) else {}
    return {key: parts[key] if isinstance(parts.get(key), dict) else {} for key in ("failed", "sent")}
