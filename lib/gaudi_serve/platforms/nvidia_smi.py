"""NVIDIA's GPUs in nvidia-smi's output: query rows, parts of divided cards, links, peers, programs, and the fabric."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..core.run import Result, run

FIELDS = (
    *("index", "uuid", "pci.bus_id", "name", "memory.total", "memory.used", "compute_cap", "mig.mode.current"),
    *("driver_version", "persistence_mode"),
)
# Permanent errors; older drivers do not know all of these fields, and then refuse the whole query.
ERRORS = ("index", "ecc.errors.uncorrected.volatile.total", "remapped_rows.pending", "remapped_rows.failure")
ACTION = "gpu_recovery_action"
SERIALS = ("uuid", "serial", "vbios_version")
NO_ACTION = "None"  # the driver's name for no recovery
CSV = "--format=csv,noheader,nounits"
QUERY = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", CSV]
SICK = ["nvidia-smi", f"--query-gpu={','.join((*ERRORS, ACTION))}", CSV]
NUMBERS = ["nvidia-smi", f"--query-gpu={','.join(SERIALS)}", CSV]
SICK_BEFORE = ["nvidia-smi", f"--query-gpu={','.join(ERRORS)}", CSV]  # for older drivers, which report no action
PROGRAMS = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", CSV]
TABLE, PROFILES = ["nvidia-smi"], ["nvidia-smi", "mig", "-lgip"]
LIST, LINKS, PEERS = ["nvidia-smi", "-L"], ["nvidia-smi", "topo", "-m"], ["nvidia-smi", "topo", "-p2p", "r"]
FABRIC = ["nvidia-smi", "--query-gpu=uuid,fabric.state,fabric.status", CSV]
EVERYTHING = ["nvidia-smi", "-q"]
CONFIDENTIAL, CONFIDENTIAL_READY = (["nvidia-smi", "conf-compute", option] for option in ("-f", "-grs"))
VERSION = ["nvidia-smi", "--query-gpu=driver_version", CSV]
# What to do about an exit status of nvidia-smi.
STATUSES = {
    4: "this user may not ask the driver",
    6: "no device was found",
    8: "a card lacks its power cables",
    9: "the driver is not loaded",
    10: "the kernel has problems with a card's interrupts",
    12: "the library NVML is missing: the driver's packages are not complete",
    13: "the library NVML is older than nvidia-smi: the driver's packages are of two versions",
    14: "a card's infoROM is corrupt",
    15: "a card has fallen off the bus",
}
# With these it has shown the cards, and ends with what it thinks of one of them.
SHOWN = (0, 8, 10, 14, 15)
HANGS, MISSING = 124, 127  # statuses of core.run
NEEDS_RESET = "[GPU requires reset]"
MISMATCH = "Driver/library version mismatch"
BUS = re.compile(r"(?:[0-9A-Fa-f]{4})?([0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])")
GPU_LINE = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[\w-]+)\)")
PART_LINE = re.compile(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[\w/-]+)\)")
PART_GIB = re.compile(r"(\d+)gb")
# In the table for people: card, its parts' instances and number, and the memory in use and in all.
PART_ROW = re.compile(r"^\|\s+(\d+)\s+\d+\s+\d+\s+(\d+)\s+\|\s+(\d+)MiB\s*/\s*(\d+)MiB\s", re.MULTILINE)
PROFILE_ROW = re.compile(r"^\|\s+(\d+)\s+MIG (\S+)\s+\d+\s+\d+/\d+\s+(\d+\.\d+)\s", re.MULTILINE)
WARNING = re.compile(r"^WARNING: (.+)", re.MULTILINE)
LOST = re.compile(r"Unable to determine the device handle for (?i:GPU) ?(?:\d+: )?([0-9A-Fa-f:.]*): (.+)")
UNKNOWN_FIELD = re.compile(r'Field "([\w.]+)" is not a valid field')
CARD = re.compile(r"GPU(\d+)")
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
READABLE = re.compile(r"\d")
# A part has less memory than its name indicates: 20.00 GiB of 1g.24gb is the least that is known (GB200).
PART_SHARE = 0.83


@dataclass(frozen=True)
class Row:
    """One card of the query, each field as printed; ``bus_id`` in the kernel's form, empty if unknown."""

    index: int
    uuid: str
    bus_id: str
    fields: Mapping[str, str]

    def number(self, field: str) -> int | None:
        """Return a number of MiB; None for ``[N/A]`` and the like."""
        text = self.fields[field]
        return int(text) if re.fullmatch(r"\d{1,9}", text) else None

    @property
    def divided(self) -> bool:
        """Return whether its memory and processors are divided into parts (MIG)."""
        return self.fields["mig.mode.current"] == "Enabled"


