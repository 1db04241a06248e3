"""The page of the playbooks and their options, from the comments at the top of each."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gaudi_serve.awx.settings import STATES
from gaudi_serve.bench import ask
from gaudi_serve.bench.sweep import SWEEPS
from gaudi_serve.buckets.plugin_input import STRATEGIES
from gaudi_serve.rollout.waves import SETTINGS
from gaudi_serve.stages.reset import ON_REQUEST
from gaudi_serve.tune.proposal import GOALS
from gaudi_serve.tune.trace_file import UNITS

from . import mappings, variables
from .entries import FIRST, Entry, cell, data_of

HEAD = """# Playbooks

Run each with `ansible-playbook -i INVENTORY playbooks/NAME.yml`. All of them take Ansible's `--limit`,
`--check` and `--diff`. A variable of the [inventory](inventory.md) can be given with `-e` too.
All options exist since 1.0.0, unless the table has another version. `scripts/reference` writes this page from the
comments at the top of the playbooks.

## site.yml

Prepares hosts and serves their models: all stages, in their order. `--tags` selects stages, such as `--tags
host,runtime`.

"""
KEYS = "## Keys of options\n\n"
OPTION = re.compile(r"^-e (.+?)  +(\S.*)$")
NAME = re.compile(r"(\w+)=|\"(\w+)\":")
# The code's choices by option, and the options that it checks by playbook. AWX alone sets rollout_as_approved.
CHOICES: Mapping[str, Iterable[str]] = {
    **{"sweep": SWEEPS, "trace_time_unit": UNITS, "tune_like": STRATEGIES, "awx_state": STATES}
}
CHECKED: Mapping[str, Iterable[str]] = {
    "benchmark": ask.VARIABLES,
    "rollout": [name for name in SETTINGS if name != "rollout_as_approved"],
    "reset": ["reset_confirm", *(f"reset_{what}" for what in ON_REQUEST)],
    "plan": ["plan_try"],
    "tune": [*GOALS, "trace_columns", "trace_time_unit", "trace", "model"],
}
GUIDE = re.compile(r" ?Guide: docs/guides/([\w-]+)\.md\.")


@dataclass(frozen=True)
class Playbook:
    """A playbook: its name, its description, its guide, and its options with their meaning."""

    name: str
    text: str
    guide: str
    options: tuple[tuple[str, str], ...]


def read(path: Path) -> Playbook:
    """Return a playbook from the comments at its top."""
    text, options = [], []
    for line in path.read_text(encoding="utf-8").removeprefix("---\n").splitlines():
        if not line.startswith("#"):
            break
        comment = line.lstrip("# ")
        if found := OPTION.match(comment):
            options.append((found[1], found[2]))
        else:
            text.append(comment)
    joined = " ".join(text)
    guide = GUIDE.search(joined)
    return Playbook(path.stem, GUIDE.sub("", joined).strip(), guide[1] if guide else "", tuple(options))


def section(one: Playbook) -> str:
    """Return a playbook as Markdown."""
    text = f"## {one.name}.yml\n\n{one.text}"
    text += f" Guide: [{one.guide}](../guides/{one.guide}.md).\n\n" if one.guide else "\n\n"
    if one.options:
        rows = "".join(_row(one.name, option, meaning) for option, meaning in one.options)
        text += f"| option | type | default | meaning |\n|---|---|---|---|\n{rows}\n"
    return text


def _row(playbook: str, option: str, meaning: str) -> str:
    one = entry(playbook, name_of(option))
    parts = [meaning, f"Allowed: {one.allowed}." if one.allowed and one.kind != "bool" else ""]
    parts += [f"Since {one.since}."] if one.since != FIRST else []
    return f"| `-e {option}` | {one.kind} | {cell(one.default)} | {cell(' '.join(filter(None, parts)))} |\n"


def name_of(option: str) -> str:
    """Return the name of an option as the top of a playbook shows it, with its example."""
    found = NAME.search(option)
    if found is None:
        raise ValueError(f"-e {option}: is neither NAME=VALUE nor a mapping")
    return found[1] or found[2]


def entry(playbook: str, name: str) -> Entry:
    """Return the type, default and allowed values of an option; those of the variable if it is one."""
    if name in _variables():
        return _variables()[name]
    data = data_of("options")[name]
    default = data.get("defaults", {}).get(playbook, data["default"])
    return Entry.of(
        name, {**data, "help": "", "default": default, "choices": CHOICES.get(name)}, data.get("allowed", ""), ""
    )


@functools.cache
def _variables() -> dict[str, Entry]:
    """Return the variables of inventories by name."""
    return {one.name: one for one in variables.every()}


def pages(root: Path) -> dict[Path, str]:
    """Return the files that this part writes, by their paths."""
    keys = "\n".join(f"### {name}\n\n{mappings.tables(name)}" for name in mappings.OF_PLAYBOOKS)
    found = [read(path) for path in sorted(root.glob("playbooks/*.yml"))]
    return {root / "docs/reference/playbooks.md": HEAD + "".join(map(section, found)) + KEYS + keys}
