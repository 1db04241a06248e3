"""On which state each part last passed: a digest of the files that it covers, in tests/verified.json."""

from __future__ import annotations

import hashlib
import json
import os
from functools import cache

from . import graph
from .parts import DATA, ROOT, SHORT, Definition

RECORD = ROOT / "tests/verified.json"


@cache
def digests() -> dict[str, str]:
    """Return a digest of every file, of its mode and content, and of every link."""
    found = {name: hashlib.sha256(f"-> {(ROOT / name).readlink()}".encode()).hexdigest() for name in graph.links()}
    for name in graph.files() - {os.path.relpath(RECORD, ROOT)}:
        path = ROOT / name
        executable = b"x" if path.stat().st_mode & 0o100 else b"-"
        found[name] = hashlib.sha256(executable + path.read_bytes()).hexdigest()
    return found


def files_of(one: Definition) -> set[str]:
    """Return the files that a part covers. Links, which are few, are in each; the list of the parts is in none."""
    if one.everything:
        return {*digests()}
    return (graph.covered(one.covers, one.paths) & digests().keys() | graph.links()) - {os.path.relpath(DATA, ROOT)}


def state(one: Definition) -> str:
    """Return the digest of what a part covers, and of what it runs."""
    what = [f"{name} {digests()[name]}" for name in sorted(files_of(one))]
    what += [one.kind, str(one.name.endswith(SHORT)), *map(str, one.data.get("command", one.paths))]
    return hashlib.sha256("\n".join(what).encode()).hexdigest()[:16]


def read() -> dict[str, str]:
    """Return the digests of the last passes by the names of the parts; none if the record cannot be read."""
    try:
        return {str(name): str(digest) for name, digest in json.loads(RECORD.read_text(encoding="utf-8")).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as problem:
        print(f"{RECORD.relative_to(ROOT)} cannot be read, and is written again: {problem}")
        return {}


def unverified(known: dict[str, Definition]) -> list[str]:
    """Return the parts of make test-all that did not pass on this state."""
    record = read()
    return [name for name, one in known.items() if not name.endswith(SHORT) and record.get(name) != state(one)]


def ended(one: Definition, passed: bool, before: str, known: dict[str, Definition]) -> None:
    """Record a part that passed, by its state when it began, or remove the record of one that failed.

    A part whose files changed while it ran verifies nothing, and is not recorded. A part that passed has passed in its
    short form too.
    """
    refresh()
    record = read()
    if not passed:
        if record.get(one.name) != before:
            return
        del record[one.name]
    elif state(one) != before:
        print(f"{one.name}: its files changed after the run began, so its pass is not recorded")
        return
    else:
        record[one.name] = before
        if short := known.get(one.name + SHORT):
            record[short.name] = state(short)
    kept = {name: record[name] for name in sorted(record) if name in known}
    beside = RECORD.with_suffix(".new")
    try:
        beside.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        beside.replace(RECORD)
    except OSError as problem:
        print(f"{RECORD.relative_to(ROOT)} cannot be written: {problem}")


def refresh() -> None:
    """Read files again if one has changed."""
    before = digests()
    for function in (graph.listed, graph.links, graph.files, graph.in_link, digests):
        function.cache_clear()
    if digests() != before:
        graph.forget()
