"""Intel's GPUs according to xpu-smi, in its releases 1 and 2: JSON, and the table of its topology."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import InputError, shown
from ..core.run import run
from .cards import first_json

HANGS, MISSING = 124, 127  # statuses of core.run
BUS_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
TILE = re.compile(r"GPU (\d+)/(\d+)")
NORMAL = "normal"
BAD, WORSE = "warning", "critical"


@dataclass(frozen=True)
class XpuCard:
    """One GPU as the tool shows it; unreadable values are empty or 0.

    number: its number in the tool. sick: present health problems; warned: health warnings. state: why it cannot
    compute, such as survivability mode.
    """

    number: int
    bus_id: str
    name: str = ""
    memory_mib: int = 0
    driver: str = ""
    state: str = ""
    sick: str = ""
    warned: str = ""


@dataclass(frozen=True)
class XpuSmi:
    """The tool's output for a host.

    cards: its GPUs. links: kinds of the links between two of them, by their numbers. hangs: it does not answer. notes:
    sentences on values that it cannot read. answers: it has shown its list of GPUs, which may be empty.
    """

    cards: tuple[XpuCard, ...] = ()
    links: Mapping[tuple[int, int], str] = field(default_factory=dict)
    hangs: str = ""
    notes: tuple[str, ...] = ()
    answers: bool = False


class _Hangs(Exception):
    """The tool does not answer."""


def ask_xpu_smi() -> XpuSmi:
    """Return the tool's output. If it hangs once, it is not run again."""
    notes: list[str] = []
    try:
        listed = _answer(("discovery", "-j"), notes)
        if listed is None:
            return XpuSmi(notes=tuple(notes))
        cards = xpu_cards(listed)
        details = {
            card.number: _readable(("discovery", "-d", str(card.number), "-j"), _json, "{}", notes) for card in cards
        }
        health = _readable(("health", "-l", "-j"), _listed, "", notes) if cards else ""
        matrix = _answer(("topology", "-m"), notes) if len(cards) > 1 else None
        full = xpu_cards(listed, details, health)
        return XpuSmi(full, xpu_links(matrix or ""), notes=tuple(notes), answers=True)
    except _Hangs as problem:
        return XpuSmi(hangs=str(problem))
    except InputError as problem:
        return XpuSmi(notes=(*notes, str(problem)))


def _answer(words: tuple[str, ...], notes: list[str]) -> str | None:
    """Return an output of the tool; None, and a note, if it fails."""
    result = run(["xpu-smi", *words])
    if result.status == HANGS:
        raise _Hangs(result.err)
    if result.status == 0:
        return result.out
    last = (result.err or result.out).strip().splitlines()[-1:] or ["no output"]
    notes.append(last[0] if result.status == MISSING else f"xpu-smi {' '.join(words)}: {_said(last[0])}")
    return None


def _readable(words: tuple[str, ...], read: Callable[[str], Any], without: str, notes: list[str]) -> str:
    """Return an output that can be read; ``without``, and a note, if it cannot: the others may still be read."""
    text = _answer(words, notes)
    try:
        read(text or without or '{"device_list": []}')
    except InputError as problem:
        notes.append(str(problem))
        return without
    return text or without


def _said(line: str) -> str:
    """Return the error in an output: JSON with error, or its text."""
    found = first_json(line)
    return str(found.get("error", line)) if isinstance(found, Mapping) else line


def xpu_cards(listed: str, details: Mapping[int, str] | None = None, health: str = "") -> tuple[XpuCard, ...]:
    """Return the GPUs in the outputs of ``discovery -j``, ``discovery -d N -j`` and ``health -l -j``.

    Raises:
        InputError: if one of them is invalid; an empty one of health is skipped.
    """
    sick = {one.get("device_id"): one for one in _listed(health)} if health.strip() else {}
    found = []
    for row in _listed(listed):
        number, bus_id = row.get("device_id"), str(row.get("pci_bdf_address", ""))
        if not isinstance(number, int) or not BUS_ID.fullmatch(bus_id):
            raise InputError(f"xpu-smi discovery: {shown(row)} has no device_id and pci_bdf_address")
        more = _json((details or {}).get(number, "{}"))
        critical, warned = _worst(sick.get(number, {}))
        state = str(row.get("device_state") or more.get("device_state") or NORMAL)
        found.append(
            XpuCard(
                number,
                bus_id.lower(),
                " ".join(str(row.get("device_name") or "").split()),
                _number(more.get("memory_physical_size_byte")) >> 20,
                str(more.get("driver_version") or ""),
                "" if state.lower().startswith(NORMAL) else state,
                critical,
                warned,
            )
        )
    return tuple(sorted(found, key=lambda card: card.number))


def _json(text: str) -> dict[str, Any]:
    found = first_json(text)
    if not isinstance(found, dict):
        raise InputError(f"xpu-smi: {shown(text.strip())} is not its JSON")
    return found


def _listed(text: str) -> list[dict[str, Any]]:
    rows = _json(text).get("device_list")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"xpu-smi: {shown(text.strip())} has no device_list")
    return rows


def _number(value: Any) -> int:
    """Return a number, which release 1 may write as a text; 0 for N/A and the like."""
    return int(value) if re.fullmatch(r"\d{1,18}", str(value)) else 0


def _worst(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the critical states in a GPU's health, and the warnings: their descriptions."""
    found: dict[str, list[str]] = {BAD: [], WORSE: []}
    for part, one in row.items():
        status = str(one.get("status", "")).lower() if isinstance(one, Mapping) else ""
        if status in found:
            found[status].append(str(one.get("description") or part.replace("_", " ")))
    return "; ".join(found[WORSE]), "; ".join(found[BAD])


def xpu_links(text: str) -> dict[tuple[int, int], str]:
    """Return the kinds of the links between GPUs of ``topology -m``, in both directions; for tiles those of the first.

    An empty text, or one without a table, gives none.
    """
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.splitlines()]
    header = next((row for row in rows if row[-1] == "CPU Affinity"), [])
    # Release 1 has no first cell in the header.
    columns = [TILE.fullmatch(cell) for cell in reversed(header)]
    found = {}
    for row in rows:
        first = TILE.fullmatch(row[0])
        for column, kind in zip(columns, reversed(row), strict=False) if first and row is not header else ():
            if first and column and first[1] != column[1] and first[2] == column[2] == "0" and kind:
                found[(int(first[1]), int(column[1]))] = kind
    return found
