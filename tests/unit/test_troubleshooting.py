"""Every message that the golden files hold has its place on the page of messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
TEMPLATES = re.findall(r"^`([^`]+)`$", PAGE, re.M)


def messages(value: Any) -> Iterator[str]:
    """Yield the messages of a golden file."""
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, dict):
            yield from (str(one) for one in part.get("messages") or ())


def fits(template: str, message: str) -> bool:
    """Return whether a message is one of a template, whose ``...`` stands for any text."""
    return re.fullmatch(".*".join(map(re.escape, template.split("..."))), message, re.S) is not None


def test_every_golden_message_has_a_section() -> None:
    found = [
        message
        for name in ("errors", "facts")
        for message in messages(yaml.safe_load((ROOT / f"tests/unit/{name}.yml").read_text(encoding="utf-8")))
    ]
    assert len(found) > 200
    assert [message for message in found if not any(fits(template, message) for template in TEMPLATES)] == []


def test_every_section_has_a_message_and_an_answer() -> None:
    for section in PAGE.split("\n### ")[1:]:
        body = section.split("\n## ")[0]
        assert re.search(r"^`[^`]+`$", body, re.M), section[:60]
        assert re.search(r"^[`\w]", re.sub(r"^`[^`]+`$", "", body, flags=re.M).split("\n", 1)[1], re.M), section
