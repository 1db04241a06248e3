"""Runs of ansible-playbook as forks of one process that has imported Ansible, which takes it half a second each time.

What runs is the same program with the same arguments; Ansible's folder of temporary files is shared, and with it the
modules that it has packed. Given --serve, this is that process: one JSON object a line each way.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

DEVNULL = os.open(os.devnull, os.O_RDWR)


class Forked:
    """A run, with what of subprocess.Popen the tests use."""

    def __init__(self, server: Server, pid: int) -> None:
        self.server, self.pid = server, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return how the run has ended; None while it goes on."""
        if self.returncode is None:
            self.returncode = self.server.ask(wait=self.pid)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Return how the run has ended, as soon as it has.

        Raises:
            subprocess.TimeoutExpired: when it goes on for longer than so many seconds.
        """
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("ansible-playbook", timeout)
            time.sleep(0.02)
        return status


class Server:
    """The process that forks; it ends with this one."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        argv = [sys.executable, __file__, "--serve"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, cwd=folder, env=environment, stdin=pipe, stdout=pipe, text=True)
        atexit.register(self.stop)

    def ask(self, **question: Any) -> Any:
        """Ask, and return the answer."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def stop(self) -> None:
        """End it, and wait for that: what its runs have used of the processors then counts as this process's."""
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@functools.cache
def server(folder: Path, environment: tuple[tuple[str, str], ...]) -> Server:
    """Return the process of a folder and an environment: Ansible reads both while it is imported."""
    return Server(folder, dict(environment))


def start(
    argv: Sequence[str], folder: Path, environment: dict[str, str], said: IO[str], errors: IO[str] | None = None
) -> Forked:
    """Start ``ansible-playbook`` with arguments, in a session of its own.

    It prints into an open file, and its errors into another one if that is given.
    """
    assert Path(argv[0]).name == "ansible-playbook"
    # What pytest shows of the current test differs with every test.
    kept = {key: value for key, value in environment.items() if key != "PYTEST_CURRENT_TEST"}
    one = server(folder, tuple(sorted(kept.items())))
    into = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (said, errors or said)]
    return Forked(one, one.ask(run=list(argv), into=into))


def kill(pid: int) -> list[int]:
    """Kill a run, as a power cut of the controller would, and return its workers, which go on as on hosts far away.

    They are sessions of their own, and one whose answer fills the pipe that nobody reads any more would wait for ever.
    They end when this process does, unless that is killed.
    """
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    workers = [int(word) for word in words]
    atexit.register(end, workers)
    os.killpg(pid, signal.SIGKILL)
    return workers


def end(workers: Sequence[int]) -> None:
    """End the workers of a run that was killed, with all that they have started."""
    for pid in workers:
        # Not a process that has got the number since.
        with contextlib.suppress(OSError):
            if __file__ in Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0"):
                os.killpg(pid, signal.SIGKILL)


def playbook(argv: Sequence[str], folder: Path, environment: dict[str, str], seconds: float) -> tuple[int, str]:
    """Run ``ansible-playbook`` to its end, and return its status and what it has printed."""
    with tempfile.TemporaryFile("w+") as said:
        run = start(argv, folder, environment, said)
        try:
            status = run.wait(seconds)
        except subprocess.TimeoutExpired:
            end(kill(run.pid))
            raise
        said.seek(0)
        return status, said.read()


def serve() -> None:
    """Fork for each run that is asked for, and report how it has ended."""
    from ansible.cli.playbook import PlaybookCLI

    # What every run loads, and nothing that reads the inventory or a setting of a run.
    from ansible.executor import playbook_executor
    from ansible.plugins.loader import filter_loader
    from ansible.plugins.strategy import linear

    assert playbook_executor
    assert linear
    # As callback_plugins/gaudi_serve.py would: the project's filters and its catalog of models.
    filter_loader.get("model_catalog").j2_function([], builtin=True)
    # Looking again and again for what of all that is garbage takes a run a seventh of its time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    for line in sys.stdin:
        question = json.loads(line)
        answer = None
        if "run" in question:
            answer = os.fork()
            if answer == 0:
                run(PlaybookCLI, question["run"], question["into"])
        else:
            pid, status = os.waitpid(question["wait"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        print(json.dumps(answer), flush=True)


def run(program: Any, argv: list[str], into: list[str]) -> None:
    """Be the run, and end."""
    os.setsid()
    os.dup2(DEVNULL, 0)
    for number, path in enumerate(into, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    status = 1
    try:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - what was read ahead is the server's
        sys.argv = argv
        program.cli_executor(argv)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1 if end.code else 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not as the process that was forked would: its temporary files are in use.
    os._exit(status)


if __name__ == "__main__":
    serve()
