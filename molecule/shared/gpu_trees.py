"""Made-up machines with GPUs below a root: their files of the kernel's, and the states of the vendors' stand-ins."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GIB = 1 << 30
# An MI300X, and a Radeon RX 7900 XTX: PCI device id, class, gfx version, gfx, MiB, name.
MI300X = ("74a1", "0x120000", 90402, "gfx942", 196592, "AMD Instinct MI300X OAM")
RADEON = ("744c", "0x030000", 110000, "gfx1100", 24560, "Radeon RX 7900 XTX")
H100 = ("NVIDIA H100 80GB HBM3", 81559, "9.0")
NVIDIA_DRIVER = "580.95.05"
# What nvidia-smi ends with, and reports, where no driver is loaded.
SILENT = [9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."]


@dataclass
class Machine:
    """A machine of one vendor: its root, and the state of the vendor's stand-in."""

    root: Path
    tool: str
    state: dict[str, Any] = field(default_factory=lambda: {"cards": []})

    def save(self, **more: Any) -> None:
        """Write the state of the stand-in, after a test has changed it."""
        self.state |= more
        put(self.root, f"etc/gaudi-sim/{self.tool.partition('-')[0]}.json", json.dumps(self.state))


def put(root: Path, path: str, text: str = "") -> None:
    """Make a file below a root, and its folders."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, encoding="utf-8")


def pci_device(root: Path, bus_id: str, vendor: str, device: str, kind: str, node: int = 0, driver: str = "") -> None:
    """Show a device on the PCI bus."""
    folder = f"sys/bus/pci/devices/{bus_id}"
    cores = f"{node * 32}-{node * 32 + 31},{node * 32 + 64}-{node * 32 + 95}"
    files = {"vendor": vendor, "device": f"0x{device}", "class": kind, "numa_node": str(node), "local_cpulist": cores}
    for name, text in files.items():
        put(root, f"{folder}/{name}", f"{text}\n")
    if driver:
        (root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
        (root / folder / "driver").symlink_to(root / f"sys/bus/pci/drivers/{driver}")


def drm_nodes(root: Path, bus_id: str, render: int, card: int) -> None:
    """Show the nodes of a graphics card."""
    for kind, number in (("renderD", render), ("card", card)):
        put(root, f"sys/bus/pci/devices/{bus_id}/drm/{kind}{number}/dev", f"226:{number}\n")
        put(root, f"dev/dri/{kind}{number}")
        (root / f"dev/dri/{kind}{number}").chmod(0o660)
    put(root, f"dev/dri/by-path/pci-{bus_id}-render")


def kfd_node(
    root: Path, node: int, gpu_id: int, properties: dict[str, int], memory: int, links: dict[int, int]
) -> None:
    """Show a GPU in the topology of the kernel's driver, with its links by their node and type."""
    folder = f"sys/class/kfd/kfd/topology/nodes/{node}"
    put(root, f"{folder}/gpu_id", f"{gpu_id}\n")
    # In the order in which the kernel writes them.
    put(root, f"{folder}/properties", "".join(f"{name} {value}\n" for name, value in properties.items()))
    put(root, f"{folder}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {memory}\nflags 0\nwidth 8192\n")
    (root / folder / "p2p_links").mkdir(exist_ok=True)
    for number, (other, kind) in enumerate(links.items()):
        where = "io_links" if kind == 11 else "p2p_links"
        text = f"type {kind}\nversion_major 0\nversion_minor 0\nnode_from {node}\nnode_to {other}\nweight 15\n"
        put(root, f"{folder}/{where}/{number}/properties", text)


def add_amd(
    host: Machine, bus_id: str, place: int, model: tuple[str, str, int, str, int, str], hive: int, links: dict[int, int]
) -> None:
    """Add a GPU to a machine of AMD's: on the bus, in the topology, and in the state of the stand-in."""
    device, kind, version, gfx, mib, name = model
    render, node, gpu_id = 128 + place, place + 1, 45000 + place
    pci_device(host.root, bus_id, "0x1002", device, kind, int(place * 2 >= 8), "amdgpu")
    put(host.root, f"sys/bus/pci/devices/{bus_id}/mem_info_vram_total", f"{mib << 20}\n")
    put(host.root, f"sys/bus/pci/devices/{bus_id}/mem_info_vram_used", f"{283 << 20}\n")
    drm_nodes(host.root, bus_id, render, place + 1)
    bus = int(bus_id[5:7], 16)
    values = {"cpu_cores_count": 0, "simd_count": 1216, "mem_banks_count": 1, "gfx_target_version": version}
    values |= {"vendor_id": 4098, "device_id": int(device, 16), "location_id": bus << 8, "domain": int(bus_id[:4], 16)}
    values |= {"drm_render_minor": render, "hive_id": hive, "num_sdma_engines": 2, "local_mem_size": 0, "unique_id": 7}
    kfd_node(host.root, node, gpu_id, values, mib << 20, links)
    card = {"bdf": bus_id, "uuid": f"{place:08x}-0000-1000-8000-000000000001", "kfd_id": gpu_id, "node_id": node}
    host.state["cards"].append(
        {**card, "render": render, "name": name, "device_id": f"0x{device}", "gfx": gfx, "vram_mib": mib}
    )