@dataclass(frozen=True)
class Part:
    """A part of a divided card: the card's UUID, its own, the profile such as 3g.40gb, and its memory in MiB.

    used_mib: what programs have of it; None if unknown.
    """

    card: str
    uuid: str
    profile: str
    memory_mib: int
    used_mib: int | None = None


@dataclass(frozen=True)
class Errors:
    """Permanent errors of a card: why it should not be used, empty for none; and the action that its driver requests.

    action: such as None, Reset, Reboot, Drain P2P; empty if the driver does not report it.
    """

    index: int
    sick: str
    action: str


def asked(argv: list[str], timeout: float = 20.0) -> tuple[Result, str]:
    """Return nvidia-smi's output, and why it failed; a sick card may block it, so it has a time limit."""
    told = run(argv, timeout)
    text = f"{told.out}\n{told.err}"
    if MISMATCH in text:
        return told, f"nvidia-smi: {MISMATCH}: the driver was upgraded, and the old one is loaded; reboot the host"
    # With one lost card it prints the others, and ends with a status of its own.
    if (told.status in SHOWN or LOST.search(text)) and READABLE.search(told.out):
        return told, ""
    if told.status in (HANGS, MISSING):
        return told, told.err
    last = (told.err.strip() or told.out.strip() or "no answer").splitlines()[-1]
    known = STATUSES.get(told.status)
    return told, f"nvidia-smi: {last}" + (f" (status {told.status}: {known})" if known else "")


def warnings(told: Result) -> list[str]:
    """Return what nvidia-smi warns of beside the cards, such as a corrupt infoROM, of which CUDA needs nothing."""
    return [f"nvidia-smi: {found[1].strip()}" for found in WARNING.finditer(f"{told.out}\n{told.err}")]


def old_driver(told: Result) -> str:
    """Return the version of a driver that is too old for a query; empty if that is not why the query failed."""
    if not UNKNOWN_FIELD.search(f"{told.out}\n{told.err}"):
        return ""
    found = re.search(r"^\d+\.[\d.]+$", asked(VERSION)[0].out, re.MULTILINE)
    return found[0] if found else "of this host"


def serials() -> dict[str, dict[str, str | None]]:
    """Return serial number and firmware version of each card by UUID; consumer cards have no serial number."""
    told, problem = asked(NUMBERS)
    found: dict[str, dict[str, str | None]] = {}
    for line in [] if problem else told.out.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(SERIALS) and cells[0].startswith("GPU-"):
            serial, firmware = (cell if re.fullmatch(r"[\w.-]+", cell) else None for cell in cells[1:])
            found[cells[0]] = {"serial": serial, "firmware": firmware}
    return found


def bus_id(text: str) -> str:
    """Return a bus ID in the kernel's form, with a four-digit domain; empty for an invalid one."""
    found = BUS.fullmatch(text.strip())
    return found[1].lower() if found else ""


