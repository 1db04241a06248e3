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
    if found.returncode:
        pytest.skip(f"Prometheus' programs cannot be had on this machine: {found.stderr.strip()}")
    return f"{found.stdout.strip()}/{name}"
