"""A progress line in the last row of a terminal; the text above it scrolls in its own region, as with apt."""

from __future__ import annotations

import contextlib
import os
from typing import TextIO

# The terminfo value of terminals with VT100 scroll regions; these terminals also support the other sequences.
VT100_REGION = b"\x1b[%i%p1%d;%p2%dr"
SAVE, RESTORE, ERASE_LINE, ERASE_BELOW = "\x1b7", "\x1b8", "\x1b[K", "\x1b[J"
DOWN, UP, WHOLE = "\x1bD", "\x1b[A", "\x1b[r"
LEAST_ROWS = 3  # the smallest window in which a row is reserved


class LiveRow:
    """The last row of a terminal, reserved from the first drawing until ``release``.

    Other writers need no change, because the cursor stays in the text above the row. Every drawing measures the
    window again, so no signal handler is needed.
    """

    def __init__(self, stream: TextIO) -> None:
        """Store the stream of a terminal for which ``can_reserve`` is true."""
        self.stream = stream
        self.window = os.terminal_size((0, 0))  # the window size for which the row is reserved

    @property
    def columns(self) -> int:
        """Return the characters of a row; 0 if the window is unknown or too small to reserve a row."""
        size = self._measured()
        return size.columns if size.lines >= LEAST_ROWS else 0

    def draw(self, text: str) -> None:
        """Show a text in place of the previous one; it must have fewer characters than ``columns``."""
        size = self._measured()
        if size.lines < LEAST_ROWS:
            self.release()
        elif text or self.window.lines:
            before = "" if size == self.window else self._reserving(size)
            self.window = size
            self._write(f"{before}{SAVE}\x1b[{size.lines};1H{text}{ERASE_LINE}{RESTORE}")

    def release(self) -> None:
        """Clear the row and release it."""
        if self.window.lines:
            self.window = os.terminal_size((0, 0))
            self._write(f"{SAVE}{WHOLE}{RESTORE}{ERASE_BELOW}")

    def _reserving(self, size: os.terminal_size) -> str:
        """Return the sequence that reserves the last row.

        After a resize the old row can be anywhere below the text, so everything below is erased. If the cursor is in
        the last row, the text first scrolls up by one row.
        """
        before = f"{SAVE}{WHOLE}{RESTORE}{ERASE_BELOW}" if self.window.lines else ""
        return f"{before}{DOWN}{UP}{SAVE}\x1b[1;{size.lines - 1}r{RESTORE}"

    def _measured(self) -> os.terminal_size:
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(self.stream.fileno())
        return os.terminal_size((0, 0))

    def _write(self, text: str) -> None:
        # A single write keeps the output of other writers before or after it.
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(text)
            self.stream.flush()


def can_reserve(stream: TextIO) -> bool:
    """Return whether a stream is a terminal with VT100 scroll regions, according to terminfo."""
    try:
        import curses

        if not stream.isatty():
            return False
        curses.setupterm(fd=stream.fileno())
        return curses.tigetstr("csr") == VT100_REGION
    except (ImportError, OSError, ValueError, curses.error):
        return False
