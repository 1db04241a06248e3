"""A VT100 terminal's screen; it refuses unknown sequences."""

from __future__ import annotations

import re

TOKEN = re.compile(r"\x1b\[([\d;]*)([A-Za-z])|\x1b([78D])|([\r\n])|([^\x1b\r\n]+)")


class Screen:
    """Rows of text, a cursor, and the scroll region."""

    def __init__(self, rows: int, columns: int) -> None:
        """Start with an empty screen."""
        self.columns = columns
        self.rows = [""] * rows
        self.above: list[str] = []  # rows that have scrolled off
        self.row = self.column = 0
        self.saved = (0, 0)
        self.region = (0, rows - 1)

    @property
    def whole(self) -> bool:
        """Return whether all rows scroll."""
        return self.region == (0, len(self.rows) - 1)

    @property
    def text(self) -> list[str]:
        """Return all rows that were ever written, without the empty ones at the end."""
        rows = [row.rstrip() for row in (*self.above, *self.rows)]
        return rows[: max((place for place, row in enumerate(rows, 1) if row), default=0)]

    def resize(self, rows: int, columns: int) -> None:
        """Change the size as xterm does: the row of the cursor stays visible, and all rows scroll."""
        cut = max(0, self.row - rows + 1)
        self.above += self.rows[:cut]
        self.rows = (self.rows[cut:] + [""] * rows)[:rows]
        self.row, self.columns, self.region = self.row - cut, columns, (0, rows - 1)

    def feed(self, text: str) -> None:
        """Draw a text."""
        place = 0
        while place < len(text):
            token = TOKEN.match(text, place)
            assert token, repr(text[place:])
            place = token.end()
            numbers, final, single, control, plain = token.groups()
            if final:
                self._sequence(numbers, final)
            elif single == "7":
                self.saved = self.row, self.column
            elif single == "8":
                self.row, self.column = self.saved
            elif single == "D" or control == "\n":
                self._down()
            elif control == "\r":
                self.column = 0
            else:
                self._write(plain)

    def _sequence(self, numbers: str, final: str) -> None:
        given = [int(number or 0) for number in numbers.split(";")]
        row = self.rows[self.row]
        if final == "r":
            first, last = given if len(given) == 2 else (1, len(self.rows))
            self.region, self.row, self.column = (first - 1, last - 1), 0, 0
        elif final == "H":
            self.row, self.column = (max(0, number - 1) for number in given)
        elif final == "A":
            self.row = max(0, self.row - max(1, given[0]))
        elif final in "JK":
            assert given == [0], (numbers, final)
            self.rows[self.row] = row[: self.column]
            if final == "J":
                self.rows[self.row + 1 :] = [""] * (len(self.rows) - self.row - 1)
        else:
            assert final == "m", (numbers, final)

    def _down(self) -> None:
        top, bottom = self.region
        if self.row == bottom:
            if top == 0:
                self.above.append(self.rows[0])
            self.rows[top : bottom + 1] = [*self.rows[top + 1 : bottom + 1], ""]
        elif self.row < len(self.rows) - 1:
            self.row += 1

    def _write(self, text: str) -> None:
        assert self.column + len(text) <= self.columns, f"{text!r} does not fit at {self.column}"
        row = self.rows[self.row].ljust(self.column)
        self.column += len(text)
        self.rows[self.row] = row[: self.column - len(text)] + text + row[self.column :]
