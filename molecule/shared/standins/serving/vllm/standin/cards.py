"""The cards that a server takes: those it is told to, if they are in its container and nobody has them."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
from pathlib import Path
from typing import Any

ROOT = os.environ.get("GAUDI_SIM_ROOT", "")
REFUSAL = "synStatus=8 [Device not found] Device acquire failed."
HELD: list[socket.socket] = []
USED: list[float] = []  # GiB that earlier models of this process have taken of a card


def present() -> dict[int, int]:
    """Return {module_id: index} of the cards whose nodes are here."""
    nodes = Path(f"{ROOT}/dev/accel").glob("accel[0-9]*")
    indices = {int(found[1]) for node in nodes if (found := re.fullmatch(r"accel(\d+)", node.name))}
    machine = state()
    cards = [card for card in machine["cards"] if not card.get("missing")] if machine["driver_loaded"] else []
    return {card["module_id"]: card["index"] for card in cards if card["index"] in indices}


def state() -> dict[str, Any]:
    """Return the simulated machine."""
    try:
        found: dict[str, Any] = json.loads(Path(f"{ROOT}/etc/gaudi-sim/state.json").read_text(encoding="utf-8"))
    except OSError:
        return {"cards": [], "driver_loaded": False}
    return found


def device() -> str:
    """Return the cards' name."""
    return str(state().get("device_name", "HL-225"))


def memory_gib() -> float:
    """Return a card's memory, less the two GiB that the driver keeps and what this process has taken."""
    sizes = [int(card["memory_mib"]) for card in state()["cards"]]
    return min(sizes, default=98304) / 1024 - 2 - sum(USED)


def wanted(count: int, found: dict[int, int]) -> list[int]:
    """Return the module_ids to take; some of them may not be there."""
    single = os.environ.get("HLS_MODULE_ID", "")
    several = os.environ.get("HABANA_VISIBLE_MODULES", "")
    named = [single] if count == 1 and single else [word for word in several.split(",") if word.strip()]
    if named and several.lower() != "all":
        return [int(word) for word in named]
    return sorted(found, key=lambda module: found[module])


def lock(index: int) -> bool:
    """Take one card, for as long as this process lives."""
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        holder.bind(f"\0gaudi-sim{ROOT}-card-{index}")
    except OSError:
        holder.close()
        return False
    HELD.append(holder)
    return True


def acquire_gpus(count: int) -> list[str]:
    """Take as many GPUs as the model is spread over, in the order of their nodes, and return the nodes."""
    nodes = [*Path(f"{ROOT}/dev").glob("nvidia[0-9]*"), *Path(f"{ROOT}/dev/dri").glob("renderD*")]
    taken: list[str] = []
    for node in sorted(nodes)[:count]:
        try:
            os.close(os.open(node, os.O_RDWR))
        except OSError as problem:
            # No driver is behind a made-up node; the cgroup of a container that was not given it answers before that.
            if problem.errno != errno.ENXIO:
                raise RuntimeError(f"No GPU at {node}: {problem}") from None
        # Each has a number of its own on a host, also beside cards of Gaudi.
        if lock(100 + int(re.sub(r"\D", "", node.name))):
            taken.append(node.name)
    if len(taken) < count:
        raise RuntimeError(f"World size {count} is larger than the {len(taken)} free of {len(nodes)} GPUs")
    return taken


def acquire(count: int) -> list[int]:
    """Take as many cards as the model is spread over and return their indices.

    With a list of module_ids that is longer than that, the first free ones are taken.
    """
    found = present()
    taken: list[int] = []
    for module in wanted(count, found):
        if len(taken) == count:
            break
        if module not in found:
            raise RuntimeError(f"{REFUSAL} module_id {module} is not in this container")
        if lock(found[module]):
            taken.append(found[module])
    if len(taken) < count:
        raise RuntimeError(REFUSAL)
    return taken
