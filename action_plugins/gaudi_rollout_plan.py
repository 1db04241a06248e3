"""Finds the waves of a rollout over the hosts of a play, from the facts of preflight. Changes nothing."""

from __future__ import annotations

import os
import sys
from collections import ChainMap
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

LIB = str(Path(__file__).resolve().parents[1] / "lib")
if LIB not in sys.path:
    sys.path.insert(0, LIB)

from gaudi_serve.awx.approval import seen_approvals  # noqa: E402
from gaudi_serve.core.checks import is_true  # noqa: E402
from gaudi_serve.core.errors import InputError  # noqa: E402
from gaudi_serve.rollout.approved import rollout_due, rollout_unapproved  # noqa: E402
from gaudi_serve.rollout.waves import PREFIX, rollout_plan  # noqa: E402


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core has no type information
    """``gaudi_rollout_plan:``, once a run, with ``register: rollout_plan``."""

    _VALID_ARGS: frozenset[str] = frozenset()
    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the plan as ``rollout_plan`` has it, for all hosts of the play.

        ``unapproved``: why no approval covers this run, and changes that are not in an approved plan, one sentence
        each. ``continues``: whether the rollout goes on after the canary: ``yes``, ``no``, or ``ask``. ``data``:
        published for the next job of a workflow, and for the approver.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        hostvars, hosts = variables["hostvars"], list(variables["ansible_play_hosts"])
        # hostvars has no variables of the play, which a playbook that imports this one may set.
        told = {name: self._templar.template(value) for name, value in variables.items() if name.startswith(PREFIX)}
        known = ChainMap(told, hostvars[variables["inventory_hostname"]])
        try:
            plan = rollout_plan(hostvars, hosts, known)
            # A check changes nothing, and needs no approval.
            environment = {} if self._task.check_mode else os.environ
            workflow = any(variables.get(f"{name}_workflow_job_id") for name in ("awx", "tower"))
            seen, blind = seen_approvals(environment, is_true(known.get("rollout_as_approved")), workflow)
            # In a workflow with approvals, AWX decides, and no variable.
            approved = known if seen is None else known.new_child({"rollout_as_approved": True})
            due, unapproved = rollout_due(hostvars, hosts), rollout_unapproved(hostvars, hosts, approved)
        except InputError as problem:
            return {**result, "failed": True, "msg": str(problem)}
        text = "\n".join(plan["refusal"] or plan["lines"])
        left = {**{key: plan[key] for key in ("waves", "steps", "refusal")}, "hosts": {}, "text": text, "due": due}
        unapproved = [*blind, *(seen.reasons if seen else []), *unapproved]
        answer = known.get("rollout_approved")
        continues = "ask" if answer in (None, "") else "yes" if is_true(answer) else "no"
        if seen is not None:
            continues = "yes" if seen.all_granted else "no"
        more = {"unapproved": unapproved, "continues": continues, "data": left}
        return {**result, "changed": False, **plan, **more}
