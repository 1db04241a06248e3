"""A real HAProxy with the toolkit's configuration, on loopback, in front of servers that stand for vLLM."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import http.client
import json
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.gateway.config import gateway_files
from gaudi_serve.gateway.objects import Backend, Client, Gateway, Server
from gaudi_serve.gateway.runtime import VERSION, Runtime

CHAT = "/v1/chat/completions"
KEYS = {"alice": "key-of-alice-5f2a", "bob": "key-of-bob-77c1"}
EVENTS = 10
TAKES = 4  # requests that a server works on at a time


class Vllm(ThreadingHTTPServer):
    """A server that answers or streams, slowly where told so, and keeps what it was asked."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.seconds, self.working, self.most = 0.0, 0, 0
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of connections that end in the middle."""


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Vllm
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Be healthy."""
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        """Answer in one piece, or as events."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        server, asked = self.server, json.loads(body)
        with server.lock:
            server.working += 1
            server.most = max(server.most, server.working)
            server.asked.append({"path": self.path, "bytes": len(body), "key": self.headers.get("Authorization")})
        self.send_response(200)
        if asked.get("stream"):
            self.stream()
            last = b"0\r\n\r\n"
        else:
            time.sleep(server.seconds)
            self.send_header("Content-Length", "2")
            self.end_headers()
            last = b"ok"
        # Before the last bytes: with them the next request may come.
        with server.lock:
            server.working -= 1
        self.wfile.write(last)

    def stream(self) -> None:
        """Send events one after the other."""
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in [*range(EVENTS), "[DONE]"]:
            text = f"data: {number}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
            self.wfile.flush()
            time.sleep(max(0.02, self.server.seconds / EVENTS))


class Front:
    """A HAProxy, the servers behind it, and requests to it."""

    def __init__(self, folder: Path, servers: dict[str, list[Vllm]], **more: Any) -> None:
        self.log = folder / "log"
        backends = tuple(
            Backend(
                model,
                tuple(
                    Server(f"h{number}.{'small' if model == 'small' else 'large'}", "127.0.0.1", one.server_port, TAKES)
                    for number, one in enumerate(behind)
                ),
                f"server-key-of-{model}",
            )
            for model, behind in servers.items()
        )
        probe = ThreadingHTTPServer(("127.0.0.1", 0), Handler), ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        ports = [one.server_port for one in probe]
        for one in probe:
            one.server_close()
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
        argv = ["haproxy", "-W", "-f", f"{folder}/files/haproxy.cfg"]
        checked = subprocess.run([*argv, "-c"], capture_output=True, text=True, check=False)
        assert (checked.returncode, "WARNING" in checked.stderr) == (0, False), checked.stderr
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)
        self.wait(lambda: all(one.up for one in self.runtime.servers()))

    def write(self, gateway: Gateway) -> None:
        """Write its files."""
        self.written = gateway
        for path, file in gateway_files(gateway).items():
            Path(path).write_text(file.text)

    def wait(self, ready: Any, seconds: float = 20) -> None:
        """Wait until something is so."""
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
        """Start workers with the files that are there, which take over from the old ones."""
        servers = [one for backend in self.written.backends for one in backend.servers]
        self.runtime.save(Path(self.gateway.run) / "state", {one.name: (one.address, one.port) for one in servers})
        before, loaded = self.pids(), self.loaded()
        end = time.monotonic() + 20
        # A master that is about to take its signals over once more loses one that comes just then.
        while self.loaded() == loaded or self.pids() == before:
            assert time.monotonic() < end, self.log.read_text()[-2000:]
            self.process.send_signal(signal.SIGUSR2)
            with contextlib.suppress(AssertionError):
                self.wait(lambda: self.loaded() > loaded and self.pids() != before, 2)

    def loaded(self) -> int:
        """Return how often it has told that it is ready."""
        return self.log.read_text().count("Loading success.")

    def pids(self) -> str:
        """Return the process that answers at the socket now."""
        return next(line for line in self.runtime.ask("show info").splitlines() if line.startswith("Pid:"))

    def ask(self, path: str, body: Any = None, key: str | None = KEYS["alice"]) -> tuple[int, str, dict[str, str]]:
        """Return status, text and headers of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=60)
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request("POST" if body is not None else "GET", path, content, headers)
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

    def end(self) -> None:
        """Stop it."""
        self.process.terminate()
        self.process.wait(20)


@pytest.fixture
def vllms() -> Iterator[list[Vllm]]:
    """Three servers."""
    servers = [Vllm() for _ in range(3)]
    yield servers
    for one in servers:
        one.shutdown()
        one.server_close()


CLIENTS = (
    Client("alice", hashlib.sha256(KEYS["alice"].encode()).hexdigest()),
    Client("bob", hashlib.sha256(KEYS["bob"].encode()).hexdigest(), ("small",), 5),
)


