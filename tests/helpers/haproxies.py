"""A real HAProxy with the toolkit's configuration on loopback, in front of stand-ins for vLLM."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gaudi_serve.gateway.config import gateway_files
from gaudi_serve.gateway.objects import Backend, Client, Gateway, Server
from gaudi_serve.gateway.runtime import VERSION, Runtime

CHAT = "/v1/chat/completions"
KEYS = {"alice": "key-of-alice-5f2a", "bob": "key-of-bob-77c1"}
EVENTS = 10
TAKES = 4  # concurrent requests of a server
GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # from RFC 6455
USAGE = {"prompt_tokens": 7, "completion_tokens": 9}


class Vllm(ThreadingHTTPServer):
    """A server that answers or streams, optionally slowly, and records its requests.

    seconds: duration of an answer. fails: every request except /health and /tokenize gets 500. text: text of its
    answers. requires: the authorization without which it does not list its models. left: times at which clients closed
    their connections before they had an answer. counts: streams have the usage in each event, as with
    enable_force_include_usage. generated: tokens of each stream that a client left.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: str = "127.0.0.1") -> None:
        super().__init__((address, 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.left: list[float] = []
        self.seconds, self.working, self.most, self.fails = 0.0, 0, 0, False
        self.text, self.counts = b"", False
        self.requires = ""
        self.generated: list[int] = []
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing when a connection is closed."""


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Vllm
    protocol_version = "HTTP/1.1"
    at_work = False

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """Respond to a health check, a stored response, or a WebSocket."""
        if self.path == "/health":
            self.answer({})
        elif self.path == "/v1/models" and self.server.requires not in ("", self.headers.get("authorization")):
            self.answer({"error": "Unauthorized"}, 401)
        elif "realtime" in self.path:
            self.record(b"")
            self.send_response(101)
            self.send_header("Connection", "Upgrade")
            self.send_header("Upgrade", "websocket")
            digest = hashlib.sha1((self.headers["Sec-WebSocket-Key"] + GUID).encode(), usedforsecurity=False).digest()
            self.send_header("Sec-WebSocket-Accept", base64.b64encode(digest).decode())
            self.end_headers()
            self.wfile.write(self.rfile.readline().upper())
            self.close_connection = True
        elif self.path.startswith("/v1/responses/"):
            self.record(b"")
            self.answer({"id": self.path})
        else:
            self.answer({"detail": "Not Found"}, 404)  # as vLLM's server answers unknown paths

    def do_POST(self) -> None:
        """Respond in one piece or as events."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        server, self.at_work = self.server, True
        with server.lock:
            server.working += 1
            server.most = max(server.most, server.working)
        self.record(body)
        try:
            asked = json.loads(body) if body.startswith(b"{") else {}
            if server.fails and self.path != "/tokenize":
                self.answer({}, 500)
            elif asked.get("status"):
                self.answer({}, asked["status"])
            elif asked.get("stream"):
                self.stream(asked)
            elif self.wait():
                name = asked.get("request_id") or f"resp_{time.monotonic_ns()}_{server.server_port}"
                self.answer({"id": name, "usage": USAGE})
        except OSError:
            self.close_connection = True
        finally:
            self.finish_one()

    def finish_one(self) -> None:
        """Count the request as done before its last bytes, because the next request may arrive right after them."""
        if self.at_work:
            self.at_work = False
            with self.server.lock:
                self.server.working -= 1

    def record(self, body: bytes) -> None:
        """Record the request."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = {"path": self.path, "bytes": len(body), "key": headers.get("authorization"), "headers": headers}
        asked["port"] = self.client_address[1]
        self.server.asked.append(asked)

    def wait(self) -> bool:
        """Simulate work, and return whether the client is still connected."""
        end = time.monotonic() + self.server.seconds
        while (rest := end - time.monotonic()) > 0:
            readable, _, _ = select.select([self.connection], [], [], rest)
            try:
                gone = bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
            except OSError:
                gone = True
            if gone:
                self.server.left.append(time.monotonic())
                self.close_connection = True
                return False
        return True

    def answer(self, body: Any, status: int = 200) -> None:
        """Respond in one piece, with the headers first, as vLLM's server does."""
        text = (self.path != "/health" and self.server.text) or json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Access-Control-Allow-Origin", "*")  # vLLM's default
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.finish_one()
        self.wfile.write(text)

    def stream(self, asked: dict[str, Any]) -> None:
        """Send events one by one."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        first = {"response": {"id": f"resp_{time.monotonic_ns()}_{self.server.server_port}", "text": "x" * 80}}
        usage = [{"usage": USAGE}] if asked.get("stream_options") else []
        counted = [{"x": number, "usage": {**USAGE, "completion_tokens": number + 1}} for number in range(EVENTS)]
        events: list[Any] = counted if self.server.counts else list(range(EVENTS))
        for sent, event in enumerate([*([first] if "responses" in self.path else []), *events, *usage, "[DONE]"]):
            text = f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
            try:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
            except OSError:
                self.server.generated.append(sent)
                raise
            time.sleep(max(0.02, self.server.seconds / EVENTS))
        self.finish_one()
        self.wfile.write(b"0\r\n\r\n")


@contextlib.contextmanager
def servers(number: int) -> Iterator[list[Vllm]]:
    """Yield this number of servers, and stop them at the end."""
    found = [Vllm() for _ in range(number)]
    yield found
    for one in found:
        one.shutdown()
        one.server_close()


def client(name: str, models: tuple[str, ...] = (), rate: int = 0) -> Client:
    """Return a client with its key of KEYS."""
    return Client(name, hashlib.sha256(KEYS[name].encode()).hexdigest(), models, rate)


def backend(model: str, behind: list[Vllm], **more: Any) -> Backend:
    """Return a backend of these servers."""
    short = model.rpartition("/")[2].lower()
    found = (Server(f"h{number}.{short}", "127.0.0.1", one.server_port, TAKES) for number, one in enumerate(behind))
    return Backend(model, tuple(found), f"server-key-of-{model}", **more)


def _ticks(stat: Path) -> int:
    """Return the user and system time of a process."""
    return sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13]))


class Front:
    """An HAProxy, the servers behind it, and requests to it."""

    def __init__(self, folder: Path, backends: tuple[Backend, ...], **more: Any) -> None:
        self.log = folder / "log"
        probe = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        ports = [one.getsockname()[1] for one in probe]
        for one in probe:
            one.close()
        self.gateway = Gateway(
            port=ports[0],
            metrics_port=ports[1],
            backends=backends,
            folder=f"{folder}/files",
            run=str(folder),
            state=f"{folder}/state",
            user="",
            **more,
        )
        (folder / "files").mkdir()
        (folder / "state").write_text(VERSION)
        self.write(self.gateway)
        self.runtime = Runtime(folder / "admin.sock")
        argv = ["haproxy", "-W", "-S", f"{folder}/master.sock,mode,600", "-f", f"{folder}/files/haproxy.cfg"]
        checked = subprocess.run([*argv, "-c"], capture_output=True, text=True, check=False)
        assert (checked.returncode, "WARNING" in checked.stderr) == (0, False), checked.stderr
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)
        self.wait(lambda: all(one.up for one in self.runtime.servers()))

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, where: TracebackType | None) -> None:
        """Stop it."""
        self.process.terminate()
        self.process.wait(20)

    def write(self, gateway: Gateway) -> None:
        """Write its files."""
        self.written = gateway
        for path, file in gateway_files(gateway).items():
            Path(path).write_text(file.text)

    def wait(self, ready: Callable[[], Any], seconds: float = 20) -> None:
        """Wait until a condition is true."""
        end = time.monotonic() + seconds
        while True:
            try:
                if ready():
                    return
            except (OSError, IndexError):
                pass
            assert time.monotonic() < end, self.log.read_text()[-2000:]
            time.sleep(0.05)

    def reload(self) -> None:
        """Start workers with the current files, which replace the old ones."""
        servers = [one for backend in self.written.backends for one in backend.servers]
        self.runtime.save(Path(self.gateway.run) / "state", {one.name: (one.address, one.port) for one in servers})
        before, loaded = self.pids(), self.loaded()
        end = time.monotonic() + 20
        # The HAProxy master loses a signal that arrives while it executes itself again.
        while self.loaded() == loaded or self.pids() == before:
            assert time.monotonic() < end, self.log.read_text()[-2000:]
            self.process.send_signal(signal.SIGUSR2)
            with contextlib.suppress(AssertionError):
                self.wait(lambda: self.loaded() > loaded and self.pids() != before, 2)

    def loaded(self) -> int:
        """Return how often it has logged that it is ready."""
        return self.log.read_text().count("Loading success.")

    def pids(self) -> str:
        """Return the process that responds at the socket now."""
        return next(line for line in self.runtime.ask("show info").splitlines() if line.startswith("Pid:"))

    def cost(self, *asked: Any, enough: float, **more: Any) -> float:
        """Return the processor seconds of a worker for a request, the minimum of three attempts.

        A value below ``enough`` ends the attempts: other load on the machine makes a processor slower, never faster.
        """
        stat = Path(f"/proc/{self.pids().split()[1]}/stat")
        least = float("inf")
        for _ in range(3):
            before, _, after = (_ticks(stat), self.ask(*asked, **more), _ticks(stat))
            least = min(least, (after - before) / os.sysconf("SC_CLK_TCK"))
            if least <= enough:
                break
        return least

    def ask(
        self, path: str, body: Any = None, key: str | None = KEYS["alice"], **headers: str
    ) -> tuple[int, str, dict[str, str]]:
        """Return status, text and headers of a response; ``x_api_key`` is the header x-api-key."""
        connection = http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=60)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {}), **sent}
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        method = sent.pop("method", "POST" if body is not None else "GET")
        connection.request(method, path, content, sent)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text, {name.lower(): value for name, value in answer.getheaders()}

    def error(self, *asked: Any, **more: Any) -> tuple[int, str, str]:
        """Return status, message and code of a refusal."""
        status, text, headers = self.ask(*asked, **more)
        assert headers["content-type"] == "application/json", text
        error = json.loads(text)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return status, error["message"], error["code"]

    def send(self, head: str, body: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
        """Return a connection after it has sent data that may be an incomplete request."""
        connection = socket.create_connection(("127.0.0.1", self.gateway.port), 60, (source, 0))
        connection.sendall(head.replace("\n", "\r\n").encode() + body)
        return connection

    def metrics(self, path: str = "/metrics") -> str:
        """Return a page for Prometheus."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.gateway.metrics_port}{path}") as answer:
            return str(answer.read().decode())

    def memory(self) -> float:
        """Return the buffers in use, in MiB."""
        pools = self.runtime.ask("show pools")
        size, used = re.search(r"Pool buffer \((\d+) bytes\).* (\d+) used", pools).groups()  # type: ignore[union-attr]
        return int(size) * int(used) / 1048576


class Http2:
    """A client of HTTP/2 without TLS that sends any frames (RFC 9113), with headers that need no table (RFC 7541)."""

    DATA, HEADERS, SETTINGS, WINDOW = 0, 1, 4, 8
    END_STREAM, END_HEADERS = 1, 4

    def __init__(self, port: int) -> None:
        """Connect."""
        self.socket = socket.create_connection(("127.0.0.1", port), 60)
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self.frame(self.SETTINGS, 0, 0, b"")

    def frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Send a frame."""
        head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
        self.socket.sendall(head + payload)

    def begin(self, stream: int, path: str, key: str, length: int) -> None:
        """Send the headers of a request with a body."""
        named = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x"}
        named |= {"authorization": f"Bearer {key}", "content-length": str(length)}
        fields = [text.encode() for pair in named.items() for text in pair]
        block = b"".join(
            (b"\0" if place % 2 == 0 else b"") + bytes([len(text)]) + text for place, text in enumerate(fields)
        )
        self.frame(self.HEADERS, self.END_HEADERS, stream, block)
