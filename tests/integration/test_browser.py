"""The browser of the tests sees what a page does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.browser import Chromium, chromium

PAGE = """<!doctype html><html lang="en"><head><title>A page</title></head><body><main><h1>A page</h1>
<style>@media (prefers-color-scheme: dark) { h1 { color: rgb(1, 2, 3) } }</style>%s</main></body></html>"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with chromium() as started:
        yield started


def test_a_good_page_gives_nothing_to_report(browser: Chromium, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(PAGE % "<p>Text</p>")
    with browser.open(path, scheme="dark", size=(400, 300)) as view:
        assert (view.requests, view.errors, view.violations()) == ([path.as_uri()], [], [])
        assert view.page.evaluate("getComputedStyle(document.querySelector('h1')).color") == "rgb(1, 2, 3)"
        assert view.screenshot(tmp_path / "page.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("part", "field", "expected"),
    [
        ("<img alt='x' src='http://127.0.0.1:9/x.png'>", "requests", "http://127.0.0.1:9/x.png"),
        ("<script>throw Error('thrown here')</script>", "errors", "thrown here"),
        ("<script>console.error('reported here')</script>", "errors", "reported here"),
        ("<img src='data:,'>", "violations", "image-alt"),
    ],
)
def test_what_is_wrong_with_a_page_is_seen(
    browser: Chromium, tmp_path: Path, part: str, field: str, expected: str
) -> None:
    path = tmp_path / "page.html"
    path.write_text(PAGE % part)
    with browser.open(path) as view:
        seen = view.violations() if field == "violations" else getattr(view, field)
        assert [line for line in seen if expected in line]
