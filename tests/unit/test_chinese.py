"""The Chinese pages have what the English ones have: the same headings, commands, keys, tables and messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("getting-started", "guides/models", "guides/fleet", "troubleshooting", "manual-map")
PAIRS = [
    ("README.md", "README.zh-CN.md"),
    *((f"docs/{page}.md", f"docs/zh/{page.split('/')[-1]}.md") for page in PAGES),
]
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
CHINESE = re.compile(r"[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")


def read(name: str) -> str:
    """Return the text of a page."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str) -> list[str]:
    """Return the code blocks without comments, which are translated."""
    return [re.sub(r"[ \t]*#.*", "", block) for block in FENCE.findall(text)]


def headings(text: str) -> list[int]:
    """Return the levels of the headings, in their order."""
    return [len(line.split()[0]) for line in FENCE.sub("", text).splitlines() if re.match(r"#+ ", line)]


def rows(text: str) -> list[tuple[int, list[str]]]:
    """Return of each row of a table the number of cells, and its code without words of a language."""
    found = []
    for line in FENCE.sub("", text).splitlines():
        if line.startswith("|") and not re.match(r"\|[-:| ]+\|$", line):
            code = [part for part in re.findall(r"`([^`]+)`", line) if not CHINESE.search(part)]
            found.append((len(re.split(r"(?<!\\)\|", line)) - 2, sorted(code)))
    return found


def messages(text: str) -> list[str]:
    """Return the messages of the toolkit that a page quotes, each on a line of its own."""
    return re.findall(r"^`([^`]+)`$", FENCE.sub("", text), re.M)


@pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=[english for english, _ in PAIRS])
def test_a_chinese_page_has_what_the_english_one_has(english: str, chinese: str) -> None:
    here, there = read(english), read(chinese)
    assert headings(here) == headings(there)
    assert blocks(here) == blocks(there)
    assert rows(here) == rows(there)
    assert messages(here) == messages(there)


def test_a_difference_is_seen() -> None:
    page = "# a\n\n| key | what |\n|---|---|\n| `x` | y |\n\n```\nls  # list\n```\n"
    assert blocks(page) == blocks(page.replace("# list", "# 列出"))
    assert blocks(page) != blocks(page.replace("ls", "ls -l"))
    assert rows(page) != rows(page.replace("`x`", "`z`"))
    assert headings(page) != headings("#" + page)
    assert messages("a\n\n`...: is empty`\n") == ["...: is empty"]
