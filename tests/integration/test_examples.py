"""The inventories of inventory/examples are planned, and docs/examples.md shows their plans."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_of_examples_shows_the_plans_of_today() -> None:
    command = [sys.executable, ROOT / "scripts/examples", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
