"""How the hosts of this scenario are repaired between tests."""

from __future__ import annotations

import pytest
from lives import Life, serving


@pytest.fixture(scope="session")
def life() -> Life:
    """Return it."""
    return serving()
