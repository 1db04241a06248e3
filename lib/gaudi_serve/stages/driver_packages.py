"""Changes to drivers of NVIDIA and AMD, whose packages have the driver's own version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core.words import some_names
from ..platforms.driver import Driver, begins, upstream
from .base import drift_lines

NOTHING: Mapping[str, Any] = {"there": False, "runs": False, "enabled": False}


@dataclass(frozen=True)
class Source:
    """The package that provides a driver, at one of its versions."""

    package: str
    version: str

    @property
    def exact(self) -> str:
        """Return the package with its version in apt's form."""
        return f"{self.package}={self.version}"


@dataclass(frozen=True)
class Present:
    """The live driver of a host.

    packages: the driver's packages, with version, held and whole. offered: versions that apt offers. loaded: the
    version of the loaded module; empty if the module has no version, None if none is loaded. modules: the loaded
    modules. services: its units. needs_companion: the machine needs the companion package of exactly the driver's
    version. addresses: those of the package source that the role has added.
    """

    packages: Mapping[str, Mapping[str, Any]]
    offered: Mapping[str, Sequence[str]]
    loaded: str | None
    modules: frozenset[str]
    services: Mapping[str, Mapping[str, Any]]
    needs_companion: bool
    broken: str = ""
    addresses: tuple[str, ...] = ()

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Present:
        """Read ``gaudi_driver``."""
        return cls(
            facts["packages"],
            facts.get("offered") or {},
            facts["driver_version"],
            frozenset(facts["modules"]),
            facts.get("services") or {},
            bool(facts.get("needs_companion")),
            facts.get("broken") or "",
            tuple(facts.get("source") or ()),
        )

    def source(self, driver: Driver) -> Source | None:
        """Return the package that provides the driver, or else the first of its parts; None without a package."""
        found = [(rank, name) for name in self.packages if (rank := driver.rank(name)) is not None]
        # Packages of another version than the loaded driver are remains of an older one.
        parts = [(0, name) for name in self.packages if driver.is_part(name) and self._may_be_loaded(name)]
        name = min(found or parts, default=(0, ""))[1]
        return Source(name, str(self.packages[name]["version"])) if name else None

    def _may_be_loaded(self, name: str) -> bool:
        return not self.loaded or begins(str(self.packages[name]["version"]), self.loaded)

    def companion(self, driver: Driver) -> Source | None:
        """Return the installed companion package of exactly the driver's version."""
        found = next((name for name in self.packages if driver.is_companion(name)), None)
        return Source(found, str(self.packages[found]["version"])) if found else None

    def best(self, driver: Driver, wanted: str, source: Source | None = None) -> Source | None:
        """Return the preferred package of a version at its newest build that apt offers; the installed kind first.

        Packages of Ubuntu, Debian and NVIDIA cannot be mixed.
        """
        here = driver.rank(source.package) if source else None
        found = [
            ((rank != here, rank), Source(name, version))
            for name, versions in self.offered.items()
            if (rank := driver.rank(name)) is not None
            for version in versions
            if begins(version, wanted)
        ]
        return min(found, key=lambda one: one[0])[1] if found else None

    def others(self, target: Source) -> list[str]:
        """Return the other installed packages of the driver, each at the target's version if apt offers it.

        If packages need each other in one version, apt selects the newest one and refuses all of them. It leaves held
        packages unchanged unless they are named.
        """
        return [
            f"{name}={versions[0]}"
            for name, one in self.packages.items()
            if name != target.package
            and (
                versions := [text for text in self.offered.get(name, ()) if upstream(text) == upstream(target.version)]
            )
            and one["version"] not in versions
        ]

    def best_companion(self, driver: Driver, version: str) -> Source | None:
        """Return the companion package of one version of the driver that apt offers."""
        return next(
            (
                Source(name, one)
                for name, versions in self.offered.items()
                if driver.is_companion(name)
                for one in versions
                if upstream(one) == version
            ),
            None,
        )


