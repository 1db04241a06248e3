"""For tests: a page in a real Chromium without a screen, what it asks for, what it reports, and who cannot use it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Of its own accord it asks for nothing: each request is one of the page.
FLAGS = (
    *("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-sandbox"),
)


@dataclass
class View:
    """A page that is open, and what it has done since.

    requests: the addresses that it has asked for. errors: what its console calls an error, and what its scripts throw.
    """

    page: Any
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Listen."""
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)

    def violations(self) -> list[str]:
        """Return what axe-core holds against the page: the rule, and the elements that break it."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [f"{rule['id']}: {'; '.join(node['html'][:200] for node in rule['nodes'][:5])}" for rule in found]

    def screenshot(self, path: Path, *, whole: bool = False) -> Path:
        """Write a PNG of what is seen, or of the page to its end, and return its path."""
        self.page.screenshot(path=path, full_page=whole)
        return path


@dataclass
class Chromium:
    """A browser that runs."""

    process: Any

    @contextlib.contextmanager
    def open(
        self,
        address: str | Path,
        *,
        scheme: Literal["light", "dark"] = "light",
        size: tuple[int, int] = (1280, 900),
        **options: Any,
    ) -> Iterator[View]:
        """Open a file or an address in a context of its own; ``options`` are Playwright's of a context."""
        viewport = {"width": size[0], "height": size[1]}
        context = self.process.new_context(color_scheme=scheme, viewport=viewport, **options)
        try:
            view = View(context.new_page())
            view.page.goto(address.resolve().as_uri() if isinstance(address, Path) else address)
            yield view
        finally:
            context.close()


@contextlib.contextmanager
def chromium(*flags: str) -> Iterator[Chromium]:
    """Start Chromium, and end it; skip the test where this machine has none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("this machine has no Chromium; scripts/deps installs it on Debian, whose package it is")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        process = playwright.chromium.launch(executable_path=program, args=[*FLAGS, *flags])
        try:
            yield Chromium(process)
        finally:
            process.close()
