"""A queue of programs that run beside each other, some at a time, those that take long first."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from .common import REPOSITORY, SHARED, cache

# One more than the processors that it is made for: a host's life waits for servers half of its time.
LANES = max(2, int(os.environ.get("GAUDI_SERVE_LANES") or 3))
# Of one part; on a machine that others use it takes three times as long as on a quiet one.
LIMIT_S = 4 * 3600 if os.environ.get("GAUDI_SERVE_LONG") else 4500
# Lines that explain a failed part: names of tests, their asserts, and the tasks that failed.
REASON = re.compile(
    r"^(_{3,} \S.* _{3,}$|(FAILED|ERROR) \S*/|E  +\S|\S+\.py:\d+: |fatal: \[|\+?(assert |AssertionError))"
)
REASONS = 25


class Part(NamedTuple):
    """One program of the tests.

    seconds: measured on two quiet processors, for the order of the first run on a machine.
    group: parts of one group never run beside each other: they change what the hosts share.
    engine: it needs the Docker engine.
    hosts: containers that it makes; they are removed before it and after it, which nothing has to wait for.
    lanes: how many it takes; an emulated machine never waits, and is several times slower beside two others.
    """

    argv: list[str]
    seconds: int
    group: str = ""
    engine: bool = False
    hosts: tuple[str, ...] = ()
    lanes: int = 1


class Outcome(NamedTuple):
    """What a part gave; of a failed one the lines that give the reason."""

    name: str
    passed: bool
    seconds: float
    used: float
    counts: str
    reasons: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """Return it as a line of the table."""
        how = "ok" if self.passed else "FAILED"
        return f"{how:8}{self.name:22}{self.seconds:5.0f} s {self.used:5.0f} s  {self.counts}".rstrip()


class Queue:
    """Parts that wait, parts that run, and what has ended."""

    def __init__(self, parts: dict[str, Part]) -> None:
        # Each checkout has logs of its own: two that test at once would write into the same ones.
        place = hashlib.sha256(str(REPOSITORY).encode()).hexdigest()[:8]
        self.logs = cache() / "logs" / f"{REPOSITORY.name}-{place}"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.kept = cache() / "durations.json"
        self.known: dict[str, float] = {}
        with contextlib.suppress(OSError, ValueError):
            self.known = json.loads(self.kept.read_text(encoding="utf-8"))
        self.waiting = dict(parts)
        self.running: dict[str, Running] = {}
        self.ended: list[Outcome] = []
        self.gone: list[subprocess.Popen[bytes]] = []

    def run(self) -> list[Outcome]:
        """Run all parts; an interrupt ends those that run."""
        try:
            while self.waiting or self.running:
                while name := self.next():
                    self.running[name] = Running(self.waiting.pop(name), self.logs / f"{name.replace(' ', '-')}.log")
                time.sleep(0.1)
                for name in [name for name, one in self.running.items() if one.over()]:
                    self.end(name, self.running.pop(name))
        finally:
            for one in self.running.values():
                one.kill()
                if one.over():
                    self.gone.append(one.gone)
            for gone in self.gone:
                gone.wait()
        return self.ended

    def next(self) -> str | None:
        """Return the part to begin now: the one that most hangs on, of those whose group does not run.

        One that takes several lanes goes before all others: lanes fall free one by one, so it would come last, alone.
        """
        busy = {one.part.group for one in self.running.values()} - {""}
        left = LANES - sum(one.part.lanes for one in self.running.values())
        free = [name for name, part in self.waiting.items() if part.group not in busy and part.lanes <= left]
        return max(free, key=lambda name: (self.waiting[name].lanes, self.rest(name)), default=None)

    def rest(self, name: str) -> float:
        """Return how many seconds come one after the other from here on, of the part and its group."""
        group = self.waiting[name].group
        chain = {name, *(one for one, part in self.waiting.items() if group and part.group == group)}
        return sum(self.known.get(one, self.waiting[one].seconds) for one in chain)

    def end(self, name: str, one: Running) -> None:
        """Keep what a part gave, and show at once what went wrong."""
        text = one.log.read_text(encoding="utf-8", errors="replace")
        passed = one.status == 0
        outcome = Outcome(name, passed, one.taken, one.used, counts(text), () if passed else reasons(text))
        self.ended.append(outcome)
        self.gone.append(one.gone)
        if outcome.passed:
            self.known[name] = round(one.taken, 1)
            self.kept.write_text(json.dumps(self.known, indent=1) + "\n", encoding="utf-8")
        else:
            print("\n".join(text.splitlines()[-200:]))
            # Again below it: what a test has to show can be longer than that.
            print("\n".join(outcome.reasons))
            print(f"status {one.status}; the whole log: {one.log}")
        print(outcome.line, flush=True)


class Running:
    """A part that runs, in a group of processes of its own."""

    def __init__(self, part: Part, log: Path) -> None:
        self.part, self.log, self.begin = part, log, time.monotonic()
        self.taken, self.used, self.status = 0.0, 0.0, -1
        removed(part.hosts).wait()
        # What molecule knows of hosts of an earlier run is none of this one's business.
        self.folder = tempfile.TemporaryDirectory(prefix="gaudi-serve-test-")
        environment = {**os.environ, "MOLECULE_EPHEMERAL_DIRECTORY": self.folder.name}
        if part.hosts and os.geteuid() == 0:
            entered = Path(self.folder.name) / "entered"
            entered.mkdir()
            quick = {"GAUDI_SERVE_DOCKER": shutil.which("docker") or "docker", "GAUDI_SERVE_ENTERED": str(entered)}
            environment |= {**quick, "PATH": f"{SHARED}/quick:{os.environ['PATH']}"}
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                part.argv,
                cwd=REPOSITORY,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def over(self) -> bool:
        """Return whether it has ended; one that takes too long is killed."""
        self.taken = time.monotonic() - self.begin
        if self.process.returncode is None and self.taken > LIMIT_S:
            self.kill()
        if self.process.returncode is None:
            ended, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if not ended:
                return False
            self.process.returncode = os.waitstatus_to_exitcode(status)
            self.used = usage.ru_utime + usage.ru_stime
        self.status = self.process.returncode
        self.gone = removed(self.part.hosts)
        self.folder.cleanup()
        return True

    def kill(self) -> None:
        """End it with all that it has started."""
        for which in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, which)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)


def removed(hosts: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """Begin to remove containers with their volumes; one that is not there is no failure."""
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(["docker", "rm", "--force", "--volumes", *hosts] if hosts else ["true"], **quiet)


def counts(text: str) -> str:
    """Return pytest's last line of counts, or nothing."""
    found = re.findall(r"((?:\d+ (?:passed|failed|deselected|skipped|errors?)(?:, )?)+) in [\d.]+s", text)
    return found[-1] if found else ""


def reasons(text: str) -> tuple[str, ...]:
    """Return the lines of a log with the reason of a failure, without molecule's colours and frame."""
    plain = (re.sub(r"\x1b\[[0-9;]*m", "", line).strip("│ \t") for line in text.splitlines())
    return tuple(line[:300] for line in plain if REASON.match(line))[-REASONS:]
