"""Which programs have a device's node open: what a vendor's tool may not show in its table of processes."""

# A host has thousands of open files: a Path for each would take as long as everything else that is read.
# ruff: noqa: PTH115, PTH208

from __future__ import annotations

import os
import re

from ..core.run import read_text


def device_holders(nodes: re.Pattern[str], watchers: tuple[str, ...] = (), root: str = "/") -> dict[int, str]:
    """Return ``{index: "python3 (pid 4711), which has /dev/accel/accel0 open"}`` of the devices that programs hold.

    Programs whose files this user may not see are left out.

    Args:
        nodes: the paths of the devices' nodes, with the index as the first group.
        watchers: how the names of programs begin that hold no device though they open its nodes.
        root: of the host.
    """
    found: dict[int, str] = {}
    for process in sorted(os.listdir(f"{root}/proc")):
        if not process.isdigit() or int(process) == os.getpid():
            continue
        folder = f"{root}/proc/{process}"
        try:
            paths = map(_link, (handle.path for handle in os.scandir(f"{folder}/fd")))
            opened = {path: node for path in paths if (node := nodes.fullmatch(path))}
        except OSError:
            continue
        name = (read_text(f"{folder}/comm") or "?").strip() if opened else ""
        for path, node in sorted(opened.items()):
            if not name.startswith(watchers):
                found.setdefault(int(node[1]), f"{name} (pid {process}), which has {path} open")
    return found


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
