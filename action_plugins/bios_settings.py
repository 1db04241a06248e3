"""Runs module bios_settings on the control node, without the host, or on the host itself.

The address and the password of the BMC come from the variables of the host, so that no task, result or process
contains them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

LIB = str(Path(__file__).resolve().parents[1] / "lib")
if LIB not in sys.path:
    sys.path.insert(0, LIB)

from gaudi_serve.bios.kept import keep_values, kept_values, restoring  # noqa: E402
from gaudi_serve.bios.work import carried_out  # noqa: E402
from gaudi_serve.core.checks import is_true  # noqa: E402
from gaudi_serve.inventory.rendered import Variables  # noqa: E402
from gaudi_serve.stages.bios import NEEDED  # noqa: E402

MODULE: dict[str, Any] = {"state": "read", "settings": {}, "before": {}, "job": "", "settle_s": 120}
DEFAULTS: dict[str, Any] = {**MODULE, "system": {}, "restore": False}
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
        path, values = kept_path(known), dict[str, Any]()
        try:
            if given["state"] == "kept":
                values = kept_values(path, str(known.get("bios_bmc_serial") or ""))
                if not is_true(given["restore"]) or not values:
                    return {**result, "changed": False, "path": str(path), "values": values, "sends": False}
            elif given["state"] == "staged" and given["before"] and not self._task.check_mode:
                keep_values(path, given["system"], given["before"])
        except (OSError, ValueError) as problem:
            text = f"bios_values_dir: {path}: {getattr(problem, 'strerror', None) or problem}"
            return {**result, "failed": True, "msg": f"{text}; nothing was sent to the BMC"}
        try:
            given["bmc"] = bmc_of(known)
        except (OSError, ValueError) as problem:
            ca = known.get("bios_bmc_ca")
            return {**result, "failed": True, "msg": f"bios_bmc_ca: {ca}: {getattr(problem, 'strerror', problem)}"}
        if given["state"] == "kept":
            return {**result, "path": str(path), **self._restoring(given, known, values, task_vars)}
        if given["state"] == "settled":
            given["settle_s"] = known["bios_settle_timeout"]
        return {**result, **self._sent(given, known, task_vars)}

    def _sent(self, given: dict[str, Any], known: Variables, task_vars: Any) -> dict[str, Any]:
        """Return the answer of the BMC to this machine, or to the host."""
        given = {name: given[name] for name in (*MODULE, "bmc")}
        if known["bios_bmc_via"] != "host":
            return carried_out(given, check=bool(self._task.check_mode))
        answer = dict(self._execute_module("bios_settings", given, task_vars=task_vars))
        answer.pop("invocation", None)
        return answer

    def _restoring(self, given: dict[str, Any], known: Variables, values: Any, task_vars: Any) -> dict[str, Any]:
        """Return what must be sent to restore earlier values."""
        missing = [name for name in NEEDED if not known.get(name)]
        read: dict[str, Any] = {"problem": f"{', '.join(missing)} must be set"} if missing else {}
        read = read or self._sent({**given, "state": "read"}, known, task_vars)
        if problem := read.get("problem") or (read.get("failed") and read.get("msg")):
            return {"failed": True, "msg": f"reset_bios: the earlier BIOS values cannot be restored: {problem}"}
        return {"changed": False, "values": values, "sends": True, **restoring(values, read["bios"])}


def kept_path(known: Variables) -> Path:
    """Return the file of the host's earlier BIOS values on the control node."""
    folder = str(known.get("bios_values_dir") or "") or f"{known.get('inventory_dir') or '.'}/bios"
    name = re.sub(r"[^A-Za-z0-9._-]", "_", str(known["inventory_hostname"])).lstrip(".")
    return Path(folder).expanduser() / f"{name}.json"


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
        "serial": str(known.get("bios_bmc_serial") or ""),
        **{"wait_s": float(known["bios_bmc_timeout"]), "pause_s": min(5.0, float(known["bios_bmc_timeout"]) / 20)},
    }
