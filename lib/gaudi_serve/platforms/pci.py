"""The devices of a vendor on the PCI bus, which are there without a driver too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.run import read_text

DEVICES = "sys/bus/pci/devices"
ACCELERATOR, DISPLAY, SCREEN = "0x12", "0x0380", "0x0300"  # first parts of classes
MOST_LANES, SLOW_GT_S = 32, 5.0
# Files that show which render node belongs to which device, for DeviceAccess.
RENDER_NODES = "/sys/bus/pci/devices/*/drm/renderD*/dev"
RENDER_NODE = r"/(?P<id>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])/drm/renderD(?P<index>\d+)/dev\n"


@dataclass(frozen=True)
class PciDevice:
    """One device of the bus.

    bus_id: with a four-digit domain, in lowercase. device: its PCI device id of four digits, without 0x. kind: its
    class, such as 0x120000. driver: its kernel module; empty for none. numa_node: -1 if unknown. cpus: the ranges of
    its node's cores; empty if the node is unknown. cards, renders: the numbers of its nodes /dev/dri/card<N> and
    /dev/dri/renderD<N>. gb_s: maximum GB/s in one direction of the slowest PCI Express link on the way to the
    processor; 0 if unknown.
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
    """Return ``{bus_id: device}`` of a vendor's devices of some kinds, sorted by bus_id.

    A virtual function of another card (SR-IOV) is not a card of its own.

    Args:
        root: of the host.
        vendor: its PCI id, such as 0x1002.
        kinds: first parts of their classes.
    """
    found = {}
    for path in sorted(Path(root, DEVICES).glob("*/vendor")):
        folder = path.parent
        # If a host shows no class, only the vendor decides.
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
    """Yield the maximum GB/s, in one direction, of each link from a device to the processor.

    The present rate is not used, since idle cards slow their links down. Each end may have a lower maximum than the
    other: a slot has often fewer lanes than the card in it.
    """
    path = folder.resolve()
    for place in (path, *path.parents):
        speed = re.match(r"([0-9.]+) GT/s", text_of(place / "max_link_speed"))
        lanes = number_of(place / "max_link_width")
        # The kernel shows 255 for an unknown width.
        if speed and lanes and lanes <= MOST_LANES:
            rate = float(speed[1])
            # Generations 1 and 2 send ten bits for a byte, later ones 130 bits for sixteen bytes.
            yield rate * lanes / 8 * (0.8 if rate <= SLOW_GT_S else 128 / 130)


def _numbers(folder: Path, kind: str) -> tuple[int, ...]:
    names = (path.name.removeprefix(kind) for path in (folder / "drm").glob(f"{kind}[0-9]*"))
    return tuple(sorted(int(name) for name in names if name.isdigit()))


def text_of(path: Path) -> str:
    """Return a file's stripped text; empty if there is no file."""
    return (read_text(path) or "").strip()


def number_of(path: Path) -> int | None:
    """Return the number in a file; None without one."""
    text = text_of(path)
    return int(text) if re.fullmatch(r"\d{1,20}", text) else None


def bus_text(vendor: str, names: Mapping[str, str]) -> str:
    """Return the part of a message on devices on the bus that do not answer, by their PCI device ids and names."""
    kinds = [f"{name} ({vendor.removeprefix('0x')}:{device})" for device, name in names.items()]
    return f"; on the PCI bus: {', '.join(kinds)}" if kinds else ""
