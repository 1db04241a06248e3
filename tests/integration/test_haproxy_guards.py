"""What a gateway's real HAProxy does under load, with clients that are slow, gone or greedy, and servers that fail."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import re
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.gateway.objects import Server
from gaudi_serve.gateway.runtime import Runtime
from helpers.haproxies import CHAT, KEYS, TAKES, Front, Http2, Vllm, backend, client, servers

MODEL = {"model": "small"}
CLIENTS = (client("alice"), client("bob"))
ALICE = f"Host: x\nAuthorization: Bearer {KEYS['alice']}\n"


@pytest.fixture
def vllms() -> Iterator[list[Vllm]]:
    """Two servers."""
    with servers(2) as found:
        yield found


def front(folder: Path, behind: list[Vllm], **more: Any) -> Front:
    """Return a gateway for two clients and one model."""
    return Front(folder, (backend("small", behind),), **{"clients": CLIENTS, **more})


@contextlib.contextmanager
def flood(gateway: Front, number: int, key: str) -> Iterator[list[int]]:
    """Let so many clients ask without a break; give the list of statuses."""
    stop, found = threading.Event(), []

    def one() -> None:
        while not stop.is_set():
            try:
                found.append(gateway.ask(CHAT, MODEL, KEYS[key])[0])
            except (OSError, http.client.HTTPException):
                found.append(0)

    threads = [threading.Thread(target=one) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def took(gateway: Front, key: str) -> float:
    """Return how long an answer takes, in seconds."""
    begin = time.monotonic()
    assert gateway.ask(CHAT, MODEL, KEYS[key])[0] == 200
    return time.monotonic() - begin


LONG, MOST = 190_000, 0.05  # bytes of a body, and seconds of a processor that it may cost
FORM = "multipart/form-data; boundary=b"
DELIMITER = b"--b\r\nContent-Disposition: form-data; name="
BODIES = {
    "form names": b';name="model"' * (LONG // 13),
    "form delimiters": b"--b\r\n" * (LONG // 5),
    "form headers": (DELIMITER + b'"x"\r\n' + b"a: b\r\n" * 150 + b"\r\n\r\n") * (LONG // 1000),
    "form blanks": DELIMITER + b" " * LONG,
    "keys": b"{" + b'"prompt":1,' * (LONG // 11) + b'"model":"small"}',
    "texts": b"{" + b'"prompt":"a",' * (LONG // 13) + b'"model":"small"}',
    "depth": b'{"model":"small","messages":' + b"[" * LONG,
    "objects": b'{"model":"small","messages":[' + b"{}," * (LONG // 3) + b"{}]}",
    "roles": b'{"model":"small","messages":[{"a":' + b'"role" ' * (LONG // 7) + b"}]}",
    "blanks": b'{"model":"small","messages":[{"a":1, "role"' + b" " * LONG + b'"user"}]}',
    "quotes": b'{"model":"small",' + b'"' * LONG,
    "escapes": b'{"model":"small","' + b"\\" * LONG,
    "ids": b'{"model":"small","previous_response_id":' * (LONG // 40),
}


@pytest.mark.parametrize("balance", ["session", "prefix"])
def test_no_body_costs_more_than_its_length(tmp_path: Path, vllms: list[Vllm], balance: str) -> None:
    backends = (dataclasses.replace(backend("small", vllms[:1], adapters=("sql",)), balance=balance),)
    with Front(tmp_path, backends, clients=(client("alice"), client("bob", ("small",)))) as gateway:
        costs = {
            (name, path, key): gateway.cost(path, body, KEYS[key], enough=MOST, content_type=FORM)
            for name, body in BODIES.items()
            for path in ("/v1/responses", "/v1/audio/transcriptions")
            for key in KEYS
        }
    assert {what: cost for what, cost in costs.items() if cost > MOST} == {}


PARTS = (b'"usage":{', b'"usage":', b'"usage"' + b" " * 999, b'"id" ', b'"id":"resp_', b"x", b'"usage":{"a":[')


def test_no_answer_costs_more_than_its_length(tmp_path: Path, vllms: list[Vllm]) -> None:
    costs = {}
    with front(tmp_path, vllms[:1], usage=True) as gateway:
        for part in PARTS:
            vllms[0].text = part * (LONG // len(part))
            costs[part] = gateway.cost("/v1/responses", MODEL, enough=MOST)
    assert {part: cost for part, cost in costs.items() if cost > MOST} == {}


def test_an_answer_may_take_longer_than_a_client_may_be_silent(tmp_path: Path, vllms: list[Vllm]) -> None:
    vllms[0].seconds = 3
    with front(tmp_path, vllms[:1], client_s=1) as gateway:
        assert took(gateway, "bob") > 3


def test_a_server_that_never_answers_fails_the_request_in_time(tmp_path: Path, vllms: list[Vllm]) -> None:
    vllms[0].seconds = 4
    backends = (dataclasses.replace(backend("small", vllms[:1]), first_byte_s=1),)
    found: dict[str, tuple[int, float]] = {}
    short = {**MODEL, "max_tokens": 1}
    asks: dict[str, tuple[str, Any]] = {
        "no generation": ("/v1/embeddings", {**MODEL, "input": "x"}),
        "short answer": (CHAT, short),
        "answer of any length": (CHAT, MODEL),
        "long prompt": (CHAT, {**short, "messages": "x" * 6000}),
    }

    def ask(name: str) -> None:
        begin = time.monotonic()
        found[name] = (gateway.ask(*asks[name])[0], time.monotonic() - begin)

    with Front(tmp_path, backends, clients=CLIENTS) as gateway:
        threads = [threading.Thread(target=ask, args=(name,)) for name in asks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        # A stream has its headers at once, and then nothing for too long.
        vllms[0].seconds = 20
        assert "[DONE]" not in gateway.send(*stream(MODEL)).makefile("rb").read().decode()
    statuses = {name: status for name, (status, _) in found.items()}
    answered = {"answer of any length": 200, "long prompt": 200}
    assert statuses == {"no generation": 504, "short answer": 504, **answered}
    assert 0.9 < found["no generation"][1] < 1.9 and 1.9 < found["short answer"][1] < 3, found


def test_a_server_gets_time_for_each_token_of_an_answer_in_one_piece(tmp_path: Path, vllms: list[Vllm]) -> None:
    asks: list[tuple[int, str, dict[str, Any]]] = [
        (17, "/v1/completions", {"max_tokens": 7}),
        (17, CHAT, {"max_completion_tokens": 7}),
        (17, "/v1/responses", {"max_output_tokens": 7}),
        (17, "/v1/messages", {"max_tokens": 7}),
        (10, "/v1/messages", {"max_tokens": 7, "stream": True}),
        (10, "/v1/embeddings", {"max_tokens": 7}),
        # An hour is the most.
        (3600, CHAT, {}),
        (3600, CHAT, {"max_tokens": 10**9}),
    ]
    backends = (dataclasses.replace(backend("small", vllms[:1]), first_byte_s=10),)
    with Front(tmp_path, backends, clients=CLIENTS) as gateway:
        config, line = tmp_path / "files/haproxy.cfg", "    http-request set-timeout server var(txn.patience)\n"
        shown = f"{line}    http-after-response set-header x-patience %[var(txn.patience)]\n"
        config.write_text(config.read_text().replace(line, shown))
        gateway.reload()
        for seconds, path, body in asks:
            patience = int(gateway.ask(path, {**MODEL, **body})[2]["x-patience"])
            # The body itself has less than 200 bytes.
            assert 1000 * seconds <= patience < 1000 * seconds + 200, (path, body, patience)


def stream(body: dict[str, Any]) -> tuple[str, bytes]:
    """Return the head and the body of a request for a stream."""
    sent = json.dumps({**body, "stream": True}).encode()
    return f"POST {CHAT} HTTP/1.1\n{ALICE}Content-Length: {len(sent)}\n\n", sent


def test_a_request_that_its_client_has_left_is_gone_from_the_server(tmp_path: Path, vllms: list[Vllm]) -> None:
    vllms[0].seconds = 30
    with front(tmp_path, vllms[:1]) as gateway:
        body = json.dumps(MODEL).encode()
        head = f"POST {CHAT} HTTP/1.1\n{ALICE}Content-Length: {len(body)}\n\n"
        connections = [gateway.send(head, body) for _ in range(TAKES)]
        gateway.wait(lambda: vllms[0].working == TAKES)
        connections += [gateway.send(head, body) for _ in range(3)]
        time.sleep(0.2)
        # First those that wait, which would take the places of the others.
        for connection in reversed(connections):
            connection.close()
            time.sleep(0.05)
        gateway.wait(lambda: len(vllms[0].left) == TAKES and vllms[0].working == 0, 5)
        # Those that waited were never begun.
        assert len(vllms[0].asked) == TAKES


def test_idle_connections_of_one_address_keep_nobody_else_out(tmp_path: Path, vllms: list[Vllm]) -> None:
    with front(tmp_path, vllms[:1], connections=100, client_s=2) as gateway:
        idle = []
        for _ in range(110):
            # Those beyond a quarter are closed at once.
            with contextlib.suppress(ConnectionResetError):
                idle.append(gateway.send("", source="127.0.0.2"))
        begin = time.monotonic()
        assert gateway.ask("/health", key=None)[:2] == (200, "ok")
        assert took(gateway, "bob") < 1 and time.monotonic() - begin < 1
        # The others are closed when they have been silent for their time.
        for connection in idle:
            connection.settimeout(10)
            with contextlib.suppress(ConnectionResetError):
                assert b"HTTP/1.1 200" not in connection.recv(4096)
            connection.close()


def test_a_key_that_floods_does_not_slow_the_others(tmp_path: Path, vllms: list[Vllm]) -> None:
    vllms[0].seconds, waiting = 0.2, 20
    with front(tmp_path, vllms[:1], waiting=waiting) as gateway:
        alone = statistics.median(took(gateway, "bob") for _ in range(5))
        with flood(gateway, 60, "alice") as found:
            gateway.wait(lambda: len(found) > 60)
            beside = statistics.median(took(gateway, "bob") for _ in range(9))
        # Behind those of the other key that wait, bob would wait as long as the server needs for all of them.
        assert beside < alone + vllms[0].seconds * waiting / TAKES / 2
        # It has all places, its own queue, and above that a clear answer.
        assert set(found) == {200, 429} and vllms[0].most == TAKES


def test_slow_uploads_of_one_key_leave_places_to_the_others(tmp_path: Path, vllms: list[Vllm]) -> None:
    part = b'{"model": "small", "x": "' + b"y" * 300_000
    with front(tmp_path, vllms) as gateway:
        head = f"POST {CHAT} HTTP/1.1\n{ALICE}Content-Length: 600000\n\n"
        slow = [gateway.send(head, part) for _ in range(3 * TAKES)]
        gateway.wait(lambda: sum(one.working for one in vllms) == 0)
        time.sleep(1)
        assert max(took(gateway, "bob") for _ in range(5)) < 1
        # Two of eight places wait for a body; the other uploads were refused.
        refused = 0
        for connection in slow:
            connection.settimeout(0.2)
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                refused += connection.recv(4096).startswith(b"HTTP/1.1 429")
            connection.close()
        assert refused == len(slow) - 2 * TAKES // 4


def test_a_body_that_stops_leaves_its_place_soon(tmp_path: Path, vllms: list[Vllm]) -> None:
    body = b'{"model": "small", "x": "' + b"y" * 65_536 + b'"}'
    head = f"POST {CHAT} HTTP/1.1\n{ALICE}Content-Length: {len(body)}\n\n"
    with front(tmp_path, vllms, client_s=2, buffer_kib=16) as gateway:
        drip, steady = (gateway.send(head, body[:20_000]) for _ in range(2))
        silent = gateway.send(head.replace(KEYS["alice"], KEYS["bob"]), body[:20_000])
        two = Http2(gateway.gateway.port)
        two.begin(1, CHAT, KEYS["bob"], len(body))
        for place in range(0, 16_000, 8000):
            two.frame(Http2.DATA, 0, 1, body[place : place + 8000])
        gateway.wait(lambda: sum(gateway.runtime.requests(["h0.small", "h1.small"]).values()) == 4)
        connections = {"drip": drip, "steady": steady, "silent": silent, "two": two.socket}
        begin, ended, sent = time.monotonic(), {}, 20_000
        while time.monotonic() - begin < 9:
            for name in connections.keys() - ended.keys():
                connection = connections[name]
                connection.settimeout(0.02)
                with contextlib.suppress(TimeoutError, OSError):
                    text = connection.recv(4096)
                    if b"HTTP/1.1" in text or b"408" in text:
                        ended[name] = (text[9:12] if b"HTTP/1.1" in text else b"408", time.monotonic() - begin)
            with contextlib.suppress(OSError):
                drip.sendall(b"y")
            if len(ended) == 4:
                break
            # In four pieces, each a little before the others would have been silent for too long.
            with contextlib.suppress(OSError):
                if time.monotonic() - begin > 1.2 * (sent - 20_000) / 12_000:
                    steady.sendall(body[sent : sent + 12_000])
                    sent += 12_000
        assert {name: status for name, (status, _) in ended.items()} == {
            "drip": b"408",
            "steady": b"200",
            "silent": b"408",
            "two": b"408",
        }
        assert ended["silent"][1] < 4 and ended["two"][1] < 4 and 5 < ended["drip"][1] < 8, ended
        assert gateway.runtime.requests(["h0.small", "h1.small"]) == {}


def test_one_key_cannot_fill_the_memory(tmp_path: Path, vllms: list[Vllm]) -> None:
    body = b'{"model": "small", "x": "' + b"y" * 63_000
    with front(tmp_path, vllms, client_s=3) as gateway:
        most = gateway.gateway.most_per_key
        assert most == 2 * TAKES + 100
        two = [Http2(gateway.gateway.port) for _ in range(12)]
        with contextlib.suppress(ConnectionError):
            for one in two:
                for stream in range(1, 101, 2):
                    one.begin(stream, CHAT, KEYS["alice"], 180_000)
                    for place in range(0, len(body), 16_000):
                        one.frame(Http2.DATA, 0, stream, body[place : place + 16_000])
        time.sleep(0.5)
        # A buffer for each connection, and two for each request.
        assert most * 0.25 <= gateway.memory() <= (len(two) + 2 * most) * 0.25
        assert took(gateway, "bob") < 1
        status, _, code = gateway.error(CHAT, MODEL)
        assert (status, code) == (429, "overloaded")
        for one in two:
            one.socket.close()
        gateway.wait(lambda: gateway.ask(CHAT, MODEL)[0] == 200)
        plain = [gateway.send(f"POST {CHAT} HTTP/1.1\n{ALICE}Content-Length: 180000\n\n", body) for _ in range(most)]
        time.sleep(0.5)
        assert gateway.memory() <= 2 * most * 0.25
        for connection in plain:
            connection.close()


def chunks(total: int, size: int) -> Iterator[bytes]:
    """Give a body of JSON in parts."""
    yield b'{"model": "small", "x": "'
    for _ in range(total // size):
        yield b"y" * size
    yield b'"}'


@pytest.mark.parametrize("size", [100, 65536])
def test_a_body_without_length_is_as_large_as_may_be_checked(tmp_path: Path, vllms: list[Vllm], size: int) -> None:
    with front(tmp_path, vllms[:1], body_mib=1) as gateway:

        def ask(total: int) -> tuple[int, str]:
            connection = http.client.HTTPConnection("127.0.0.1", gateway.gateway.port, timeout=30)
            headers = {"Authorization": f"Bearer {KEYS['alice']}", "Transfer-Encoding": "chunked"}
            with contextlib.suppress(ConnectionError):
                connection.request("POST", CHAT, chunks(total, size), headers, encode_chunked=True)
            answer = connection.getresponse()
            text = answer.read().decode()
            connection.close()
            return answer.status, text

        assert ask(150_000)[0] == 200
        status, text = ask(4_000_000)
        assert (status, json.loads(text)["error"]["code"]) == (413, "length_required")
        assert max(one["bytes"] for one in vllms[0].asked) < 200_000


@pytest.mark.parametrize(("buffer_kib", "most"), [(16, 4), (256, 32)])
def test_headers_leave_a_body_its_room(tmp_path: Path, vllms: list[Vllm], buffer_kib: int, most: int) -> None:
    def ask(gateway: Front, kib: float, body: str) -> bytes:
        lines = "".join(f"X-{number}: {'h' * int(kib * 50)}\n" for number in range(20))
        connection = gateway.send(f"POST {CHAT} HTTP/1.1\n{ALICE}{lines}{body}\n\n")
        with contextlib.suppress(ConnectionError):
            for part in chunks(4 << 20, 4096):
                connection.sendall(part if "Length" in body else b"%x\r\n%b\r\n" % (len(part), part))
        return connection.recv(12)

    with front(tmp_path, vllms[:1], buffer_kib=buffer_kib, body_mib=1) as gateway:
        for body in ("Transfer-Encoding: chunked", f"Content-Length: {buffer_kib * 740}", "Content-Length: 5000000"):
            assert ask(gateway, 3 * most, body) == b"HTTP/1.1 431"
        # As large as headers may be: the body is measured all the same.
        assert ask(gateway, most * 0.9, "Transfer-Encoding: chunked") == b"HTTP/1.1 413"
        assert gateway.ask(CHAT, {**MODEL, "x": "y" * buffer_kib * 600}, x_large="h" * most * 900)[0] == 200
    assert len(vllms[0].asked) == 1


def test_refused_requests_do_not_count_for_the_rate(tmp_path: Path, vllms: list[Vllm]) -> None:
    with front(tmp_path, vllms[:1], clients=(client("alice"), client("bob", rate=5))) as gateway:
        # Not across the end of a minute.
        if time.time() % 60 > 55:
            time.sleep(61 - time.time() % 60)
        answers = [gateway.ask(CHAT, MODEL, KEYS["bob"]) for _ in range(9)]
        assert [one[0] for one in answers] == [200] * 5 + [429] * 4
        rest = 60 - time.time() % 60
        assert all(abs(int(one[2]["retry-after"]) - rest) < 3 for one in answers[5:])
        assert gateway.error(CHAT, {"model": "none"}, key=KEYS["bob"])[::2] == (429, "rate_limit_exceeded")
        (counted,) = re.findall(r"key=bob\|(\d+) .*gpc0=(\d+)", gateway.runtime.ask("show table own:minutes"))
        # The next minute has a counter of its own.
        assert counted == (str(int(time.time() / 60)), "5")


def test_unfinished_bodies_do_not_pass_the_rate(tmp_path: Path, vllms: list[Vllm]) -> None:
    body = json.dumps(MODEL).encode()
    with front(tmp_path, vllms[:1], clients=(client("alice", rate=5),)) as gateway:
        if time.time() % 60 > 55:
            time.sleep(61 - time.time() % 60)
        head = f"POST {CHAT} HTTP/1.1\n{ALICE}Connection: close\nContent-Length: {len(body)}\n\n"
        begun = [gateway.send(head, body[:-1]) for _ in range(20)]
        time.sleep(0.2)
        for connection in begun:
            connection.sendall(body[-1:])
        statuses = [connection.recv(4096)[9:12] for connection in begun]
        # HAProxy reads the count and raises it in two steps: each of its threads may let one more pass at that moment.
        passed = statuses.count(b"200")
        assert passed + statuses.count(b"429") == 20 and 5 <= passed < 5 + (os.cpu_count() or 1), statuses


STEADY_S = 60  # an ejection ends after 10 s, the next one after 20 s, and the third is not over by then


def steady(gateway: Front, model: str, key: str, talk: int, statuses: list[int]) -> None:
    """Send requests one after the other, for a time."""
    end, number = time.monotonic() + STEADY_S, 0
    while time.monotonic() < end:
        number += 1
        body = {"model": model, "messages": [{"role": "user", "content": f"{talk} {number % 7}"}]}
        statuses.append(gateway.ask(CHAT, body, KEYS[key])[0])
        # A request that only asks about the text does not show how the model is.
        gateway.ask("/tokenize", body, KEYS[key])
        time.sleep(0.15)


def test_a_server_that_fails_requests_but_not_health_gets_few_of_a_steady_load(tmp_path: Path) -> None:
    """Of each model the first of three servers fails; of `heals` for three seconds only."""
    asks = {"one key": ("alice",), "one of two": ("bob",), "two keys": ("alice", "bob"), "sessions": ("alice", "bob")}
    asks["heals"] = ("alice", "bob")
    names = {name: name.replace(" ", "-") for name in asks}
    statuses: dict[str, list[int]] = {name: [] for name in asks}
    with servers(3 * len(asks)) as found:
        behind = {name: found[3 * place : 3 * place + 3] for place, name in enumerate(asks)}
        for three in behind.values():
            three[0].fails = True
        backends = [backend(names[name], three) for name, three in behind.items()]
        backends = [dataclasses.replace(one, balance="session") if "sess" in one.model else one for one in backends]
        clients = (client("alice"), client("bob", tuple(names[name] for name in names if name != "one key")))
        with Front(tmp_path, tuple(backends), clients=clients) as gateway:
            heals = threading.Timer(3, lambda: setattr(behind["heals"][0], "fails", False))
            threads = [
                threading.Thread(target=steady, args=(gateway, names[name], key, talk, statuses[name]))
                for name, keys in asks.items()
                for key in keys
                for talk in range(4 // len(keys))
            ]
            for thread in (heals, *threads):
                thread.start()
            for thread in (heals, *threads):
                thread.join()
            (failed,) = re.findall(
                r"one-of-two/\S+ (bob .*)", gateway.runtime.ask(f"show map {tmp_path}/files/failed.map")
            )
            tokenized = sum(one["path"] == "/tokenize" for one in behind["heals"][0].asked)
            asked = {name: len(three[0].asked) for name, three in behind.items()}
    # Ten in a row, and one when each of two ejections ends, and those that run at that moment.
    wrong = {name: found.count(500) for name, found in statuses.items()}
    assert all(12 <= wrong[name] <= 20 for name in asks if name != "heals"), wrong
    assert all(set(found) == {200, 500} and len(found) > 150 for found in statuses.values())
    # Each ejection is twice as long as the one before.
    assert failed.split()[4] == "40", failed
    assert wrong["heals"] <= 14 and asked["heals"] - tokenized > 60, (wrong, asked)


def test_an_answer_that_began_before_an_ejection_does_not_end_it(tmp_path: Path, vllms: list[Vllm]) -> None:
    one, other = vllms
    slow: list[int] = []
    with front(tmp_path, vllms) as gateway:
        ejected = f"show map {tmp_path}/files/ejected.map"
        one.seconds = other.seconds = 4
        threads = [
            threading.Thread(target=lambda: slow.append(gateway.ask(CHAT, MODEL, KEYS["alice"])[0])) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        gateway.wait(lambda: one.working >= 1 and one.working + other.working == len(threads))
        one.seconds = other.seconds = 0
        one.fails = True
        gateway.wait(
            lambda: (
                [gateway.ask(CHAT, MODEL, KEYS[key])[0] for key in ("alice", "bob", "bob")]
                and "h0" in gateway.runtime.ask(ejected)
            )
        )
        for thread in threads:
            thread.join(20)
        assert slow == [200] * 6
        assert "h0" in gateway.runtime.ask(ejected)


def test_failures_of_one_key_or_of_all_servers_take_none_away(tmp_path: Path, vllms: list[Vllm]) -> None:
    for one in vllms:
        one.seconds = 3
    bad, streams = {**MODEL, "status": 500}, []
    with front(tmp_path, vllms) as gateway:

        def stream() -> None:
            streams.append(gateway.ask(CHAT, {**MODEL, "stream": True})[1].endswith("[DONE]\n\n"))

        threads = [threading.Thread(target=stream) for _ in range(6)]
        for thread in threads:
            thread.start()
        gateway.wait(lambda: sum(one.working for one in vllms) == 6)
        assert {gateway.ask(CHAT, bad, KEYS["bob"])[0] for _ in range(60)} == {500}
        assert [one.up for one in gateway.runtime.servers()] == [True, True]
        # Now the others' too, as when every server is broken: one of them goes on being asked, and nobody is cut off.
        assert {gateway.ask(CHAT, bad, KEYS[key])[0] for _ in range(30) for key in KEYS} == {500}
        for thread in threads:
            thread.join(20)
    assert streams == [True] * 6


@pytest.mark.parametrize("balance", ["session", "prefix"])
def test_requests_with_the_same_beginning_meet_the_same_server(tmp_path: Path, vllms: list[Vllm], balance: str) -> None:
    system = {"role": "system", "content": "You are a helper of the city library. " * 20}
    more = dataclasses.replace(backend("small", vllms), balance=balance)
    with Front(tmp_path, (more,), clients=CLIENTS) as gateway:

        def home(*messages: Any, **headers: str) -> int:
            # A request that has just ended may still count, and then the other server is the idle one.
            gateway.wait(lambda: not gateway.runtime.requests(["h0.small", "h1.small"]))
            time.sleep(0.02)
            for one in vllms:
                one.asked.clear()
            assert gateway.ask(CHAT, {"temperature": 1, "messages": messages, **MODEL}, **headers)[0] == 200
            return int(bool(vllms[1].asked))

        homes, same = [], 0
        for number in range(12):
            talk = [system, {"role": "user", "content": f"Question {number}"}]
            first = home(*talk)
            talk += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": f"Why, {first}?"}]
            same += home(*talk) == first
            homes.append(first)
        assert same >= 11
        # Conversations are spread; who has the same system prompt meets its cache.
        if balance == "session":
            assert set(homes) == {0, 1}
            named = [home(system, {"role": "user", "content": str(n)}, x_session_id="a") for n in range(8)]
            assert sum(named) in (0, 1, 7, 8)
            return
        assert sum(homes) in (0, 1, 11, 12)
        # However alike they are, one server does not get all of them at once.
        for one in vllms:
            one.seconds, one.most = 0.3, 0
        body = {"messages": [system], **MODEL}
        threads = [threading.Thread(target=gateway.ask, args=(CHAT, body)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert min(one.most for one in vllms) >= 1


SERVER = "import time; from helpers import haproxies; v = haproxies.Vllm('0.0.0.0')"
SERVER = f"{SERVER}; v.seconds = 60; print(v.server_port, flush=True); time.sleep(120)"
SPACE, LINK, HERE, THERE = "gaudi-gw-test", "gaudi-gw0", "198.18.99.1", "198.18.99.2"


def ip(*argv: str) -> None:
    """Change the network."""
    subprocess.run(["ip", *argv], check=True, capture_output=True)


@pytest.fixture
def far() -> Iterator[Server]:
    """A server in a network of its own, each of whose answers takes a minute."""
    for kind, left in (("netns", SPACE), ("link", LINK)):
        with contextlib.suppress(subprocess.CalledProcessError):
            ip(kind, "delete", left)
    ip("netns", "add", SPACE)
    server = None
    try:
        ip("link", "add", LINK, "type", "veth", "peer", "name", "eth0", "netns", SPACE)
        ip("address", "add", f"{HERE}/30", "dev", LINK)
        ip("link", "set", LINK, "up")
        ip("-n", SPACE, "address", "add", f"{THERE}/30", "dev", "eth0")
        ip("-n", SPACE, "link", "set", "eth0", "up")
        argv = ["ip", "netns", "exec", SPACE, sys.executable, "-c", SERVER]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        server = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True)
        assert server.stdout
        yield Server("far.small", THERE, int(server.stdout.readline()), TAKES)
    finally:
        if server:
            server.terminate()
            server.wait(10)
        ip("netns", "delete", SPACE)


def test_a_host_that_vanishes_costs_its_own_requests_alone(tmp_path: Path, vllms: list[Vllm], far: Server) -> None:
    vllms[0].seconds = 0.1
    both = backend("small", vllms[:1])
    both = dataclasses.replace(both, servers=(*both.servers, far))
    ended: list[tuple[int, float]] = []
    with Front(tmp_path, (both,), clients=CLIENTS) as gateway:

        def one() -> None:
            ended.append((gateway.ask(CHAT, MODEL)[0], time.monotonic()))

        threads = [threading.Thread(target=one) for _ in range(2 * TAKES)]
        for thread in threads:
            thread.start()
        time.sleep(2)
        away = 2 * TAKES - len(ended)
        assert 0 < away <= TAKES
        # Without a word: what is sent to it is dropped.
        ip("-n", SPACE, "link", "set", "eth0", "down")
        begin = time.monotonic()
        with flood(gateway, 4, "bob") as found:
            for thread in threads:
                thread.join(30)
    late = [(status, when - begin) for status, when in ended if when > begin]
    assert len(late) == away and all(status in (502, 503) and seconds < 15 for status, seconds in late), late
    # What is asked meanwhile may wait for it, but is answered by the other.
    assert set(found) == {200} and len(found) > 20


def test_what_a_gateway_has_of_a_server_is_counted_until_it_ends(tmp_path: Path, vllms: list[Vllm]) -> None:
    part = b'{"model": "small", "x": "' + b"y" * 300_000
    with front(tmp_path, vllms[:1]) as gateway:
        assert gateway.runtime.requests(["h0.small"]) == {}
        slow = gateway.send(f"POST {CHAT} HTTP/1.1\n{ALICE}Content-Length: 600000\n\n", part)
        gateway.wait(lambda: gateway.runtime.requests(["h0.small"]) == {"h0.small": 1})
        # vLLM does not count what is still on its way to it.
        assert vllms[0].working == 0 and gateway.runtime.requests(["other"]) == {}
        master = Runtime(tmp_path / "master.sock")
        gateway.wait(lambda: master.old_workers() == [])
        gateway.reload()
        # A master that takes its signals over again answers a little later.
        counts = [{"h0.small": 1}]
        gateway.wait(lambda: [master.requests(["h0.small"], old) for old in master.old_workers()] == counts)
        assert gateway.runtime.requests(["h0.small"]) == {}
        slow.close()
        gateway.wait(lambda: master.old_workers() == [])


def test_only_todays_ciphers_are_spoken(tmp_path: Path, vllms: list[Vllm]) -> None:
    key, chain = tmp_path / "key.pem", tmp_path / "site.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=gateway", "-days", "2"]
    subprocess.run([*argv, "-keyout", str(key), "-out", str(chain)], check=True, capture_output=True)
    chain.write_text(chain.read_text() + key.read_text())

    def spoken(version: ssl.TLSVersion, ciphers: str) -> str:
        context = ssl.create_default_context(cafile=str(chain))
        context.check_hostname = False
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            context.minimum_version = context.maximum_version = version
        context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
        try:
            with context.wrap_socket(socket.create_connection(("127.0.0.1", gateway.gateway.port), 10)) as one:
                return str((one.cipher() or [""])[0])
        except ssl.SSLError:
            return ""

    with front(tmp_path, vllms[:1], certificate=str(chain)) as gateway:
        for cipher in ("AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305"):
            assert spoken(ssl.TLSVersion.TLSv1_2, f"ECDHE-RSA-{cipher}") == f"ECDHE-RSA-{cipher}"
        for old in ("AES128-SHA", "AES256-GCM-SHA384", "ECDHE-RSA-AES256-SHA384", "ECDHE-RSA-AES128-SHA"):
            assert spoken(ssl.TLSVersion.TLSv1_2, old) == ""
        assert spoken(ssl.TLSVersion.TLSv1_1, "ALL") == ""
        assert spoken(ssl.TLSVersion.TLSv1_3, "ALL").startswith("TLS_")
