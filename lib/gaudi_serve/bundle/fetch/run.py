"""The download of a bundle, from the list to the signature, and its report."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...core.words import counted
from ...host.bundle_verify import SUMS, WORK, checksums, files_of, read_sums, signature_problem, verify
from ..access import Access
from ..items import NAME, Item, Manifest, read_manifest
from . import apt, downloads, galaxy, images, python, sources, weights
from .base import Bundle, Outcome, stat_of, told_size
from .before import is_inside, refusal
from .finish import Finished, finish
from .settings import Settings
from .signing import Signer, fingerprint_of

WHOLE = ("image", "source")  # kinds whose folders are useless if one file is missing

REFUSED = "Nothing has been changed, and nothing was fetched. What must be fixed first:"


@dataclass(frozen=True)
class Report:
    """The result of a download: lines for the user; errors, which name everything that is missing."""

    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    changed: bool = False
    fingerprint: str = ""


def fetch_bundle(
    folder: Path,
    listed: Manifest,
    settings: Settings,
    access: Access,
    tell: Callable[[str], None] = print,
    check: bool = False,
) -> Report:
    """Download everything on a list into a folder, and sign it.

    Args:
        folder: of the bundle; files that are unchanged since they were signed are not downloaded again.
        listed: the current list.
        settings: the user's settings for the download.
        access: addresses with logins, and tokens.
        tell: shows each line of progress.
        check: only report what would be done.
    """
    signer = Signer(settings)
    items = wanted(listed, settings)
    bundle = Bundle(folder, settings, access, tell=tell)
    errors = settings.unused(listed.items) + refusal(bundle, items, signer)
    if errors:
        return Report(errors=[REFUSED, *errors])
    if check:
        return Report(would_fetch(folder, items), changed=bool(_due(folder, items)))
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder) as problem, signer.ready():
        if problem:
            return Report(errors=[problem])
        bundle, lines = with_present(bundle)
        outcome = _fetched(bundle, items, signer)
        return _report(bundle, finish(bundle, listed, items, outcome, signer), lines, signer)


def wanted(listed: Manifest, settings: Settings) -> list[Item]:
    """Return the items to download: without those on the hosts, and those that the site provides in another way."""
    items = [one for one in listed.items if not settings.leaves_out(one) and not is_inside(one)]
    systems = {one.system for one in items if one.kind == "package"}
    # A repository is needed only for packages.
    return [one for one in items if one.kind != "repository" or one.system in systems]


def would_fetch(folder: Path, items: Sequence[Item]) -> list[str]:
    """Return the downloads of a run, as far as they are known without queries."""
    due = _due(folder, items)
    moving = [one for one in items if one not in due and not one.pinned]
    lines = [f"would fetch {one.label}" for one in due]
    lines += [f"would check whether {one.label} is still the same" for one in moving]
    return [f"{len(due)} of {len(items)} items would be fetched; nothing was", *lines]


def _due(folder: Path, items: Sequence[Item]) -> list[Item]:
    return [one for one in items if not one.path or not (folder / one.path).exists()]


def verified(folder: Path, settings: Settings, fingerprint: str = "") -> Report:
    """Return a report on whether a bundle is complete and unchanged since it was signed.

    Args:
        folder: of the bundle.
        settings: their key counts if no fingerprint is given.
        fingerprint: of the key that must have signed the bundle.
    """
    signer = Signer(settings)
    with signer.ready(make=False):
        known = fingerprint or signer.fingerprint
    if not known:
        return Report(
            errors=["bundle_fingerprint: is needed to verify: this machine has no key that has signed a bundle"]
        )
    problems = verify(folder, known)
    if problems:
        return Report(errors=[f"{folder} is not as it was signed:", *problems], fingerprint=known)
    return Report(
        [f"verified: {counted(len(read_sums(folder)), 'file')} are as they were signed by {known}"], fingerprint=known
    )


@contextmanager
def _alone(folder: Path) -> Iterator[str]:
    """Lock a bundle for one run at a time; yield a message if another run has locked it."""
    (folder / WORK).mkdir(exist_ok=True)
    with (folder / WORK / "lock").open("w", encoding="ascii") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield f"{folder}: another run is fetching into it; wait for its end"
            return
        yield ""


def with_present(bundle: Bundle) -> tuple[Bundle, list[str]]:
    """Return the bundle with its unchanged files; files that changed since the signature are removed and reported."""
    folder = bundle.folder
    old = read_manifest(str(folder)) if (folder / NAME).is_file() else None
    said = {one.identity: one for one in (old.items if old else ())}
    if not (folder / SUMS).is_file():
        return replace(bundle, said=said), []
    problem = signature_problem(folder, fingerprint_of(folder))
    if problem:
        return bundle, [f"{problem}; everything is checked again"]
    known = read_sums(folder)
    # Read before the checksums: a file that is replaced meanwhile then counts as changed.
    stats = {path: stat for path in known if (stat := stat_of(folder / path))}
    found = checksums(folder, [path for path in known if not (folder / path).is_symlink()])
    broken = frozenset(path for path, total in known.items() if found.get(path) != total)
    lines = []
    for path in sorted(broken):
        there = (folder / path).exists()
        lines.append(f"{path}: {'was changed' if there else 'is missing'} since it was signed; fetched again")
        (folder / path).unlink(missing_ok=True)
    for one in said.values():
        if one.kind in WHOLE and any(path.startswith(f"{one.path}/") for path in broken):
            shutil.rmtree(folder / one.path, ignore_errors=True)
    sums = {path: total for path, total in known.items() if path not in broken and (folder / path).exists()}
    for line in lines:
        bundle.tell(line)
    return replace(bundle, sums=sums, stats=stats, broken=broken, said={} if NAME in broken else said), lines


def _fetched(bundle: Bundle, items: Sequence[Item], signer: Signer) -> Outcome:
    """Download all items, one kind after the other; weights come last, because they are the largest."""
    outcome = apt.fetch(bundle, items, signer)
    for one in (sources.fetch, downloads.fetch, galaxy.fetch, python.fetch, images.fetch, weights.fetch):
        outcome.join(one(bundle, items))
    return outcome


def _report(bundle: Bundle, done: Finished, lines: Sequence[str], signer: Signer) -> Report:
    """Return the final report."""
    fingerprint = signer.fingerprint
    told = [*lines, *done.lines, *_sizes(bundle.folder)]
    told.append(f"signed by {fingerprint}: a site needs this fingerprint to verify it (bundle_fingerprint)")
    errors = ["The bundle is not complete; the next run continues:"]
    return Report(told, [*errors, *done.problems] if done.problems else [], done.changed, fingerprint)


def _sizes(folder: Path) -> list[str]:
    """Return the disk usage of each folder of a bundle; linked files count once."""
    found: dict[str, dict[int, int]] = {}
    for path in files_of(folder):
        stat = (folder / path).lstat()
        found.setdefault(path.partition("/")[0], {})[stat.st_ino] = stat.st_size
    folders = {name: sizes for name, sizes in found.items() if (folder / name).is_dir()}
    lines = [
        f"  {name}: {counted(len(sizes), 'file')}, {told_size(sum(sizes.values()))}" for name, sizes in folders.items()
    ]
    return ["in the bundle:", *lines] if lines else []
