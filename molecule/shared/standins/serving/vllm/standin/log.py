"""Log lines in vLLM's format."""

from __future__ import annotations

import time


def info(place: str, text: str) -> None:
    """Print a line as vLLM's logger does."""
    line(f"INFO {time.strftime('%m-%d %H:%M:%S')} [{place}] {text}")


def uvicorn(text: str) -> None:
    """Print a line as the web server does."""
    line(f"INFO:     {text}")


def line(text: str) -> None:
    """Print one line at once: whoever follows the log waits for it."""
    print(text, flush=True)
