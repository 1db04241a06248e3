"""What a gateway's real HAProxy does with requests, reloads, drains and servers that are busy or down."""

from __future__ import annotations

import dataclasses
import http.client
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from gaudi_serve.core.errors import InputError
from gaudi_serve.core.run import read_text
from gaudi_serve.gateway import haproxy
from gaudi_serve.gateway.config import HEALTH, gateway_files
from gaudi_serve.gateway.objects import Gateway
from gaudi_serve.gateway.runtime import Runtime, State
from helpers.haproxies import CHAT, EVENTS, KEYS, TAKES, Front, Vllm, backend, client, servers


@pytest.fixture
def vllms() -> Iterator[list[Vllm]]:
    """Three servers."""
    with servers(3) as found:
        yield found


@pytest.fixture
def front(tmp_path: Path, vllms: list[Vllm]) -> Iterator[Front]:
    """A gateway with clients, a model on two servers and one on a third."""
    assert shutil.which("haproxy"), "scripts/deps installs it"
    backends = (backend("Qwen/QwQ-32B", vllms[:2]), backend("small", vllms[2:]))
    clients = (client("alice"), client("bob", ("small",), 5))
    with Front(tmp_path, backends, clients=clients, body_mib=1) as one:
        yield one


def test_a_request_goes_to_its_model_with_the_servers_own_key(front: Front, vllms: list[Vllm]) -> None:
    body = {"model": "Qwen/QwQ-32B", "messages": []}
    status, _, headers = front.ask(CHAT, body, origin="https://evil.example.net")
    # Without cors_origins no page may ask, whatever the server reports.
    assert (status, [name for name in headers if name.startswith("access-control-")]) == (200, [])
    assert front.ask("/models/small" + CHAT, {"messages": []})[0] == 200
    assert front.ask("/models/Qwen%2FQwQ-32B" + CHAT, {"messages": []})[0] == 200
    (small,) = vllms[2].asked
    assert (small["path"], small["bytes"], small["key"]) == (CHAT, 16, "Bearer server-key-of-small")
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


