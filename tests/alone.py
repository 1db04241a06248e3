#!/usr/bin/env python3
"""Runs each test file alone, in a process of its own, some of them at once; ends with one line of counts.

tests/alone.py NUMBER [PATH...]    so many at once, of these files and of these folders, or of tests/unit

What a file prints is shown where a test in it fails. A process is forked from this one, which has imported what others
wrote and nothing of the project: a file begins as with `pytest FILE`, in a third of the time.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# What most files import, and what pytest loads by itself.
OTHERS = (
    *(
        "hypothesis",
        "jinja2",
        "yaml",
        "pytest_cov.plugin",
        "testinfra.plugin",
        "testinfra.modules",
        "anyio.pytest_plugin",
    ),
    *("_hypothesis_pytestplugin", "ansible.playbook.play", "ansible.plugins.action", "ansible.vars.manager"),
)
# These take longest, so they begin first.
FIRST = ("test_bios.py", "test_golden.py", "test_parts.py")


def begin(path: Path, log: Path) -> int:
    """Run pytest on a file in a process of its own, and return its number."""
    sys.stdout.flush()  # or the child would print it too
    child = os.fork()
    if not child:
        handle = os.open(log, os.O_CREAT | os.O_WRONLY)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        options = ["-p", "no:cacheprovider", "--color=no", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        status = pytest.main([os.path.relpath(path), *options])
        sys.stdout.flush()
        os._exit(status)
    return child


def run_all(files: list[Path], at_once: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """Run all files; return how many tests passed, failed and so on, and the names of the files that failed."""
    waiting, running, counts, failed = list(files), dict[int, Path](), Counter[str](), []
    while waiting or running:
        while waiting and len(running) < at_once:
            path = waiting.pop(0)
            running[begin(path, folder / str(files.index(path)))] = path
        child, status = os.wait()
        path = running.pop(child)
        text = (folder / str(files.index(path))).read_text(encoding="utf-8", errors="replace")
        if status:
            failed.append(os.path.relpath(path))
            print(text, f"status {os.waitstatus_to_exitcode(status)} of {os.path.relpath(path)} alone", sep="\n")
        *_, summary = ["", *(line for line in text.splitlines() if re.search(r" in [\d.]+s", line))]
        for number, word in re.findall(r"(\d+) ([a-z]+)", summary):
            counts[word] += int(number)
    return counts, failed


def main(number: str, *names: str) -> int:
    """Run files, and print the counts as pytest does."""
    os.chdir(ROOT)
    # What scripts/test sets is not there when a person runs a file.
    os.environ.pop("ANSIBLE_CONFIG", None)
    for name in OTHERS:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    gc.freeze()
    paths = [ROOT / name for name in names or ("tests/unit",)]
    found = {file for path in paths for file in ([path] if path.is_file() else path.glob("test_*.py"))}
    files = sorted(found, key=lambda path: (path.name not in FIRST, path))
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        counts, failed = run_all(files, int(number), Path(folder))
    told = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    print(f"{len(files)} files alone, {len(failed)} of them failed\n{told} in {time.monotonic() - start:.1f}s")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
