"""Parsers of hl-smi's output about a host's cards."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import InputError, shown

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
GENERATION = {
    **{"HL-225": "GAUDI2", "HL-288": "GAUDI2"},
    **{"HL-325": "GAUDI3", "HL-328": "GAUDI3", "HL-338": "GAUDI3", "HL-388": "GAUDI3"},
}
PREFIXES = tuple(GENERATION)
GAUDI1 = "HL-205"
# Columns of the process table: card, pid, type, name, memory. "N/A" rows stand for idle cards.
PROCESS = re.compile(r"^\|\s*(\d+)\s+(\d+)\s+(\S+)\s+(\S.*?)\s+(\d+)\s*MiB\s*\|?\s*$")
LINK = re.compile(r"\s*port\s+([0-9]+)\s*:\s*(UP|DOWN)\s*", re.IGNORECASE)
BUS_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
CPUS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
# Far above every machine (16 cards, 24 ports, 8 NUMA nodes), and far below the numbers in garbage.
LARGEST_NUMBER = 255
LONGEST_LINE = 2000  # characters; the widest query prints about 300


def text_lines(tool: str, text: Any) -> list[tuple[str, str]]:
    """Return the non-blank lines of a tool's output, without colours, each with its place.

    Raises:
        InputError: if the output is not a text.
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
    """Return a number of a table, or None if the text is not a plausible number."""
    fits = re.fullmatch(r"[0-9]{1,9}", text) and int(text) <= LARGEST_NUMBER
    return int(text) if fits else None


@dataclass(frozen=True)
class BadRow:
    """An unusable row of hl-smi's table of cards, and its readable cells."""

    problem: str
    module_id: int | None = None
    index: int | None = None
    bus_id: str | None = None


def hl_smi_modules(text: str) -> list[dict[str, Any]]:
    """Parse ``hl-smi -Q index,module_id[,...] -f csv``, or two columns without a header (``noheader``).

    Returns:
        One mapping a card, sorted by index: ``index`` and ``module_id`` as integers, further fields as text.

    Raises:
        InputError: with the invalid line, or if no line has a card.
    """
    header, lines = _card_table(text)
    cards: list[dict[str, Any]] = []
    for place, line in lines:
        card, problem = _card(header, line)
        problem = problem or _repeated(card, cards)
        if problem:
            raise InputError(f"{place}: {problem}: {shown(line)}")
        cards.append(card)
    if not cards:
        raise InputError(f"hl-smi: line 1: no line of a card follows the header {shown(', '.join(header))}")
    return sorted(cards, key=lambda card: int(card["index"]))


def hl_smi_cards(text: str) -> tuple[list[dict[str, Any]], list[BadRow]]:
    """Parse the same table without letting one bad card hide the others.

    Returns:
        The cards as ``hl_smi_modules`` has them, and the unusable rows. If two rows have the same index or module_id,
        neither is usable, since their card is unknown.

    Raises:
        InputError: if there is no table: no output, or no header with index and module_id.
    """
    header, lines = _card_table(text)
    read = [(line, *_card(header, line)) for _, line in lines]
    cards: list[dict[str, Any]] = []
    bad: list[BadRow] = []
    for line, card, problem in read:
        twice = sum(_same(card, other) for _, other, wrong in read if not wrong) > 1
        if problem or twice:
            why = problem or "an index or module_id that another row has too"
            bus_id = str(card.get("bus_id", ""))
            bad.append(
                BadRow(
                    f"hl-smi's row of it cannot be used: {why}: {shown(line)}",
                    _number(str(card.get("module_id"))),
                    _number(str(card.get("index"))),
                    bus_id.lower() if BUS_ID.fullmatch(bus_id) else None,
                )
            )
        else:
            cards.append(card)
    return sorted(cards, key=lambda card: int(card["index"])), bad