def test_a_server_that_refuses_the_gateways_key_is_not_up(
    front: Front, vllms: list[Vllm], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [
        {
            "host": f"g{number}",
            "unit": "m",
            "model": "small",
            "address": "127.0.0.1",
            "takes": TAKES,
            "port": one.server_port,
        }
        for number, one in enumerate(vllms)
    ]
    up = [State("small", f"g{number}.m", up=True, drained=False, maintained=False, weight=100) for number in range(3)]
    monkeypatch.setattr(haproxy, "json_list", lambda path: listed)
    monkeypatch.setattr(haproxy, "read_text", lambda path: "small server-key\nother none\n")
    vllms[1].requires, vllms[2].requires = "Bearer server-key", "Bearer another"
    found = {one["name"]: (one["up"], one["refused"]) for one in haproxy.states(up)}
    assert found == {"g0.m": (True, 0), "g1.m": (True, 0), "g2.m": (False, 401)}
    # One that is down is not asked.
    assert haproxy.states([dataclasses.replace(up[2], up=False)])[0]["refused"] == 0
    monkeypatch.setattr(haproxy, "_servers_of", lambda host: [up[2]])
    with pytest.raises(
        InputError, match=r"has not found g2\.m \(it refuses the gateway's key: HTTP 401\) up within 0 s"
    ):
        haproxy.wait_up("g2", 0)


def test_who_may_not_is_reported_so_as_openai_does(front: Front) -> None:
    assert front.error(CHAT, {"model": "small"}, key=None)[::2] == (401, "invalid_api_key")
    assert front.error(CHAT, {"model": "small"}, key="wrong")[::2] == (401, "invalid_api_key")
    status, message, code = front.error(CHAT, {"model": 'no"such\\'})
    assert (status, code) == (404, "model_not_found")
    assert message == 'The model `no"such\\` does not exist here. This key may use: Qwen/QwQ-32B, small'
    # Of a model that a key may not use, its owner does not even learn that it is there.
    message = front.error(CHAT, {"model": "Qwen/QwQ-32B"}, key=KEYS["bob"])[1]
    assert message.endswith("does not exist here. This key may use: small")
    for key, names in ((KEYS["alice"], ["Qwen/QwQ-32B", "small"]), (KEYS["bob"], ["small"])):
        status, text, _ = front.ask("/v1/models", key=key)
        assert (status, [one["id"] for one in json.loads(text)["data"]]) == (200, names)
    assert front.error(CHAT, {"model": "small", "x": "y" * (1 << 20)})[::2] == (413, "request_too_large")
    assert front.ask("/health", key=None)[:2] == (200, "ok")


def test_events_come_as_they_are_made(front: Front, vllms: list[Vllm]) -> None:
    vllms[2].seconds = 1
    body = json.dumps({"model": "small", "stream": True}).encode()
    head = f"POST {CHAT} HTTP/1.1\nHost: a\nAuthorization: Bearer {KEYS['alice']}\nContent-Length: {len(body)}\n\n"
    pieces = []
    with front.send(head, body) as connection:
        while not pieces or b"[DONE]" not in pieces[-1]:
            pieces.append(connection.recv(65536))
    # Ten of them, a tenth of a second apart; a kernel that waits for more sends two or three at a time.
    assert b"".join(pieces).count(b"data: ") == EVENTS + 1
    assert sum(b"data: " in piece for piece in pieces) > EVENTS * 0.8, pieces


def load(front: Front, stop: threading.Event, model: str, failed: list[str], done: list[int]) -> list[threading.Thread]:
    """Let fifty ask without a break, half of them for streams."""

    def one(stream: bool) -> None:
        while not stop.is_set():
            try:
                status, text, _ = front.ask(CHAT, {"model": model, "stream": stream})
                good = status == 200 and (text.endswith("data: [DONE]\n\n") if stream else "usage" in text)
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
        front.runtime.set_state(name, "h0.qwq-32b", "drain")
        for _ in range(10):
            front.reload()
        # A reload keeps what was reported while it ran: the drained server is asked nothing more.
        assert [(one.name, one.drained) for one in front.runtime.servers()][:2] == [
            ("h0.qwq-32b", True),
            ("h1.qwq-32b", False),
        ]
        front.wait(lambda: vllms[0].working == 0)
        # While a worker of before a reload still serves, two of them count for themselves; by now one is left.
        before, vllms[0].most = len(vllms[0].asked), 0
        time.sleep(0.5)
        assert len(vllms[0].asked) == before
        front.runtime.set_state(name, "h0.qwq-32b", "ready")
        front.wait(lambda: len(vllms[0].asked) > before + 20)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert failed == []
    assert len(done) > 100
    assert vllms[0].most <= TAKES, "no more at a time than the plan allows"


def test_a_revoked_key_does_not_work_in_an_old_worker(front: Front, vllms: list[Vllm], tmp_path: Path) -> None:
    for one in vllms:
        one.seconds = 2
    body = json.dumps({"model": "small", "stream": True}).encode()
    head = f"POST {CHAT} HTTP/1.1\nHost: a\nAuthorization: Bearer KEY\nContent-Length: {len(body)}\n\n"
    streams = {name: front.send(head.replace("KEY", key), body) for name, key in KEYS.items()}
    front.wait(lambda: vllms[2].working == 2)
    front.write(dataclasses.replace(front.gateway, clients=(client("alice"),)))
    front.reload()
    haproxy.withdraw_rights(Runtime(tmp_path / "master.sock"), tmp_path / "files")
    statuses = {}
    for name, connection in streams.items():
        text = b""
        while not text.endswith(b"0\r\n\r\n"):
            text += connection.recv(65536)
        # The stream has ended as usual. The same worker answers the next request on this connection.
        assert b"[DONE]" in text
        connection.sendall(head.replace("KEY", KEYS[name]).replace("\n", "\r\n").encode() + body)
        statuses[name] = connection.recv(65536)[9:12]
        connection.close()
    assert statuses == {"alice": b"200", "bob": b"401"}


def test_what_is_drained_for_a_reboot_is_given_back_and_asked_when_it_answers(
    front: Front, vllms: list[Vllm], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = front.gateway.backends[0]
    entries = [{**vars(one), "host": f"h{number}"} for number, one in enumerate(large.servers)]
    monkeypatch.setattr(haproxy, "runtime", lambda: front.runtime)
    monkeypatch.setattr(haproxy, "json_list", lambda _: entries)
    monkeypatch.setattr(haproxy, "entry_of", lambda one: SimpleNamespace(**one))
    monkeypatch.setattr(haproxy, "REBOOTS", tmp_path / "reboots.json")
    monkeypatch.setattr(Gateway, "state", f"{tmp_path}/state")
    first, second = (f"{large.name}/h{number}.qwq-32b" for number in range(2))
    assert haproxy.set_state("h0", "drain", check=True, reboot=True) == [first]
    assert haproxy.reboots() == {}
    # Twice, as by a run that goes on where another was cut off.
    assert [haproxy.set_state("h0", "drain", reboot=True) for _ in range(2)] == [[first], []]
    assert haproxy.reboots() == {"h0": ["h0.qwq-32b"]}
    haproxy.set_state("h1", "drain")
    haproxy.set_state("h1", "drain", reboot=True)
    # Requests may come to what someone returns to service while a run waits.
    haproxy.set_state("h0", "ready")
    with pytest.raises(InputError, match=r"another run has returned h0\.qwq-32b to service meanwhile"):
        haproxy.wait_left("h0", 5)
    # What a person drains stays so, also where it was drained for a reboot.
    haproxy.set_state("h0", "drain", reboot=True)
    haproxy.set_state("h0", "drain")
    assert (haproxy.set_state("h0", "ready", reboot=True), haproxy.set_state("h0", "ready")) == ([], [first])
    haproxy.set_state("h0", "drain", reboot=True)
    # And what someone else has drained.
    assert haproxy.set_state("h1", "ready", reboot=True) == []
    assert haproxy.set_state("h1", "ready") == [second]
    vllms[0].shutdown()
    vllms[0].server_close()
    front.wait(lambda: [one.up for one in front.runtime.servers()][:2] == [False, True])
    assert haproxy.set_state("h0", "ready", reboot=True) == [first]
    assert haproxy.reboots() == {}
    assert {front.ask(CHAT, {"model": "Qwen/QwQ-32B"})[0] for _ in range(6)} == {200}
    assert (len(vllms[0].asked), len(vllms[1].asked)) == (0, 6)


def test_hosts_that_are_drained_at_the_same_time_are_all_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [f"h{number}" for number in range(4)]

    def slowly(path: Path) -> str | None:
        found = read_text(path)
        time.sleep(0.05)
        return found

    monkeypatch.setattr(haproxy, "read_text", slowly)
    monkeypatch.setattr(haproxy, "REBOOTS", tmp_path / "reboots.json")
    monkeypatch.setattr(haproxy, "_servers_of", lambda host: [SimpleNamespace(backend="b", name=host, drained=False)])
    monkeypatch.setattr(haproxy, "runtime", lambda: SimpleNamespace(set_state=lambda *_: None))
    monkeypatch.setattr(haproxy, "save", lambda: None)
    threads = [threading.Thread(target=haproxy.set_state, args=(host, "drain", False, True)) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert haproxy.reboots() == {host: [host] for host in hosts}


def test_a_gateway_that_has_just_booted_itself_is_waited_for_where_it_drains_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = Runtime(tmp_path / "admin.sock")
    monkeypatch.setattr(haproxy, "runtime", lambda: silent)
    monkeypatch.setattr(haproxy, "REBOOTS", tmp_path / "reboots.json")
    monkeypatch.setattr(haproxy, "_servers_of", lambda host: silent.servers())
    answers = iter(["", "", "answers"])
    monkeypatch.setattr(haproxy, "running", lambda: next(answers))
    monkeypatch.setattr(haproxy.time, "sleep", lambda seconds: None)
    # It drains nothing: nobody waits, and nothing fails.
    assert haproxy.set_state("h0", "ready", reboot=True) == []
    (tmp_path / "reboots.json").write_text('{"h0": ["h0.m"]}', encoding="utf-8")
    with pytest.raises(InputError, match="does not answer"):
        haproxy.set_state("h0", "ready", reboot=True)
    assert list(answers) == []
    # Before a reboot it must answer at once.
    with pytest.raises(InputError, match="does not answer"):
        haproxy.set_state("h0", "drain", reboot=True)


def test_a_server_gets_less_of_its_share_also_after_a_reload(front: Front, vllms: list[Vllm]) -> None:
    name = front.gateway.backends[0].name
    front.runtime.set_weight(name, "h0.qwq-32b", 0)
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
    with Front(tmp_path, (backend("small", vllms[:1]),), waiting=3, wait_s=1) as front:
        # One model alone: it needs no name, and nobody a key.
        assert front.ask(CHAT, {"messages": "x" * 300_000}, key=None)[0] == 200
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


def test_who_holds_the_shared_address_asks_whether_the_gateway_answers(
    front: Front, tmp_path: Path, vllms: list[Vllm]
) -> None:
    program = tmp_path / "health.py"
    program.write_text(HEALTH)
    url = f"http://127.0.0.1:{front.gateway.port}/health"
    argv = [sys.executable, "-I", str(program)]
    assert subprocess.run([*argv, url], env={"http_proxy": "http://127.0.0.1:1"}, check=False).returncode == 0
    closed = f"http://127.0.0.1:{front.gateway.metrics_port}/none"
    assert subprocess.run([*argv, closed], capture_output=True, check=False).returncode != 0
    # A gateway that reaches no server leaves the address to one that does.
    for one, left in zip(vllms, (2, 1, 0), strict=True):
        assert front.ask("/health", key=None)[:2] == (200, "ok")
        one.shutdown()
        one.server_close()
        front.wait(lambda left=left: sum(one.up for one in front.runtime.servers()) == left)  # type: ignore[misc]
    assert front.ask("/health", key=None)[:2] == (503, "no server is up")
    assert subprocess.run([*argv, url], capture_output=True, check=False).returncode != 0
    made = gateway_files(dataclasses.replace(front.gateway, virtual_address="10.0.0.100/24", virtual_interface="eth0"))
    text = made[f"{front.gateway.folder}/keepalived.conf"].text
    # By the link: another configuration of HAProxy is none of keepalived's.
    assert f"/current/health.py http://127.0.0.1:{front.gateway.port}/health" in text
