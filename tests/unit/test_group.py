"""The supervisors of a model over several hosts, on addresses of the loopback interface: when all start, and end."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers.programs import load_program

PROGRAM = Path(__file__).parents[2] / "roles/vllm_service/files/vllm-supervisor"
HOSTS = ["gaudi01", "gaudi02"]
SOON_S = 5.0


@pytest.fixture(scope="module")
def supervisor() -> ModuleType:
    """Return the program as a module."""
    return load_program(PROGRAM)


class Hosts:
    """Two hosts, each with the file of the secret, whose supervisors begin and end as a test requires."""

    def __init__(self, supervisor: ModuleType, folder: Path) -> None:
        self.program, self.folder = supervisor, folder
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.begun: list[Any] = []
        for rank in range(2):
            (folder / f"{rank}.token").write_text("secret\n", encoding="ascii")

    def launch(self, rank: int, **changed: Any) -> dict[str, Any]:
        """Return what of a launch file the supervisors of a group read."""
        group = {"rank": rank, "hosts": HOSTS, "addresses": ["127.0.0.1", "127.0.0.2"], "port": self.port}
        group |= {"token": str(self.folder / f"{rank}.token"), "id": "plan-1", "timeout_s": 1.0, "answers": not rank}
        return {"group": {**group, **changed}}

    def head(self, incarnation: str | None = None, **changed: Any) -> Any:
        """Begin the head's side."""
        self.begun.append(self.program.Head(self.launch(0, **changed), incarnation))
        return self.begun[-1]

    def worker(self, incarnation: str | None = None, **changed: Any) -> Any:
        """Begin the side of the other host."""
        self.begun.append(self.program.Worker(self.launch(1, **changed), incarnation))
        return self.begun[-1]

    def vanish(self, side: Any) -> None:
        """End a side silently, as a supervisor that is killed."""
        side.ending.set()
        if hasattr(side, "server"):
            with contextlib.suppress(OSError):
                side.server.shutdown(socket.SHUT_RDWR)
            side.server.close()
        for channel in [side.channel] if hasattr(side, "channel") else [one.channel for one in side.members.values()]:
            if channel:
                channel.close()


@pytest.fixture
def hosts(supervisor: ModuleType, tmp_path: Path) -> Iterator[Hosts]:
    """Return two hosts whose supervisors have ended when the test has."""
    found = Hosts(supervisor, tmp_path)
    yield found
    for side in found.begun:
        found.vanish(side)


def soon(true: Callable[[], Any]) -> None:
    """Wait until something is so."""
    until = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


def started(hosts: Hosts) -> tuple[Any, Any]:
    """Return both sides of a model that has started on both hosts."""
    head, worker = hosts.head(), hosts.worker()
    soon(lambda: not head.missing())
    head.start()
    soon(lambda: worker.told_to_start)
    worker.incarnation = worker.told_to_start
    worker.tell("running", incarnation=worker.incarnation)
    soon(lambda: head.members["gaudi02"].incarnation == head.incarnation)
    return head, worker


@pytest.mark.parametrize("first", ["head", "worker"])
def test_all_start_when_all_are_there_who_comes_first(hosts: Hosts, first: str) -> None:
    sides = {first: getattr(hosts, first)()}
    time.sleep(0.2)
    other = "worker" if first == "head" else "head"
    sides[other] = getattr(hosts, other)()
    head, worker = sides["head"], sides["worker"]
    soon(lambda: not head.missing())
    assert worker.told_to_start is None
    head.start()
    soon(lambda: worker.told_to_start == head.incarnation)
    head.judge()
    worker.incarnation = worker.told_to_start
    worker.judge()


def test_a_host_that_still_has_an_earlier_start_ends_it_first(hosts: Hosts) -> None:
    head, old = hosts.head(), hosts.worker("an earlier start")
    soon(lambda: head.missing() == ["gaudi02"] and old.told_to_stop)
    with pytest.raises(hosts.program.SupervisorError, match="gaudi01 stops this start: gaudi01 begins a new start"):
        old.judge()
    hosts.vanish(old)
    hosts.worker()
    soon(lambda: not head.missing())


def test_a_part_that_ends_is_named_and_ends_all(hosts: Hosts) -> None:
    head, worker = started(hosts)
    worker.end("the server ended with status 0")
    soon(lambda: head.members["gaudi02"].ended)
    with pytest.raises(hosts.program.SupervisorError, match="gaudi02: the server ended with status 0"):
        head.judge()
    # Its next supervisor is faster than the look at it.
    hosts.vanish(worker)
    hosts.worker()
    soon(lambda: head.members["gaudi02"].channel)
    with pytest.raises(hosts.program.SupervisorError, match="gaudi02: the server ended with status 0"):
        head.judge()


def test_the_head_ends_all(hosts: Hosts) -> None:
    head, worker = started(hosts)
    head.end("the server ended with status 0")
    soon(lambda: worker.told_to_stop)
    with pytest.raises(
        hosts.program.SupervisorError, match="gaudi01 stops this start: the server ended with status 0"
    ) as end:
        worker.judge()
    assert end.value.reason == "other_host"


