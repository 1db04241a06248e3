"""Programs that have a device's node open; a vendor's tool may omit them from its table of processes."""

# A host has thousands of open files: a Path for each would take as long as everything else that is read.
# ruff: noqa: PTH115, PTH208

from __future__ import annotations

import os
import re

from ..core.run import read_text

# Memory of an open file according to the kernel's graphics drivers: amdgpu, xe and i915 in this order.
MEMORY = re.compile(r"^drm-(?:memory-vram|resident-vram\d+|resident-local\d+):\s*(\d+)\s*([KM]?)iB", re.MULTILINE)


def device_holders(
    nodes: re.Pattern[str],
    watchers: tuple[str, ...] = (),
    root: str = "/",
    besides: frozenset[str] = frozenset(),
    least_kib: int = 0,
) -> dict[int, str]:
    """Return ``{index: "python3 (pid 4711), which has /dev/accel/accel0 open"}`` of the devices that programs use.

    Programs whose files this user may not see are omitted.

    Args:
        nodes: the paths of the devices' nodes, with the index as the first group.
        watchers: first parts of the names of programs that open nodes without using the device.
        root: of the host.
        besides: the process IDs of programs whose devices are known from elsewhere.
        least_kib: a program with less device memory does not count, if the driver reports its memory.
    """
    found: dict[int, str] = {}
    for process in sorted(os.listdir(f"{root}/proc")):
        if not process.isdigit() or process in besides or int(process) == os.getpid():
            continue
        folder = f"{root}/proc/{process}"
        try:
            handles = [(_link(handle.path), handle.name) for handle in os.scandir(f"{folder}/fd")]
            nodes_of = [(path, node, name) for path, name in handles if (node := nodes.fullmatch(path))]
            opened = {path: node for path, node, name in nodes_of if _holds(f"{folder}/fdinfo/{name}", least_kib)}
        except OSError:
            continue
        name = (read_text(f"{folder}/comm") or "?").strip() if opened else ""
        for path, node in sorted(opened.items()):
            if not name.startswith(watchers):
                found.setdefault(int(node[1]), f"{name} (pid {process}), which has {path} open")
    return found


def _holds(fdinfo: str, least_kib: int) -> bool:
    """Return whether an open file of a graphics driver has device memory; true if the driver does not report it."""
    sizes = MEMORY.findall(read_text(fdinfo) or "") if least_kib else []
    return not sizes or sum(int(size) * (1024 if unit == "M" else 1) for size, unit in sizes) >= least_kib


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
