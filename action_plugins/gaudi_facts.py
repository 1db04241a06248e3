"""Runs module gaudi_facts for the accelerator of the inventory. A host that cannot be read gets one sentence."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action.normal import ActionModule as Normal

LIB = str(Path(__file__).resolve().parents[1] / "lib")
if LIB not in sys.path:
    sys.path.insert(0, LIB)

from gaudi_serve.inventory.rendered import UNRENDERED, Variables  # noqa: E402
from gaudi_serve.plan.unread import python_refusal, root_refusal  # noqa: E402

# Reasons why a module cannot run at all, such as an interpreter that is too old.
BROKEN = ("SyntaxError", "ImportError", "ModuleNotFoundError", "too old for the toolkit")


class ActionModule(Normal):  # type: ignore[misc]  # ansible-core has no type information
    """``gaudi_facts``, with the module's own arguments."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Read the host. A known failure returns only its sentence, and ``old_python`` for an old interpreter."""
        self._task.args = {"accelerator": self._accelerator(task_vars or {}), **self._task.args}
        host = str(self._task.delegate_to or (task_vars or {}).get("inventory_hostname", "this host"))
        try:
            result: dict[str, Any] = super().run(tmp, task_vars)
        except AnsibleConnectionFailure:
            raise
        except AnsibleError as problem:
            if refused := self._refused(str(problem), host):
                return refused
            raise
        said = "\n".join(str(result.get(key) or "") for key in ("msg", "exception", "module_stderr", "module_stdout"))
        return (self._refused(said, host) if result.get("failed") else {}) or result

    def _accelerator(self, variables: dict[str, Any]) -> str:
        """Return the accelerator to serve; auto if it cannot be read, which the plan reports."""
        try:
            return str(Variables(variables, self._loader).get("accelerator") or "auto")
        except UNRENDERED:
            return "auto"

    def _refused(self, said: str, host: str) -> dict[str, Any]:
        """Return the result for a host that cannot be read for a known reason; empty for other failures."""
        if refusal := root_refusal(said, host):
            return {"failed": True, "msg": refusal}
        if any(word in said for word in BROKEN) and (refusal := python_refusal(self._version(), host)):
            return {"failed": True, "msg": refusal, "old_python": True}
        return {}

    def _version(self) -> str:
        """Return the version that the host's interpreter reports."""
        # From the first line of the module, which Ansible has written.
        interpreter = str(getattr(self, "_used_interpreter", None) or "python3").lstrip("#!")
        told = self._low_level_execute_command(f"{interpreter} --version")
        return f"{told.get('stdout', '')}{told.get('stderr', '')}"
