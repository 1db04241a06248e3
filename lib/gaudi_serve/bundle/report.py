"""The list of a bundle as a report and as a file."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.table import table
from ..core.words import counted, some_names
from ..host.bundle_verify import SUMS
from .control import control_node
from .items import KINDS, NAME, Item, Manifest, joined, read_manifest

HEAD = ["NAME", "VERSION", "FROM", "FOR", "NEEDED BY", "WHY", "PINNED", "SIZE"]
LONGEST = 24  # characters of a version in a table; digests and commits are longer
SPEEDS = (10, 100)  # MB/s, of a line to the internet


def bundle_manifest(
    found: Sequence[Mapping[str, Any]],
    problems: Sequence[str] = (),
    folder: str = "",
    inventory: Sequence[str] = (),
    environment: Mapping[str, Any] | None = None,
    now: float | None = None,
) -> dict[str, Any]:
    """Return the manifest of everything that a site must provide, and a report of it.

    Args:
        found: the items that action gaudi_bundle has returned for all hosts.
        problems: all reasons why the list cannot be made.
        folder: of the bundle on the control node; empty if no file is written.
        inventory: sources of the inventory, which must not contain the bundle.
        environment: the site's own execution environment, with ``name`` and optionally ``archive``.
        now: seconds since 1970.

    Returns:
        ``errors``; without errors, ``lines`` (the report), ``text`` and ``path`` of the file, ``problems``.
    """
    errors = list(dict.fromkeys(problems))
    try:
        old = read_manifest(folder, inventory) if folder else None
    except InputError as problem:
        errors.append(str(problem))
    if errors:
        return {"errors": errors, "lines": [], "text": "", "path": "", "signed": False, "problems": []}
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    items = joined([*map(Item.of, found), *control_node(environment)])
    manifest = Manifest(items, made).with_fetched(old).after(old)
    return {
        "errors": [],
        "lines": [*manifest_lines(manifest), *(_difference(manifest, old) if folder else [])],
        "text": manifest.text,
        "path": f"{folder.rstrip('/')}/{NAME}" if folder else "",
        # The checksum of the manifest is signed, so that only a download may write it again.
        "signed": bool(folder) and (Path(folder) / SUMS).exists(),
        "problems": [_problem(one) for one in manifest.items if one.problem],
    }


def manifest_lines(manifest: Manifest) -> list[str]:
    """Return the report: problems, then a table for each kind, then totals."""
    lines: list[str] = []
    problems = [one for one in manifest.items if one.problem]
    if problems:
        lines += [
            f"PROBLEMS ({len(problems)}): what cannot be fetched as it is listed, or could change",
            *_grouped(problems),
            "",
        ]
    kinds = {kind: [one for one in manifest.items if one.kind == kind] for kind in KINDS}
    for kind, items in kinds.items():
        if items:
            lines += [f"{KINDS[kind].upper()} ({len(items)})", *_table(items), ""]
    counts = ", ".join(f"{len(items)} {KINDS[kind]}" for kind, items in kinds.items() if items)
    unknown = sum(one.bytes is None for one in manifest.items)
    known = f"size: {size_text(manifest.size)}{f'; that of {unknown} is not known' if unknown else ''}"
    times = ", ".join(f"{_minutes(manifest.size, speed)} at {speed} MB/s" for speed in SPEEDS)
    return [*lines, f"{counted(len(manifest.items), 'item')}: {counts}", known, f"to fetch what is known takes {times}"]


def _minutes(size: int, megabytes: int) -> str:
    """Return the time to fetch bytes, at a speed in MB/s, in minutes or hours."""
    minutes = -(-size // (60 * megabytes * 10**6))
    return f"{minutes / 60:.1f} h" if minutes >= 120 else f"{minutes} min"


def _grouped(items: Sequence[Item]) -> list[str]:
    """Return a line for each problem, with all items that share it."""
    found: dict[tuple[str, ...], list[str]] = {}
    for one in items:
        found.setdefault((one.kind, one.problem, some_names(one.users)), []).append(
            one.label.removeprefix(f"{one.kind} ")
        )
    return [f"  {kind} {some_names(labels)}: {text} ({users})" for (kind, text, users), labels in found.items()]


def _problem(item: Item) -> str:
    return f"{item.label}: {item.problem} ({some_names(item.users)})"


def _table(items: Sequence[Item]) -> list[str]:
    rows = [HEAD, *map(_row, items)]
    # A column that is empty in all rows is left out.
    used = [place for place, _ in enumerate(HEAD) if place == 0 or any(row[place] for row in rows[1:])]
    return [f"  {line}" for line in table([[row[place] for place in used] for row in rows])]


def _row(item: Item) -> list[str]:
    users = some_names(item.users) + (f" ({some_names(item.need.models)})" if item.need.models else "")
    version = item.version if len(item.version) <= LONGEST else f"{item.version[: LONGEST - 3]}..."
    size = size_text(item.bytes) if item.bytes is not None else ""
    pinned = "yes" if item.pinned else "no"
    return [item.name, version, item.origin, item.system, users, ", ".join(item.need.why), pinned, size]


def size_text(size: int) -> str:
    """Return bytes as GB or MB, in powers of ten."""
    return f"{size / 1e9:,.1f} GB" if size >= 10**9 else f"{size / 1e6:,.1f} MB"


def _difference(manifest: Manifest, old: Manifest | None) -> list[str]:
    if old is None:
        return ["", "since the last manifest: there is none yet"]
    found = manifest.differences(old)
    lines = [f"  {word} {label}" for word, labels in found.items() for label in labels]
    said = ", ".join(f"{len(labels)} {word}" for word, labels in found.items())
    return ["", f"since the manifest of {old.made}: {said if lines else 'nothing changed'}", *lines]
