"""What dpkg and apt know of the packages of a host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..core.run import run

SETTLED = ("installed", "config-files", "not-installed")


class Package(NamedTuple):
    """What dpkg knows of a package; ``unique`` is its name with the architecture, where that is needed to tell it."""

    name: str
    unique: str
    version: str
    want: str
    flag: str
    state: str

    @property
    def torn(self) -> bool:
        """Whether its files are half there: dpkg cannot finish that alone, and apt takes it for installed."""
        return self.flag != "ok" or self.state == "half-installed"

    @property
    def unfinished(self) -> bool:
        """Whether dpkg was cut off in it; not what ``dpkg --audit`` has to say of packages that are whole."""
        return self.torn or self.state not in SETTLED


def packages(*patterns: str) -> list[Package]:
    """Return what dpkg knows of the packages that fit, or of all."""
    fields = ("Package", "binary:Package", "Version", "db:Status-Want", "db:Status-Eflag", "db:Status-Status")
    columns = "\t".join(f"${{{field}}}" for field in fields)
    shown = run(["dpkg-query", "--show", "--showformat", f"{columns}\n", *patterns])
    return [Package(*line.split("\t")) for line in shown.out.splitlines()]


def versions(name: str) -> list[str]:
    """Return the versions of a package that apt can get, the newest first."""
    return offered([name]).get(name, [])


def offered(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the versions of packages that apt can get, the newest first, by their names."""
    rows = run(["apt-cache", "madison", *names], timeout=60).out.splitlines() if names else []
    found: dict[str, list[str]] = {}
    for row in rows:
        name, *cells = (cell.strip() for cell in row.split("|"))
        if cells:
            found.setdefault(name, []).append(cells[0])
    return found


def interrupted_dpkg() -> str:
    """Return which packages are not wholly installed; empty where dpkg was not cut off."""
    unfinished = ", ".join(f"{package.name} is {package.state}" for package in packages() if package.unfinished)
    # Its own journal of a run: apt refuses to work while there is one, whatever it says.
    journal = [path.name for path in Path("/var/lib/dpkg/updates").glob("[0-9]*")]
    return unfinished or ("dpkg's journal was not taken over" if journal else "")
