"""The socket of a running HAProxy: the state of its servers, and the state that survives a reload."""

from __future__ import annotations

import csv
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.atomic_write import write_whole
from ..core.errors import InputError

TIMEOUT_S = 10
# Bits of the administrative state, from HAProxy's management guide.
MAINTENANCE, DRAIN = 0x01 | 0x04, 0x08 | 0x10
UP = "2"
# The prefix of the gateway's own tables and proxies.
OWN = "own:"
# The first line of a state file; a file with this line alone contains no states.
VERSION = "1\n"


@dataclass(frozen=True)
class State:
    """One server in HAProxy. weight: percent of its share."""

    backend: str
    name: str
    up: bool
    drained: bool
    maintained: bool
    weight: int


class Runtime:
    """The socket of one HAProxy."""

    def __init__(self, path: str | Path) -> None:
        """Store the path of its ``stats socket`` of level admin."""
        self.path = str(path)

    def ask(self, command: str) -> str:
        """Return the output of a command.

        Raises:
            OSError: if no process listens.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
            one.settimeout(TIMEOUT_S)
            one.connect(self.path)
            one.sendall(command.encode() + b"\n")
            # Without this, the master's socket waits for more commands.
            one.shutdown(socket.SHUT_WR)
            parts = []
            while part := one.recv(65536):
                parts.append(part)
        return b"".join(parts).decode(errors="replace")

    def info(self) -> dict[str, str]:
        """Return HAProxy's information on itself, such as ``description`` and ``Pid``."""
        lines = (line.partition(": ") for line in self.ask("show info").splitlines())
        return {name: value for name, mark, value in lines if mark}

    def servers(self) -> list[State]:
        """Return the state of every server of a model.

        Raises:
            InputError: for the format of an unknown version of HAProxy.
        """
        version, _, text = self.ask("show servers state").partition("\n")
        if version.strip() != VERSION.strip():
            raise InputError(f"{self.path}: show servers state: version {version!r} is not known")
        names = text.partition("\n")[0].lstrip("# ").split()
        rows = [dict(zip(names, line.split(), strict=False)) for line in text.splitlines()[1:] if line.strip()]
        return [
            State(
                row["be_name"],
                row["srv_name"],
                row["srv_op_state"] == UP,
                bool(int(row["srv_admin_state"]) & DRAIN),
                bool(int(row["srv_admin_state"]) & MAINTENANCE),
                int(row["srv_uweight"]),
            )
            for row in rows
            if not row["be_name"].startswith(OWN)
        ]

    def requests(self, names: Collection[str], worker: str = "") -> dict[str, int]:
        """Return ``{server: requests}`` that a worker has sent or queued, for servers with any.

        Args:
            names: names of servers.
            worker: process ID of an older worker, if this is the master's socket; empty for the current worker.
        """
        text = self.ask(f"{f'@!{worker} ' if worker else ''}show stat -1 4 -1")
        found: dict[str, int] = {}
        for row in csv.DictReader(text.lstrip("# ").strip().splitlines()):
            if row["svname"] in names and (count := int(row["qcur"] or 0) + int(row["scur"] or 0)):
                found[row["svname"]] = found.get(row["svname"], 0) + count
        return found

    def old_workers(self) -> list[str]:
        """Return the process IDs of workers that still serve after a reload, if this is the master's socket."""
        _, _, text = self.ask("show proc").partition("# old workers")
        rows = (line.split() for line in text.partition("# programs")[0].splitlines())
        return [row[0] for row in rows if len(row) > 1 and row[0].isdigit() and row[1] == "worker"]

    def withdraw(self, worker: str, current: Mapping[str, Mapping[str, str]]) -> list[str]:
        """Remove the entries of an older worker's maps that are no longer valid, if this is the master's socket.

        Args:
            worker: process ID of the older worker.
            current: by the file name of a map, its valid entries. Other maps stay.

        Returns:
            The keys of the removed entries.
        """
        removed = []
        for line in self.ask(f"@!{worker} show map").splitlines():
            number, _, rest = line.partition(" ")
            valid = current.get(Path(rest.strip("()").partition(")")[0]).name)
            if not number.isdigit() or valid is None:
                continue
            entries = (entry.split(" ", 2) for entry in self.ask(f"@!{worker} show map #{number}").splitlines())
            for entry in entries:
                if len(entry) == 3 and valid.get(entry[1]) != entry[2]:
                    self.ask(f"@!{worker} del map #{number} {entry[1]}")
                    removed.append(entry[1])
        return removed

    def set_state(self, backend: str, server: str, state: str) -> None:
        """Set a server to ``ready``, ``drain`` (no new requests) or ``maint`` (no requests).

        Raises:
            InputError: if HAProxy has no such server.
        """
        said = self.ask(f"set server {backend}/{server} state {state}").strip()
        if said:
            raise InputError(f"{self.path}: {backend}/{server}: {said}")

    def set_weight(self, backend: str, server: str, percent: int) -> None:
        """Set the weight of a server, in percent of its share; 0 means no new requests.

        Raises:
            InputError: if HAProxy has no such server.
        """
        said = self.ask(f"set server {backend}/{server} weight {percent}%").strip()
        if said:
            raise InputError(f"{self.path}: {backend}/{server}: {said}")

    def save(self, path: Path, places: Mapping[str, tuple[str, int]]) -> None:
        """Save the state that a reload would lose: drained servers, weights, servers that are up.

        Args:
            path: the ``server-state-file`` of the configuration.
            places: address and port of each server in the new configuration. The saved state takes precedence over
                it, and an outdated address would send requests to a server's previous place.
        """
        version, *lines = self.ask("show servers state").splitlines()
        names = lines[0].lstrip("# ").split() if lines else []
        for number, line in enumerate(lines[1:], 1):
            row = dict(zip(names, line.split(), strict=False))
            if row.get("be_name", "").startswith(OWN):
                lines[number] = ""
            elif place := places.get(row.get("srv_name", "")):
                row |= {"srv_addr": place[0], "srv_port": str(place[1])}
                lines[number] = " ".join(row.values())
        write_whole(path, "\n".join([version, *filter(None, lines)]) + "\n", 0o600)
