"""The devices of a vendor on the PCI bus, which are there without a driver too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.run import read_text

DEVICES = "sys/bus/pci/devices"
ACCELERATOR, DISPLAY, SCREEN = "0x12", "0x0380", "0x0300"  # how classes begin
MOST_LANES, SLOW_GT_S = 32, 5.0
# Files that show which render node belongs to which device, for DeviceAccess.
RENDER_NODES = "/sys/bus/pci/devices/*/drm/renderD*/dev"
RENDER_NODE = r"/(?P<id>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])/drm/renderD(?P<index>\d+)/dev\n"


@dataclass(frozen=True)
class PciDevice:
    """One device of the bus.

    bus_id: of four digits of the domain, lowercase. device: its PCI device id of four digits, without 0x. kind: its
    class, such as 0x120000. driver: the kernel module that has it; empty for none. numa_node: -1 where it is not known.
    cpus: the ranges of its node's cores; empty where the node is not known. cards, renders: the numbers of its nodes
    /dev/dri/card<N> and /dev/dri/renderD<N>. gb_s: GB/s in one direction that the slowest link of PCI Express on the
    way to the processor can have; 0 where it is not known.
    """

    bus_id: str
    device: str
    kind: str
    driver: str = ""
    numa_node: int = -1
    cpus: tuple[str, ...] = ()
    cards: tuple[int, ...] = ()
    renders: tuple[int, ...] = ()
    gb_s: float = 0.0


def pci_devices(root: str, vendor: str, kinds: tuple[str, ...]) -> dict[str, PciDevice]:
    """Return ``{bus_id: device}`` of a vendor's devices of some kinds, in the order of the bus.

    A function of another card (SR-IOV) is none of its own.

    Args:
        root: of the host.
        vendor: its PCI id, such as 0x1002.
        kinds: how their classes begin.
    """
    found = {}
    for path in sorted(Path(root, DEVICES).glob("*/vendor")):
        folder = path.parent
        # Where a host shows no class, its vendor alone decides.
        kind = text_of(folder / "class") or kinds[0]
        if text_of(path) == vendor and kind.startswith(kinds) and not (folder / "physfn").exists():
            found[folder.name.lower()] = _device(folder)
    return found


def _device(folder: Path) -> PciDevice:
    driver, node = folder / "driver", text_of(folder / "numa_node")
    numa_node = int(node) if re.fullmatch(r"\d{1,3}", node) else -1
    cpus = tuple(text_of(folder / "local_cpulist").split(",")) if numa_node >= 0 else ()
    return PciDevice(
        folder.name.lower(),
        text_of(folder / "device").removeprefix("0x").lower(),
        text_of(folder / "class"),
        driver.resolve().name if driver.exists() else "",
        numa_node,
        tuple(one for one in cpus if one),
        _numbers(folder, "card"),
        _numbers(folder, "renderD"),
        round(min(_link_rates(folder), default=0.0), 1),
    )


def _link_rates(folder: Path) -> Iterator[float]:
    """Give the GB/s, in one direction, that each link from a device to the processor can have.

    What a link can have is read, not what it has now: cards without work slow theirs down. Each end may have less than
    the other: a slot has often fewer lanes than the card in it.
    """
    path = folder.resolve()
    for place in (path, *path.parents):
        speed = re.match(r"([0-9.]+) GT/s", text_of(place / "max_link_speed"))
        lanes = number_of(place / "max_link_width")
        # 255 is what the kernel shows of a width that it does not know.
        if speed and lanes and lanes <= MOST_LANES:
            rate = float(speed[1])
            # Generations 1 and 2 send ten bits for a byte, later ones 130 bits for sixteen.
            yield rate * lanes / 8 * (0.8 if rate <= SLOW_GT_S else 128 / 130)


def _numbers(folder: Path, kind: str) -> tuple[int, ...]:
    names = (path.name.removeprefix(kind) for path in (folder / "drm").glob(f"{kind}[0-9]*"))
    return tuple(sorted(int(name) for name in names if name.isdigit()))


def text_of(path: Path) -> str:
    """Return a file's text without blanks around it; empty where there is none."""
    return (read_text(path) or "").strip()


def number_of(path: Path) -> int | None:
    """Return the number in a file; None where there is none."""
    text = text_of(path)
    return int(text) if re.fullmatch(r"\d{1,20}", text) else None


def bus_text(vendor: str, names: Mapping[str, str]) -> str:
    """Return what a message adds of the devices on the bus that do not answer, by their PCI device ids and names."""
    kinds = [f"{name} ({vendor.removeprefix('0x')}:{device})" for device, name in names.items()]
    return f"; on the PCI bus: {', '.join(kinds)}" if kinds else ""
