"""Moves a host of a rollout from one state to the next. Changes nothing on the host."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

LIB = str(Path(__file__).resolve().parents[1] / "lib")
if LIB not in sys.path:
    sys.path.insert(0, LIB)

from gaudi_serve.core.errors import InputError  # noqa: E402
from gaudi_serve.rollout.state import REGISTERED, Event, RolloutState, next_state  # noqa: E402

PLAN = "plan"
OPTIONS: dict[str, dict[str, Any]] = {
    # The event. lib/gaudi_serve/rollout/state.py has the states in which it is allowed.
    "event": {"type": "str", "required": True, "choices": [PLAN, *[event.value for event in Event]]},
    # plan: the hosts of each wave.
    "waves": {"type": "list", "elements": "list"},
    # verify: the result of vllm_benchmark, and the part of the earlier throughput that is required.
    "before": {"type": "dict"},
    "after": {"type": "dict"},
    "least_speed": {"type": "float"},
    # fail, give_up: name and result of the failed task.
    "task": {"type": "str"},
    "result": {"type": "dict"},
    # give_up: seconds in which the host was unreachable; 0 if it was reachable.
    "unreachable_s": {"type": "int", "default": 0},
}
NEEDED = [
    (PLAN, ("waves",)),
    ("verify", ("before", "after", "least_speed")),
    *[(event, ("task", "result")) for event in ("fail", "give_up")],
]


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core has no type information
    """``gaudi_rollout_host: {event: begin}``, with ``register: rollout_host``."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the host's next state, and the values that tasks read, as ``RolloutState.as_dict`` has it.

        The previous state is what the last such task registered as ``rollout_host``. So the task has no condition,
        because a skipped task also registers. It fails if the event is not allowed, and ``verify`` if the host
        is slower than before; the state then does not change. A check changes only the first state.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        needed = [("event", event, names) for event, names in NEEDED]
        _, given = self.validate_argument_spec(argument_spec=OPTIONS, required_if=needed)
        variables = task_vars or {}
        host, event = str(variables["inventory_hostname"]), str(given["event"])
        if event == PLAN:
            found = RolloutState.planned(host, given["waves"])
            return {**result, "changed": False, "event": event, **found.as_dict()}
        if REGISTERED not in variables:
            return {
                **result,
                "failed": True,
                "msg": f"{host}: event {event}: the host has no state in a rollout yet",
            }
        now = RolloutState.of(host, variables[REGISTERED])
        try:
            found = now if self._task.check_mode else next_state(now, Event(event), given)
        except InputError as problem:
            return {**result, "failed": True, "msg": str(problem), "event": event, **now.as_dict()}
        return {**result, "changed": False, "event": event, **found.as_dict()}
