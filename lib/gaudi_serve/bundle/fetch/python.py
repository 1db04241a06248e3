"""Wheels: pip downloads them, for this Python or for that of the hosts; an index lists them."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import sys
import tempfile
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..items import Item
from ..roles import ROOT
from ..weights import CLIENTS
from .apt import own_architecture
from .base import Bundle, FetchError, Got, Outcome, told_size

CONTROL, PROCESSORS = "requirements.txt", "roles/vllm_image/files/cpu-requirements.txt"
# The Python version of each release, for the wheels of hosts.
PYTHONS = {
    **{"debian 11": "3.9", "debian 12": "3.11", "debian 13": "3.13"},
    **{"ubuntu 20.04": "3.8", "ubuntu 22.04": "3.10", "ubuntu 24.04": "3.12", "ubuntu 26.04": "3.14"},
}
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
OLDEST, NEWEST = 17, 35  # minor versions of glibc 2 whose wheels these releases can use
TORCH = "GAUDI_SERVE_TORCH_INDEX"  # as for build_cpu_image
FOLDER, INDEX = "python", "python/simple"


@dataclass(frozen=True)
class Job:
    """Requirements that are downloaded together. target: pip's options for another Python. index: package index URL."""

    file: str
    target: tuple[str, ...] = ()
    index: str = ""


def name_of(text: str) -> str:
    """Return the normalized name of a project, as indexes use it."""
    return re.sub(r"[-_.]+", "-", text).lower()


def jobs(bundle: Bundle, items: Sequence[Item]) -> dict[Job, list[Item]]:
    """Return the download jobs, each with its items."""
    found: dict[Job, list[Item]] = {}
    for one in items:
        for job in _jobs(bundle, one):
            found.setdefault(job, []).append(one)
    return found


def _jobs(bundle: Bundle, item: Item) -> Iterator[Job]:
    index = bundle.access.origin(item) if "://" in item.origin else ""
    if "control node" in item.need.why:
        yield Job(CONTROL, index=index)
    if "vllm_image" in item.need.why:
        # As in build_cpu_image: the list is complete, and torch for GPUs would add gigabytes of dependencies.
        yield Job(PROCESSORS, ("--no-deps", *_target("3.11", own_architecture())), index)
    if "model_weights" in item.need.why:
        for system in sorted({bundle.access.systems.get(one, "") for one in item.need.hosts}):
            release, _, architecture = system.rpartition(" ")
            yield Job(CLIENTS, _target(PYTHONS.get(release, "3.11"), architecture or "amd64"), index)


def _target(python: str, architecture: str) -> tuple[str, ...]:
    machine = MACHINES.get(architecture, architecture)
    kinds = [f"manylinux_2_{one}_{machine}" for one in range(NEWEST, OLDEST - 1, -1)]
    kinds += [f"{one}_{machine}" for one in ("manylinux2014", "manylinux2010", "manylinux1", "linux")]
    platforms = [word for one in kinds for word in ("--platform", one)]
    return ("--python-version", python, "--implementation", "cp", *platforms)


def problems(bundle: Bundle, items: Sequence[Item]) -> list[str]:
    """Return messages on releases whose Python version is unknown."""
    hosts = {one for item in items if item.kind == "python" for one in item.need.hosts}
    releases = sorted({bundle.access.systems[one].rpartition(" ")[0] for one in hosts if one in bundle.access.systems})
    return [
        f"{one}: the Python of this release is not known; known are {', '.join(PYTHONS)}"
        for one in releases
        if one not in PYTHONS
    ]


def fetch(bundle: Bundle, items: Sequence[Item]) -> Outcome:
    """Download wheels with their dependencies, and write an index of them."""
    wanted = [one for one in items if one.kind == "python"]
    outcome, names = Outcome(), set()
    for job, own in jobs(bundle, wanted).items():
        try:
            found = _Wheels(bundle, job).found()
        except (FetchError, OSError) as problem:
            reason = bundle.access.cleaned(str(problem), [job.index])
            bundle.tell(f"Python packages of {job.file}: failed: {reason}")
            outcome.failed |= dict.fromkeys((one.identity for one in own), reason)
            continue
        names |= set(found)
        bundle.tell(f"Python packages of {job.file}: {len(found)} wheels")
        # A requirement whose marker excludes this Python has no wheel.
        outcome.got |= {one.identity: _got(bundle, one, found) or Got(INDEX, 0) for one in own}
    if outcome.failed:
        outcome.keeps.add(FOLDER)
        names = {one.name for one in (bundle.folder / FOLDER).glob("*.whl")}
    outcome.keeps |= {f"{FOLDER}/{one}" for one in names}
    outcome.keeps |= _index(bundle, sorted(names))
    return outcome


