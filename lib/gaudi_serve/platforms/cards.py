"""Functions that platforms of graphics cards share for their hosts and cards."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.run import read_text
from ..core.words import counted
from ..model.host import Host
from .pci import PciDevice

# Programs that read a card's state or draw a screen with it; they do not prevent a model from using it.
WATCHERS = (
    *("Xorg", "Xwayland", "gnome-", "kwin", "sddm", "plymouthd", "systemd-logind", "nvtop", "btop"),
    *("amd-smi", "amdgpu_top", "rocm-smi", "gpuagent", "xpu-smi", "xpumd", "xpum"),
)
LEAST_KIB = 64 * 1024  # of a card's memory; the cursor of a screen is not a model
FULL_MIB = 4096  # an idle card of the largest kind uses a few hundred MiB
UNSEEN = "it is on the PCI bus, and {by} does not show it"


def first_json(text: str) -> Any:
    """Return the first JSON of an output that begins a line, between warnings; None without any."""
    for begin in re.finditer(r"^\s*(?=[\[{])", text, re.MULTILINE):
        try:
            return json.JSONDecoder().raw_decode(text, begin.end())[0]
        except ValueError:
            continue
    return None


def plain_name(name: str, maker: str) -> str:
    """Return a card's name for the facts: without special signs such as a trade mark's, and with its maker first."""
    text = " ".join(re.sub(r"[^\w .,()/+&\[\]-]", "", name).split())
    own = re.sub(r"\W.*", "", maker)
    return text if text.startswith(f"{maker} ") else f"{maker} {text.removeprefix(f'{own} ')}"


def filled(used: int, total: int) -> str | None:
    """Return that a hidden program uses a card if too little memory is free for a model; figures in MiB."""
    if used <= min(FULL_MIB, total // 8 or FULL_MIB):
        return None
    return f"a program that is not shown ({used} of its {total} MiB are used)"


def host_memory(root: str) -> tuple[int, int | None]:
    """Return the MiB of a host's memory, and those that are available, with the cache of files; None if unknown."""
    text = read_text(Path(root, "proc/meminfo")) or ""
    found = re.findall(r"^(MemTotal|MemAvailable):\s+(\d+)", text, re.MULTILINE)
    sizes = {name: int(kib) // 1024 for name, kib in found}
    return sizes.get("MemTotal", 0), sizes.get("MemAvailable")


def node_problem(index: int | None, root: str) -> str | None:
    """Return why a card cannot be given to a container: it has no node, or the node is missing."""
    if index is None or index < 0:
        return "the driver has no node /dev/dri/renderD* for it"
    path = Path(root, f"dev/dri/renderD{index}")
    return None if path.exists() else f"its node /dev/dri/renderD{index} is missing"


def node_notes(indices: Sequence[int], root: str) -> list[str]:
    """Return a sentence on nodes without access for their group: a server of a user other than root cannot use them."""
    closed = []
    for index in indices:
        path = Path(root, f"dev/dri/renderD{index}")
        if path.exists() and path.stat().st_mode & 0o060 != 0o060:
            closed.append(path.name)
    if not closed:
        return []
    text = f"the group of {', '.join(closed)} in /dev/dri may not read and write them: servers of other users than root"
    return [f"{text} fail; udev gives them to group render with mode 0660 where that group exists"]


def lost(on_bus: Mapping[str, PciDevice], seen: Sequence[str], by: str) -> list[dict[str, Any]]:
    """Return ``unusable_cards`` of the cards on the bus that the tool does not show."""
    return [{"bus_id": bus_id, "problem": UNSEEN.format(by=by)} for bus_id in sorted(set(on_bus) - set(seen))]


def mixed(names: Sequence[str]) -> list[str]:
    """Return a sentence if a host has cards of several kinds."""
    kinds = {name: names.count(name) for name in dict.fromkeys(names)}
    if len(kinds) < 2:
        return []
    return [f"it has cards of several kinds: {', '.join(f'{count} {name}' for name, count in kinds.items())}"]


def about(host: Host) -> list[str]:
    """Return the lines on a host in a plan."""
    nodes = len({card.numa_node for card in host.cards})
    cards = f"{counted(len(host.cards), 'card')} {host.device_name} on {counted(nodes, 'NUMA node')}"
    return [cards, f"driver {host.driver_version or 'unknown'}"]


def reasons(by: str, help_text: str) -> Callable[[Host, str, int, str], list[tuple[str, str]]]:
    """Return a function that returns why a run must not begin on a host: cards do not answer, or some are missing.

    Args:
        by: the tool that shows the cards.
        help_text: what to do if they do not answer.
    """

    def found(host: Host, host_name: str, cards: int, release: str) -> list[tuple[str, str]]:
        if host.problem:
            return [("cards", f"{host_name}: the cards do not answer: {' '.join(host.problem)}. {help_text}")]
        here = sorted(card.module_id for card in host.cards if not card.problem)
        if not cards or len(here) == cards:
            return []
        text = f"{host_name}: accelerator_cards is {cards}, but {by} shows {len(here)}: module_ids {here}"
        return [("accelerator_cards", "; ".join([text, *host.bad_cards]))]

    return found
