"""Creates the objects of an AWX, as playbooks/awx.yml reports and changes them, on the controller."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

LIB = str(Path(__file__).resolve().parents[1] / "lib")
if LIB not in sys.path:
    sys.path.insert(0, LIB)

from gaudi_serve.awx.api import AwxError, Unfinished, from_environment  # noqa: E402
from gaudi_serve.awx.run import apply  # noqa: E402
from gaudi_serve.core.errors import InputError  # noqa: E402


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core has no type information
    """``awx_objects: {settings: ..., templates: ..., workflows: ..., schedules: ..., messages: ...}``."""

    _VALID_ARGS = frozenset(("settings", "templates", "workflows", "schedules", "messages", "state", "update_secrets"))
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``lines``, the changes, and ``notices``, the objects that stay although no file lists them."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = self._task.args
        try:
            found = apply(
                from_environment(),
                given["settings"],
                given,
                check=bool(self._task.check_mode),
                absent=given.get("state") == "absent",
                update_secrets=boolean(given.get("update_secrets", False)),
            )
        except AwxError as problem:
            return {**result, "failed": True, "changed": isinstance(problem, Unfinished), "msg": str(problem)}
        except InputError as problem:
            return {**result, "failed": True, "msg": _refused(str(problem).split("\n"))}
        if found.refusal:
            return {**result, "failed": True, "msg": _refused(found.refusal)}
        return {**result, "changed": bool(found.lines), "lines": found.lines, "notices": found.notices}


def _refused(reasons: list[str]) -> list[str]:
    return ["Nothing has been changed on the AWX. Reasons:", *reasons]
