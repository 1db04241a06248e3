"""How this life's hosts are brought back between tests."""

from __future__ import annotations

import pytest
from lives import Life, serving


@pytest.fixture(scope="session")
def life() -> Life:
    """Return it."""
    return serving()
