"""The page of the parts of the tests, from tests/parts.yml."""

from __future__ import annotations

from pathlib import Path

import yaml

HEAD = """# Parts of the tests

`make test` is the gate: lint, unit tests and the main job for real, in 25 minutes on two quiet processors.
`make test-all` runs everything in two hours. `scripts/test NAME` runs one part. `tests/parts.yml` describes the parts,
and `scripts/reference` writes this page from it.

- A part is in `make test` if it finds what no cheaper part finds. Results that are only computed (tables, refusals,
  output, states) are tested in `tests/unit` or on simulated hosts. Containers test what only a real engine, systemd,
  HAProxy or vLLM can show.
- Some parts have a short form in `make test`, without the tests that are marked `long`. Mark a test `long` if it takes
  minutes and a cheaper test covers most of it. All other tests of these parts run in both.
- `NAME:short` is the short form of a part. A pass of the part counts for its short form too. The reverse is not true.
- A part covers its tests, the paths that `tests/parts.yml` lists for it, and all that these use: imports, playbooks,
  roles, modules, filters (`scripts/test_lib/graph.py`). Of the stages it covers those of its roles, although each plan
  compares all of them.
- `tests/verified.json` has, for each part, a digest of the files that it covered when it last passed: of their names,
  contents and modes, also of files that Git does not track yet. `scripts/test changed` runs the parts whose digest
  differs now. Run it before a change is complete, and commit the record with the change. The parts that read all files,
  such as `unit`, run after every change.
- Two parts run at a time. Heavy parts start vLLM or several hosts; only one of them runs at a time.

The seconds were measured in `make test` on two processors, where another part runs beside.

| part | `make test` | `make test-all` | what only it shows |
|---|---|---|---|
"""
SLOW = """
## Long tests of make test

These tests in `make test` take more than a minute.

| test | seconds | why it stays |
|---|---|---|
"""


def pages(root: Path) -> dict[Path, str]:
    """Return the page by its path."""
    known = yaml.safe_load((root / "tests/parts.yml").read_text(encoding="utf-8"))
    rows, slow = [], []
    for name, one in known.items():
        gate = str(one.get("short", one["seconds"])) if one.get("gate") else ""
        rows.append(f"| {name} | {gate} | {one['seconds']} | {one['shows']} |\n")
        slow += [f"| `{test}` | {seconds} | {why} |\n" for test, (seconds, why) in one.get("slow", {}).items()]
    return {root / "docs/maintainers/tests.md": HEAD + "".join(rows) + (SLOW + "".join(slow) if slow else "")}
