"""Holds a run at a named place, so that a test can cut it off exactly there."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: stages
type: aggregate
short_description: Holds a run before or after a task
description:
  - GAUDI_VM_STAGE is C(begin) or C(end), a blank, and a task's name without its role. There the run writes the file
    GAUDI_VM_REACHED and goes on when the file GAUDI_VM_GO is there.
"""
PATIENCE_S = 600


class CallbackModule(CallbackBase):  # type: ignore[misc]  # ansible-core has no type information
    """The run's main process waits in its events, so nothing else of the run goes on."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "stages"

    def hold(self, event: str, task: Any) -> None:
        """Wait at the named place, once."""
        reached, go = Path(os.environ["GAUDI_VM_REACHED"]), Path(os.environ["GAUDI_VM_GO"])
        if f"{event} {task.get_name().rpartition(' : ')[2]}" != os.environ["GAUDI_VM_STAGE"] or reached.exists():
            return
        reached.touch()
        deadline = time.monotonic() + PATIENCE_S
        while not go.exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """Before a task's work."""
        self.hold("begin", task)

    def v2_runner_on_ok(self, result: Any) -> None:
        """After a task's work."""
        self.hold("end", getattr(result, "task", None) or result._task)
