"""Hosts of a site without internet: they fetch everything from the site's mirror."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from ..core.checks import Rule, is_true
from ..core.errors import InputError, shown
from ..core.paths import MARK
from ..core.run import read_text, sha256_text
from ..core.words import counted
from ..host.observe_mirror import (
    APT_CONFIG,
    APT_LIST,
    AUTHORITY,
    ENGINE_CERTIFICATES,
    FOLDER,
    KEY,
    LISTS,
    STATE,
)
from ..host.permissions import mode_of
from .apt_access import package_architecture
from .base import Given, Pending, Stage

Known = Mapping[str, Any]
ROLE = "offline"
HEAD = "# Written by gaudi-serve; the next run overwrites changes made here.\n"
URL = re.compile(r"https://[A-Za-z0-9.-]+(:\d{1,5})?")
# With this configuration, apt uses no other source and keeps the lists of the host's own sources.
APT_TEXT = """Dir::Etc::sourcelist "{list}";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "{lists}";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
Acquire::https::CAInfo "{authority}";
Acquire::https::Proxy "DIRECT";
Acquire::EnableSrvRecords "false";
Acquire::AllowReleaseInfoChange "true";
"""
PEM, ARMOUR = "-----BEGIN CERTIFICATE-----", "-----BEGIN PGP PUBLIC KEY BLOCK-----"
FORMS = {
    "gaudi_mirror_url": Rule(
        lambda value: value == "" or bool(isinstance(value, str) and URL.fullmatch(value)),
        "must be the address of the site's mirror as playbooks/mirror.yml prints it, such as https://mirror.site:8443",
    ),
}


@dataclass(frozen=True)
class Mirror:
    """The mirror of a site: its address and the trust of hosts in it.

    system: the name of the host's package repository there. authority, key: the texts of the certificate and of the key
    that signs packages.
    """

    url: str
    system: str
    authority: str
    key: str

    @property
    def registry(self) -> str:
        """Return the name of its registry, as used in image names."""
        return registry_of(self.url)

    @property
    def files(self) -> dict[str, str]:
        """Return the text of each file that a host needs for it."""
        config = APT_TEXT.format(list=APT_LIST, lists=LISTS, authority=AUTHORITY)
        place = f"{ENGINE_CERTIFICATES}/{self.registry}"
        return {
            AUTHORITY: self.authority,
            KEY: self.key,
            APT_CONFIG: HEAD.replace("#", "//") + config,
            APT_LIST: f"{HEAD}deb [signed-by={KEY}] {self.url}/apt/{self.system} ./\n",
            f"{place}/ca.crt": self.authority,
            f"{place}/{MARK}": HEAD,
        }


def registry_of(url: str) -> str:
    """Return the name of a mirror's registry, as used in image names."""
    return urlsplit(url).netloc


def mirror_of(known: Known) -> Mirror | None:
    """Return the mirror that a host uses; None if it fetches from the internet.

    Args:
        known: its variables: ``offline_enabled``, ``offline_mirror_url``, ``offline_trust``, ``gaudi_system``.

    Raises:
        InputError: if a variable is missing or a trust file cannot be read.
    """
    if not is_true(known.get("offline_enabled") or False):
        return None
    url, folder = str(known.get("offline_mirror_url") or ""), str(known.get("offline_trust") or "")
    if not URL.fullmatch(url):
        raise InputError(f"gaudi_mirror_url {shown(url)}: {FORMS['gaudi_mirror_url'].allowed}")
    system = known["gaudi_system"]
    name = f"{system['id']}-{system['version_id']}-{package_architecture(system)}"
    texts = (_trusted(folder, *one) for one in (("ca.crt", PEM), ("key.asc", ARMOUR)))
    return Mirror(url, name, *texts)


def _trusted(folder: str, file: str, head: str) -> str:
    """Return the text of a file that playbooks/mirror.yml has written on the control node."""
    text = read_text(Path(folder).expanduser() / file)
    if text is None or head not in text:
        raise InputError(
            f"gaudi_mirror_trust {shown(folder)}: has no {file} that can be read; "
            "playbooks/mirror.yml writes it on its control node: carry the folder here, or name it"
        )
    return text


def _look(given: Given) -> tuple[str, dict[str, Any]] | None:
    mirror = mirror_of(given.known)
    if mirror is None:
        return None
    return "mirror_read", {"url": mirror.url, "authority": mirror.authority, "system": mirror.system}


def _pending(given: Given) -> Pending:
    here, mirror = given.known["gaudi_mirror"], mirror_of(given.known)
    there = {**here["files"], **_of_registries(here["registries"], mirror)}
    files = mirror.files if mirror else {}
    write = [path for path, text in files.items() if there.get(path) != sha256_text(text)]
    absent = [path for path, digest in there.items() if digest is not None and path not in files]
    if mirror is None:
        lines = [f"remove {path}" for path in absent]
        return Pending(
            {"due": bool(lines), **_tasks({}, [], absent, read=False)}, lines, given.left(lines), drift=lines
        )
    seen = given.seen
    problem = [f"{given.host}: the mirror {mirror.url}: {seen['problem']}"] if seen["problem"] else []
    read = seen["release"] != here["release"] or APT_LIST in write
    lines = [*(f"write {path}" for path in write), *(f"remove {path}" for path in absent)]
    lines += [f"read the packages of {mirror.url}"] * (read and bool(seen["release"]))
    return Pending(
        {"due": bool(lines), **_tasks(files, write, absent, read=read and bool(seen["release"]))},
        [] if problem else lines,
        given.left(lines),
        problem,
        problem or lines,
        notes=[f"everything is fetched from {mirror.url}: {counted(len(seen['items']), 'item')}"],
        facts={"has": seen["items"]},
    )


def _of_registries(registries: Known, mirror: Mirror | None) -> dict[str, Any]:
    """Return the files of the configured registries; the mark of each has the text that the role writes."""
    found: dict[str, Any] = {}
    for name, digest in registries.items():
        place = f"{ENGINE_CERTIFICATES}/{name}"
        found |= {f"{place}/ca.crt": digest, f"{place}/{MARK}": sha256_text(HEAD)}
    return found


def _tasks(files: Mapping[str, str], write: Sequence[str], absent: Sequence[str], *, read: bool) -> dict[str, Any]:
    """Return the values that the tasks of the role read."""
    left = {str(PurePosixPath(path).parent) for path in absent} - {str(PurePosixPath(path).parent) for path in files}
    return {
        "files": [{"path": path, "content": files[path], "mode": mode_of(path)} for path in write],
        "absent": list(absent),
        "empty": sorted(left),
        "gone": [] if files or not absent else [STATE],
        "read": read,
    }


def _reset(given: Given) -> dict[str, Any]:
    here = given.known["gaudi_mirror"]
    files = {**here["files"], **_of_registries(here["registries"], None)}
    paths = [path for path, digest in files.items() if digest is not None]
    folders = [f"{ENGINE_CERTIFICATES}/{name}" for name in here["registries"]]
    return {
        "due": bool(paths),
        "paths": [*paths, *([STATE] if paths else [])],
        "empty": [*folders, FOLDER],
        "did": [f"the site's mirror: {counted(len(paths), 'file')}"] if paths else [],
        "left": [],
        "packages": [],
    }


STAGE = Stage(
    role=ROLE,
    tag="offline",
    reads=("system", "mirror"),
    noted=("status",),
    look=_look,
    pending=_pending,
    reset=_reset,
)