def _got(bundle: Bundle, item: Item, found: Mapping[str, str]) -> Got | None:
    for name, licence in found.items():
        project, version = name.split("-")[:2]
        if name_of(project) == name_of(item.name) and item.version in ("", version, version.partition("+")[0]):
            path = f"{FOLDER}/{name}"
            size = (bundle.folder / path).stat().st_size
            return Got(path, size, bundle.sum(path), fetched="" if item.version else version, licence=licence)
    return None


class _Wheels:
    """The wheels of one requirements file."""

    def __init__(self, bundle: Bundle, job: Job) -> None:
        self.bundle, self.job = bundle, job
        self.folder, self.stage = bundle.folder / FOLDER, bundle.work / "python"

    def found(self) -> dict[str, str]:
        """Return the wheels with their licences; missing ones are downloaded."""
        self.folder.mkdir(exist_ok=True)
        there = self.installed(self.folder)
        if there is not None:
            return there
        self.stage.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob("*.whl"):
            if not (self.stage / path.name).exists():
                os.link(path, self.stage / path.name)
        self.pip("download", "--dest", self.stage, *self.options())
        complete = self.installed(self.stage)
        if complete is None:
            raise FetchError("pip: the download is not complete")
        for name in complete:
            if not (self.folder / name).exists():
                self.bundle.place(self.stage / name, f"{FOLDER}/{name}")
                self.bundle.tell(f"{name}: {told_size((self.folder / name).stat().st_size)}")
        return complete

    def installed(self, folder: Path) -> dict[str, str] | None:
        """Return the wheels of a folder that pip would install, without a download; None if one is missing."""
        if not any(folder.glob("*.whl")):
            return None
        with tempfile.TemporaryDirectory() as target:
            words = ["--dry-run", "--ignore-installed", "--no-index", "--find-links", str(folder), "--report", "-"]
            try:
                text = self.pip("install", *words, "--target", target, *self.options())
            except FetchError:
                return None
        listed = json.loads(text)["install"]
        return {_file(one): _licence(one["metadata"]) for one in listed}

    def options(self) -> list[str | Path]:
        """Return the options of both calls of pip."""
        return ["--only-binary=:all:", "--requirement", str(ROOT / self.job.file), *self.job.target]

    def pip(self, *words: str | Path) -> str:
        """Run pip; the index address goes into the environment, because it may contain a password."""
        env = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_QUIET": "1"}
        if self.job.index:
            env["PIP_INDEX_URL"] = self.job.index
        if self.job.file == PROCESSORS and os.environ.get(TORCH):
            env["PIP_EXTRA_INDEX_URL"] = os.environ[TORCH]
        return self.bundle.run([*program(), *words], env).stdout


def program() -> list[str]:
    """Return the command that starts pip: this Python's, or the system's."""
    from importlib.util import find_spec

    return [sys.executable, "-m", "pip"] if find_spec("pip") else [shutil.which("pip3") or "pip3"]


def _file(entry: Mapping[str, Any]) -> str:
    return urllib.parse.unquote(str(entry["download_info"]["url"]).rpartition("/")[2])


def _licence(metadata: Mapping[str, Any]) -> str:
    """Return the licence of a wheel: its expression, or a short text, or its classifiers."""
    said = [one.rpartition(" :: ")[2] for one in metadata.get("classifier") or () if one.startswith("License ::")]
    text = str(metadata.get("license") or "")
    short = text if len(text) <= 60 and "\n" not in text else ""
    return str(metadata.get("license_expression") or short or ", ".join(said))


def _index(bundle: Bundle, names: Sequence[str]) -> set[str]:
    """Write the index of the wheels, and return its files."""
    projects: dict[str, list[str]] = {}
    for one in names:
        projects.setdefault(name_of(one.split("-")[0]), []).append(one)
    pages = {f"{INDEX}/index.html": [(f"{one}/", one) for one in sorted(projects)]} if names else {}
    for project, files in projects.items():
        links = [(f"../../{urllib.parse.quote(one)}#sha256={bundle.sum(f'{FOLDER}/{one}')}", one) for one in files]
        pages[f"{INDEX}/{project}/index.html"] = links
    for path, links in pages.items():
        lines = [f'<a href="{html.escape(address)}">{html.escape(text)}</a><br>' for address, text in links]
        content = "\n".join(["<!DOCTYPE html>", "<html><body>", *lines, "</body></html>", ""])
        place = bundle.folder / path
        if not place.is_file() or place.read_text(encoding="utf-8") != content:
            stage = bundle.work / "index.html"
            stage.write_text(content, encoding="utf-8")
            place.parent.mkdir(parents=True, exist_ok=True)
            stage.replace(place)
    return set(pages)
