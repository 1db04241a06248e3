"""Refuses every name that a host asks for, and notes it: resolver.py FILE."""

from __future__ import annotations

import socketserver
import sys
from pathlib import Path
from typing import Any

REFUSED = 5


class Refusing(socketserver.BaseRequestHandler):
    """Answers each question of DNS over UDP alike."""

    def handle(self) -> None:
        """Note the name, and refuse it."""
        question, answers = self.request
        place, labels = 12, []
        while question[place]:
            length = question[place]
            labels.append(question[place + 1 : place + 1 + length].decode(errors="replace"))
            place += length + 1
        with Path(sys.argv[1]).open("a", encoding="utf-8") as noted:
            noted.write(".".join(labels) + "\n")
        flags = bytes([0x80 | (question[2] & 0x79), REFUSED])
        answers.sendto(question[:2] + flags + question[4:6] + bytes(6) + question[12:], self.client_address)


class Server(socketserver.UDPServer):
    """Serves on loopback."""

    allow_reuse_address = True


def main() -> None:
    """Serve until someone ends it."""
    Path(sys.argv[1]).touch()
    given: Any = ("127.0.0.1", 53)
    with Server(given, Refusing) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
