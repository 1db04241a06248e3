"""The packages of a host as dpkg and apt report them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..core.run import run

SETTLED = ("installed", "config-files", "not-installed")


class Package(NamedTuple):
    """A package in dpkg's database; ``unique`` is its name, with the architecture if it is ambiguous without it."""

    name: str
    unique: str
    version: str
    want: str
    flag: str
    state: str

    @property
    def torn(self) -> bool:
        """Return whether it is half installed: dpkg cannot repair it, and apt treats it as installed."""
        return self.flag != "ok" or self.state == "half-installed"

    @property
    def unfinished(self) -> bool:
        """Return whether dpkg was interrupted in it; complete packages that ``dpkg --audit`` reports do not count."""
        return self.torn or self.state not in SETTLED


def packages(*patterns: str) -> list[Package]:
    """Return the packages in dpkg's database that match one of the patterns, or all."""
    fields = ("Package", "binary:Package", "Version", "db:Status-Want", "db:Status-Eflag", "db:Status-Status")
    columns = "\t".join(f"${{{field}}}" for field in fields)
    shown = run(["dpkg-query", "--show", "--showformat", f"{columns}\n", *patterns])
    return [Package(*line.split("\t")) for line in shown.out.splitlines()]


def versions(name: str) -> list[str]:
    """Return the versions of a package that apt offers, the newest first."""
    return offered([name]).get(name, [])


def offered(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the versions of packages that apt offers, the newest first, by name."""
    rows = run(["apt-cache", "madison", *names], timeout=60).out.splitlines() if names else []
    found: dict[str, list[str]] = {}
    for row in rows:
        name, *cells = (cell.strip() for cell in row.split("|"))
        if cells:
            found.setdefault(name, []).append(cells[0])
    return found


def interrupted_dpkg() -> str:
    """Return the packages that are not completely installed; empty if dpkg was not interrupted."""
    unfinished = ", ".join(f"{package.name} is {package.state}" for package in packages() if package.unfinished)
    # The journal of an interrupted dpkg run: apt refuses to work while it exists, whatever it contains.
    journal = [path.name for path in Path("/var/lib/dpkg/updates").glob("[0-9]*")]
    return unfinished or ("dpkg's journal was not taken over" if journal else "")
