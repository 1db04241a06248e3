"""Packages: apt resolves and downloads them with their dependencies, also for systems other than this machine."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import shown
from ...stages.apt_access import apt_access
from ..items import Item
from .apt_repository import Repository
from .base import Bundle, FetchError, Got, Outcome, of_kind, size_of, told_size
from .signing import Signer

ETC = Path("/etc/apt")
SYSTEM = re.compile(r"(?P<id>[a-z]+) (?P<version>\d+(?:\.\d+)*)\S*(?: (?P<architecture>\w+))?")
URI = re.compile(r"'(?P<uri>[^']+)' (?P<name>\S+) (?P<size>\d+) (?:(?P<kind>\w+):(?P<sum>[0-9a-f]+))?")
# Apt's messages on a package that no source has.
UNKNOWN = re.compile(
    r"Unable to locate package (\S+)|Version '[^']*' for '([^']+)' was not found|Package '(\S+)' has no"
)
HASHES = {"SHA512": "sha512", "SHA256": "sha256"}


@dataclass(frozen=True)
class System:
    """The release and architecture of packages."""

    name: str
    version: str
    architecture: str

    @classmethod
    def of(cls, text: str) -> System | None:
        """Return the system of an item; None without one. The default architecture is this machine's."""
        found = SYSTEM.fullmatch(text)
        return cls(found["id"], found["version"], found["architecture"] or own_architecture()) if found else None

    @property
    def label(self) -> str:
        """Return the name of its distribution in the settings."""
        return f"{self.name} {self.version}"

    @property
    def folder(self) -> str:
        """Return the folder of its repository in the bundle."""
        return f"apt/{self.name}-{self.version}-{self.architecture}"


@dataclass(frozen=True)
class Deb:
    """A package that apt would download."""

    uri: str
    name: str
    size: int
    kind: str
    sum: str

    @property
    def package(self) -> str:
        """Return the name of the package."""
        return self.name.partition("_")[0]

    @property
    def version(self) -> str:
        """Return its version, with the epoch."""
        return urllib.parse.unquote(self.name.split("_")[1])

    @property
    def file(self) -> str:
        """Return its file name in a repository, without the epoch."""
        return re.sub(r"_\d+%3a", "_", self.name)

    def is_in(self, path: Path) -> bool:
        """Return whether a file is this package."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        if self.kind not in HASHES:
            return True
        with path.open("rb") as handle:
            return hashlib.file_digest(handle, HASHES[self.kind]).hexdigest() == self.sum


def own_architecture() -> str:
    """Return the architecture of this machine, by Debian's name."""
    found = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "amd64"


def own_system() -> str:
    """Return the release of this machine, by its name in the settings."""
    try:
        text = Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError:
        return ""
    said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return " ".join(said.get(key, "").strip("\"'") for key in ("ID", "VERSION_ID"))


def problems(bundle: Bundle, items: Sequence[Item]) -> list[str]:
    """Return messages on systems without package sources, and on keys that are not on this machine."""
    found = {}
    for one in of_kind(items, "package"):
        system = System.of(one.system)
        if system is None:
            found[one.system] = f"{one.label}: system {shown(one.system)}: is not a system with Debian packages"
        elif system.label not in bundle.settings.apt_sources and system.label != own_system():
            found[one.system] = (
                f"bundle_apt_sources: has no entry {system.label!r}, whose packages are wanted, and this machine runs "
                f"{own_system() or 'another system'}; set it to a list of sources with uris, suites, components and "
                "signed_by"
            )
    given = [*bundle.access.repositories.values(), *bundle.settings.apt_sources.values()]
    keys = dict.fromkeys(str(one.get("signed_by") or "") for entries in given for one in entries)
    lost = [key for key in keys if key.startswith("/") and not Path(key).is_file()]
    return [*found.values(), *(f"signed_by {key}: this machine has no such file; copy it here too" for key in lost)]


