"""Parsers of what hl-smi prints, and what a host's cards look like through it."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

from .errors import InputError

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
PREFIXES = ("HL-225", "HL-288", "HL-325", "HL-338")
# Columns of the process table: card, pid, type, name, memory. "N/A" rows stand for idle cards.
PROCESS = re.compile(r"^\|\s*(\d+)\s+(\d+)\s+(\S+)\s+(\S.*?)\s+(\d+)\s*MiB\s*\|?\s*$")
LINK = re.compile(r"^\s*port\s+(\d+)\s*:\s*(UP|DOWN)\s*$", re.IGNORECASE)
TOPOLOGY = re.compile(r"^\s*(\d+)\s+([\d,\s-]*?)\s+(-?\d+)\s*$")


def hl_smi_modules(text: str) -> list[dict[str, Any]]:
    """Parse ``hl-smi -Q index,module_id[,...] -f csv``, or two columns without a header (``noheader``).

    Returns:
        One mapping a card, by index: ``index`` and ``module_id`` as integers, further fields as text.

    Raises:
        InputError: with the line that is not of the format.
    """
    lines = [line for line in ANSI.sub("", text).splitlines() if line.strip()]
    if not lines:
        raise InputError("hl-smi: no output where a table of cards was expected")
    if re.fullmatch(r"\s*\d+\s*,\s*\d+\s*", lines[0]):
        lines.insert(0, "index, module_id")
    header = [name.strip().split(" ")[0] for name in lines[0].split(",")]
    if "index" not in header or "module_id" not in header:
        raise InputError(f"hl-smi: the header has no index and module_id: {lines[0]!r}")
    cards: list[dict[str, Any]] = []
    for line in lines[1:]:
        cells = [cell.strip() for cell in next(csv.reader(io.StringIO(line)))]
        card: dict[str, Any] = dict(zip(header, cells, strict=False))
        if len(cells) != len(header) or not (card["index"].isdigit() and card["module_id"].isdigit()):
            raise InputError(f"hl-smi: not a line of {', '.join(header)}: {line!r}")
        if any(int(card[key]) == other[key] for other in cards for key in ("index", "module_id")):
            raise InputError(f"hl-smi: an index or module_id that came before: {line!r}")
        cards.append({**card, "index": int(card["index"]), "module_id": int(card["module_id"])})
    return sorted(cards, key=lambda card: int(card["index"]))


def hl_smi_topology(text: str) -> dict[int, dict[str, Any]]:
    """Parse ``hl-smi topo -c -N``.

    Returns:
        ``{module_id: {cpus: ["0-39", "80-119"], numa_node: 0}}``; the first range holds the physical
        cores, a second one their hyper-threading siblings.

    Raises:
        InputError: with the line that is not of the format.
    """
    rows = {}
    for line in ANSI.sub("", text).splitlines():
        if not line.strip() or set(line.strip()) <= set("-= ") or line.lower().lstrip().startswith("modid"):
            continue
        match = TOPOLOGY.match(line)
        if not match:
            raise InputError(f"hl-smi topo: not a line of module, CPU affinity, NUMA node: {line!r}")
        cpus = [part.strip() for part in match[2].split(",") if part.strip()]
        rows[int(match[1])] = {"cpus": cpus, "numa_node": int(match[3])}
    if not rows:
        raise InputError("hl-smi topo: no line with a module")
    return rows


def hl_smi_links(text: str) -> dict[int, str]:
    """Parse ``hl-smi -n link -i <bus_id>``: ``{port: "UP" or "DOWN"}`` of one card.

    Raises:
        InputError: with the line that is not of the format, or when there is none.
    """
    links: dict[int, str] = {}
    for line in ANSI.sub("", text).splitlines():
        if not line.strip():
            continue
        match = LINK.match(line)
        if not match:
            raise InputError(f"hl-smi -n link: not a line of a port that is UP or DOWN: {line!r}")
        if int(match[1]) in links:
            raise InputError(f"hl-smi -n link: a port that came before: {line!r}")
        links[int(match[1])] = match[2].upper()
    if not links:
        raise InputError("hl-smi -n link: no line with a port")
    return links


def hl_smi_processes(text: str) -> dict[int, str]:
    """Parse the process table of plain ``hl-smi``: ``{index: "python3 (pid 4711)"}`` for cards in use."""
    holders = {}
    for line in ANSI.sub("", text).splitlines():
        match = PROCESS.match(line)
        if match:
            holders[int(match[1])] = f"{match[4]} (pid {match[2]})"
    return holders


def device_family(name: str) -> str:
    """Return the known prefix of a device name, such as HL-225 for HL-225D.

    Raises:
        InputError: for a device that this toolkit does not know.
    """
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return prefix
    raise InputError(f"device_name: {name!r} is not one of {', '.join(prefix + '*' for prefix in PREFIXES)}")