@pytest.fixture
def front(tmp_path: Path, vllms: list[Vllm]) -> Iterator[Front]:
    """A gateway with clients, a model on two servers and one on a third."""
    assert shutil.which("haproxy"), "scripts/deps installs it"
    one = Front(tmp_path, {"Qwen/QwQ-32B": vllms[:2], "small": vllms[2:]}, clients=CLIENTS, body_mib=1)
    yield one
    one.end()


def test_a_request_goes_to_its_model_with_the_servers_own_key(front: Front, vllms: list[Vllm]) -> None:
    body = {"model": "Qwen/QwQ-32B", "messages": []}
    assert front.ask(CHAT, body)[:2] == (200, "ok")
    assert front.ask("/models/small" + CHAT, {"messages": []})[:2] == (200, "ok")
    assert front.ask("/models/Qwen%2FQwQ-32B" + CHAT, {"messages": []})[:2] == (200, "ok")
    (small,) = vllms[2].asked
    assert small == {"path": CHAT, "bytes": 16, "key": "Bearer server-key-of-small"}
    large = [one for server in vllms[:2] for one in server.asked]
    assert {one["key"] for one in large} == {"Bearer server-key-of-Qwen/QwQ-32B"}
    assert {one["path"] for one in large} == {CHAT}
    # The name is found behind a long text, and in front of any: what follows may be pictures.
    text = "x" * 200_000
    assert front.ask(CHAT, {"messages": text, "model": "small"})[0] == 200
    assert front.ask(CHAT, {"model": "small", "messages": text * 5})[0] == 200
    status, message, code = front.error(CHAT, {"messages": text * 5, "model": "small"})
    assert (status, code) == (400, "model_missing") and "/models/NAME/v1/" in message
    assert front.error(CHAT, b"not json")[::2] == (400, "model_missing")
    for secret in (*KEYS.values(), "server-key"):
        assert secret not in front.log.read_text()


def test_models_that_share_a_server_are_found_and_nobody_changes_which_they_are(
    tmp_path: Path, vllms: list[Vllm]
) -> None:
    front = Front(tmp_path, {"gte": vllms[:1], "rerank": vllms[:1]})
    try:
        for name in ("gte", "rerank"):
            assert front.ask(CHAT, {"model": name}, None)[:2] == (200, "ok")
        for path in ("/v1/update_models", "/v1/update%5Fmodels", "/models/gte/v1/update_models"):
            assert front.error(path, {"model": "gte", "models": []}, key=None)[::2] == (403, "not_allowed")
        assert [one["path"] for one in vllms[0].asked] == [CHAT, CHAT]
    finally:
        front.end()


def test_who_may_not_is_told_so_as_openai_does(front: Front) -> None:
    assert front.error(CHAT, {"model": "small"}, key=None)[::2] == (401, "invalid_api_key")
    assert front.error(CHAT, {"model": "small"}, key="wrong")[::2] == (401, "invalid_api_key")
    status, message, code = front.error(CHAT, {"model": 'no"such\\'})
    assert (status, code) == (404, "model_not_found")
    assert message == 'The model `no"such\\` is not served here; there are: Qwen/QwQ-32B, small'
    # Of a model that a key may not use, its owner does not even learn that it is there.
    message = front.error(CHAT, {"model": "Qwen/QwQ-32B"}, key=KEYS["bob"])[1]
    assert message.endswith("is not served here; there are: small")
    for key, names in ((KEYS["alice"], ["Qwen/QwQ-32B", "small"]), (KEYS["bob"], ["small"])):
        status, text, _ = front.ask("/v1/models", key=key)
        assert (status, [one["id"] for one in json.loads(text)["data"]]) == (200, names)
    assert front.error(CHAT, {"model": "small", "x": "y" * (1 << 20)})[::2] == (413, "request_too_large")
    asked = [front.ask(CHAT, {"model": "small"}, key=KEYS["bob"]) for _ in range(5)]
    status, text, headers = asked[-1]
    assert (status, json.loads(text)["error"]["code"]) == (429, "rate_limit_exceeded")
    assert headers["retry-after"] == "60"
    assert front.ask("/health", key=None)[:2] == (200, "ok")


def test_events_come_as_they_are_made(front: Front, vllms: list[Vllm]) -> None:
    vllms[2].seconds = 2
    connection = http.client.HTTPConnection("127.0.0.1", front.gateway.port, timeout=30)
    start = time.monotonic()
    headers = {"Authorization": f"Bearer {KEYS['alice']}"}
    connection.request("POST", CHAT, json.dumps({"model": "small", "stream": True}), headers)
    answer = connection.getresponse()
    assert answer.readline() == b"data: 0\n"
    assert time.monotonic() - start < 1
    assert answer.read().endswith(b"data: [DONE]\n\n")
    assert time.monotonic() - start > 1.5
    connection.close()


