"""A page in headless Chromium: its requests, its errors, and its accessibility problems."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
# With these flags, Chromium sends no requests of its own: each request is the page's.
FLAGS = (
    *("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-sandbox"),
)


@dataclass
class View:
    """An open page, and what it has done so far.

    requests: the addresses that it requested. errors: errors on its console and exceptions of its scripts.
    """

    page: Any
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Record requests and errors."""
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)

    def violations(self) -> list[str]:
        """Return the violations that axe-core finds: the rule, and the elements that break it."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [f"{rule['id']}: {'; '.join(node['html'][:200] for node in rule['nodes'][:5])}" for rule in found]

    def screenshot(self, path: Path, *, whole: bool = False) -> Path:
        """Write a PNG of the visible part, or of the complete page, and return its path."""
        self.page.screenshot(path=path, full_page=whole)
        return path


@dataclass
class Chromium:
    """A running browser."""

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
        """Open a file or an address in its own context; ``options`` are Playwright's for a context."""
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
    """Start Chromium and stop it at the end; skip the test if this machine has none."""
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
