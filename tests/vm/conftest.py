"""The machine that all tests here share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.machine import Machine, images, unpacked


@pytest.fixture(scope="session")
def made() -> dict[str, str]:
    """Return where the disk and the serving image are."""
    return images()


@pytest.fixture(scope="session")
def machine(made: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Return a running machine that all tests share, in their order: every boot costs half a minute."""
    folder = tmp_path_factory.mktemp("vm")
    one = Machine(folder, made, unpacked(Path(made["standin_archive"]), folder / "standin.tar"))
    try:
        one.choose_accelerator()
        one.start()
        yield one
    finally:
        one.close()
        (folder / "standin.tar").unlink(missing_ok=True)
