"""What NVIDIA's cards wait for before CUDA works on them: the fabric of switches, confidential computing, a licence.

nvidia-smi lists such cards as healthy; CUDA fails, such as with error 802, system not yet initialized.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from . import nvidia_smi as smi
from .pci import PciDevice

READY = ("Completed", "Success")
UNKNOWN = ("", "N/A", "Not Supported")
# Cards of boards whose switches are no devices of NVIDIA's on the bus: by name, and those of HGX by PCI device id.
RACK, BOARD = re.compile(r"\bGB[23]00\b"), re.compile(r"\bB[23]00\b")
BOARD_IDS = ("2901", "3182")
# Virtual cards of NVIDIA's vGPU software, such as NVIDIA A10-24Q, GRID A100D-40C and NVIDIA A100-1-5CME.
VIRTUAL = re.compile(r"-\d+[ABCQ](ME)?$")
CONFIDENTIAL_SINCE = 9  # the first generation with confidential computing


def waits(rows: Sequence[smi.Row], switches: Mapping[str, PciDevice]) -> tuple[dict[int, str], list[str]]:
    """Return ``{index: why}`` of the cards on which CUDA does not work yet, and sentences on unknown states.

    Args:
        rows: the cards.
        switches: NVSwitches on the bus.
    """
    states = _states(rows)
    found = {row.index: _unready(row, states[row.uuid]) for row in rows if states.get(row.uuid, READY) != READY}
    unlicensed, unread = _licences([row for row in rows if VIRTUAL.search(row.fields["name"])])
    found |= unlicensed
    unknown = [row.index for row in rows if row.uuid not in states and (switches or _is_linked(row))]
    notes = unread
    if len(rows) > 1 and unknown:
        text = f"nvidia-smi shows no state of the fabric of cards {unknown}"
        notes.append(f"{text}: while it is not ready, CUDA fails with error 802")
    confidential, more = _confidential(rows)
    return {**dict.fromkeys((row.index for row in rows if confidential), confidential), **found}, [*notes, *more]


def _is_linked(row: smi.Row) -> bool:
    return bool(RACK.search(row.fields["name"]) or BOARD.search(row.fields["name"]))


def _states(rows: Sequence[smi.Row]) -> dict[str, tuple[str, str]]:
    """Return ``{uuid: (state, status)}`` of the cards whose fabric has a state."""
    told, problem = smi.asked(smi.FABRIC)
    found = smi.fabric_rows(told.out)
    if problem and not found:  # Drivers before 535 do not know these fields.
        by_bus = smi.fabric(smi.asked(smi.EVERYTHING)[0].out)
        found = {row.uuid: by_bus[row.bus_id] for row in rows if row.bus_id in by_bus}
    return {uuid: state for uuid, state in found.items() if state[0].strip("[]") not in UNKNOWN}


def _licences(rows: Sequence[smi.Row]) -> tuple[dict[int, str], list[str]]:
    """Return ``{index: why}`` of the virtual cards without a licence, and a sentence on those of unknown licence.

    Their driver first slows them down, and then refuses CUDA: all CUDA-capable devices are busy or unavailable.
    """
    states = smi.licences(smi.asked(smi.EVERYTHING)[0].out) if rows else {}
    found = {
        row.index: f"its vGPU has no licence ({text}), so its driver slows CUDA down and then refuses it: set the "
        "licence of this guest up; service nvidia-gridd gets it"
        for row in rows
        if (text := states.get(row.bus_id, "")).startswith("Unlicensed")
    }
    unread = [row.index for row in rows if not states.get(row.bus_id)]
    text = f"nvidia-smi shows no state of the licence of the virtual cards {unread}: without one, CUDA fails on them"
    return found, [text] if unread else []


def _unready(row: smi.Row, state: tuple[str, str]) -> str:
    manager = f"nvidia-fabricmanager of exactly version {row.fields['driver_version']}"
    if RACK.search(row.fields["name"]):
        needs = "the fabric manager of the rack's switches must register it"
    elif BOARD.search(row.fields["name"]):
        needs = f"{manager} and its subnet manager nvlsm must run"
    else:
        needs = f"{manager} must run"
    said = state[0] if state[0] != READY[0] else f"{state[0]}, {state[1]}"
    return f"its fabric of NVSwitches is not ready ({said}), so CUDA fails with error 802: {needs}"


def _confidential(rows: Sequence[smi.Row]) -> tuple[str, list[str]]:
    """Return why no card of a confidential guest works yet, and a sentence if that is unknown."""
    majors = [row.fields["compute_cap"].partition(".")[0] for row in rows]
    if not any(major.isdigit() and int(major) >= CONFIDENTIAL_SINCE for major in majors):
        return "", []
    if not re.search(r"CC status\s*:\s*ON", smi.asked(smi.CONFIDENTIAL)[0].out):
        return "", []
    said = re.search(r"ready state\s*:\s*([\w-]+)", smi.asked(smi.CONFIDENTIAL_READY)[0].out, re.IGNORECASE)
    if said is None:
        return "", ["confidential computing is on, and nvidia-smi does not show whether the cards are ready for CUDA"]
    if said[1].lower() == "ready":
        return "", []
    return (
        "confidential computing is on and its state is not ready, so CUDA fails with error 802: verify the cards, then "
        "run nvidia-smi conf-compute -srs 1"
    ), []
