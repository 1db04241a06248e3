"""Runs module bios_settings on the control node, without the host, or on the host itself.

The address and the password of the BMC come from the variables of the host, so that no task, result or process
contains them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

LIB = str(Path(__file__).resolve().parents[1] / "lib")
if LIB not in sys.path:
    sys.path.insert(0, LIB)

from gaudi_serve.bios.work import carried_out  # noqa: E402
from gaudi_serve.inventory.rendered import Variables  # noqa: E402

DEFAULTS: dict[str, Any] = {"state": "read", "settings": {}, "before": {}, "job": "", "settle_s": 120}
CERTIFICATE = "-----BEGIN CERTIFICATE-----"


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core has no type information
    """``bios_settings: {state: staged, settings: {ProcCStates: Disabled}}``."""

    _VALID_ARGS = frozenset(DEFAULTS)
    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of the module."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        known = Variables(variables, self._loader, ["bios"])
        given = {**DEFAULTS, **self._task.args}
        try:
            given["bmc"] = bmc_of(known)
        except (OSError, ValueError) as problem:
            path = known.get("bios_bmc_ca")
            return {**result, "failed": True, "msg": f"bios_bmc_ca: {path}: {getattr(problem, 'strerror', problem)}"}
        if given["state"] == "settled":
            given["settle_s"] = known["bios_settle_timeout"]
        if known["bios_bmc_via"] == "host":
            answer = dict(self._execute_module("bios_settings", given, task_vars=task_vars))
            answer.pop("invocation", None)
        else:
            answer = carried_out(given, check=bool(self._task.check_mode))
        return {**result, **answer}


def bmc_of(known: Variables) -> dict[str, Any]:
    """Return address and login of the BMC of a host, with the text of its authorities' certificates.

    Raises:
        OSError: if their file cannot be read on the control node.
        ValueError: if it is not text, or contains no certificate. An empty file must not select the control node's own.
    """
    authorities = str(known.get("bios_bmc_ca") or "")
    if authorities and CERTIFICATE not in authorities:
        authorities = Path(authorities).expanduser().read_text(encoding="ascii")
        if CERTIFICATE not in authorities:
            raise ValueError("holds no certificate")
    return {
        **{name: str(known[f"bios_bmc_{name}"]) for name in ("address", "user", "password")},
        **{"ca": authorities, "fingerprint": str(known.get("bios_bmc_fingerprint") or "")},
        **{"wait_s": float(known["bios_bmc_timeout"]), "pause_s": min(5.0, float(known["bios_bmc_timeout"]) / 20)},
    }
