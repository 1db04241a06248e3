"""A host for the list of a bundle, with functions that create items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.hide import without_credentials
from ..stages.apt_access import apt_access, package_architecture
from .items import Item, Need

Known = Mapping[str, Any]
OF_HOST = "package sources of the host"


@dataclass(frozen=True)
class BundleHost:
    """A host and its items.

    known: its variables, with its facts. models: those of its plan. gives_images: whether other hosts copy its images.
    """

    name: str
    known: Known
    models: Sequence[Known] = ()
    gives_images: bool = False

    @property
    def system(self) -> Known:
        """Return ``gaudi_system``."""
        found: Known = self.known["gaudi_system"]
        return found

    @property
    def machine(self) -> Known:
        """Return ``gaudi_host``; empty on a host without models, where it is not read."""
        found: Known = self.known.get("gaudi_host") or {}
        return found

    @property
    def architecture(self) -> str:
        """Return the architecture of its packages; empty if the facts do not contain it."""
        return package_architecture(self.system, self.machine)

    @property
    def release(self) -> str:
        """Return the system of its packages."""
        return " ".join(filter(None, (self.system["id"], self.system["version_id"], self.architecture)))

    @property
    def distribution(self) -> str:
        """Return the source of its distribution's packages."""
        return f"{self.system['id']} {self.system.get('codename') or self.system['version_id']}"

    def need(self, role: str, *models: str) -> Need:
        """Return the need of this host, for a role and for models."""
        return Need((self.name,), models, (role,))

    def packages(
        self, names: Sequence[str], role: str, origin: str = "", problem: str = "", unknown: str = ""
    ) -> list[Item]:
        """Return packages of this host as items.

        Args:
            names: package names, each with ``=version`` if a version is requested.
            role: the role that installs them.
            origin: their source; empty for the distribution.
            problem: the problem of packages without a version.
            unknown: a problem of all packages.
        """
        found = []
        for text in dict.fromkeys(names):
            name, _, version = text.partition("=")
            found.append(
                Item(
                    *("package", name, version, origin or self.distribution, self.release),
                    need=self.need(role),
                    pinned=bool(version),
                    problem="; ".join(filter(None, ("" if version else problem, unknown))),
                )
            )
        return found

    def repository(self, given: Known, role: str) -> tuple[list[Item], str]:
        """Return the items of a variable's repository, and the origin of its packages."""
        if not given:
            return [], OF_HOST
        uris = [str(without_credentials(one)) for one in apt_access(given["uris"])["uris"]]
        parts = " ".join(_words(given.get("suites")) + _words(given.get("components")))
        found = [Item("repository", one, parts, one, self.release, self.need(role)) for one in uris]
        signed = str(given.get("signed_by") or "")
        if signed.startswith(("/", "http://", "https://")):
            found += [Item("key", signed, origin=signed, need=self.need(role))]
        return found, " ".join(uris)


def _words(value: Any) -> list[str]:
    return [str(one) for one in ([value] if isinstance(value, str) else value or [])]
