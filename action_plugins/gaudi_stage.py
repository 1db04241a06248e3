"""Compares a stage with the host, from the facts that were read. Changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

LIB = str(Path(__file__).resolve().parents[1] / "lib")
if LIB not in sys.path:
    sys.path.insert(0, LIB)

from gaudi_serve.core.errors import InputError  # noqa: E402
from gaudi_serve.inventory.as_task import run_as_task  # noqa: E402
from gaudi_serve.inventory.rendered import Undefined, Variables  # noqa: E402
from gaudi_serve.stages.base import REFUSED, Given, Stage  # noqa: E402
from gaudi_serve.stages.registry import BY_ROLE  # noqa: E402

STEPS = ("compare", "pending", "verify", "reset", "taken_back")


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core has no type information
    """``gaudi_stage: {stage: host_tuning, step: pending}``."""

    _VALID_ARGS = frozenset(("stage", "step"))
    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the pending changes, and the facts of the stage that the rest of the run reads.

        Step ``pending`` fails if the stage must not begin, ``verify`` if a change is left after it, ``taken_back`` if a
        reset has left something. ``compare`` and ``reset`` only return the changes. A stage that reads the host itself
        does so in ``pending`` and ``verify``, which return these facts too; ``compare`` uses the last ones.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        stage, step = BY_ROLE[self._task.args["stage"]], self._task.args["step"]
        if step not in STEPS:
            raise AnsibleActionFail(f"step {step!r}: must be one of {', '.join(STEPS)}")
        variables = task_vars or {}
        host = str(variables["inventory_hostname"])
        given = Given(host, Variables(variables, self._loader, [stage.role]))
        try:
            if step in ("reset", "taken_back"):
                found = self._reset(stage, step, given)
            else:
                found = self._compared(stage, step, given, variables)
        except (InputError, Undefined) as problem:
            found = {"failed": True, "msg": str(problem)}
        return {**result, "changed": False, **found}

    def _compared(self, stage: Stage, step: str, given: Given, variables: dict[str, Any]) -> dict[str, Any]:
        read: dict[str, Any] = {}

        def look(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            seen = run_as_task(self, name, arguments, variables)
            read.update(seen.get("ansible_facts", {}))
            return seen

        found = stage.compared(given) if step == "compare" else stage.asked(given, look)
        # Other hosts of the play read these facts.
        told: dict[str, Any] = {"changes": dict(found.changes), "ansible_facts": {**read, **stage.facts(found)}}
        if step == "pending" and found.refusal:
            told |= {"failed": True, "msg": [REFUSED, *found.refusal]}
        if step == "verify" and found.left and not self._task.check_mode:
            told |= {"failed": True, "msg": found.left[0] if len(found.left) == 1 else list(found.left)}
        return told

    def _reset(self, stage: Stage, step: str, given: Given) -> dict[str, Any]:
        found = stage.reset(given)
        if step == "reset":
            return {"ansible_facts": {f"{stage.role}_reset": found}}
        if found["due"] and not self._task.check_mode:
            text = f"{given.host}: still to remove after this run: {'; '.join(found['did'])}"
            return {"failed": True, "msg": text}
        return {"reset": found}
