"""BIOS settings that did not stick, as an earlier run has kept them on the host."""

from __future__ import annotations

import json
from typing import Any

from ..core.run import read_text

RECORD = "/var/lib/gaudi-serve/bios.json"


def observe(path: str = RECORD) -> dict[str, Any]:
    """Return ``failed``: the version of the BIOS (``bios``) and values by attribute (``settings``); empty without."""
    try:
        found = json.loads(read_text(path) or "{}")
    except ValueError:
        found = {}
    return {"failed": found if isinstance(found, dict) else {}}
