"""What tasks report while they run: from the forks that run them to the process that shows a run."""

from __future__ import annotations

import contextlib
import os
from typing import ClassVar

END = b"\0"


class Reports:
    """A pipe from all forks that begin after it was opened.

    of_run: that of the process that shows the run, and of its forks; None where nobody shows reports.
    """

    of_run: ClassVar[Reports | None] = None

    def __init__(self) -> None:
        """Open the pipe; neither end ever waits for the other."""
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        os.set_blocking(self.writing, False)
        self.rest = b""

    @classmethod
    def opened(cls) -> Reports:
        """Return the pipe of this run."""
        cls.of_run = cls.of_run or cls()
        return cls.of_run

    def send(self, text: str) -> None:
        """Send a text. One that finds the pipe full is lost; the next one says more."""
        with contextlib.suppress(OSError):
            os.write(self.writing, text.encode() + END)

    def received(self) -> list[str]:
        """Return the texts that have come since the last call."""
        with contextlib.suppress(OSError):
            while part := os.read(self.reading, 65536):
                self.rest += part
        *texts, self.rest = self.rest.split(END)
        return [text.decode(errors="replace") for text in texts]


def report(text: str) -> bool:
    """Report what a running task does; tell whether somebody shows it."""
    if Reports.of_run is None:
        return False
    Reports.of_run.send(text)
    return True
