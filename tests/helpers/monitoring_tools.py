"""Prometheus' own programs, for the tests."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@cache
def tool(name: str) -> str:
    """Return the path of promtool, prometheus, amtool or another one; make test brings them."""
    found = subprocess.run([ROOT / "scripts/monitoring-tools"], capture_output=True, text=True, check=False)
    if found.returncode == 3:
        # Only where no package manager can provide them; a failed download is a failure.
        pytest.skip(f"this machine has no apt: {found.stderr.strip()}")
    assert found.returncode == 0, found.stderr
    return f"{found.stdout.strip()}/{name}"