@dataclass(frozen=True)
class Changes:
    """The pending changes to a driver, and why they are impossible.

    install: packages at a version. unhold, hold: names, before and after the installation. load: modules. start: units.
    reload: the loaded version differs from the package's. replaces: the present driver changes, which stops every
    server. foreign: no package provides it. missing: why apt cannot install the desired version; fetch: its package
    source must be added before this is known. version: of the driver after the changes.
    """

    repair: bool = False
    install: tuple[str, ...] = ()
    unhold: tuple[str, ...] = ()
    hold: tuple[str, ...] = ()
    load: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    reload: bool = False
    replaces: bool = False
    foreign: bool = False
    missing: tuple[str, ...] = ()
    fetch: bool = False
    version: str = ""

    @property
    def lines(self) -> list[str]:
        """Return the changes as sentences."""
        lines = drift_lines({**self.found, "repair": self.repair, "reload": self.reload})
        if self.fetch:
            lines.append(f"the package source of driver {self.version} is missing")
        return [*lines, *(f"service {unit} does not run, or does not start at boot" for unit in self.start)]

    @property
    def found(self) -> dict[str, Any]:
        """Return the lists of differences."""
        return {"install": list(self.install), "hold": list(self.hold), "load": list(self.load)}

    @property
    def due(self) -> bool:
        """Return whether any change is pending."""
        return bool(self.repair or self.install or self.hold or self.load or self.start or self.reload or self.fetch)


def package_changes(
    driver: Driver,
    facts: Mapping[str, Any],
    version: str = "",
    further: Sequence[str] = (),
    addresses: Sequence[str] = (),
) -> Changes:
    """Compare the driver of a host with the desired one.

    Args:
        driver: that of its platform.
        facts: ``gaudi_driver`` of the host.
        version: first part of the version of the package that provides the driver; empty keeps the present one, or
            selects the default for a host without a driver.
        further: packages that are installed in addition.
        addresses: of ``driver_repository``.
    """
    here = Present.of(facts)
    found = _compared(driver, here, version, further)
    if not found.missing or {*addresses} <= {*here.addresses}:
        return found
    # A driver that is present gets no default version, which would replace it. The package is known only once apt has
    # read the source.
    wanted = version or ("" if found.version else driver.usual)
    if found.foreign or not wanted or begins(found.version, wanted):
        return replace(found, missing=(), fetch=True)
    return replace(found, missing=(), fetch=True, version=wanted, replaces=here.source(driver) is not None)


def _compared(driver: Driver, here: Present, version: str, further: Sequence[str]) -> Changes:
    """Compare the driver of a host with the desired one, given the versions that apt offers."""
    source = here.source(driver)
    foreign = bool(here.loaded) and source is None and bool(driver.service or version)
    target, brings, missing = _brought(driver, here, source, "" if foreign else version)
    after = upstream(target.version) if target else here.loaded or ""
    more, lacks = _companion(driver, here, after)
    replaced = bool(source and target and target.version != source.version)
    others = here.others(target) if target and replaced else []
    further = [name for name in further if name.partition("=")[0] not in here.packages]
    install = list(dict.fromkeys([*brings, *others, *more, *further]))
    new = [one.partition("=")[0] for one in install]
    # AMD's module has a shorter version than its package: 6.16.13 for 1:6.16.13.30300400-2341068.24.04.
    reload = bool(source and here.loaded and not begins(source.version, here.loaded) and not replaced)
    kept = [name for name, one in here.packages.items() if not one["held"]]
    return Changes(
        repair=bool(here.broken),
        install=tuple(install),
        unhold=tuple(name for name, one in here.packages.items() if one["held"]) if replaced else (),
        hold=() if foreign else tuple(dict.fromkeys([*kept, *new])),
        load=tuple(name for name in driver.modules if name not in here.modules) if source or install else (),
        start=tuple(_starts(driver, here, new)),
        reload=reload,
        replaces=replaced or reload,
        foreign=foreign,
        missing=(*missing, *lacks),
        version=after,
    )


def _brought(
    driver: Driver, here: Present, source: Source | None, version: str
) -> tuple[Source | None, list[str], list[str]]:
    """Return the package that provides the driver after the run, the packages to install, and the errors."""
    wanted = version or ("" if source or here.loaded is not None else driver.usual)
    if wanted and not (source and begins(source.version, wanted)):
        target = here.best(driver, wanted, source)
        return target or source, [target.exact] if target else [], [] if target else [_unknown(driver, here, wanted)]
    return source, [source.exact] if source and not here.packages[source.package]["whole"] else [], []


