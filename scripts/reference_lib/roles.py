"""The page of the roles' options for the site, and the README.md of each role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from gaudi_serve.inventory.variables import HANDED

HEAD = """# Roles

All options of the roles, from their argument_specs. Playbooks set some options themselves. Such an option is
for users of the role alone: in an inventory it changes nothing, and a run warns about it. `make docs` writes this page.

"""


def rows(options: dict[str, Any], prefix: str = "") -> list[str]:
    """Return one table row per option, nested ones after theirs."""
    lines = []
    for name, option in options.items():
        text = text_of(option)
        if name in HANDED:
            text += f" Playbooks set it from {HANDED[name]}."
        if "choices" in option:
            text += " One of " + ", ".join(f"`{choice}`" for choice in option["choices"]) + "."
        default = "required" if option.get("required") else written(option.get("default", ""))
        lines.append(f"| `{prefix}{name}` | {option['type']} | {default.replace('|', '&#124;')} | {text} |")
        lines += rows(option.get("options", {}), f"{prefix}{name}[].")
    return lines


def written(default: Any) -> str:
    """Return a default as users write it; an empty text is an empty cell."""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`" if default != "" else ""


def text_of(option: dict[str, Any]) -> str:
    """Return the description of a role or an option as one text."""
    text = option.get("description", "")
    return " ".join(text) if isinstance(text, list) else str(text)


def spec_of(role: Path) -> dict[str, Any]:
    """Return the main argument_specs of a role."""
    found = yaml.safe_load((role / "meta/argument_specs.yml").read_text(encoding="utf-8"))
    return dict(found["argument_specs"]["main"])


def section(role: Path, level: int) -> str:
    """Return one role as Markdown."""
    spec = spec_of(role)
    lines = [f"{'#' * level} {role.name}", "", f"{spec['short_description']}.", "", text_of(spec).strip(), ""]
    lines += ["| variable | type | default | meaning |", "|---|---|---|---|", *rows(spec.get("options", {})), ""]
    return "\n".join(lines)


def pages(root: Path) -> dict[Path, str]:
    """Return the files that this part writes, by their paths."""
    found = sorted(path.parents[1] for path in root.glob("roles/*/meta/argument_specs.yml"))
    return {role / "README.md": section(role, 1) for role in found}


def site_pages(root: Path) -> dict[Path, str]:
    """Return the page of the site that has all roles, by its path."""
    found = sorted(path.parents[1] for path in root.glob("roles/*/meta/argument_specs.yml"))
    return {root / "docs/reference/roles.md": HEAD + "\n".join(section(role, 2) for role in found)}
