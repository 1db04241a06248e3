"""Restore the hosts of this scenario between tests."""

from __future__ import annotations

import pytest
from lives import Life, serving


@pytest.fixture(scope="session")
def life() -> Life:
    """Return it."""
    return serving(together=True)
