"""A terminal's last row for what takes long: text above it scrolls in a region of its own, as apt's progress does."""

from __future__ import annotations

import contextlib
import os
from typing import TextIO

# What terminfo has for a terminal whose regions are those of a VT100; the other sequences of one belong to it.
VT100_REGION = b"\x1b[%i%p1%d;%p2%dr"
SAVE, RESTORE, ERASE_LINE, ERASE_BELOW = "\x1b7", "\x1b8", "\x1b[K", "\x1b[J"
DOWN, UP, WHOLE = "\x1bD", "\x1b[A", "\x1b[r"
LEAST_ROWS = 3  # of a window in which a row is reserved


class LiveRow:
    """The last row of a terminal; reserved when something is first drawn there, until ``release``.

    Whoever else writes needs to know nothing of it: the cursor stays where it is, above. The window is measured at
    each drawing, so that no handler of signals is needed.
    """

    def __init__(self, stream: TextIO) -> None:
        """Take the stream of a terminal that ``can_reserve``."""
        self.stream = stream
        self.window = os.terminal_size((0, 0))  # for which the row is reserved

    @property
    def columns(self) -> int:
        """Return how many characters a row has; 0 where the window is unknown or too small to reserve one."""
        size = self._measured()
        return size.columns if size.lines >= LEAST_ROWS else 0

    def draw(self, text: str) -> None:
        """Show a text, of fewer characters than ``columns``, in place of the one before."""
        size = self._measured()
        if size.lines < LEAST_ROWS:
            self.release()
        elif text or self.window.lines:
            before = "" if size == self.window else self._reserving(size)
            self.window = size
            self._write(f"{before}{SAVE}\x1b[{size.lines};1H{text}{ERASE_LINE}{RESTORE}")

    def release(self) -> None:
        """Give the row back, empty."""
        if self.window.lines:
            self.window = os.terminal_size((0, 0))
            self._write(f"{SAVE}{WHOLE}{RESTORE}{ERASE_BELOW}")

    def _reserving(self, size: os.terminal_size) -> str:
        """Return what reserves the last row. Of a window that has changed its size the old row may be anywhere below.

        Where the cursor is in the last row, the text goes up by one first.
        """
        before = f"{SAVE}{WHOLE}{RESTORE}{ERASE_BELOW}" if self.window.lines else ""
        return f"{before}{DOWN}{UP}{SAVE}\x1b[1;{size.lines - 1}r{RESTORE}"

    def _measured(self) -> os.terminal_size:
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(self.stream.fileno())
        return os.terminal_size((0, 0))

    def _write(self, text: str) -> None:
        # In one piece: what others write comes before or after it.
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(text)
            self.stream.flush()


def can_reserve(stream: TextIO) -> bool:
    """Tell whether a stream is a terminal with regions that scroll, as terminfo has it."""
    try:
        import curses

        if not stream.isatty():
            return False
        curses.setupterm(fd=stream.fileno())
        return curses.tigetstr("csr") == VT100_REGION
    except (ImportError, OSError, ValueError, curses.error):
        return False
