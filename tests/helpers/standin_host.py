"""A simulated Gaudi host below a temporary root, for stand-ins that run as separate programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from helpers.programs import load_program

SHARED = Path(__file__).resolve().parents[2] / "molecule" / "shared"
STANDINS = SHARED / "standins"


def init_module() -> ModuleType:
    """Import the first process of a test host, which creates the state of the cards."""
    return load_program(SHARED / "hostimage/testhost-init")


class Host:
    """A root folder with cards, and the stand-ins that run below it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        made = init_module()
        cards = [made.card(index, module) for index, module in enumerate(made.MODULES)]
        nodes = {"0": made.HALVES[0], "1": made.HALVES[1]}
        self.state: dict[str, Any] = {"device_name": "HL-225", "driver_version": "1.21.3-57e3f5d"}
        self.state |= {"driver_loaded": True, "numa_nodes": nodes, "cards": cards}
        self.save()
        (root / "dev/accel").mkdir(parents=True)
        for index in range(len(cards)):
            self.add_node(index)
            device = root / f"sys/class/accel/accel{index}/device"
            device.mkdir(parents=True)
            (device / "pci_addr").write_text(f"{cards[index]['bus_id']}\n", encoding="ascii")
            (device / "device_type").write_text("GAUDI2\n", encoding="ascii")
            self.add_port(f"hlib_{index}", f"uverbs{index}")

    def save(self) -> None:
        """Write the state after a change by a test."""
        path = self.root / "etc/gaudi-sim/state.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.state), encoding="utf-8")

    def add_node(self, index: int) -> None:
        """Create a card's nodes; a link to a real one needs no privilege."""
        (self.root / "dev/infiniband").mkdir(exist_ok=True)
        for name in (f"accel/accel{index}", f"accel/accel_controlD{index}", f"infiniband/uverbs{index}"):
            (self.root / "dev" / name).unlink(missing_ok=True)
            (self.root / "dev" / name).symlink_to("/dev/null")

    def add_port(self, name: str, verbs: str) -> None:
        """Create a card's ports as the driver shows them: `hlib_N`, or `hbl_N` in newer ones."""
        device = self.root / "sys/class/infiniband" / name / "device"
        (device / "infiniband_verbs" / verbs).mkdir(parents=True)
        (device / "net").mkdir()

    def keep_nodes(self, *indices: int) -> None:
        """Leave only these cards' nodes, as in a container."""
        for node in (self.root / "dev/accel").iterdir():
            node.unlink()
        for index in indices:
            self.add_node(index)

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a stand-in; PATH is the only variable of this machine."""
        clean = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
        return {**clean, "PYTHONPATH": str(STANDINS / "serving"), "GAUDI_SIM_ROOT": str(self.root), **more}

    def run(self, name: str, *words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        """Run a stand-in to its end."""
        argv = [sys.executable, str(STANDINS / name), *words]
        return subprocess.run(
            argv, input=stdin, capture_output=True, text=True, env=self.environment(**env), timeout=20, check=False
        )
