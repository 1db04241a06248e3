"""A network namespace with only loopback."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator

NEW_NETWORK = 0x40000000  # CLONE_NEWNET


@contextlib.contextmanager
def loopback_alone() -> Iterator[bool]:
    """Move this thread and its children to a network with only loopback; yield whether that was allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    alone = libc.unshare(NEW_NETWORK) == 0
    try:
        if alone:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        yield alone
    finally:
        if alone:
            libc.setns(before, NEW_NETWORK)
        os.close(before)
