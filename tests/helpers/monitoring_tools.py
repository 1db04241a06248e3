"""Prometheus' own programs, for the tests."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@cache
def folder() -> str | None:
    """Return the folder of the programs, which make test downloads; None if no package manager can provide them."""
    if given := os.environ.get("GAUDI_SERVE_MONITORING_TOOLS"):
        return given
    found = subprocess.run([ROOT / "scripts/monitoring-tools"], capture_output=True, text=True, check=False)
    if found.returncode == 3:
        return None
    # A failed download is a failure.
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def tool(name: str) -> str:
    """Return the path of promtool, prometheus, amtool or another tool; skip the test if it is missing."""
    tools = folder()
    if tools is None:
        pytest.skip("this machine has no apt, which provides Prometheus' programs")
    return f"{tools}/{name}"
