"""Holds a host for this run: adds who runs to what module gaudi_lock is told, and finds out whether others live."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import itertools
import os
import socket
import sys
from pathlib import Path
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

LEASE_S = 3600
TAKE_FILES = ("-i", "--inventory", "-e", "--extra-vars")


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core has no type information
    """``gaudi_lock: {state: present, stage: host_tuning}``."""

    _VALID_ARGS = frozenset(("state", "stage"))
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Hold or let go; fail with the holder's name where another run is in the way."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        if self._task.check_mode:
            return {**result, "changed": False, "skipped": True, "held": False}
        variables = task_vars or {}
        given = {
            **self._task.args,
            "run": this_run(variables),
            "observed": observed(variables),
            "lease_s": variables.get("gaudi_lock_lease_s", LEASE_S),
        }
        answer = self._execute_module("gaudi_lock", given, task_vars=task_vars)
        holder = answer.get("holder") or {}
        if holder.get("held") and (boolean(variables.get("gaudi_lock_break", False)) or is_dead(holder, given["run"])):
            given["instead_of"] = holder["id"]
            answer = self._execute_module("gaudi_lock", given, task_vars=task_vars)
            holder = answer.get("holder") or {}
        if holder:
            host = str(variables.get("inventory_hostname", "host"))
            answer = {**answer, "failed": True, "msg": refusal(host, holder, answer["since"])}
        return {**result, **answer}


def observed(variables: dict[str, Any]) -> dict[str, Any]:
    """Return which look at the host counts: the one that the plan was made of, else the last one."""
    if "preflight_observed" in variables:
        return dict(variables["preflight_observed"])
    if "gaudi_observed_at" not in variables:
        return {}
    return {"at": variables["gaudi_observed_at"], "boot": variables.get("gaudi_boot_id", "")}


def this_run(variables: dict[str, Any]) -> dict[str, Any]:
    """Return who runs: the controller's process and the person behind it."""
    # A worker's parent is the process that all tasks of the run have in common.
    pid = os.getppid()
    words = [word for before, word in itertools.pairwise(sys.argv) if before not in TAKE_FILES]
    playbook = next((Path(word).name for word in words if word.endswith((".yml", ".yaml"))), "a playbook")
    job = variables.get("awx_job_id")
    try:
        person = str(variables.get("awx_user_name") or getpass.getuser())
    except (KeyError, OSError):
        person = f"user {os.getuid()}"  # containers run as users without a name
    who = f"{person} on {socket.gethostname()} ({playbook}, " + (f"AWX job {job})" if job else f"process {pid})")
    begin, controller = _begin(pid), _controller()
    return {"id": f"{controller}-{pid}-{begin}", "who": who, "controller": controller, "pid": pid, "begin": begin}


def _controller() -> str:
    """Return what tells machines, their boots and the process tables of containers apart."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # not Linux: the name must do
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _begin(pid: int) -> str:
    """Return when a process was started, in the kernel's ticks; empty where there is none, or no /proc."""
    try:
        # The name of the program, in brackets, may hold anything.
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def is_dead(holder: dict[str, Any], mine: dict[str, Any]) -> bool:
    """Tell whether the run of a record is known to have ended; of another controller nothing is known."""
    if holder.get("controller") != mine["controller"]:
        return False
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # another user's, so it is there
    return _begin(int(holder["pid"])) != holder.get("begin")


def refusal(host: str, holder: dict[str, Any], since: str) -> str:
    """Return the sentence for who has to wait."""
    who, stage = holder.get("who", "another run"), holder.get("stage") or "changes"
    if since == "changed":
        return (
            f"{host}: {who} has changed this host ({stage}, {holder.get('clock')}) since this run looked at it; "
            "nothing was done upon what is no more. Run again"
        )
    return (
        f"{host}: {who} holds this host since {holder.get('clock')} ({stage}). Run again when that has ended; "
        "if it has died: -e gaudi_lock_break=true"
    )
