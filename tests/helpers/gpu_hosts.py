"""Simulated hosts with graphics cards below a temporary root, and stand-ins of the vendors' tools for them."""

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
from gpu_trees import GIB, MI300X, RADEON, Machine, add_amd, drm_nodes, fill_amd, fill_intel, kfd_node, pci_device, put
from helpers.programs import load_program
from helpers.standin_host import STANDINS

__all__ = ["GIB", "MI300X", "RADEON", "add_amd", "drm_nodes", "kfd_node", "pci_device", "put"]
MIDNIGHT = 1795737600  # 2026-11-27 00:00:00 UTC


def model(**config: Any) -> Architecture:
    """Return the architecture of a model in bfloat16, with more of its config.json."""
    return Architecture.of({"model_type": "llama", "torch_dtype": "bfloat16", **config})


@dataclass
class GpuHost(Machine):
    """A machine of one vendor, whether it has the vendor's tool, and the kernel's log."""

    installed: bool = True
    log: list[str] = field(default_factory=list)

    def answers(self, monkeypatch: pytest.MonkeyPatch, parser: ModuleType) -> None:
        """Redirect a parser's calls to the stand-in in this process, because observing a host takes a dozen calls."""
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
    """Respond like journalctl for the kernel's log, one record a second from midnight; dmesg is not allowed."""
    if argv[0] == "dmesg":
        return Result(1, "", "dmesg: read kernel buffer failed: Operation not permitted")
    *words, pattern = argv
    assert words == kernel_log.JOURNAL and pattern.startswith("--grep=")
    found = [(place, text) for place, text in enumerate(log) if re.search(pattern.partition("=")[2], text)]
    rows = [{"__REALTIME_TIMESTAMP": str((MIDNIGHT + place) * 10**6), "MESSAGE": text} for place, text in found]
    return Result(0, "\n".join(map(json.dumps, rows)), "") if rows else Result(1, "-- No entries --\n", "")


def process(root: Path, pid: int, name: str, opened: str, fdinfo: str = "") -> None:
    """Create a program that has a file open."""
    put(root, f"proc/{pid}/comm", f"{name}\n")
    (root / f"proc/{pid}/fd").mkdir(parents=True, exist_ok=True)
    number = len(list((root / f"proc/{pid}/fd").iterdir()))
    (root / f"proc/{pid}/fd/{number}").symlink_to(opened)
    put(root, f"proc/{pid}/fdinfo/{number}", fdinfo)


def amd_host(
    root: Path, buses: list[str], model: tuple[str, str, int, str, int, str] = MI300X, hive: int = 0
) -> GpuHost:
    """Return a host with AMD's GPUs."""
    host = GpuHost(root, "amd-smi")
    fill_amd(host, buses, model, hive)
    return host


def intel_host(
    root: Path, buses: list[str], name: str = "Intel(R) Arc(TM) Pro B60 Graphics", driver: str = "xe"
) -> GpuHost:
    """Return a host with Intel's graphics cards, and graphics in its processor."""
    host = GpuHost(root, "xpu-smi")
    fill_intel(host, buses, name, driver)
    return host