def fetch(bundle: Bundle, items: Sequence[Item], signer: Signer) -> Outcome:
    """Download the packages of each system with their dependencies, and write its signed repository."""
    outcome = Outcome()
    for name in dict.fromkeys(one.system for one in of_kind(items, "package")):
        system = System.of(name)
        same = [one for one in items if System.of(one.system) == system]
        if system and not any(one.identity in outcome.got or one.identity in outcome.failed for one in same):
            outcome.join(_Fetch(bundle, system, same, signer).run())
    return outcome


class _Fetch:
    """The packages of one system."""

    def __init__(self, bundle: Bundle, system: System, items: Sequence[Item], signer: Signer) -> None:
        self.bundle, self.system, self.items, self.signer = bundle, system, items, signer
        self.root = bundle.work / system.folder
        self.failed: dict[tuple[str, ...], str] = {}
        self.env = {"DEBIAN_FRONTEND": "noninteractive"}

    def run(self) -> Outcome:
        """Download the packages and write the repository; if that fails, the existing repository stays."""
        packages = of_kind(self.items, "package")
        try:
            with tempfile.TemporaryDirectory() as logins:
                return self.fetched(packages, Path(logins))
        except (FetchError, OSError) as problem:
            reason = self.bundle.access.cleaned(str(problem), [self.bundle.settings.apt_sources])
            self.bundle.tell(f"packages of {self.system.label}: failed: {reason}")
            failed = dict.fromkeys((one.identity for one in self.items), reason)
            return Outcome(failed=failed, keeps={self.system.folder})

    def fetched(self, packages: Sequence[Item], logins: Path) -> Outcome:
        """Download the packages; files with logins are in a temporary folder, never in the bundle."""
        self.prepare(logins)
        self.bundle.tell(f"packages of {self.system.label} {self.system.architecture}: reading the sources")
        self.bundle.run(["apt-get", "-q", "update", "--error-on=any"], self.env)
        debs = self.closure(packages)
        self.download(debs)
        keeps = Repository(self.bundle, self.system.folder, self.system.architecture, self.signer).write(
            [one.file for one in debs]
        )
        self.bundle.tell(
            f"packages of {self.system.label} {self.system.architecture}: {len(debs)} with their dependencies, "
            f"{told_size(sum(one.size for one in debs))}"
        )
        got = {one.identity: self.got(one, debs) for one in self.items if one.identity not in self.failed}
        for one in self.items:
            if one.identity in self.failed:
                self.bundle.tell(f"{one.label}: failed: {self.failed[one.identity]}")
        return Outcome(got, self.failed, {self.system.folder} if self.failed else keeps)

    def got(self, item: Item, debs: Sequence[Deb]) -> Got:
        """Return the result for an item: its package, or the repository for other items."""
        same = [one for one in debs if one.package == item.name and item.version in ("", one.version)]
        if item.kind != "package" or not same:
            return Got(self.system.folder, size_of(self.bundle.folder / self.system.folder / "Packages"))
        path = f"{self.system.folder}/pool/{same[-1].file}"
        return Got(path, same[-1].size, self.bundle.sum(path), fetched="" if item.version else same[-1].version)

    def prepare(self, logins: Path) -> None:
        """Create a separate root for apt, without installed packages."""
        for name in ("etc/parts", "etc/sources", "etc/preferences", "keys"):
            shutil.rmtree(self.root / name, ignore_errors=True)
            (self.root / name).mkdir(parents=True)
        for name in ("lists/partial", "cache/archives/partial"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        own = self.bundle.settings.apt_sources.get(self.system.label)
        if own is None:
            self.own_sources(logins)
        repositories = self.bundle.access.repositories
        given = [
            *(own or ()),
            *(one for key, ones in repositories.items() if System.of(key) == self.system for one in ones),
        ]
        texts = [self.source(number, one, logins) for number, one in enumerate(given)]
        (self.root / "etc/sources/bundle.sources").write_text("\n".join(texts), encoding="utf-8")
        self.write_configuration(logins)

    def write_configuration(self, logins: Path) -> None:
        """Write apt's settings: this machine's proxies and certificates, and the paths of the separate root."""
        told = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False).stdout
        lines = [line for line in told.splitlines() if line.startswith("Acquire::") and '"' in line]
        values = {
            **{"APT::Architecture": self.system.architecture, "APT::Sandbox::User": "root"},
            **{"Dir::State::lists": self.root / "lists", "Dir::State::status": "/dev/null"},
            **{"Dir::State": self.root, "Dir::Cache": self.root / "cache", "Dir::Etc::main": "/dev/null"},
            **{"Dir::Etc::parts": self.root / "etc/parts", "Dir::Etc::sourcelist": "/dev/null"},
            **{"Dir::Etc::sourceparts": self.root / "etc/sources", "Dir::Etc::netrcparts": logins},
            **{"Dir::Etc::preferences": "/dev/null", "Dir::Etc::preferencesparts": self.root / "etc/preferences"},
            **{"Acquire::Languages": "none", "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled": "false"},
            # Without it, --print-uris shows a weaker checksum for the distribution's packages.
            **{"APT::Install-Recommends": "false", "Acquire::ForceHash": "SHA256"},
        }
        lines += [f'{key} "{value}";' for key, value in values.items()]
        # In the temporary folder, because the address of a proxy may contain a password.
        path = logins / "settings"
        self.env["APT_CONFIG"] = str(path)
        lines.append(f'APT::Architectures {{ "{self.system.architecture}"; }};')
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def own_sources(self, logins: Path) -> None:
        """Use the sources of this machine, which runs the same release."""
        for place, folder, endings in (
            (self.root / "etc/sources", "sources.list.d", (".list", ".sources")),
            (logins, "auth.conf.d", (".conf", "")),
        ):
            found = [
                one for one in sorted((ETC / folder).glob("*")) if one.suffix in endings and os.access(one, os.R_OK)
            ]
            if place != logins and (ETC / "sources.list").is_file():
                found.append(ETC / "sources.list")
            for one in found:
                (place / one.name).symlink_to(one)

    def source(self, number: int, given: Mapping[str, Any], logins: Path) -> str:
        """Return a source in apt's format; its login goes into a file that only this user can read."""
        known = apt_access(given["uris"])
        if known["auth"]:
            path = logins / f"bundle{number}.conf"
            path.touch(0o600)
            path.write_text(known["auth"], encoding="utf-8")
        lines = ["Types: deb", f"URIs: {' '.join(known['uris'])}", f"Suites: {' '.join(_words(given['suites']))}"]
        if given.get("components"):
            lines.append(f"Components: {' '.join(_words(given['components']))}")
        lines.append(f"Architectures: {self.system.architecture}")
        signed = str(given.get("signed_by") or "")
        if signed.startswith(("http://", "https://")):
            signed = str(self.key(signed))
        if signed:
            block = [f" {line.strip() or '.'}" for line in signed.strip().splitlines()]
            lines.append("Signed-By:" + ("\n" + "\n".join(block) if len(block) > 1 else block[0]))
        return "\n".join(lines) + "\n"

    def key(self, address: str) -> Path:
        """Download the key of a source, armoured or binary."""
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:  # noqa: S310 - http or https, as checked
                content = answer.read()
        except OSError as problem:
            raise FetchError(f"key {address}: {problem}") from None
        # Apt accepts only one key for a repository, so sources with the same key address share its file.
        name = hashlib.sha256(address.encode()).hexdigest()[:16]
        path = self.root / f"keys/{name}{'.asc' if content.lstrip().startswith(b'-----') else '.gpg'}"
        path.write_bytes(content)
        return path

    def closure(self, packages: Sequence[Item]) -> list[Deb]:
        """Return all packages that apt would download on hosts without installed packages."""
        found: dict[str, Deb] = {}
        for names, more in self.sets(packages):
            for one in self.solved(names, packages, more):
                found.setdefault(one.file, one)
        if not found and self.failed:
            raise FetchError(next(iter(self.failed.values())))
        return [found[key] for key in sorted(found)]

    def sets(self, packages: Sequence[Item]) -> Iterator[tuple[list[str], list[str]]]:
        """Yield the packages that are installed together on a host or in an image; versions may differ by host."""
        told: set[tuple[tuple[str, ...], bool]] = set()
        for user in dict.fromkeys(user for one in packages for user in (one.need.hosts or one.need.why)):
            own = [one for one in packages if user in (one.need.hosts or one.need.why)]
            # Only for the container engine does a role also install recommended packages.
            for part, more in ((own, False), ([one for one in own if "container_runtime" in one.need.why], True)):
                names = tuple(sorted(_name(one) for one in part))
                if names and (names, more) not in told:
                    told.add((names, more))
                    yield list(names), ["--install-recommends"] if more else []

    def solved(self, names: Sequence[str], packages: Sequence[Item], more: Sequence[str]) -> list[Deb]:
        """Return the packages that apt downloads for some names; if apt refuses them together, for each name alone."""
        names = list(names)
        while names:
            try:
                return self.uris([*more, *names])
            except FetchError as problem:
                lost = {part for match in UNKNOWN.findall(str(problem)) for part in match if part}
                gone = [one for one in names if one.partition("=")[0] in lost]
                if not gone:
                    break
                self.note(gone, packages, str(problem))
                names = [one for one in names if one not in gone]
        found: list[Deb] = []
        for one in names:
            try:
                found += self.uris([*more, one])
            except FetchError as problem:
                self.note([one], packages, str(problem))
        return found

    def note(self, names: Iterable[str], packages: Sequence[Item], reason: str) -> None:
        """Record why packages cannot be downloaded."""
        self.failed |= {one.identity: reason for one in packages if _name(one) in names}

    def uris(self, words: Sequence[str]) -> list[Deb]:
        """Return the packages that apt would download for these arguments."""
        told = self.bundle.run(["apt-get", "-qq", "-y", "--print-uris", "install", *words], self.env).stdout
        lines = [URI.match(line) for line in told.splitlines()]
        return [Deb(x["uri"], x["name"], int(x["size"]), x["kind"] or "", x["sum"] or "") for x in lines if x]

    def download(self, debs: Sequence[Deb]) -> None:
        """Let apt download missing packages, and move them to the pool."""
        archives = self.root / "cache/archives"
        pool = f"{self.system.folder}/pool"
        due = []
        for one in debs:
            there = self.bundle.folder / pool / one.file
            if not one.is_in(there):
                # A file with other content, for example of a package that was rebuilt with the same version.
                there.unlink(missing_ok=True)
                due.append(one)
        self.bring(due, archives)
        for one in due:
            path = archives / one.name
            if not one.is_in(path):
                path.unlink(missing_ok=True)
                raise FetchError(f"{one.name}: does not match its repository")
            self.bundle.place(path, f"{pool}/{one.file}")

    def bring(self, due: Sequence[Deb], archives: Path) -> None:
        """Download packages into apt's folder; apt resumes interrupted downloads."""
        local = [one for one in due if one.uri.startswith("file:")]
        for one in local:  # apt would not copy local files
            shutil.copyfile(urllib.parse.unquote(one.uri.removeprefix("file:")), archives / one.name)
        wanted = sorted({f"{one.package}={one.version}" for one in due if one not in local})
        # Apt cannot download several versions of a package in one call.
        rounds: list[dict[str, str]] = []
        for name in wanted:
            package = name.partition("=")[0]
            fits = next((one for one in rounds if package not in one), None)
            if fits is None:
                rounds.append(fits := {})
            fits[package] = name
        for asked in rounds:
            self.bundle.run(["apt-get", "-q", "-y", "download", *asked.values()], self.env, cwd=archives)


def _name(item: Item) -> str:
    return f"{item.name}={item.version}" if item.version else item.name


def _words(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(one) for one in value]