def _card_table(text: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the columns of a table of cards, and its rows with their places."""
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
    return header, lines[1:]


def _card(header: Sequence[str], line: str) -> tuple[dict[str, Any], str]:
    """Return the cells of a row, and why it is not a card; empty if it is one."""
    card: dict[str, Any] = dict(zip(header, (cell.strip() for cell in line.split(",")), strict=False))
    numbers = {key: _number(card.get(key, "")) for key in ("index", "module_id")}
    card.update({key: number for key, number in numbers.items() if number is not None})
    sound = line.count(",") == len(header) - 1 and None not in numbers.values()
    return card, "" if sound else f"not a line of {', '.join(header)}"


def _same(card: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return any(card.get(key) == other.get(key) for key in ("index", "module_id"))


def _repeated(card: Mapping[str, Any], cards: Iterable[Mapping[str, Any]]) -> str:
    return "an index or module_id that came before" if any(_same(card, other) for other in cards) else ""


def hl_smi_topology(text: str) -> dict[int, dict[str, Any]]:
    """Parse ``hl-smi topo -c -N``.

    Returns:
        ``{module_id: {cpus: ["0-39", "80-119"], numa_node: 0}}``; the first range has the physical cores, a second one
        their hyper-threading siblings.

    Raises:
        InputError: with the invalid line, or if there is none.
    """
    rows: dict[int, dict[str, Any]] = {}
    for place, module, row, line in _topology_rows(text):
        if module is None or row is None:
            raise InputError(f"{place}: not a line of module, CPU affinity, NUMA node: {shown(line)}")
        if module in rows:
            raise InputError(f"{place}: a module that came before: {shown(line)}")
        rows[module] = row
    if not rows:
        raise InputError("hl-smi topo: no line with a module")
    return rows


def hl_smi_places(text: str) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
    """Parse the same table without letting one bad row hide the others.

    Returns:
        The places as ``hl_smi_topology`` has them, and by module_id why a card's row cannot be used. A row without a
        readable module is omitted: its card has no place.

    Raises:
        InputError: if no row can be used.
    """
    rows: dict[int, dict[str, Any]] = {}
    bad: dict[int, str] = {}
    for _, module, row, line in _topology_rows(text):
        if module is None:
            continue
        if row is None or module in rows:
            bad[module] = f"hl-smi topo's row of it cannot be used: {shown(line)}"
        else:
            rows[module] = row
    if not rows:
        raise InputError("hl-smi topo: no line with a module")
    return {module: row for module, row in rows.items() if module not in bad}, bad


def _topology_rows(text: str) -> Iterator[tuple[str, int | None, dict[str, Any] | None, str]]:
    """Yield the rows: place, module, the values for it (None if unreadable), and the line."""
    for place, line in _lines("hl-smi topo", text):
        cells = line.split()
        if set("".join(cells)) <= set("-=") or cells[0].lower() == "modid":
            continue
        node = -1 if cells[-1] == "-1" else _number(cells[-1])
        cpus = "".join(cells[1:-1]).split(",")
        sound = node is not None and all(map(is_cpu_range, cpus))
        yield place, _number(cells[0]), {"cpus": cpus, "numa_node": node} if sound else None, line


def is_cpu_range(text: Any) -> bool:
    """Return whether a text is a range of cores, such as 0-39, or one core."""
    match = CPUS.fullmatch(text) if isinstance(text, str) else None
    return bool(match and int(match[1]) <= int(match[2] or match[1]))


def hl_smi_links(text: str) -> dict[int, str]:
    """Parse ``hl-smi -n link -i <bus_id>``: ``{port: "UP" or "DOWN"}`` of one card.

    Raises:
        InputError: with the invalid line, or if there is none.
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


def family_of(name: str | None, said: str | None = None) -> str | None:
    """Return the family of a device: by its name, or the one in the inventory for an unknown device.

    None for a device of no known family, and for Gaudi1, which is not supported.
    """
    known = next((prefix for prefix in PREFIXES if (name or "").startswith(prefix)), None)
    return known or (None if (name or "").startswith(GAUDI1) else said or None)


def device_family(name: str) -> str:
    """Return the known prefix of a device name, such as HL-225 for HL-225D.

    Raises:
        InputError: for an unknown device.
    """
    if family := family_of(name):
        return family
    raise InputError(f"device_name: {name!r} is not one of {', '.join(prefix + '*' for prefix in PREFIXES)}")
