"""A made-up host for each test, and a container's bundle on it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.standin_host import SHARED, STANDINS, Host


@pytest.fixture
def host() -> Iterator[Host]:
    """Give a host with eight cards; its path is short, since it is part of a socket's name."""
    root = Path(tempfile.mkdtemp(prefix="gs"))
    yield Host(root)
    shutil.rmtree(root)


@pytest.fixture
def bundle(host: Any) -> Path:
    """Give a container's bundle on a host where runtime, hook and a runc that tells its arguments are installed."""
    config = host.root / "etc/habana-container-runtime/config.toml"
    config.parent.mkdir(parents=True)
    shutil.copy(SHARED / "hostimage" / "config.toml", config)
    programs = host.root / "usr/bin"
    programs.mkdir(parents=True)
    for name in ("habana-container-hook", "habana-container-cli"):
        shutil.copy(STANDINS / name, programs / name)
    runc = host.root / "bin/runc"
    runc.parent.mkdir()
    runc.write_text('#!/bin/sh\necho "runc $*"\n', encoding="ascii")
    runc.chmod(0o755)
    folder: Path = host.root / "bundle"
    (folder / "rootfs/etc").mkdir(parents=True)
    return folder
