"""The end of a download: outdated files are removed, and manifest, checksums and signature are written."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...core.atomic_write import sync_folder, write_whole
from ...core.words import counted, some_names
from ...host.bundle_verify import KEY, SIGNATURE, SUMS, checksums, files_of, signature_problem
from ..items import FETCHED, NAME, Item, Manifest, read_manifest
from .base import Bundle, Outcome, stat_of, told_size
from .signing import Signer

MOST = 20  # files of each group that the report names


@dataclass(frozen=True)
class Finished:
    """A signed bundle: its manifest, lines for the user, what is missing, and whether anything changed."""

    manifest: Manifest
    lines: list[str]
    problems: list[str]
    changed: bool


def finish(bundle: Bundle, listed: Manifest, items: Sequence[Item], outcome: Outcome, signer: Signer) -> Finished:
    """Write the manifest, key and checksums of a bundle, and sign it.

    Args:
        bundle: the bundle.
        listed: the complete current list.
        items: the items of it that were to be downloaded.
        outcome: their results.
        signer: signs the checksums.
    """
    before = {**bundle.sums, **dict.fromkeys(bundle.broken, "")}
    sizes = {path: one[1] for path, one in bundle.stats.items()}
    problems = failures([one for one in items if one.identity in outcome.failed], outcome)
    # Files of an older list are removed only after all items of the current list are present.
    kept = {NAME, KEY, *outcome.keeps, *(before if problems else ())}
    strange = _clear(bundle, kept, before)
    problems += [f"{path}: is not part of the bundle; move it away" for path in strange]
    manifest = _manifest(bundle, listed, items, outcome)
    write_changed(bundle.folder / NAME, manifest.text)
    _write_key(bundle, signer)
    sums = _sums(bundle, strange)
    _sign(bundle, sums, signer)
    lines = differences(bundle.folder, before, sums, sizes)
    if not problems:
        shutil.rmtree(bundle.work)
    return Finished(
        manifest,
        lines,
        problems,
        any(before.get(path) != total for path, total in sums.items()) or len(before) != len(sums),
    )


def failures(items: Sequence[Item], outcome: Outcome) -> list[str]:
    """Return a line for each reason, with all items that share it."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in items:
        names = found.setdefault((one.kind, outcome.failed[one.identity]), [])
        names.append(one.label.removeprefix(f"{one.kind} "))
    return [f"{kind} {some_names(names)}: {reason}" for (kind, reason), names in found.items()]


def _clear(bundle: Bundle, kept: Iterable[str], before: Mapping[str, str]) -> list[str]:
    """Remove files that the list no longer has; return files that no run has signed or downloaded."""
    names = set(kept)
    strange = []
    for path in files_of(bundle.folder):
        parts = path.split("/")
        if any("/".join(parts[:count]) in names for count in range(1, len(parts) + 1)):
            continue
        if path in before:
            (bundle.folder / path).unlink()
            _remove_empty((bundle.folder / path).parent, bundle.folder)
        else:
            strange.append(path)
    return strange


def _remove_empty(folder: Path, top: Path) -> None:
    while folder != top and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _manifest(bundle: Bundle, listed: Manifest, items: Sequence[Item], outcome: Outcome) -> Manifest:
    """Return the list with the downloaded files; failed items keep their existing files."""
    wanted = {one.identity for one in items}
    empty: dict[str, Any] = dict.fromkeys(FETCHED, "")
    found = []
    for one in listed.items:
        got = outcome.got.get(one.identity)
        if one.identity not in wanted:
            found.append(replace(one, **empty, left_out=True))
        elif got:
            known: dict[str, Any] = {key: getattr(got, key) for key in FETCHED}
            found.append(replace(one, **known, bytes=got.bytes, licence=got.licence or one.licence, left_out=False))
        else:
            last = bundle.last(one)
            there = last is not None and (bundle.folder / last.path).exists()
            found.append(replace(one, left_out=False, **({} if there else empty)))
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    old = read_manifest(str(bundle.folder)) if (bundle.folder / NAME).is_file() else None
    return Manifest(tuple(found), made).after(old)


def _write_key(bundle: Bundle, signer: Signer) -> None:
    stage = bundle.work / KEY
    signer.export(stage)
    write_changed(bundle.folder / KEY, stage.read_text(encoding="ascii"))


def write_changed(path: Path, text: str) -> None:
    """Write a file atomically if its text differs."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_whole(path, text, 0o644)


def _sums(bundle: Bundle, strange: Sequence[str]) -> dict[str, str]:
    """Return the checksums of all files; only new files are read."""
    paths = [path for path in files_of(bundle.folder) if path not in strange]
    same = {path for path in paths if path in bundle.sums and bundle.stats.get(path) == stat_of(bundle.folder / path)}
    fresh = checksums(bundle.folder, [path for path in paths if path not in same])
    for path in fresh:
        # The site's web server and users who copy the bundle must be able to read it.
        (bundle.folder / path).chmod(0o644)
    return {path: bundle.sums[path] if path in same else fresh[path] for path in paths}


def _sign(bundle: Bundle, sums: Mapping[str, str], signer: Signer) -> None:
    """Write the checksums and their signature, unless both exist."""
    folder = bundle.folder
    write_changed(folder / SUMS, "".join(f"{sums[path]}  {path}\n" for path in sorted(sums)))
    if not (folder / SIGNATURE).is_file() or signature_problem(folder, signer.fingerprint):
        stage = bundle.work / SIGNATURE
        signer.detached(folder / SUMS, stage)
        os.chmod(stage, 0o644)  # noqa: PTH101
        stage.replace(folder / SIGNATURE)
        sync_folder(folder)


def differences(folder: Path, before: Mapping[str, str], now: Mapping[str, str], sizes: Mapping[str, int]) -> list[str]:
    """Return the differences between the files of two states, with their sizes.

    Args:
        folder: of the bundle.
        before, now: checksums by path.
        sizes: bytes of the previous files.
    """
    # Changes of the manifest and the key do not show which items changed.
    told = (NAME, KEY)
    added = [path for path in now if path not in before and path not in told]
    removed = [path for path in before if path not in now]
    changed = [path for path in now if path in before and before[path] != now[path] and path not in told]
    if not (added or removed or changed):
        return ["nothing changed in the bundle"]
    lines = []
    for word, paths in (("added", added), ("removed", removed), ("changed", changed)):
        size = sum(sizes.get(path, 0) if word == "removed" else (folder / path).stat().st_size for path in paths)
        lines.append(f"{word}: {counted(len(paths), 'file')}, {told_size(size)}")
        lines += [f"  {path}" for path in paths[:MOST]]
        lines += [f"  and {len(paths) - MOST} more"] if len(paths) > MOST else []
    return lines