def _starts(driver: Driver, here: Present, new: Sequence[str]) -> list[str]:
    """Return the units to start and to enable at boot."""
    units = {unit: here.services.get(unit, NOTHING) for unit in driver.services}
    found = [unit for unit, one in units.items() if one["there"] and not (one["runs"] and one["enabled"])]
    if driver.companion and not here.needs_companion:
        found = [unit for unit in found if unit != driver.companion.service]
    brought = any(driver.is_companion(name) for name in new)
    return [*found, *([driver.companion.service] if driver.companion and brought and not found else [])]


def _companion(driver: Driver, here: Present, version: str) -> tuple[list[str], list[str]]:
    """Return the companion package to install for a version of the driver, and why this is impossible."""
    if driver.companion is None or not here.needs_companion or not version:
        return [], []
    present = here.companion(driver)
    if present and upstream(present.version) == version:
        return [], []
    best = here.best_companion(driver, version)
    if best:
        return [best.exact], []
    names = driver.companion.names[0].format(branch=version.partition(".")[0])
    there = f"; {present.exact} is there" if present else ""
    return [], [f"{names} of version {version} is needed, {driver.companion.without}; apt knows none{there}"]


def _unknown(driver: Driver, here: Present, wanted: str) -> str:
    """Return the sentence for a version that apt does not offer."""
    known = sorted(f"{name} {versions[0]}" for name, versions in here.offered.items() if driver.rank(name) is not None)
    some = some_names(known) if known else "none"
    names = ", ".join(name.format(branch=wanted.partition(".")[0]) for name in driver.sources[:2])
    way = f"set driver_repository: {driver.repository} has it"
    if here.addresses:
        way = f"{' '.join(here.addresses)} of driver_repository has none"
    return f"apt knows no driver of version {wanted} ({names} or the like); it knows {some}; {way}"


def package_refusal(
    driver: Driver,
    facts: Mapping[str, Any],
    changes: Changes,
    *,
    host_name: str,
    version: str,
    upgrade_allowed: bool,
    stopped: Sequence[str],
    strangers: Sequence[str],
) -> list[str]:
    """Return why the driver must not be changed; empty if it may reach the desired state.

    Args:
        driver: that of the platform.
        facts: ``gaudi_driver`` of the host.
        changes: the pending changes.
        host_name: name of the host in messages.
        version: ``driver_version``.
        upgrade_allowed: the present driver may be replaced.
        stopped: the toolkit's own models that the change would stop.
        strangers: sentences on foreign users of cards or of the driver.
    """
    here = Present.of(facts)
    found = list(changes.missing)
    if changes.foreign and version and here.loaded and not begins(here.loaded, version):
        found = [
            f"no package installed the loaded driver {here.loaded}, and driver_version is {version}: remove that "
            "driver first (its installer takes --uninstall), or leave driver_version out to keep it"
        ]
    rivals = sorted(here.modules & {*driver.rivals})
    if rivals and (changes.install or changes.load or changes.fetch) and not found:
        found = [
            f"module {rivals[0]} uses the cards, and only a reboot removes it: add modprobe.blacklist={rivals[0]} to "
            "host_tuning_kernel_args, and reboot the host first (playbooks/host.yml -e host_tuning_reboot_allowed=true)"
        ]
    if changes.replaces and not found:
        found = list(strangers) if upgrade_allowed else [_not_allowed(driver, here, changes, stopped)]
    return [f"{host_name}: {text}" for text in found]


def _not_allowed(driver: Driver, here: Present, changes: Changes, stopped: Sequence[str]) -> str:
    """Return the sentence for a driver whose replacement is not allowed."""
    models = f" (it stops {', '.join(stopped)})" if stopped else ""
    leave = f"; allow the change with driver_upgrade_allowed: true{models}"
    if changes.reload:
        return f"the loaded driver {here.loaded} and the installed {changes.version} differ{leave}"
    source = here.source(driver)
    return f"driver {upstream(source.version) if source else here.loaded} would become {changes.version}{leave}"


def package_notes(changes: Changes, loaded: str | None) -> list[str]:
    """Return notes for users on a driver without errors."""
    if changes.foreign:
        return [f"driver {loaded}: no package installed it, so its version is not held"]
    return []
