"""How this life's host is restored between tests."""

from __future__ import annotations

import pytest
from lives import Life, gpus


@pytest.fixture(scope="session")
def life() -> Life:
    """Return it."""
    return gpus()