def test_a_supervisor_that_comes_back_goes_on_with_the_same_start(hosts: Hosts) -> None:
    head, worker = started(hosts)
    head.served()
    soon(lambda: worker.serving)
    hosts.vanish(worker)
    soon(lambda: head.members["gaudi02"].channel is None)
    again = hosts.worker(head.incarnation)
    soon(lambda: again.serving)
    hosts.vanish(head)
    after = hosts.head(head.incarnation)
    soon(lambda: after.members["gaudi02"].incarnation == head.incarnation)
    time.sleep(1.2)
    after.judge()
    again.judge()


def test_a_host_that_comes_back_without_its_part_ends_the_start(hosts: Hosts) -> None:
    head, worker = started(hosts)
    hosts.vanish(worker)
    soon(lambda: head.members["gaudi02"].channel is None)
    hosts.worker(None)
    soon(lambda: head.members["gaudi02"].ended)
    with pytest.raises(hosts.program.SupervisorError, match="gaudi02: it no longer has its container of this start"):
        head.judge()


def test_silence_ends_both_sides_within_the_time(hosts: Hosts) -> None:
    head, worker = started(hosts)
    # The sockets stay open, as behind a cable that was pulled: nobody hears the other's beats any more.
    for one in (head, worker):
        one.ending.set()
    time.sleep(1.3)
    with pytest.raises(hosts.program.SupervisorError, match=r"gaudi02: its supervisor was silent for 1 s") as end:
        head.judge()
    assert end.value.reason == "other_host"
    with pytest.raises(hosts.program.SupervisorError, match=r"the supervisor of gaudi01 was silent for 1 s") as end:
        worker.judge()
    assert end.value.reason == "other_host"


def test_hosts_with_two_plans_do_not_start(hosts: Hosts) -> None:
    head, worker = hosts.head(), hosts.worker(id="plan-2")
    soon(lambda: "has another plan of the model; run playbooks/models.yml --limit gaudi01,gaudi02" in worker.why)
    assert head.missing() == ["gaudi02"]


@pytest.mark.parametrize("text", ["other\n", ""])
def test_without_the_secret_nobody_is_heard(hosts: Hosts, text: str) -> None:
    (hosts.folder / "1.token").write_text(text, encoding="ascii")
    head, worker = hosts.head(), hosts.worker()
    soon(lambda: worker.why not in ("no connection yet", ""))
    assert head.missing() == ["gaudi02"]
    with socket.create_connection(("127.0.0.1", hosts.port), source_address=("127.0.0.2", 0)) as intruder:
        intruder.sendall(b"0" * 32 + b'\n00 {"kind": "hello", "host": "gaudi02", "id": "plan-1"}\n')
        intruder.settimeout(SOON_S)
        with contextlib.suppress(ConnectionResetError):
            while intruder.recv(4096):
                pass
    assert head.missing() == ["gaudi02"]


@pytest.mark.parametrize("sent", [b"0" * 32 + b"\n" + "ä {}\n".encode(), b"\xff\n", b"", b"x" * 9000])
def test_whatever_is_sent_the_head_hears_its_hosts(hosts: Hosts, sent: bytes) -> None:
    head = hosts.head()
    for source in ("127.0.0.2", "127.0.0.3"):
        intruder = socket.create_connection(("127.0.0.1", hosts.port), source_address=(source, 0))
        with intruder, contextlib.suppress(OSError):
            intruder.sendall(sent)
    hosts.worker()
    soon(lambda: not head.missing())


def test_a_worker_survives_a_wrong_head(hosts: Hosts) -> None:
    with socket.create_server(("127.0.0.1", hosts.port)) as wrong:
        hosts.worker()
        connection, _ = wrong.accept()
        with connection:
            connection.sendall(b"0" * 32 + b"\n" + "ä {}\n".encode())
            connection.recv(4096)
    head = hosts.head()
    soon(lambda: not head.missing())


def test_a_message_cannot_be_repeated(supervisor: ModuleType) -> None:
    one, other = socket.socketpair()
    with one, other:
        heard: list[Any] = []

        made = threading.Thread(target=lambda: heard.append(supervisor.Channel(other, b"s", "worker", 1.0)))
        made.start()
        head = supervisor.Channel(one, b"s", "head", 1.0)
        made.join()
        (worker,) = heard
        text = '{"kind": "start"}'
        line = f"{head.code('head', 0, text)} {text}\n".encode()
        one.sendall(line)
        assert worker.receive() == {"kind": "start"}
        one.sendall(line)
        with pytest.raises(OSError, match="its secret differs"):
            worker.receive()


def test_the_interface_of_an_address_is_found(supervisor: ModuleType) -> None:
    assert supervisor.interface_of("127.0.0.1") == "lo"
    assert supervisor.interface_of("203.0.113.9") == ""
