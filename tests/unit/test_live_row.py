"""The last row of a terminal, on a pseudo-terminal, as a screen shows it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from gaudi_serve.show.live_row import LiveRow
from helpers.screen import Screen

LIB = Path(__file__).parents[2] / "lib"


class Terminal:
    """A pseudo-terminal with the screen behind it."""

    def __init__(self, rows: int, columns: int = 40) -> None:
        self.ours, its = pty.openpty()
        self.stream = os.fdopen(its, "w")
        self.screen = Screen(rows, columns)
        self.row = LiveRow(self.stream)
        termios.tcsetwinsize(self.ours, (rows, columns))

    def resize(self, rows: int, columns: int = 40) -> None:
        """Change the size of the window."""
        termios.tcsetwinsize(self.ours, (rows, columns))
        self.screen.resize(rows, columns)

    def write(self, *lines: str) -> None:
        """Write as anybody does who knows nothing of a reserved row."""
        for line in lines:
            self.stream.write(f"{line}\n")
            self.stream.flush()
            self.drawn()

    def draw(self, text: str) -> None:
        """Draw in the reserved row."""
        self.row.draw(text)
        self.drawn()

    def drawn(self) -> None:
        """Let the screen draw all that was written, however busy the kernel is: the NUL comes behind it."""
        self.stream.write("\0")
        self.stream.flush()
        read = b""
        while not read.endswith(b"\0"):
            read += os.read(self.ours, 65536)
        self.screen.feed(read[:-1].decode())


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """Return a terminal of six rows."""
    found = Terminal(6)
    yield found
    found.stream.close()
    os.close(found.ours)


def test_what_others_write_scrolls_above_the_row(terminal: Terminal) -> None:
    terminal.write("one", "two")
    terminal.draw("loading, 10 s")
    assert terminal.screen.rows == ["one", "two", "", "", "", "loading, 10 s"]
    terminal.write("three", "four", "five", "six", "seven")
    terminal.draw("loading")
    assert terminal.screen.rows == ["four", "five", "six", "seven", "", "loading"]
    assert terminal.screen.above == ["one", "two", "three"]
    terminal.row.release()
    terminal.drawn()
    assert terminal.screen.whole
    terminal.write("eight", "nine")
    assert terminal.screen.text == ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def test_no_line_is_lost_where_the_cursor_is_in_the_last_row(terminal: Terminal) -> None:
    terminal.write(*"abcdefgh")
    terminal.stream.write("asked: ")
    terminal.draw("loading")
    terminal.write("answered")
    assert terminal.screen.rows == ["f", "g", "h", "asked: answered", "", "loading"]


def test_nothing_is_reserved_before_there_is_something_to_show(terminal: Terminal) -> None:
    terminal.draw("")
    terminal.row.release()
    assert terminal.screen.whole and terminal.screen.text == []
    os.set_blocking(terminal.ours, False)
    with pytest.raises(BlockingIOError):
        os.read(terminal.ours, 1)


@pytest.mark.parametrize("rows", [4, 5, 9])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_the_row_follows_the_window(rows: int, count: int, terminal: Terminal) -> None:
    written = [f"line {number}" for number in range(count)]
    terminal.write(*written)
    terminal.draw("loading, 10 s")
    terminal.resize(rows)
    terminal.draw("loading, 11 s")
    assert terminal.screen.rows[-1] == "loading, 11 s"
    assert terminal.screen.text[:count] == written
    terminal.write("more", "and more")
    assert terminal.screen.rows[-1] == "loading, 11 s"
    terminal.row.release()
    terminal.drawn()
    assert terminal.screen.text == [*written, "more", "and more"]


def test_a_window_that_is_too_small_has_no_row(terminal: Terminal) -> None:
    terminal.draw("loading")
    assert terminal.row.columns == 40
    terminal.resize(2)
    assert terminal.row.columns == 0
    terminal.draw("loading")
    assert terminal.screen.whole and terminal.screen.rows == ["", ""]


RESERVES = "import sys; from gaudi_serve.show.live_row import can_reserve; sys.exit(3 + can_reserve(sys.stdout))"


@pytest.mark.parametrize(
    ("name", "able"), [("xterm", True), ("linux", True), ("dumb", False), ("", False), ("no-such-terminal", False)]
)
def test_terminfo_reports_whether_a_terminal_has_regions(name: str, able: bool) -> None:
    ours, its = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(LIB), "TERM": name}
    done = subprocess.run([sys.executable, "-c", RESERVES], env=environment, stdout=its, check=False)
    os.close(its)
    os.close(ours)
    assert done.returncode == 3 + able


def test_a_pipe_has_no_row() -> None:
    environment = {**os.environ, "PYTHONPATH": str(LIB), "TERM": "xterm"}
    done = subprocess.run([sys.executable, "-c", RESERVES], env=environment, stdout=subprocess.PIPE, check=False)
    assert done.returncode == 3
