"""The health of Gaudi cards from ``hl-smi -q`` and its counters of memory errors, and the rules for a sick card.

A sick card still works, but gets no new model. A warning alone does not exclude a card.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from ..core.run import Result
from .hl_smi import LONGEST_LINE, text_lines

QUERY = ["hl-smi", "-q"]
UNCORRECTED = "ecc.errors.uncorrected.volatile.total"
ERRORS = ["hl-smi", "-Q", f"index,module_id,bus_id,{UNCORRECTED}", "-f", "csv,nounits"]
CARD = re.compile(r"\[\s*\d+\] AIP \(accel\d+\) ([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])\s*")
LINE = re.compile(r"(\s+)(.*?)\s*(?::\s(.*))?")
FIRMWARE = re.compile(r"hl-gaudi\d+-(\d+\.\d+\.\d+[\w.-]*)")
# The vendor's library (hlml.h) replaces at most this many rows for one cause.
MOST_ROWS = 32
CAUSES = {"Single Bit ECC": "single bit errors", "Double Bit ECC": "double bit errors"}
# The vendor's health screen (IGHS 2.2.2) calls a Gaudi2 critical from here on.
CRITICAL_C = {"HL-2": 83}
# Parts of a card: their sensors, and the temperature at which they are too hot where neither the card nor the vendor
# shows a limit. JEDEC ends HBM2E at 105 °C; processors and voltage regulators of servers end at about 105 and 125 °C.
PARTS = (
    ("chip", re.compile(r"On Chip", re.IGNORECASE), 105),
    ("HBM", re.compile(r"HBM|Memory", re.IGNORECASE), 105),
    ("VRM", re.compile(r"VRM", re.IGNORECASE), 125),
)
# Some releases show limits beside the temperatures; those without a part's name are the chip's.
LIMIT = re.compile(r"slowdown|shutdown|threshold|\bmax\b|critical", re.IGNORECASE)
OPERATIONAL = "Operational"
Section = Mapping[tuple[str, ...], str]


@dataclass(frozen=True)
class CardHealth:
    """The health of a card.

    serial: its serial number; empty if unreadable. firmware: the version in its flash (SPI). sick: why no new model
    should run on it. warned: warnings.
    """

    serial: str = ""
    firmware: str = ""
    sick: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()

    @property
    def facts(self) -> dict[str, Any]:
        """Return the health as facts of a card."""
        texts = {"sick": "; ".join(self.sick), "warned": "; ".join(self.warned)}
        return {"serial": self.serial or None, "firmware": self.firmware or None, **texts}


def cards_health(
    run: Callable[[list[str]], Result], cards: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, CardHealth], list[str]]:
    """Return the health of cards by their bus_id, and a sentence if it is unknown.

    Args:
        run: runs a program.
        cards: the cards that hl-smi shows: ``bus_id``, ``module_id``, ``name``, ``driver_version``.
    """
    with ThreadPoolExecutor(2) as pool:
        query, errors = pool.map(run, (QUERY, ERRORS))
    sections = card_sections(query.out) if query.status == 0 else {}
    uncorrected = error_counts(errors.out) if errors.status == 0 else {}
    found = {}
    for card in cards:
        place = str(card.get("bus_id")).lower()
        found[place] = judged(sections.get(place, {}), str(card.get("name") or ""), uncorrected.get(place, 0))
    unread = sorted(int(card["module_id"]) for card in cards if str(card.get("bus_id")).lower() not in sections)
    notes = [f"the health of cards {unread} is not known: hl-smi -q does not show it"] if unread else []
    return _compared(found, cards), notes


def card_sections(text: str) -> dict[str, dict[tuple[str, ...], str]]:
    """Parse ``hl-smi -q``: by bus_id, the values of a card by their headings and their own name.

    A heading is a line without a value; lines with deeper indentation belong to it. The value of some names stands in
    the line below. Lines of another form are skipped: new lines of a later release must not hide the others.
    """
    found: dict[str, dict[tuple[str, ...], str]] = {}
    section: dict[tuple[str, ...], str] = {}
    path: list[tuple[int, str]] = []
    for _, line in text_lines("hl-smi -q", text):
        begins = CARD.fullmatch(line)
        match = LINE.fullmatch(line) if len(line) <= LONGEST_LINE else None
        if begins:
            section, path = found.setdefault(begins[1].lower(), {}), []
        elif match:
            depth, name, value = len(match[1].expandtabs(8)), match[2], match[3]
            path = [one for one in path if one[0] < depth]
            names = tuple(one for _, one in path)
            if value is None:
                path.append((depth, name.rstrip(": ")))
            else:
                section[(*names, name) if name else names] = value.strip()
    return {place: values for place, values in found.items() if values}


def error_counts(text: str) -> dict[str, int]:
    """Return the uncorrected memory errors since the driver was loaded, by bus_id."""
    rows = [[cell.strip() for cell in line.split(",")] for _, line in text_lines("hl-smi", text)]
    return {row[2].lower(): int(row[3]) for row in rows if len(row) == 4 and re.fullmatch(r"\d{1,9}", row[3])}


def judged(section: Section, name: str, uncorrected: int = 0) -> CardHealth:
    """Return the health of a card.

    Args:
        section: its part of card_sections; empty if unreadable.
        name: of the card, such as HL-225.
        uncorrected: uncorrected memory errors since the driver was loaded.
    """
    firmware = FIRMWARE.search(section.get(("Firmware [SPI] Version",), ""))
    serial = section.get(("Serial Number",), "")
    sick, warned = [], []
    status = section.get(("Module status",), OPERATIONAL)
    if status != OPERATIONAL:
        sick.append(f"its module status is {status}")
    if uncorrected:
        sick.append(f"it has {uncorrected} uncorrected memory errors since its driver was loaded")
    rows_sick, rows_warned = _rows(section)
    clock_sick, clock_warned = _clock(section)
    sick += [*rows_sick, *clock_sick, *_heat(section, name)]
    warned += [*rows_warned, *clock_warned, *_link(section)]
    return CardHealth(
        serial if re.fullmatch(r"[\w.-]*\d[\w.-]*", serial) else "",
        firmware[1] if firmware else "",
        tuple(sick),
        tuple(warned),
    )


def _rows(section: Section) -> tuple[list[str], list[str]]:
    """Return the health problems of its memory rows, and the warnings."""
    sick, warned = [], []
    if section.get(("Replaced Rows", "Pending"), "No").lower() in ("yes", "true", "1"):
        sick.append("a replacement of rows in its memory waits for a reset: hl-smi -r -i <bus_id> while it is idle")
    for key, cause in CAUSES.items():
        count = _number(section.get(("Replaced Rows", key), ""))
        if count and count >= MOST_ROWS:
            sick.append(
                f"{count} rows of its memory are replaced for {cause}, and {MOST_ROWS} is the limit: return the card"
            )
        elif count:
            warned.append(f"{count} of {MOST_ROWS} rows of its memory are replaced for {cause}")
    return sick, warned


def _clock(section: Section) -> tuple[list[str], list[str]]:
    """Return why its clock is reduced: an error for heat and for what the card does not name, a warning for power."""
    values = {key[-1]: value for key, value in section.items() if key[:1] == ("Clocks Throttle Reasons",)}
    active = [name for name, value in values.items() if value == "Active"]
    heat, power = (any(word in name for name in active) for word in ("Thermal", "Power"))
    sick = ["its clock is reduced because of its temperature"] if heat else []
    sick += ["its hardware reduces its clock (HW Slowdown)"] if active and not (heat or power) else []
    return sick, ["its clock is reduced because of its power draw"] if power else []


def _heat(section: Section, name: str) -> list[str]:
    """Return an error for each part that is too hot: by the limits that the card shows, the vendor's, or the part's."""
    values = {
        key[-1]: value for key, text in section.items() if key[:1] == ("Temperature",) if (value := _number(text))
    }
    limits = {key: value for key, value in values.items() if LIMIT.search(key)}
    sick = []
    for part, sensor, most in PARTS:
        hottest = max((value for key, value in values.items() if sensor.search(key) and key not in limits), default=0)
        others = [other for which, other, _ in PARTS if which not in (part, "chip")]
        chip = part == "chip"
        own = [
            value
            for key, value in limits.items()
            if sensor.search(key) or (chip and not any(other.search(key) for other in others))
        ]
        published = [limit for begin, limit in CRITICAL_C.items() if chip and name.startswith(begin)]
        limit = min(own or published or [most])
        sick += [f"its {part} is at {hottest} °C; its limit is {limit} °C"] if hottest >= limit else []
    return sick


def _link(section: Section) -> list[str]:
    """Return a warning if the PCIe link is narrower or slower than the card supports."""
    lines = []
    for kind, text in (("Link Width", "lanes"), ("Link Speed", "GT/s")):
        now, most = (
            _number(section.get(("PCI", "AIP Link Info", kind, key), "").lstrip("x")) for key in ("Current", "Max")
        )
        if now and most and now < most:
            lines.append(f"its PCIe link has {now} of {most} {text}")
    return lines


def _number(text: str) -> int | None:
    """Return the integer at the beginning of a text, such as 83 for ``83 C``."""
    match = re.match(r"\s*(\d{1,9})", text)
    return int(match[1]) if match else None


def _compared(found: Mapping[str, CardHealth], cards: Iterable[Mapping[str, Any]]) -> dict[str, CardHealth]:
    """Return the health, with a warning for firmware that differs from other cards' or from the driver's release."""
    usual = Counter(one.firmware for one in found.values() if one.firmware).most_common(1)
    drivers = {str(card.get("bus_id")).lower(): str(card.get("driver_version") or "") for card in cards}
    compared = {}
    for place, one in found.items():
        warned = list(one.warned)
        if one.firmware and one.firmware != usual[0][0]:
            warned.append(f"its firmware is {one.firmware}; most cards have {usual[0][0]}")
        release = re.match(r"\d+\.\d+\.\d+", drivers.get(place, ""))
        if one.firmware and release and not one.firmware.startswith(f"{release[0]}-"):
            warned.append(f"its firmware {one.firmware} does not belong to the driver's release {release[0]}")
        compared[place] = replace(one, warned=tuple(warned))
    return compared
