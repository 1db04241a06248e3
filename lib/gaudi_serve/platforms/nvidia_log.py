"""NVIDIA's driver's records in the kernel's log: Xid errors, and cards that fell off the bus.

NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors) shows which of them take a card out of service; the formats
of the lines are in the public source of the driver.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .kernel_log import Record, words_of
from .nvidia_smi import NO_ACTION, Errors

FELL, RECOVERY = 79, 154
# Errors that take a card out of service, and errors for a warning. Others, such as 13, 31, 43 and 45, are errors of
# programs.
OUT = {
    48: "double-bit error of its memory",
    62: "a controller in it halted",
    64: "no spare row for a broken one of its memory",
    74: "error of its NVLink",
    FELL: "it fell off the bus",
    95: "uncontained error of its memory",
    119: "its system processor does not answer",
    120: "error of its system processor",
    140: "unrecovered error of its memory",
    RECOVERY: "its driver requires a recovery",
}
WARNED = {
    63: "a spare row takes the place of a broken one of its memory at its next reset",
    92: "many single-bit errors of its memory",
    94: "contained error of its memory",
}
# Errors of NVLink since Blackwell; the driver handles those that it does not call fatal.
OF_LINK = dict.fromkeys(range(144, 151), "fatal error of its NVLink")
FATAL = re.compile(r"^\s*\S+\s+Fatal\b")
PLACE = r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})"
XID = re.compile(rf"NVRM: Xid \(PCI:{PLACE}[^)]*\): (\d+),?(.*)", re.DOTALL)
OF_PROGRAM = re.compile(r"\b(?:pid|name)=('[^']*'|[^,]*),\s*")
OFF_BUS = re.compile(rf"NVRM: GPU {PLACE}\.\d: GPU has fallen off the bus")
# Without a Xid, if the driver does not reach a card from the start; in one record or in several.
PROBED = re.compile(rf"NVRM: The NVIDIA GPU {PLACE}\.\d")
NO_ANSWER = "fallen off the bus and is not responding to commands"
LOADED = "NVRM: loading NVIDIA UNIX"
CHANGED = re.compile(r"recovery action changed from .* to (0x[0-9a-f]+) \((.*)\)")
NO_RECOVERY = "0x0"
PATTERN = (
    rf"NVRM: (Xid \(PCI:[^)]*\): ({'|'.join(map(str, (*OUT, *WARNED)))}|1(4[4-9]|50),\s+\S+\s+Fatal)\b|"
    "GPU [^ ]*: GPU has fallen off the bus|The NVIDIA GPU |fallen off the bus|loading NVIDIA UNIX)"
)


@dataclass(frozen=True)
class CardErrors:
    """The errors of a card.

    fatal: a clause on the first error that takes it out of service, and on the recovery that its driver requests.
    warned: a clause on the other errors.
    """

    fatal: str = ""
    warned: str = ""


def card_errors(records: Sequence[Record]) -> dict[str, CardErrors]:
    """Return ``{bus_id: errors}`` of the cards with errors since their driver was loaded or withdrew its request."""
    found: dict[str, list[tuple[int, str]]] = {}
    probed = ""
    for record in records:
        text = record.text
        if LOADED in text:
            found, probed = {}, ""
        elif xid := XID.search(text):
            _add(found, xid[1], int(xid[2]), record, OF_PROGRAM.sub("", xid[3]))
        elif off := OFF_BUS.search(text):
            _add(found, off[1], FELL, record, "")
        else:
            probed = place[1] if (place := PROBED.search(text)) else probed
            if probed and NO_ANSWER in text:
                _add(found, probed, FELL, record, "")
    return {f"{place}.0": _errors(events) for place, events in found.items() if events}


def _add(found: dict[str, list[tuple[int, str]]], place: str, xid: int, record: Record, text: str) -> None:
    """Add an error of a card; a record that its driver requests no recovery any more clears all earlier ones."""
    events = found.setdefault(place[-len("0000:00:00") :].lower(), [])
    action = CHANGED.search(text) if xid == RECOVERY else None
    if action and action[1] == NO_RECOVERY:
        events.clear()
        return
    meaning = OUT.get(xid) or WARNED.get(xid) or (OF_LINK.get(xid) if FATAL.search(text) else None)
    words = words_of(action[2] if action else text)
    if meaning:
        events.append((xid, f"Xid {xid} ({meaning}) at {record.at}{f': {words}' if words else ''}"))


def _errors(events: Sequence[tuple[int, str]]) -> CardErrors:
    fatal = [text for xid, text in events if xid in OUT or xid in OF_LINK]
    asked = [text for xid, text in events if xid == RECOVERY]
    # The last of each kind: the errors of a memory row may be logged a thousand times.
    warned = {xid: text for xid, text in events if xid in WARNED}
    return CardErrors("; then ".join(dict.fromkeys(fatal[:1] + asked[-1:])), "; ".join(warned.values()))


def judge(errors: Errors | None, logged: CardErrors) -> tuple[str, str]:
    """Return why a card cannot be used, and why it is sick although it works; empty for nothing.

    An error in the log counts until the driver is reloaded or the host boots. A newer driver itself reports whether a
    recovery is still needed, which no log shows.

    Args:
        errors: the card's errors in nvidia-smi; None if it shows nothing.
        logged: the card's errors in the kernel's log.
    """
    action = errors.action if errors else ""
    if errors and errors.sick:
        return errors.sick, ""
    if action not in ("", NO_ACTION):
        after = f", after {logged.fatal}" if logged.fatal else ""
        return f"its driver requires a recovery ({action}){after}; it is out of service until that is done", ""
    if logged.fatal and not action:
        return f"{logged.fatal}; it is out of service until its driver is loaded again or the host boots", ""
    past = f"{logged.fatal}; its driver requires no recovery now" if logged.fatal else ""
    return "", "; ".join(text for text in (past, logged.warned) if text)
