"""Warns of variables without effect, once for all hosts; changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars

LIB = str(Path(__file__).resolve().parents[1] / "lib")
if LIB not in sys.path:
    sys.path.insert(0, LIB)

from gaudi_serve.inventory.variables import ignored_options, misplaced_keys  # noqa: E402


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core has no type information
    """``gaudi_ignored_options:``, once a run."""

    _VALID_ARGS: frozenset[str] = frozenset()
    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the warnings that name these variables; none if no host has one."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        hosts = {host: variables["hostvars"][host] for host in variables["groups"]["all"]}
        warnings = [*ignored_options(hosts.values(), load_extra_vars(self._loader)), *misplaced_keys(hosts)]
        return {**result, "changed": False, "warnings": warnings}
