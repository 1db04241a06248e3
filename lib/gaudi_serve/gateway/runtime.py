"""Talks to a running HAProxy by its socket: who is up, drain and ready, and what a reload must not forget."""

from __future__ import annotations

import csv
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.atomic_write import write_whole
from ..core.errors import InputError

TIMEOUT_S = 10
# Bits of the administrative state, as HAProxy's management guide has them.
MAINTENANCE, DRAIN = 0x01 | 0x04, 0x08 | 0x10
UP = "2"
# How the names of the gateway's own tables and parts begin.
OWN = "own:"
# What a state file begins with; without any state of servers it says nothing.
VERSION = "1\n"


@dataclass(frozen=True)
class State:
    """One server as HAProxy sees it. weight: of 100, what it is given of its share."""

    backend: str
    name: str
    up: bool
    drained: bool
    maintained: bool
    weight: int


class Runtime:
    """The socket of one HAProxy."""

    def __init__(self, path: str | Path) -> None:
        """Take the path of its ``stats socket`` of level admin."""
        self.path = str(path)

    def ask(self, command: str) -> str:
        """Return what a command answers.

        Raises:
            OSError: where nobody listens.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
            one.settimeout(TIMEOUT_S)
            one.connect(self.path)
            one.sendall(command.encode() + b"\n")
            # The master's socket would wait for more.
            one.shutdown(socket.SHUT_WR)
            parts = []
            while part := one.recv(65536):
                parts.append(part)
        return b"".join(parts).decode(errors="replace")

    def info(self) -> dict[str, str]:
        """Return what it tells of itself, as ``description`` and ``Pid``."""
        lines = (line.partition(": ") for line in self.ask("show info").splitlines())
        return {name: value for name, mark, value in lines if mark}

    def servers(self) -> list[State]:
        """Return the state of every server of a model.

        Raises:
            InputError: for an answer of another version of HAProxy's.
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
        """Return ``{server: requests}`` that a worker sent to them or queues for them, of the servers with some.

        Args:
            names: of servers.
            worker: the process of an older worker, where this is the master's socket; empty for the current one.
        """
        text = self.ask(f"{f'@!{worker} ' if worker else ''}show stat -1 4 -1")
        found: dict[str, int] = {}
        for row in csv.DictReader(text.lstrip("# ").strip().splitlines()):
            if row["svname"] in names and (count := int(row["qcur"] or 0) + int(row["scur"] or 0)):
                found[row["svname"]] = found.get(row["svname"], 0) + count
        return found

    def old_workers(self) -> list[str]:
        """Return the processes of before a reload that still serve, where this is the socket of the master."""
        _, _, text = self.ask("show proc").partition("# old workers")
        rows = (line.split() for line in text.partition("# programs")[0].splitlines())
        return [row[0] for row in rows if len(row) > 1 and row[0].isdigit() and row[1] == "worker"]

    def set_state(self, backend: str, server: str, state: str) -> None:
        """Let a server be ``ready``, ``drain`` (no new requests) or ``maint`` (none at all).

        Raises:
            InputError: where HAProxy has no such server.
        """
        said = self.ask(f"set server {backend}/{server} state {state}").strip()
        if said:
            raise InputError(f"{self.path}: {backend}/{server}: {said}")

    def set_weight(self, backend: str, server: str, percent: int) -> None:
        """Let a server have a part of its share, in percent; 0 is none of the new requests.

        Raises:
            InputError: where HAProxy has no such server.
        """
        said = self.ask(f"set server {backend}/{server} weight {percent}%").strip()
        if said:
            raise InputError(f"{self.path}: {backend}/{server}: {said}")

    def save(self, path: Path, places: Mapping[str, tuple[str, int]]) -> None:
        """Write down what a reload would forget: drained servers, weights, who is up.

        Args:
            path: the ``server-state-file`` of the configuration.
            places: address and port of each server by its name, in the configuration that comes: what is kept wins
                over it, and would let a server that has moved be asked where it was.
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