def rows(text: str) -> list[Row]:
    """Return the cards of a query with FIELDS; other lines are skipped."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(", ")]
        if len(cells) != len(FIELDS) or not cells[0].isdigit():
            continue
        fields = dict(zip(FIELDS, cells, strict=True))
        found.append(Row(int(cells[0]), fields["uuid"], bus_id(fields["pci.bus_id"]), fields))
    return found


def lost_handles(text: str) -> dict[str, str]:
    """Return ``{bus_id: message}`` of the cards for which nvidia-smi has no handle."""
    return {bus_id(found[1]): f"nvidia-smi: {found[2].strip()}" for found in LOST.finditer(text)}


def parts(text: str, table: str = "", profiles: str = "") -> list[Part]:
    """Return the parts of divided cards in the order of ``nvidia-smi -L``.

    Args:
        text: its output.
        table: that of ``nvidia-smi``, which shows the memory of each part; some users may not see it.
        profiles: that of ``nvidia-smi mig -lgip``, which shows the memory of each profile.
    """
    shown = {(int(one[1]), int(one[2])): (int(one[4]), int(one[3])) for one in PART_ROW.finditer(table)}
    by_name = {(int(one[1]), one[2]): int(float(one[3]) * 1024) for one in PROFILE_ROW.finditer(profiles)}
    index, card, found = -1, "", []
    for line in text.splitlines():
        if gpu := GPU_LINE.match(line):
            index, card = int(gpu[1]), gpu[2]
        elif part := PART_LINE.match(line):
            # Several programs of one instance, such as 1c.3g.40gb, share its memory.
            name = re.sub(r"^\d+c\.", "", part[1])
            size = PART_GIB.search(name)
            guessed = int(int(size[1]) * 1024 * PART_SHARE) if size else 0
            mib, used = shown.get((index, int(part[2])), (by_name.get((index, name), guessed), None))
            found.append(Part(card, part[3], part[1], mib, used))
    return found


def matrix(text: str) -> dict[tuple[int, int], str]:
    """Return ``{(index, index): word}`` of a matrix of ``nvidia-smi topo``, without the diagonal.

    Its first line, which begins with a tab, names the columns; cards come before network cards and affinities.
    """
    columns: list[int] = []
    found: dict[tuple[int, int], str] = {}
    for line in ESCAPES.sub("", text).splitlines():
        first, *cells = (cell.strip() for cell in line.split("\t"))
        card = CARD.fullmatch(first)
        if not first and not columns:
            columns = [int(number[1]) for cell in cells if (number := CARD.fullmatch(cell))]
        elif card:
            pairs = zip(columns, cells, strict=False)
            found |= {(int(card[1]), other): word for other, word in pairs if word not in ("X", "")}
    return found


def programs(text: str) -> dict[str, str]:
    """Return ``{uuid: "python3 (pid 4711)"}`` of the programs that compute on a card or a part."""
    found: dict[str, str] = {}
    for uuid, pid, name, _ in _programs(text):
        found.setdefault(uuid, f"{name.rpartition('/')[2]} (pid {pid})")
    return found


def program_mib(text: str) -> dict[str, int | None]:
    """Return the MiB of each card or part that the programs of ``programs`` use; None if one of them is unreadable."""
    found: dict[str, int | None] = {}
    for uuid, _, _, used in _programs(text):
        before = found.get(uuid, 0)
        found[uuid] = None if before is None or not used.isdigit() else before + int(used)
    return found


def _programs(text: str) -> list[tuple[str, str, str, str]]:
    lines = [[cell.strip() for cell in line.split(", ")] for line in text.splitlines()]
    return [(one[0], one[1], ", ".join(one[2:-1]), one[-1]) for one in lines if len(one) > 3 and one[1].isdigit()]


def errors() -> list[Errors]:
    """Return the permanent errors of each card; empty if the driver does not even know the older fields."""
    for argv in (SICK, SICK_BEFORE):
        told = asked(argv)[0]
        lines = [[cell.strip() for cell in line.split(", ")] for line in told.out.splitlines()]
        width = len(argv[1].split(","))
        found = [
            Errors(int(cells[0]), _sick(*cells[1 : len(ERRORS)]), _action(cells[len(ERRORS) :]))
            for cells in lines
            if len(cells) == width and cells[0].isdigit()
        ]
        if found or told.status == HANGS:
            return found
    return []


def _sick(uncorrected: str, pending: str, failure: str) -> str:
    """Return why a card should not be used any more; empty for no reason."""
    if NEEDS_RESET in (uncorrected, pending, failure):
        return "nvidia-smi shows that it requires a reset; reset it or reboot the host"
    if failure in ("Yes", "1"):
        return "it could not put a spare row in place of a broken one of its memory; replace it"
    if pending in ("Yes", "1"):
        return "a spare row of its memory waits for a reset; reset it or reboot the host"
    if uncorrected.isdigit() and int(uncorrected):
        return f"it has {uncorrected} uncorrected memory errors since the driver was loaded"
    return ""


def _action(cells: Sequence[str]) -> str:
    """Return the action that a driver requests; empty if it does not report it, such as ``[N/A]``."""
    return "".join(cell for cell in cells if re.fullmatch(r"[A-Z][\w ]+", cell))


def fabric_rows(text: str) -> dict[str, tuple[str, str]]:
    """Return ``{uuid: (state, status)}`` of each card's fabric of switches, by the query FABRIC."""
    lines = [[cell.strip() for cell in line.split(", ")] for line in text.splitlines()]
    return {one[0]: (one[1], one[2]) for one in lines if len(one) == 3 and one[0].startswith("GPU-")}


def licences(text: str) -> dict[str, str]:
    """Return ``{bus_id: status}`` of the licences that ``nvidia-smi -q`` shows, such as Unlicensed (Restricted)."""
    found = (
        (place, re.search(r"^\s+License Status\s*:\s*(.+?)\s*$", card, re.MULTILINE)) for place, card in _cards(text)
    )
    return {place: status[1] for place, status in found if status}


def _cards(text: str) -> list[tuple[str, str]]:
    """Return the place on the bus of each card that ``nvidia-smi -q`` shows, and its part of the output."""
    parts = re.split(r"^GPU (?=[0-9A-Fa-f]+:)", text, flags=re.MULTILINE)[1:]
    return [(bus_id(part.split()[0]), part) for part in parts]


def fabric(text: str) -> dict[str, tuple[str, str]]:
    """Return ``{bus_id: (state, status)}`` of the cards whose fabric ``nvidia-smi -q`` shows."""
    found = {}
    for place, card in _cards(text):
        part = re.search(r"^\s+Fabric\s*$((?:\n\s+\w[^\n]*:[^\n]*)+)", card, re.MULTILINE)
        said = dict(re.findall(r"^\s+(State|Status)\s*:\s*(.+?)\s*$", part[1], re.MULTILINE)) if part else {}
        if "State" in said:
            found[place] = (said["State"], said.get("Status", ""))
    return found