def load(front: Front, stop: threading.Event, model: str, failed: list[str], done: list[int]) -> list[threading.Thread]:
    """Let fifty ask without a break, half of them for streams."""

    def one(stream: bool) -> None:
        while not stop.is_set():
            try:
                status, text, _ = front.ask(CHAT, {"model": model, "stream": stream})
                good = status == 200 and (text.endswith("data: [DONE]\n\n") if stream else text == "ok")
                (done if good else failed).append(status if good else f"{status} {text[-80:]}")  # type: ignore[arg-type]
            except (OSError, http.client.HTTPException) as problem:
                failed.append(repr(problem))

    threads = [threading.Thread(target=one, args=(number % 2 == 0,)) for number in range(50)]
    for thread in threads:
        thread.start()
    return threads


def test_reloads_and_drains_are_not_noticed_under_load(front: Front, vllms: list[Vllm]) -> None:
    stop, failed, done = threading.Event(), [], []  # type: ignore[var-annotated]
    for one in vllms:
        one.seconds = 0.05
    threads = load(front, stop, "Qwen/QwQ-32B", failed, done)
    try:
        name = front.gateway.backends[0].name
        front.runtime.set_state(name, "h0.large", "drain")
        for _ in range(10):
            front.reload()
        # A reload keeps what was said while it ran: the drained server is asked nothing more.
        assert [(one.name, one.drained) for one in front.runtime.servers()][:2] == [
            ("h0.large", True),
            ("h1.large", False),
        ]
        front.wait(lambda: vllms[0].working == 0)
        # While a worker of before a reload still serves, two of them count for themselves; by now one is left.
        before, vllms[0].most = len(vllms[0].asked), 0
        time.sleep(0.5)
        assert len(vllms[0].asked) == before
        front.runtime.set_state(name, "h0.large", "ready")
        front.wait(lambda: len(vllms[0].asked) > before + 20)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert failed == []
    assert len(done) > 100
    assert vllms[0].most <= TAKES, "no more at a time than the plan says that it takes"


def test_a_server_gets_less_of_its_share_also_after_a_reload(front: Front, vllms: list[Vllm]) -> None:
    name = front.gateway.backends[0].name
    front.runtime.set_weight(name, "h0.large", 0)
    front.reload()
    assert [one.weight for one in front.runtime.servers()] == [0, 100, 100]
    for _ in range(6):
        assert front.ask(CHAT, {"model": "Qwen/QwQ-32B"})[0] == 200
    assert (len(vllms[0].asked), len(vllms[1].asked)) == (0, 6)


def test_a_server_that_has_moved_is_asked_where_it_is(front: Front, vllms: list[Vllm]) -> None:
    large, small = front.gateway.backends
    moved = dataclasses.replace(small.servers[0], port=vllms[0].server_port)
    front.runtime.set_state(small.name, moved.name, "drain")
    front.write(dataclasses.replace(front.gateway, backends=(large, dataclasses.replace(small, servers=(moved,)))))
    # What is kept over a reload has the address of before.
    front.reload()
    assert [one.drained for one in front.runtime.servers() if one.backend == small.name] == [True]
    front.runtime.set_state(small.name, moved.name, "ready")
    assert front.ask(CHAT, {"model": "small"})[0] == 200
    assert (len(vllms[0].asked), vllms[2].asked) == (1, [])


def test_what_no_server_takes_waits_and_then_is_refused(tmp_path: Path, vllms: list[Vllm]) -> None:
    front = Front(tmp_path, {"small": vllms[:1]}, waiting=3, wait_s=1)
    try:
        # One model alone: it needs no name, and nobody a key.
        assert front.ask(CHAT, {"messages": "x" * 300_000}, key=None)[:2] == (200, "ok")
        vllms[0].seconds = 3
        answers: list[tuple[int, str, dict[str, str]]] = []

        def one() -> None:
            answers.append(front.ask(CHAT, {"model": "small"}, key=None))

        threads = [threading.Thread(target=one) for _ in range(10)]
        for thread in threads:
            thread.start()
            time.sleep(0.05)
        for thread in threads:
            thread.join(30)
        codes = sorted(json.loads(text)["error"]["code"] if status != 200 else "ok" for status, text, _ in answers)
        # Four run, three wait for a second in vain, the rest is refused at once.
        assert codes == ["ok"] * TAKES + ["overloaded"] * 3 + ["service_unavailable"] * 3
        assert all("retry-after" in headers for status, _, headers in answers if status != 200)
        vllms[0].shutdown()
        vllms[0].server_close()
        front.wait(lambda: not front.runtime.servers()[0].up)
        status, text, headers = front.ask(CHAT, {"model": "small"}, key=None)
        assert (status, json.loads(text)["error"]["code"], headers["retry-after"]) == (503, "service_unavailable", "5")
    finally:
        front.end()
