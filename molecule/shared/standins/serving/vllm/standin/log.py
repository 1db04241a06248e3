"""Log lines in vLLM's format; upstream's say which of its processes speaks."""

from __future__ import annotations

import os
import time

from . import stack

API, CORE = "APIServer", "EngineCore"


def info(place: str, text: str, who: str = API) -> None:
    """Print a line as vLLM's logger does."""
    write("INFO", place, text, who)


def write(level: str, place: str, text: str, who: str = API) -> None:
    """Print a text of a level, each line with its head."""
    for one in text.splitlines():
        line(f"{level} {time.strftime('%m-%d %H:%M:%S')} [{place}] {one}", who)


def uvicorn(text: str) -> None:
    """Print a line as the web server does."""
    line(f"INFO:     {text}")


def line(text: str, who: str = API) -> None:
    """Print one line at once: whoever follows the log waits for it."""
    print(head(who) + text, flush=True)


def head(who: str) -> str:
    """Return what a process of upstream writes before each line; the fork's is one process."""
    return f"({who} pid={os.getpid()}) " if stack.UPSTREAM else ""
