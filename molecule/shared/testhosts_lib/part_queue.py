"""A queue of programs, two at a time, of which at most one is heavy; those that take long begin first."""

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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .common import REPOSITORY, SHARED, cache

# A lane for each processor that it is made for.
LANES = max(2, int(os.environ.get("GAUDI_SERVE_LANES") or 2))
# A part is killed after its seconds times this, and some minutes. A busy machine takes three times as long.
SLOWEST, SPARE_S = 6, 900
# Lines that explain a failed part: names of tests, their asserts, and the tasks that failed.
REASON = re.compile(
    r"^(_{3,} \S.* _{3,}$|(FAILED|ERROR) \S*/|E  +\S|\S+\.py:\d+: |fatal: \[|\+?(assert |AssertionError))"
)
REASONS = 25
LONGEST = 300  # characters of a line that is shown


class Part(NamedTuple):
    """One program of the tests.

    seconds: measured on two quiet processors, for the order of the first run on a machine.
    heavy: it starts vLLM or several hosts. Two heavy parts never run beside each other: they would slow each other down
        until a wait in one of them ends, and they change the kernel that the hosts share.
    engine: it needs the Docker engine.
    hosts: containers that it makes; they are removed before it and after it, which nothing has to wait for.
    environment: variables that it has in addition.
    tests: pytest counts its tests.
    """

    argv: list[str]
    seconds: int
    heavy: bool = False
    engine: bool = False
    hosts: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    tests: bool = False


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
        return f"{how:8}{self.name:32}{self.seconds:5.0f} s {self.used:5.0f} s  {self.counts}".rstrip()


class Queue:
    """Parts that wait, parts that run, and what has ended."""

    def __init__(self, parts: dict[str, Part], after: Callable[[str, bool], None] = lambda name, passed: None) -> None:
        """``after`` is called with the name of each part that has ended, and whether it has passed."""
        # Each checkout has logs of its own: two that test at once would write into the same ones.
        place = hashlib.sha256(str(REPOSITORY).encode()).hexdigest()[:8]
        self.logs = cache() / "logs" / f"{REPOSITORY.name}-{place}"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.kept = cache() / "durations.json"
        self.known: dict[str, float] = {}
        with contextlib.suppress(OSError, ValueError):
            self.known = json.loads(self.kept.read_text(encoding="utf-8"))
        self.waiting = dict(parts)
        self.after = after
        self.running: dict[str, Running] = {}
        self.ended: list[Outcome] = []
        self.gone: list[subprocess.Popen[bytes]] = []

    def run(self) -> list[Outcome]:
        """Run all parts; an interrupt ends those that run."""
        try:
            while self.waiting or self.running:
                while name := self.next():
                    part = self.waiting.pop(name)
                    self.running[name] = Running(part, self.logs / f"{name.replace(' ', '-')}.log")
                    print(f"begins  {name:32}{self.left()}", flush=True)
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
        """Return the part to begin now: the longest, a heavy one first where none runs; None where none may begin."""
        if len(self.running) >= LANES:
            return None
        busy = any(one.part.heavy for one in self.running.values())
        free = [name for name, part in self.waiting.items() if not (busy and part.heavy)]
        return max(free, key=lambda name: (self.waiting[name].heavy, self.seconds(name)), default=None)

    def seconds(self, name: str) -> float:
        """Return how long a part takes: the last time on this machine, or as measured for the file of the parts."""
        part = self.waiting.get(name) or self.running[name].part
        return self.known.get(name, part.seconds)

    def left(self) -> str:
        """Return in words how long the rest takes: heavy parts one after the other, at most two parts at once."""
        rest = {name: max(10, self.seconds(name) - one.taken) for name, one in self.running.items()}
        heavy = sum(rest[name] for name, one in self.running.items() if one.part.heavy)
        heavy += sum(self.seconds(name) for name, part in self.waiting.items() if part.heavy)
        every = sum(rest.values()) + sum(map(self.seconds, self.waiting))
        minutes = max(heavy, every / LANES, *rest.values(), 0) / 60 if rest or self.waiting else 0
        return f"about {minutes:.0f} min left" if minutes >= 1 else "less than a minute left" if minutes else "the last"

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
            print("\n".join(line[:LONGEST] for line in text.splitlines()[-200:]))
            # Again below it: what a test has to show can be longer than that.
            print("\n".join(outcome.reasons))
            print(f"status {one.status}; the whole log: {one.log}")
        print(f"{outcome.line}; {self.left()}", flush=True)
        # A test that was skipped, or a part without any, shows nothing.
        ran = "passed" in outcome.counts and "skipped" not in outcome.counts
        self.after(name, passed and (ran or not one.part.tests))


class Running:
    """A part that runs, in a group of processes of its own."""

    def __init__(self, part: Part, log: Path) -> None:
        self.part, self.log, self.begin = part, log, time.monotonic()
        self.taken, self.used, self.status = 0.0, 0.0, -1
        removed(part.hosts).wait()
        # What molecule knows of hosts of an earlier run is none of this one's business.
        self.folder = tempfile.TemporaryDirectory(prefix="gaudi-serve-test-")
        # What a user has set for pytest would select other tests.
        own = {name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", "GAUDI_SERVE_LONG")}
        environment = {**own, **part.environment, "MOLECULE_EPHEMERAL_DIRECTORY": self.folder.name}
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
        if self.process.returncode is None and self.taken > self.part.seconds * SLOWEST + SPARE_S:
            self.kill()
        if self.process.returncode is None:
            ended, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if not ended:
                return False
            self.process.returncode = os.waitstatus_to_exitcode(status)
            self.used = usage.ru_utime + usage.ru_stime
        self.status = self.process.returncode
        self.kill_left()
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

    def kill_left(self) -> None:
        """Kill the processes of the part that have left its group; each has the part's folder in its environment."""
        mark = f"MOLECULE_EPHEMERAL_DIRECTORY={self.folder.name}\0".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes() + b"\0":
                    os.kill(int(path.parent.name), signal.SIGKILL)


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
    return tuple(line[:LONGEST] for line in plain if REASON.match(line))[-REASONS:]
