"""Readers of the golden vectors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "unit/golden"


def vectors(name: str) -> list[dict[str, Any]]:
    """Return the rows of one file of golden vectors."""
    with gzip.open(FOLDER / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
