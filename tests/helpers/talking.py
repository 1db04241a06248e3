"""A server that streams words as vLLM does, and fails in the same ways as real servers."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Talker(ThreadingHTTPServer):
    """One server.

    words: of its answers. pause_s: between two words. silent_s: before the first. breaks_after: number of words after
    which it closes the connection; None for never. status: of its responses. error: text of an event that replaces the
    answer. asked: the bodies of requests. left: requests whose clients closed the connection before the end.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.words, self.pause_s, self.silent_s = ["Paris", " is", " the", " capital."], 0.01, 0.0
        self.breaks_after: int | None = None
        self.status, self.error = 200, ""
        self.thought = ""
        self.asked: list[dict[str, Any]] = []
        self.left = self.working = 0
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing when a connection is closed."""


class _Handler(BaseHTTPRequestHandler):
    server: Talker
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """Respond to a health check."""
        self._whole(200, {})

    def do_POST(self) -> None:
        """Respond with events."""
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.working += 1
        try:
            self._talk()
        except OSError:
            self.server.left += 1
            self.close_connection = True
        finally:
            self.server.working -= 1

    def _talk(self) -> None:
        server = self.server
        if server.status != 200:
            self._whole(server.status, {"error": {"message": "The prompt is longer than 512 tokens.", "code": 400}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        end = time.monotonic() + server.silent_s
        while time.monotonic() < end:
            self._alive()
            time.sleep(0.05)
        if server.error:
            self._event({"error": {"message": server.error}})
        if server.thought:
            self._event({"choices": [{"delta": {"reasoning_content": server.thought}}]})
        for number, word in enumerate(server.words):
            if number == server.breaks_after:
                self.close_connection = True
                self.connection.close()
                return
            self._alive()
            self._event({"choices": [{"delta": {"content": word}}]})
            time.sleep(server.pause_s)
        self._event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        self._event({"choices": [], "usage": {"completion_tokens": len(server.words)}})
        self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _alive(self) -> None:
        """Raise OSError if the client has closed the connection."""
        self.connection.setblocking(False)
        try:
            if self.connection.recv(1) == b"":
                raise ConnectionResetError
        except BlockingIOError:
            pass
        finally:
            self.connection.setblocking(True)

    def _event(self, event: dict[str, Any]) -> None:
        self._chunk(f"data: {json.dumps(event)}\n\n".encode())

    def _chunk(self, text: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))

    def _whole(self, status: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@contextlib.contextmanager
def talkers(number: int) -> Iterator[list[Talker]]:
    """Yield this number of servers, and stop them at the end."""
    found = [Talker() for _ in range(number)]
    yield found
    for one in found:
        one.shutdown()
        one.server_close()
