"""Made-up hosts with graphics cards below a temporary root, and the vendors' stand-ins that show the same cards."""

from __future__ import annotations

import io
import json
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from gaudi_serve.core.run import Result
from gaudi_serve.model.architecture import Architecture
from gaudi_serve.platforms import kernel_log
from helpers.programs import load_program
from helpers.standin_host import STANDINS

GIB = 1 << 30
MIDNIGHT = 1795737600  # 2026-11-27 00:00:00 UTC


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


def model(**config: Any) -> Architecture:
    """Return the architecture of a model in bfloat16, with more of its config.json."""
    return Architecture.of({"model_type": "llama", "torch_dtype": "bfloat16", **config})


@dataclass
class GpuHost:
    """A host of one vendor: its root, the state of the vendor's stand-in, whether it has one, and the kernel's log."""

    root: Path
    tool: str
    state: dict[str, Any] = field(default_factory=lambda: {"cards": []})
    installed: bool = True
    log: list[str] = field(default_factory=list)

    def save(self, **more: Any) -> None:
        """Write the state of the stand-in, after a test has changed it."""
        self.state |= more
        put(self.root, f"etc/gaudi-sim/{self.tool.partition('-')[0]}.json", json.dumps(self.state))

    def answers(self, monkeypatch: pytest.MonkeyPatch, parser: ModuleType) -> None:
        """Let a parser's module ask the stand-in, which runs in this process: a host is observed by a dozen calls."""
        program = load_program(STANDINS / self.tool)
        monkeypatch.setattr(program, "ROOT", str(self.root))
        (self.root / "proc").mkdir(exist_ok=True)

        def run(argv: list[str], _timeout: float = 0) -> Result:
            if not self.installed:
                return Result(127, "", f"{self.tool}: not found")
            out, err = io.StringIO(), io.StringIO()
            with monkeypatch.context() as now, redirect_stdout(out), redirect_stderr(err):
                now.setattr(sys, "argv", argv)
                status = program.main()
            return Result(status, out.getvalue(), err.getvalue())

        monkeypatch.setattr(parser, "run", run)
        monkeypatch.setattr(kernel_log, "run", lambda argv: journal(argv, self.log))


def journal(argv: list[str], log: list[str]) -> Result:
    """Answer as journalctl does for the kernel's log, a record a second from midnight on; dmesg is not allowed."""
    if argv[0] == "dmesg":
        return Result(1, "", "dmesg: read kernel buffer failed: Operation not permitted")
    *words, pattern = argv
    assert words == kernel_log.JOURNAL and pattern.startswith("--grep=")
    found = [(place, text) for place, text in enumerate(log) if re.search(pattern.partition("=")[2], text)]
    rows = [{"__REALTIME_TIMESTAMP": str((MIDNIGHT + place) * 10**6), "MESSAGE": text} for place, text in found]
    return Result(0, "\n".join(map(json.dumps, rows)), "") if rows else Result(1, "-- No entries --\n", "")


def process(root: Path, pid: int, name: str, opened: str, fdinfo: str = "") -> None:
    """Show a program that has a file open."""
    put(root, f"proc/{pid}/comm", f"{name}\n")
    (root / f"proc/{pid}/fd").mkdir(parents=True, exist_ok=True)
    number = len(list((root / f"proc/{pid}/fd").iterdir()))
    (root / f"proc/{pid}/fd/{number}").symlink_to(opened)
    put(root, f"proc/{pid}/fdinfo/{number}", fdinfo)


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


# An MI300X, and a Radeon RX 7900 XTX: PCI device id, class, gfx version, gfx, MiB, name.
MI300X = ("74a1", "0x120000", 90402, "gfx942", 196592, "AMD Instinct MI300X OAM")
RADEON = ("744c", "0x030000", 110000, "gfx1100", 24560, "Radeon RX 7900 XTX")


def amd_host(
    root: Path, buses: list[str], model: tuple[str, str, int, str, int, str] = MI300X, hive: int = 0
) -> GpuHost:
    """Return a host with AMD's GPUs, of which each second one lies on the other NUMA node's half."""
    host = GpuHost(root, "amd-smi")
    put(root, "sys/module/amdgpu/version", "6.12.12\n")
    put(root, "dev/kfd")
    kfd_node(root, 0, 0, {"cpu_cores_count": 64, "simd_count": 0, "gfx_target_version": 0}, 64 * GIB, {})
    for place, bus_id in enumerate(buses):
        add_amd(
            host,
            bus_id,
            place,
            model,
            hive,
            {other + 1: 11 if hive else 2 for other in range(len(buses)) if other != place},
        )
    host.save()
    return host


def add_amd(
    host: GpuHost, bus_id: str, place: int, model: tuple[str, str, int, str, int, str], hive: int, links: dict[int, int]
) -> None:
    """Add a GPU to a host of AMD's: on the bus, in the topology, and in the state of the stand-in."""
    device, kind, version, gfx, mib, name = model
    render, node, gpu_id = 128 + place, place + 1, 45000 + place
    pci_device(host.root, bus_id, "0x1002", device, kind, int(place * 2 >= 8), "amdgpu")
    put(host.root, f"sys/bus/pci/devices/{bus_id}/mem_info_vram_total", f"{mib << 20}\n")
    put(host.root, f"sys/bus/pci/devices/{bus_id}/mem_info_vram_used", f"{283 << 20}\n")
    drm_nodes(host.root, bus_id, render, place + 1)
    bus = int(bus_id[5:7], 16)
    values = {"cpu_cores_count": 0, "simd_count": 1216, "mem_banks_count": 1, "gfx_target_version": version}
    values |= {"vendor_id": 4098, "device_id": int(device, 16), "location_id": bus << 8, "domain": 0}
    values |= {"drm_render_minor": render, "hive_id": hive, "num_sdma_engines": 2, "local_mem_size": 0, "unique_id": 7}
    kfd_node(host.root, node, gpu_id, values, mib << 20, links)
    card = {"bdf": bus_id, "uuid": f"{place:08x}-0000-1000-8000-000000000001", "kfd_id": gpu_id, "node_id": node}
    host.state["cards"].append(
        {**card, "render": render, "name": name, "device_id": f"0x{device}", "gfx": gfx, "vram_mib": mib}
    )


def intel_host(
    root: Path, buses: list[str], name: str = "Intel(R) Arc(TM) Pro B60 Graphics", driver: str = "xe"
) -> GpuHost:
    """Return a host with Intel's graphics cards, and graphics in its processor."""
    host = GpuHost(root, "xpu-smi")
    pci_device(root, "0000:00:02.0", "0x8086", "a780", "0x030000", 0, "i915")
    drm_nodes(root, "0000:00:02.0", 128, 0)
    for place, bus_id in enumerate(buses):
        pci_device(root, bus_id, "0x8086", "e211", "0x030000", place % 2, driver)
        drm_nodes(root, bus_id, 129 + place, place + 1)
        card = {
            "bdf": bus_id,
            "name": name,
            "device": "e211",
            "card": place + 1,
            "memory_mib": 24480,
            "driver": "1.6.35",
        }
        host.state["cards"].append(card)
    host.save()
    return host
