"""Progress reports of tasks, sent from Ansible's forks to the process that shows the run."""

from __future__ import annotations

import contextlib
import os
from typing import ClassVar

END = b"\0"


class Reports:
    """A pipe from all forks that begin after it was opened.

    of_run: the pipe of the process that shows the run, and of its forks; None if no process shows reports.
    """

    of_run: ClassVar[Reports | None] = None

    def __init__(self) -> None:
        """Open the pipe; both ends are non-blocking."""
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
        """Send a text. If the pipe is full, the text is dropped; the next report replaces it."""
        with contextlib.suppress(OSError):
            os.write(self.writing, text.encode() + END)

    def received(self) -> list[str]:
        """Return the texts received since the last call."""
        with contextlib.suppress(OSError):
            while part := os.read(self.reading, 65536):
                self.rest += part
        *texts, self.rest = self.rest.split(END)
        return [text.decode(errors="replace") for text in texts]


def report(text: str) -> bool:
    """Report the progress of a running task; return whether a process shows it."""
    if Reports.of_run is None:
        return False
    Reports.of_run.send(text)
    return True
