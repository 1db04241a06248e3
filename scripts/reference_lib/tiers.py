"""A page for each tier: the variables and the keys of a model that belong to it."""

from __future__ import annotations

from pathlib import Path

from gaudi_serve.core.tiers import TIERS

from . import mappings, models, variables
from .entries import Entry

HEADS = {
    "everyday": """# Everyday variables and keys

A first host of the default release needs only these. [Getting started](../getting-started.md) uses nothing else. A
fleet needs some of those of a [site](site.md).
""",
    "site": """# Variables and keys of a site

A fleet or a network of a company needs some of these, in addition to the [everyday](everyday.md) ones.
""",
    "expert": """# Variables and keys for experts

The defaults of these fit nearly every host. The [everyday](everyday.md) ones and those of a [site](site.md) have their
own pages.
""",
}
TEXT = """
All playbooks and engines read a variable or key unless its row names others. All exist since 1.0.0, unless the row has
another version. `scripts/reference` writes this page.
"""
ROW = "| name | type | default | meaning |\n|---|---|---|---|\n"


def groups() -> dict[str, tuple[str, list[Entry]]]:
    """Return the entries by heading, each with a sentence about all of them."""
    roles = {
        f"Variables of role {role}": (f"{variables.readers(role)} read these.\n\n", found)
        for role, found in variables.of_roles().items()
    }
    return {"Variables": ("", variables.own()), "Keys of a model": ("", models.entries()), **roles}


def links() -> dict[str, str]:
    """Return where each variable and key of a model is: the table of its keys, or else the heading of its row."""
    found = {}
    for heading, (_, entries) in groups().items():
        for one in entries:
            own = mappings.value_of(one.name)
            found[one.name] = mappings.link(own) if own else f"{one.tier}.md#{heading.lower().replace(' ', '-')}"
    return found


def page(tier: str) -> str:
    """Return the page of a tier."""
    text = HEADS[tier] + TEXT
    for heading, (sentence, entries) in groups().items():
        rows = [one.row(mappings.keys_link(mappings.value_of(one.name))) for one in entries if one.tier == tier]
        text += f"\n## {heading}\n\n{sentence}{ROW}{''.join(rows)}" if rows else ""
    return text


def pages(root: Path) -> dict[Path, str]:
    """Return the files that this part writes, by their paths."""
    return {root / f"docs/reference/{tier}.md": page(tier) for tier in TIERS}
