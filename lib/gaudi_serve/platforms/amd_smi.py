"""AMD's GPUs according to amd-smi: its JSON of ROCm 6 and newer, in both of its formats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import InputError, shown
from ..core.run import run
from .cards import first_json

HANGS, MISSING = 124, 127  # statuses of core.run
LISTS = (("list", "-e", "--json"), ("list", "--json"))  # -e since ROCm 6.4
STATIC = ("static", "--asic", "--vram", "--json")
ERRORS = ("metric", "--ecc", "--json")
PAGES = ("bad-pages", "--json")
ERROR = re.compile(r'^\s*\{"error": "([^"]*)"', re.MULTILINE)
BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)


@dataclass(frozen=True)
class AmdCard:
    """One GPU, or one part of a divided one, as the tool shows it; unreadable values are None or empty.

    gpu: its number in the tool. kfd_id: its ID in the driver. uncorrectable: uncorrected memory errors since the driver
    was loaded. pending: memory pages that the next reset retires. serial: its serial number.
    """

    gpu: int
    bus_id: str = ""
    kfd_id: int | None = None
    name: str = ""
    memory_mib: int = 0
    uncorrectable: int | None = None
    pending: int | None = None
    serial: str = ""


@dataclass(frozen=True)
class AmdSmi:
    """The tool's output for a host: its GPUs, whether it answers, and sentences on values that it cannot read."""

    cards: tuple[AmdCard, ...] = ()
    hangs: str = ""
    notes: tuple[str, ...] = ()


def ask_amd_smi() -> AmdSmi:
    """Return the tool's output. If it hangs once, it is not run again."""
    outputs, notes = [], []
    for commands in (LISTS, (STATIC,), (ERRORS,), (PAGES,)):
        text, problem, hangs = _asked(commands)
        if hangs:
            return AmdSmi(hangs=problem)
        try:
            amd_smi_rows(text or "[]")
        except InputError as odd:  # The other outputs can still be read.
            text, problem = "", str(odd)
        notes += [problem] if problem else []
        if problem and commands is LISTS:
            break
        outputs.append(text)
    return AmdSmi(amd_cards(*outputs) if outputs else (), notes=tuple(notes))


def _asked(commands: Iterable[Sequence[str]]) -> tuple[str, str, bool]:
    """Return the output of the first command that works, why none does, and whether the tool hangs."""
    problem = ""
    for words in commands:
        result = run(["amd-smi", *words])
        if result.status in (HANGS, MISSING):
            return "", result.err, result.status == HANGS
        # The tool writes errors to its output, and some releases still exit with 0.
        refused = ERROR.search(result.out)
        if result.status == 0 and not refused:
            return result.out, "", False
        last = [refused[1]] if refused else (result.err or result.out).strip().splitlines()[-1:]
        problem = f"amd-smi {' '.join(words)}: {last[0] if last else 'no output'}"
    return "", problem, False


def amd_smi_rows(text: str) -> list[dict[str, Any]]:
    """Return the rows of an output, one a GPU: of a list, or of a list under gpu_data.

    Lines before the JSON, such as a warning of missing groups, are skipped.

    Raises:
        InputError: with the text if it has neither format.
    """
    found = first_json(text)
    rows = found.get("gpu_data") if isinstance(found, Mapping) else found
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"amd-smi: {shown(text.strip())} is not its list of GPUs")
    return rows


def amd_cards(listed: str, static: str = "", errors: str = "", pages: str = "") -> tuple[AmdCard, ...]:
    """Return the GPUs in the outputs of ``list``, ``static``, ``metric --ecc`` and ``bad-pages``, all as JSON.

    Raises:
        InputError: if one of them has neither format; an empty one is skipped.
    """
    known = [_by_gpu(text) for text in (static, errors, pages)]
    found = []
    for gpu, row in sorted(_by_gpu(listed).items()):
        of_static, of_errors, of_pages = (rows.get(gpu, {}) for rows in known)
        bus_id = str(row.get("bdf") or row.get("gpu_bdf") or "")
        asic, ecc = _part(of_static, "asic"), _part(of_errors, "ecc")
        found.append(
            AmdCard(
                gpu,
                _short(bus_id) if BUS_ID.fullmatch(bus_id) else "",
                _number(row.get("kfd_id")),
                _text(asic.get("market_name")),
                _mib(_part(of_static, "vram").get("size")),
                _number(ecc.get("total_uncorrectable_count")),
                _pages(of_pages.get("pending")),
                _text(asic.get("asic_serial")),
            )
        )
    return tuple(found)


def _by_gpu(text: str) -> dict[int, dict[str, Any]]:
    rows = amd_smi_rows(text) if text.strip() else []
    return {number: row for row in rows if (number := _number(row.get("gpu"))) is not None}


def _short(bus_id: str) -> str:
    """Return a bus ID with a four-digit domain, in lowercase."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _part(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = row.get(key)
    return found if isinstance(found, Mapping) else {}


def _number(value: Any) -> int | None:
    """Return a number; None for N/A and the like."""
    text = str(value)
    return int(text) if re.fullmatch(r"\d{1,18}", text) else None


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else ""
    return "" if text.upper() in ("N/A", "UNKNOWN") else " ".join(text.split())


def _mib(size: Any) -> int:
    """Return the MiB of a size such as 196592 MB (the tool calls MiB MB), given as text or as value and unit."""
    number = _number(size.get("value") if isinstance(size, Mapping) else str(size).partition(" ")[0])
    return number or 0


def _pages(value: Any) -> int | None:
    """Return the number of pages in a list; a single page has no brackets, an empty list is a sentence."""
    if isinstance(value, list):
        return len(value)
    if isinstance(value, Mapping):
        return 1
    return None if not isinstance(value, str) or value.upper() == "N/A" else 0
