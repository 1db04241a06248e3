"""On which state each part last passed: a digest of the files that it covers, in tests/verified.json."""

from __future__ import annotations

import hashlib
import json
import os
from functools import cache

from . import graph
from .parts import DATA, ROOT, SHORT, Definition

RECORD = ROOT / "tests/verified.json"
# The record and the description of the parts are not in the state.
NO_STATE = {os.path.relpath(path, ROOT) for path in (RECORD, DATA)}


@cache
def digests() -> dict[str, str]:
    """Return a digest of every file: of its mode and its content."""
    found = {}
    for name in graph.files() - NO_STATE:
        path = ROOT / name
        executable = b"x" if path.stat().st_mode & 0o100 else b"-"
        found[name] = hashlib.sha256(executable + path.read_bytes()).hexdigest()
    return found


def files_of(one: Definition) -> set[str]:
    """Return the files that a part covers."""
    return digests().keys() & (digests().keys() if one.everything else graph.covered(one.covers, one.paths))


def state(one: Definition) -> str:
    """Return the digest of what a part covers, and of what it runs."""
    what = [f"{name} {digests()[name]}" for name in sorted(files_of(one))]
    what += [one.kind, str(one.name.endswith(SHORT)), *map(str, one.data.get("command", one.paths))]
    return hashlib.sha256("\n".join(what).encode()).hexdigest()[:16]


def read() -> dict[str, str]:
    """Return the digests of the last passes by the names of the parts."""
    return dict(json.loads(RECORD.read_text(encoding="utf-8"))) if RECORD.exists() else {}


def unverified(known: dict[str, Definition]) -> list[str]:
    """Return the parts of make test-all that did not pass on this state."""
    record = read()
    return [name for name, one in known.items() if not name.endswith(SHORT) and record.get(name) != state(one)]


def passed(one: Definition, before: str, known: dict[str, Definition]) -> None:
    """Record a part that passed, by its state when it began. With a part its short form has passed.

    A part whose files changed while it ran verifies nothing, and is not recorded.
    """
    refresh()
    if state(one) != before:
        print(f"{one.name}: its files changed while it ran, so its pass is not recorded")
        return
    record = read() | {one.name: before}
    if short := known.get(one.name + SHORT):
        record[short.name] = state(short)
    kept = {name: record[name] for name in sorted(record) if name in known}
    beside = RECORD.with_suffix(".new")
    beside.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    beside.replace(RECORD)


def refresh() -> None:
    """Read files again if one has changed."""
    before = digests()
    graph.files.cache_clear(), graph.in_link.cache_clear(), digests.cache_clear()
    if digests() != before:
        graph.forget()
