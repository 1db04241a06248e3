"""Writes the text of an approval of a workflow, on the controller."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

LIB = str(Path(__file__).resolve().parents[1] / "lib")
if LIB not in sys.path:
    sys.path.insert(0, LIB)

from gaudi_serve.awx.api import AwxError, from_environment  # noqa: E402
from gaudi_serve.awx.approval import approval_text  # noqa: E402
from gaudi_serve.core.errors import InputError  # noqa: E402


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core has no type information
    """``awx_approval_text: {organization: ..., workflow: ..., node: ..., text: ...}``."""

    _VALID_ARGS = frozenset(("organization", "workflow", "node", "text"))
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return whether the text changed; a warning if it could not be written."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        if self._task.check_mode:
            return {**result, "changed": False, "skipped": True}
        given = {name: str(self._task.args[name]) for name in self._VALID_ARGS}
        try:
            return {**result, "changed": approval_text(from_environment(), **given)}
        except (AwxError, InputError) as problem:
            text = f"the text of approval {given['node']} could not be written. This job's output shows it: {problem}"
            return {**result, "changed": False, "warnings": [text]}
