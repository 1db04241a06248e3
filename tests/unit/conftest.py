"""What all unit tests share: they run in a random order, which GAUDI_SERVE_ORDER repeats."""

from __future__ import annotations

import gc
import os
import random
from typing import Any

# Some thousand tests that compute keep little that could be garbage; looking for it takes them a tenth of their time.
gc.set_threshold(100_000, 50, 100)
ORDER = os.environ.get("GAUDI_SERVE_ORDER") or str(random.randrange(10_000))  # noqa: S311 - not secret


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Shuffle the files, and the tests of each file."""
    chance = random.Random(ORDER)  # noqa: S311 - reproducible, not secret
    files = sorted({item.path for item in items})
    chance.shuffle(files)
    chance.shuffle(items)
    items.sort(key=lambda item: files.index(item.path))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show how to repeat the order in which something failed."""
    if terminalreporter.stats.keys() & {"failed", "error"}:
        terminalreporter.write_line(f"The tests ran in the order of GAUDI_SERVE_ORDER={ORDER}.")
