"""How the host of this scenario is repaired between tests."""

from __future__ import annotations

import pytest
from lives import Life, bare


@pytest.fixture(scope="session")
def life() -> Life:
    """Return it."""
    return bare()
