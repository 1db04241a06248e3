"""The map of the vendor's manual in both languages, and the tests that show each step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

FOLDERS = {"M": "molecule", "U": "tests/unit", "I": "tests/integration"}
LINK = re.compile(r"\[([^]]+)\]\{([\w-]+)\}")


def data() -> dict[str, Any]:
    """Return ``words`` (by language) and ``sections`` with their rows."""
    return dict(yaml.safe_load((Path(__file__).parent / "manual_map.yml").read_text(encoding="utf-8")))


def of(value: Any, language: str) -> str:
    """Return a text of a row in one language; one that is the same in both is a plain text."""
    return str(value[language] if isinstance(value, dict) else value).replace("|", "&#124;")


def page(language: str) -> str:
    """Return the page in one language."""
    found, parts = data(), []
    words = found["words"][language]
    for section in found["sections"]:
        rows = []
        for row in section["rows"]:
            here = LINK.sub(rf"[\1]({words['guides']}/\2.md)", of(row["here"], language))
            tests = ", ".join(f"`{test}`" for test in row["tests"])
            rows.append(f"| {row['section']} | {of(row['manual'], language)} | {here} | {tests} |")
        parts.append(
            f"## {of(section['title'], language)}\n\n{words['head']}\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
        )
    return f"# {words['title']}\n\n{words['text']}\n" + "\n".join(parts)


def missing(root: Path) -> Iterator[str]:
    """Yield the tests that the map names and that do not exist."""
    for section in data()["sections"]:
        for row in section["rows"]:
            for test in row["tests"]:
                kind, _, rest = test.partition("/")
                place, _, name = rest.partition("::")
                path = root / FOLDERS[kind] / place
                files = sorted(path.glob("tests/*.py")) if kind == "M" else [path] if path.is_file() else []
                if not any(not name or f"def {name}(" in file.read_text(encoding="utf-8") for file in files):
                    yield test


def pages(root: Path) -> dict[Path, str]:
    """Return the files that this part writes, by their paths."""
    return {root / "docs/manual-map.md": page("en"), root / "docs/zh/manual-map.md": page("zh")}
