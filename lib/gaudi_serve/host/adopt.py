"""Replaces the supervisors of running models without stopping their containers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from .observe_services import supervisors

State = tuple[int, "str | None"]  # process, version


def adopt(
    names: Sequence[str],
    version: str,
    timeout: float = 60.0,
    look: Callable[[Sequence[str]], Mapping[str, State]] = supervisors,
    kill: Callable[[int, int], None] = os.kill,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Replace the supervisors of models by the installed one; their containers keep running.

    A supervisor that is asked to stop stops its container. A killed one does not: systemd restarts it, and it adopts
    the running container.

    Args:
        names: the models.
        version: digest of the installed supervisor.
        timeout: seconds for all of them together.
        look, kill, sleep: for tests.

    Returns:
        The models that still have another supervisor after the timeout; empty on success.
    """
    left = {name: state for name, state in look(names).items() if state[1] != version}
    for process, _ in left.values():
        if process:
            try:
                kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has ended already, and the new one is starting
    deadline = time.monotonic() + timeout
    while left:
        now = look(list(left))
        left = {name: now[name] for name in left if now[name][1] != version}
        if not left or time.monotonic() > deadline:
            break
        sleep(0.3)
    return sorted(left)
