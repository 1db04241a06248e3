"""AMD's GPUs for computing in the files of the kernel's driver (KFD), which need no tool."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .pci import number_of, text_of

NODES = "sys/class/kfd/kfd/topology/nodes"
PROCESSES = "sys/class/kfd/kfd/proc"
XGMI, PCIE = 11, 2  # types of links
IN_MEMORY = ("1", "2")  # types of memory banks of the GPU itself


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one part of a divided one.

    node: its number in the topology. gpu_id: its name in the driver's other files. gfx: such as gfx942. minor: the
    number of its node /dev/dri/renderD<N>. bus_id: with a four-digit domain. domain: that of the bus. part: its
    number among those of one card. location: the driver's number of its place on the bus, with its part in the
    highest four bits. hive_id: the same for all GPUs that XGMI links; 0 for none. memory: its own, in bytes. links:
    kinds of the direct links to others by their node; None if the driver does not show its links.
    """

    node: int
    gpu_id: int
    gfx: str
    minor: int
    bus_id: str
    domain: int
    part: int
    location: int
    hive_id: int
    memory: int
    links: Mapping[int, int] | None


def kfd_gpus(root: str = "/") -> list[Gpu]:
    """Return the driver's GPUs, sorted by their place on the bus; processors and unreadable nodes are omitted."""
    found = []
    for folder in Path(root, NODES).glob("[0-9]*"):
        values = _values(folder / "properties")
        if values.get("simd_count", 0) > 0 and values.get("gfx_target_version", 0) > 0:
            found.append(_gpu(folder, values))
    return sorted(found, key=lambda gpu: (gpu.bus_id, gpu.part))


def _gpu(folder: Path, values: Mapping[str, int]) -> Gpu:
    location = values.get("location_id", 0)
    bus, device, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7
    banks = [_words(path) for path in folder.glob("mem_banks/[0-9]*/properties")]
    return Gpu(
        node=int(folder.name),
        gpu_id=number_of(folder / "gpu_id") or 0,
        gfx=gfx_name(values["gfx_target_version"]),
        minor=values.get("drm_render_minor", -1),
        bus_id=f"{values.get('domain', 0):04x}:{bus:02x}:{device:02x}.{function}",
        domain=values.get("domain", 0),
        part=location >> 28 & 0xF,
        location=location,
        hive_id=values.get("hive_id", 0),
        memory=sum(int(bank.get("size_in_bytes", "0")) for bank in banks if bank.get("heap_type") in IN_MEMORY),
        links=_links(folder),
    )


def gfx_name(version: int) -> str:
    """Return the name of a gfx_target_version: 90010 is gfx90a, 90402 gfx942, 110000 gfx1100."""
    major, minor, step = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{step:x}"


def _links(folder: Path) -> dict[int, int] | None:
    """Return the kinds of the direct links by the node that they lead to; None if PCIe ones would not be shown."""
    shown = (folder / "p2p_links").is_dir()
    files = [path for kind in ("io_links", "p2p_links") for path in folder.glob(f"{kind}/[0-9]*/properties")]
    links = [_values(path) for path in files]
    found = {one["node_to"]: one["type"] for one in links if {"node_to", "type"} <= one.keys()}
    return found if shown or XGMI in found.values() else None


def kfd_holders(root: str = "/", least: int = 1 << 20) -> dict[int, str]:
    """Return ``{gpu_id: "python3 (pid 4711)"}`` of the programs that have memory of a GPU.

    A program opens the nodes of every GPU that it sees, including those that it does not use.

    Args:
        root: of the host.
        least: a program with fewer bytes does not count.
    """
    found: dict[int, str] = {}
    for path in sorted(Path(root, PROCESSES).glob("[0-9]*/vram_[0-9]*")):
        gpu_id, process = path.name.removeprefix("vram_"), path.parent.name
        if gpu_id.isdigit() and (number_of(path) or 0) >= least:
            name = text_of(Path(root, "proc", process, "comm")) or "a program"
            found.setdefault(int(gpu_id), f"{name} (pid {process})")
    return found


def kfd_used(root: str = "/") -> dict[int, int]:
    """Return ``{gpu_id: bytes}`` of a GPU's memory that the programs have which compute."""
    found: dict[int, int] = {}
    for path in Path(root, PROCESSES).glob("[0-9]*/vram_[0-9]*"):
        gpu_id = path.name.removeprefix("vram_")
        if gpu_id.isdigit():
            found[int(gpu_id)] = found.get(int(gpu_id), 0) + (number_of(path) or 0)
    return found


def kfd_processes(root: str = "/") -> frozenset[str]:
    """Return the process IDs of the programs that compute on any GPU."""
    return frozenset(path.name for path in Path(root, PROCESSES).glob("[0-9]*"))


def _words(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^(\w+) (\d{1,20})$", text_of(path), re.MULTILINE))


def _values(path: Path) -> dict[str, int]:
    return {name: int(value) for name, value in _words(path).items()}
