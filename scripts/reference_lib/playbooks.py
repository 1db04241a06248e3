"""The page of the playbooks and their options, from the comments at the top of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HEAD = """# Playbooks

Run each with `ansible-playbook -i INVENTORY playbooks/NAME.yml`. All of them take Ansible's `--limit`,
`--check` and `--diff`. A variable of the [inventory](inventory.md) can be given with `-e` too.
`scripts/reference` writes this page from the comments at the top of the playbooks.

## site.yml

Prepares hosts and serves their models: all stages, in their order. `--tags` selects stages, such as `--tags
host,runtime`.

"""
OPTION = re.compile(r"^-e (.+?)  +(\S.*)$")
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
        rows = "".join(f"| `-e {option}` | {meaning} |\n".replace("\\|", "|") for option, meaning in one.options)
        text += f"| option | meaning |\n|---|---|\n{rows}\n"
    return text


def pages(root: Path) -> dict[Path, str]:
    """Return the files that this part writes, by their paths."""
    found = [read(path) for path in sorted(root.glob("playbooks/*.yml"))]
    return {root / "docs/reference/playbooks.md": HEAD + "".join(map(section, found)).rstrip("\n") + "\n"}
