"""A Docker engine where none runs. One that ran before is never touched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from .common import HostError, cache, install, locked, run, say, succeeds

# Test hosts have addresses of their own: on Docker's own bridge a host that restarts gets the first free one, and a
# server's environment has its host's address.
NETWORK = "gaudi-serve-test"
SUBNET = "10.209.0.0/16"
ENVIRONMENT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def answers() -> bool:
    """Return whether an engine answers."""
    return succeeds("docker", "info", timeout=20)


def start() -> None:
    """Start an engine unless one answers already, and make the test hosts' network."""
    with locked("engine"):
        if not answers():
            install("docker.io", "dockerd")
        if answers():  # the package starts the engine by itself where systemd runs
            say("Docker engine: already running")
        else:
            start_own()
        if not succeeds("docker", "network", "inspect", NETWORK):
            run("docker", "network", "create", "--subnet", SUBNET, NETWORK)


def start_own() -> None:
    """Start an engine, and wait until it answers."""
    begin = time.monotonic()
    process = launch()
    while not answers():
        if process.poll() is not None:
            raise HostError(f"dockerd ended with status {process.returncode}; see {cache() / 'engine.log'}")
        if time.monotonic() - begin > 60:
            process.terminate()
            raise HostError(f"dockerd does not answer after 60 s; see {cache() / 'engine.log'}")
        time.sleep(0.3)
    say(f"Docker engine: started in {time.monotonic() - begin:.0f} s")


def launch() -> subprocess.Popen[bytes]:
    """Start dockerd, so that it outlives this terminal."""
    path = os.environ.get("PATH", "") + ":" + ENVIRONMENT_PATH
    program = shutil.which("dockerd", path=path) or "dockerd"
    with (cache() / "engine.log").open("ab") as log:
        process = subprocess.Popen(
            [program],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PATH": path},
            cwd="/",
            start_new_session=True,
        )
    (cache() / "engine.pid").write_text(f"{process.pid}\n", encoding="ascii")
    return process


def own_pid() -> int | None:
    """Return the engine's pid if this script started it and it still is a dockerd."""
    try:
        pid = int((cache() / "engine.pid").read_text(encoding="ascii"))
        name = Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return pid if name == "dockerd" else None


def stop(if_unused: bool = False) -> None:
    """End the engine that this script started, and no other; on request not while containers run."""
    with locked("engine"):
        running = run("docker", "ps", "--format", "{{.Names}}").split() if if_unused and own_pid() else []
        if running:
            say(f"Docker engine: left to {', '.join(running)}")
            return
        pid = own_pid()
        (cache() / "engine.pid").unlink(missing_ok=True)
        if pid is None:
            say("Docker engine: none that was started here")
            return
        os.kill(pid, signal.SIGTERM)
        for _ in range(300):
            if not alive(pid):
                say("Docker engine: stopped")
                return
            time.sleep(0.2)
        raise HostError(f"dockerd (pid {pid}) did not end within 60 s")


def alive(pid: int) -> bool:
    """Return whether a process runs; one that only waits to be collected does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"
