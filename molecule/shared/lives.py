"""The hosts of a scenario between two tests: looked at, and restored to what converge has left."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

KEPT = "/var/lib/gaudi-sim-planned"


class Life(NamedTuple):
    """What a scenario's conftest reports of its hosts.

    parts: what probe.py is asked for; it reports the same where nothing that tests depend on has changed.
    repair: restores the named hosts, given what runs playbooks.
    """

    parts: tuple[str, ...]
    repair: Callable[[Any, list[str]], None]


def looked_at(names: list[str], parts: tuple[str, ...]) -> dict[str, str]:
    """Return what the probe reports of each host."""
    probe = (Path(__file__).parent / "probe.py").read_text(encoding="utf-8")
    piped: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    argv = ["docker", "exec", "--interactive"]
    begun = {name: subprocess.Popen([*argv, name, "python3", "-", *parts], text=True, **piped) for name in names}
    return {name: one.communicate(probe, 60)[0] for name, one in begun.items()}


def differences(names: list[str], parts: tuple[str, ...]) -> dict[str, list[str]]:
    """Return, by host that is not as converge has left it, the lines that differ.

    The first look at a host keeps on it how it was: tests may be run on it again and again.
    """
    found = {}
    for name, now in looked_at(names, parts).items():
        argv = ["docker", "exec", "--interactive", name, "sh", "-c", f"[ -e {KEPT} ] || cat >{KEPT}; cat {KEPT}"]
        before = subprocess.run(argv, input=now, capture_output=True, text=True, check=True).stdout
        if differs := sorted(set(before.splitlines()) ^ set(now.splitlines())):
            found[name] = differs
    return found


def serving(together: bool = False) -> Life:
    """Return the life of hosts that serve models: a run of the stages that serve restores them.

    Args:
        together: Whether hosts serve a model together, so that a run needs all of them.
    """

    def repair(playbook: Any, names: list[str]) -> None:
        reset_failed(names)
        limit = playbook.hosts if together else names
        run = playbook("molecule/shared/converge.yml", "--limit", ",".join(limit), fleet_all_at_once=True)
        assert run.status == 0, run.text

    return Life(("serving", "engine"), repair)


def gpus() -> Life:
    """Return the life of a host with GPUs, which has two cards of NVIDIA between tests."""
    known = serving()

    def repair(playbook: Any, names: list[str]) -> None:
        for name in names:
            subprocess.run(["docker", "exec", name, "testhost-gpus", "cuda", "2"], check=True)
        known.repair(playbook, names)

    return Life(known.parts, repair)


def bare() -> Life:
    """Return the life of a host of which everything below the models is tested."""

    def repair(playbook: Any, names: list[str]) -> None:
        reset_failed(names)
        run = playbook("molecule/host/converge.yml", driver_upgrade_allowed=True)
        assert run.status == 0, run.text

    return Life(("engine", "system"), repair)


def reset_failed(names: list[str]) -> None:
    """Let systemd forget what has failed, foreign units among it."""
    for name in names:
        subprocess.run(["docker", "exec", name, "systemctl", "reset-failed"], check=True)
