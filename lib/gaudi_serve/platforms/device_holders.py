"""Which programs have a card's device node open: what a vendor's tool may not show in its table of processes."""

# A host has thousands of open files: a Path for each would take as long as everything else that is read.
# ruff: noqa: PTH115, PTH208

from __future__ import annotations

import os
import re

from ..core.run import read_text

NODE = re.compile(r"/dev/accel/accel(?:_controlD)?(\d{1,3})")
# They open a card's control node to read its state, which keeps no model from it.
WATCHERS = ("hl-smi", "hl_smi", "metric-exporter", "gaudi-metric")


def device_holders(root: str = "/") -> dict[int, str]:
    """Return ``{index: "python3 (pid 4711), which has /dev/accel/accel0 open"}`` of the cards that programs hold.

    Programs whose files this user may not see are left out.
    """
    found: dict[int, str] = {}
    for process in sorted(os.listdir(f"{root}/proc")):
        if not process.isdigit() or int(process) == os.getpid():
            continue
        folder = f"{root}/proc/{process}"
        try:
            nodes = {
                path for handle in os.scandir(f"{folder}/fd") if (path := _link(handle.path)).startswith("/dev/accel")
            }
        except OSError:
            continue
        name = (read_text(f"{folder}/comm") or "?").strip() if nodes else ""
        for path in sorted(nodes):
            node = NODE.fullmatch(path)
            if node and not name.startswith(WATCHERS):
                found.setdefault(int(node[1]), f"{name} (pid {process}), which has {path} open")
    return found


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
