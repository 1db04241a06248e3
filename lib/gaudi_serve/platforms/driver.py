"""The drivers of platforms as packages of Debian and Ubuntu: data for role driver and its facts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Companion:
    """A package that must have exactly the driver's version.

    names: its possible names; ``{branch}`` is the part of a version before its first point. service: its unit. wanted:
    whether a machine needs it, by the machine's root. without: the consequence of its absence.
    """

    names: tuple[str, ...]
    service: str
    wanted: Callable[[str], bool]
    without: str


@dataclass(frozen=True)
class Driver:
    """The driver of a platform's devices.

    listed: patterns by which dpkg lists its packages, and perhaps others. belongs: a regular expression of the names of
    those that belong together; they are held, so that none of them changes alone. module: the kernel module whose
    version is the driver's. modules: those to load, in their order. unload: those to unload before another version is
    loaded, in their order.

    packages: those that are installed together, all of one version. Empty if any one of sources installs the driver
    with all its dependencies: names with ``{branch}``, the preferred one first. parts: a regular expression of names
    that show that packages installed the driver, although none of sources is installed. usual: first part of the
    default version for a host without a driver; empty if the kernel's own driver is enough, or if a release determines
    it.

    repository: the source of its packages, for a message. service: its own unit, which should run if it exists.
    companion: a further package for machines that need it. rivals: kernel modules that claim the devices in its place.
    users: units that use the driver: they are stopped while it is replaced, and started again.
    """

    listed: tuple[str, ...]
    belongs: str
    module: str
    modules: tuple[str, ...] = ()
    unload: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    parts: str = ""
    usual: str = ""
    repository: str = ""
    service: str = ""
    companion: Companion | None = None
    rivals: tuple[str, ...] = ()
    users: tuple[str, ...] = ()

    def is_own(self, package: str) -> bool:
        """Return whether a package belongs to it."""
        return re.fullmatch(self.belongs, package) is not None

    def rank(self, package: str) -> int | None:
        """Return the rank of a package among those that install the driver; None if it does not install it."""
        return next((place for place, name in enumerate(self.sources) if _fits(name, package)), None)

    def is_part(self, package: str) -> bool:
        """Return whether a package shows that packages installed the driver."""
        return re.fullmatch(self.parts, package) is not None

    def is_companion(self, package: str) -> bool:
        """Return whether a package is the companion of exactly the driver's version."""
        return self.companion is not None and any(_fits(name, package) for name in self.companion.names)

    @property
    def services(self) -> list[str]:
        """Return the units that belong to it."""
        return [one for one in (self.service, self.companion.service if self.companion else "") if one]


def _fits(name: str, package: str) -> bool:
    pattern = re.escape(name).replace(re.escape("{branch}"), r"\d+")
    return re.fullmatch(pattern, package) is not None


def upstream(version: str) -> str:
    """Return the driver's version from that of a package: 580.95.05 for 1:580.95.05-0ubuntu1."""
    return version.rpartition(":")[2].partition("-")[0]


def begins(version: str, wanted: str) -> bool:
    """Return whether a package's version matches: in full, or by the first parts with or without its epoch."""
    return any(
        text == wanted or (text.startswith(wanted) and not text[len(wanted)].isalnum())
        for text in (version, version.rpartition(":")[2])
    )