def fill_amd(
    host: Machine, buses: list[str], model: tuple[str, str, int, str, int, str] = MI300X, hive: int = 0
) -> None:
    """Give a machine AMD's GPUs; the fifth and later ones lie on the second NUMA node."""
    put(host.root, "sys/module/amdgpu/version", "6.12.12\n")
    put(host.root, "dev/kfd")
    kfd_node(host.root, 0, 0, {"cpu_cores_count": 64, "simd_count": 0, "gfx_target_version": 0}, 64 * GIB, {})
    numbers = range(len(buses))
    for place, bus_id in enumerate(buses):
        links = {other + 1: 11 if hive else 2 for other in numbers if other != place}
        add_amd(host, bus_id, place, model, hive, links)
    host.save()


def fill_intel(
    host: Machine, buses: list[str], name: str = "Intel(R) Arc(TM) Pro B60 Graphics", driver: str = "xe"
) -> None:
    """Give a machine Intel's graphics cards, and graphics in its processor."""
    pci_device(host.root, "0000:00:02.0", "0x8086", "a780", "0x030000", 0, "i915")
    drm_nodes(host.root, "0000:00:02.0", 128, 0)
    for place, bus_id in enumerate(buses):
        pci_device(host.root, bus_id, "0x8086", "e211", "0x030000", place % 2, driver)
        drm_nodes(host.root, bus_id, 129 + place, place + 1)
        card = {"bdf": bus_id, "name": name, "device": "e211", "card": place + 1}
        host.state["cards"].append({**card, "memory_mib": 24480, "driver": "1.6.35"})
    host.save()


def add_nvidia(root: Path, card: dict[str, Any], minor: int, node: int) -> None:
    """Show a card of the stand-in's state on the bus and in the driver's files."""
    pci_device(root, card["bus_id"], "0x10de", "2330", "0x030200", node)
    driver_file(root, card, minor)


def driver_file(root: Path, card: dict[str, Any], minor: int) -> None:
    """Show a card in the driver's files."""
    text = f"Model: {card['name']}\nGPU UUID: {card['uuid']}\nDevice Minor: {minor}\n"
    put(root, f"proc/driver/nvidia/gpus/{card['bus_id']}/information", text)


def fill_nvidia(host: Machine, count: int, switches: int = 0, driver: str = NVIDIA_DRIVER) -> None:
    """Give a machine NVIDIA's cards, whose nodes are not in their order, and NVSwitches that link them."""
    name, memory, capability = H100
    for number in range(count):
        minor = count - 1 - number
        known = {"uuid": f"GPU-{number:08x}-0000-0000-0000-000000000001", "bus_id": f"0000:{0x17 + number:02x}:00.0"}
        card = {**known, "name": name, "memory_mib": memory, "compute_cap": capability, "minor": minor}
        host.state["cards"].append({**card, "mig": "Disabled"})
        pci_device(host.root, card["bus_id"], "0x10de", "2330", "0x030200", number * 2 // count)
    for place in range(switches):
        pci_device(host.root, f"0000:{0xA0 + place:02x}:00.0", "0x10de", "22a3", "0x068000")
    pairs = [f"{one}-{other}" for one in range(count) for other in range(one + 1, count)]
    linked = {"links": dict.fromkeys(pairs, "NV18"), "fabric": ["Completed", "Success"]} if switches else {}
    host.state |= linked
    change_nvidia(host, driver)


def change_nvidia(host: Machine, version: str, modules: tuple[str, ...] = ("nvidia", "nvidia_uvm")) -> None:
    """Load NVIDIA's driver, or unload it where the version is empty: the bus shows the cards without it, too."""
    for path in ("proc/driver/nvidia", "sys/module/nvidia", "sys/module/nvidia_uvm"):
        shutil.rmtree(host.root / path, ignore_errors=True)
    for node in (host.root / "dev").glob("nvidia*"):
        node.unlink()
    host.state.pop("answer", None)
    if not version:
        host.save(answer=SILENT)
        return
    for card in host.state["cards"]:
        driver_file(host.root, card, card["minor"])
        put(host.root, f"dev/nvidia{card['minor']}")
    for module in modules:
        put(host.root, f"sys/module/{module}/version", f"{version}\n")
    put(host.root, "dev/nvidiactl")
    put(host.root, "dev/nvidia-uvm")
    host.save(driver_version=version)
