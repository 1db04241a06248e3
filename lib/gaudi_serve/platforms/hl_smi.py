"""Parsers of what hl-smi prints, and what a host's cards look like through it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..core.errors import InputError, shown

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
PREFIXES = ("HL-225", "HL-288", "HL-325", "HL-338")
# Columns of the process table: card, pid, type, name, memory. "N/A" rows stand for idle cards.
PROCESS = re.compile(r"^\|\s*(\d+)\s+(\d+)\s+(\S+)\s+(\S.*?)\s+(\d+)\s*MiB\s*\|?\s*$")
LINK = re.compile(r"\s*port\s+([0-9]+)\s*:\s*(UP|DOWN)\s*", re.IGNORECASE)
CPUS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
# Far above every machine (16 cards, 24 ports, 8 NUMA nodes), and far below what garbage holds.
LARGEST_NUMBER = 255
LONGEST_LINE = 2000  # characters; the widest query prints about 300


def text_lines(tool: str, text: Any) -> list[tuple[str, str]]:
    """Return the lines of a tool's output that are not blank, without colours, each with its place.

    Raises:
        InputError: when the output is no text.
    """
    if not isinstance(text, str):
        raise InputError(f"{tool}: {shown(text)} is not the text of its output")
    lines = enumerate(ANSI.sub("", text).splitlines(), 1)
    return [(f"{tool}: line {number}", line) for number, line in lines if line.strip()]


def _lines(tool: str, text: Any) -> Iterator[tuple[str, str]]:
    for place, line in text_lines(tool, text):
        if len(line) > LONGEST_LINE:
            raise InputError(f"{place}: longer than {LONGEST_LINE} characters: {shown(line)}")
        yield place, line


def _number(text: str) -> int | None:
    """Return a number of a table, or None where the text is none that can be."""
    fits = re.fullmatch(r"[0-9]{1,9}", text) and int(text) <= LARGEST_NUMBER
    return int(text) if fits else None


def hl_smi_modules(text: str) -> list[dict[str, Any]]:
    """Parse ``hl-smi -Q index,module_id[,...] -f csv``, or two columns without a header (``noheader``).

    Returns:
        One mapping a card, by index: ``index`` and ``module_id`` as integers, further fields as text.

    Raises:
        InputError: with the line that is not of the format, or when no line has a card.
    """
    lines = list(_lines("hl-smi", text))
    if not lines:
        raise InputError("hl-smi: no output where a table of cards was expected")
    if re.fullmatch(r"\s*[0-9]+\s*,\s*[0-9]+\s*", lines[0][1]):
        lines.insert(0, ("hl-smi", "index, module_id"))
    place, first = lines[0]
    header = [name.strip().split(" ")[0] for name in first.split(",")]
    if "index" not in header or "module_id" not in header:
        raise InputError(f"{place}: the header has no index and module_id: {shown(first)}")
    if len(set(header)) < len(header):
        raise InputError(f"{place}: the header names a column twice: {shown(first)}")
    cards: list[dict[str, Any]] = []
    for place, line in lines[1:]:
        card: dict[str, Any] = dict(zip(header, (cell.strip() for cell in line.split(",")), strict=False))
        numbers = {key: _number(card.get(key, "")) for key in ("index", "module_id")}
        if line.count(",") != first.count(",") or None in numbers.values():
            raise InputError(f"{place}: not a line of {', '.join(header)}: {shown(line)}")
        if any(number == other[key] for other in cards for key, number in numbers.items()):
            raise InputError(f"{place}: an index or module_id that came before: {shown(line)}")
        cards.append({**card, **numbers})
    if not cards:
        raise InputError(f"{place}: no line of a card follows the header {shown(first)}")
    return sorted(cards, key=lambda card: int(card["index"]))


def hl_smi_topology(text: str) -> dict[int, dict[str, Any]]:
    """Parse ``hl-smi topo -c -N``.

    Returns:
        ``{module_id: {cpus: ["0-39", "80-119"], numa_node: 0}}``; the first range holds the physical
        cores, a second one their hyper-threading siblings.

    Raises:
        InputError: with the line that is not of the format, or when there is none.
    """
    rows: dict[int, dict[str, Any]] = {}
    for place, line in _lines("hl-smi topo", text):
        cells = line.split()
        if set("".join(cells)) <= set("-=") or cells[0].lower() == "modid":
            continue
        module = _number(cells[0])
        node = -1 if cells[-1] == "-1" else _number(cells[-1])
        cpus = "".join(cells[1:-1]).split(",")
        if module is None or node is None or not all(map(is_cpu_range, cpus)):
            raise InputError(f"{place}: not a line of module, CPU affinity, NUMA node: {shown(line)}")
        if module in rows:
            raise InputError(f"{place}: a module that came before: {shown(line)}")
        rows[module] = {"cpus": cpus, "numa_node": node}
    if not rows:
        raise InputError("hl-smi topo: no line with a module")
    return rows


def is_cpu_range(text: Any) -> bool:
    """Tell whether a text is a range of cores, such as 0-39, or one core."""
    match = CPUS.fullmatch(text) if isinstance(text, str) else None
    return bool(match and int(match[1]) <= int(match[2] or match[1]))


def hl_smi_links(text: str) -> dict[int, str]:
    """Parse ``hl-smi -n link -i <bus_id>``: ``{port: "UP" or "DOWN"}`` of one card.

    Raises:
        InputError: with the line that is not of the format, or when there is none.
    """
    links: dict[int, str] = {}
    for place, line in _lines("hl-smi -n link", text):
        match = LINK.fullmatch(line)
        port = _number(match[1]) if match else None
        if not match or port is None:
            raise InputError(f"{place}: not a line of a port that is UP or DOWN: {shown(line)}")
        if port in links:
            raise InputError(f"{place}: a port that came before: {shown(line)}")
        links[port] = match[2].upper()
    if not links:
        raise InputError("hl-smi -n link: no line with a port")
    return links


def hl_smi_processes(text: str) -> dict[int, str]:
    """Parse the process table of plain ``hl-smi``: ``{index: "python3 (pid 4711)"}`` for cards in use."""
    holders = {}
    for _, line in text_lines("hl-smi", text):
        match = PROCESS.match(line) if len(line) <= LONGEST_LINE else None
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
