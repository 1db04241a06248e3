"""Locks a host for this run: adds the run to the arguments of module gaudi_lock, and checks whether other runs live."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import itertools
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

LIB = str(Path(__file__).resolve().parents[1] / "lib")
if LIB not in sys.path:
    sys.path.insert(0, LIB)


# A lock that was not renewed for this long no longer counts. The run that has the lock renews it.
LEASE_S, RENEW_S = 300, 60
TAKE_FILES = ("-i", "--inventory", "-e", "--extra-vars")


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core has no type information
    """``gaudi_lock: {state: present, stage: host_tuning}``."""

    _VALID_ARGS = frozenset(("state", "stage", "name"))
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Lock or unlock. Fail with the name of another run that has the lock; report a lock taken over."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        check, state = self._task.check_mode, self._task.args.get("state", "present")
        if check and state == "absent":
            return {**result, "changed": False, "skipped": True, "held": False}
        variables = task_vars or {}
        given = {
            **self._task.args,
            "run": this_run(variables),
            "observed": observed(variables),
            "lease_s": variables.get("fleet_lock_lease_s", LEASE_S),
        }
        answer = self._execute_module("gaudi_lock", given, task_vars=task_vars)
        holder, why = answer.get("holder") or {}, "expired"
        if holder.get("held") and (found := ends_at_once(holder, given["run"], variables)):
            given["instead_of"], why = holder["id"], found
            answer = self._execute_module("gaudi_lock", given, task_vars=task_vars)
            holder = answer.get("holder") or {}
        if answer.get("held") and state != "free":
            keep(given["run"], int(given["lease_s"]), partial(self._renew, {**given, "state": "renewed"}, task_vars))
        host = str(variables.get("inventory_hostname", "host"))
        if holder and check:
            answer["warnings"] = [
                f"{host}: {locked(holder, answer['since'])}; without --check this run would be refused"
            ]
        elif holder:
            told = {
                "locked": locked(holder, answer["since"]),
                "msg": refusal(host, holder, answer["since"], variables),
            }
            # The sentence names the holder.
            answer = {**{key: value for key, value in answer.items() if key != "holder"}, **told, "failed": True}
        elif answer.get("taken_over"):
            answer["warnings"] = [f"{host}: {taken_over(answer['taken_over'], why, check)}"]
        return {**result, **answer}

    def _renew(self, given: dict[str, Any], task_vars: dict[str, Any] | None) -> bool:
        """Renew the lock. Return whether to renew it again."""
        try:
            return bool(self._execute_module("gaudi_lock", given, task_vars=task_vars).get("held"))
        except Exception:
            # The host is unreachable for a moment, as in its reboot.
            return True


def keep(run: dict[str, Any], lease_s: int, renew: Callable[[], bool]) -> None:
    """Start a process next to the run that renews its lock as long as the run lives and has the lock.

    For a run on another controller, as in the container of a cancelled AWX job, only the renewal shows whether it
    lives. It is a separate process, because this one ends with its task.

    Args:
        run: the run, whose process must live.
        lease_s: seconds for which a lock counts without renewal.
        renew: renews the lock, and returns whether to renew it again.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    # From here on nothing may return to the code of the worker, which owns its queues.
    try:
        if os.fork() == 0:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            pause = max(0.2, min(RENEW_S, lease_s / 4))
            while stays(run, pause) and renew():
                pass
    finally:
        os._exit(0)


def stays(run: dict[str, Any], seconds: float) -> bool:
    """Wait, and return whether a run of this controller still lives."""
    deadline = time.monotonic() + seconds
    while begin_of(run["pid"]) == run["begin"]:
        if time.monotonic() >= deadline:
            return True
        time.sleep(min(1.0, seconds))
    return False


def observed(variables: dict[str, Any]) -> dict[str, Any]:
    """Return when the host was read for the plan, or else when it was last read."""
    if "preflight_observed" in variables:
        return dict(variables["preflight_observed"])
    if "gaudi_observed_at" not in variables:
        return {}
    return {"at": variables["gaudi_observed_at"], "boot": variables.get("gaudi_boot_id", "")}


def this_run(variables: dict[str, Any]) -> dict[str, Any]:
    """Return the run: the controller's process and the user."""
    # The parent of a worker is the process that all tasks of the run share.
    pid = os.getppid()
    words = [word for before, word in itertools.pairwise(sys.argv) if before not in TAKE_FILES]
    playbook = next((Path(word).name for word in words if word.endswith((".yml", ".yaml"))), "a playbook")
    job = variables.get("awx_job_id")
    # A scheduled job has no user.
    scheduled = variables.get("awx_schedule_name")
    try:
        person = str(variables.get("awx_user_name") or (scheduled and f"schedule {scheduled}") or getpass.getuser())
    except (KeyError, OSError):
        person = f"user {os.getuid()}"  # containers run as users without a name
    who = f"{person} on {socket.gethostname()} ({playbook}, " + (f"AWX job {job})" if job else f"process {pid})")
    begin, controller = begin_of(pid), _controller()
    return {
        "id": f"{controller}-{pid}-{begin}",
        "who": who,
        "controller": controller,
        "pid": pid,
        "begin": begin,
        "awx_job": str(job or ""),
    }


def _controller() -> str:
    """Return what identifies machines, their boots and the process tables of containers."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # not Linux: use the name
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def begin_of(pid: int) -> str:
    """Return the start time of a process in the kernel's ticks; empty without a process, or without /proc."""
    try:
        # The name of the program, in brackets, may contain anything.
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def is_dead(holder: dict[str, Any], mine: dict[str, Any]) -> bool:
    """Return whether the run of a record is known to have ended. For another controller this is unknown."""
    if holder.get("controller") != mine["controller"]:
        return False
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # the process of another user, so it exists
    return begin_of(int(holder["pid"])) != holder.get("begin")


def ends_at_once(holder: dict[str, Any], mine: dict[str, Any], variables: dict[str, Any]) -> str:
    """Return why another run's lock no longer counts, regardless of renewal: dead, broken, or nothing."""
    if is_dead(holder, mine):
        return "dead"
    return "broken" if boolean(variables.get("fleet_lock_break", False)) else ""


def taken_over(holder: dict[str, Any], why: str, check: bool) -> str:
    """Return whose lock this run has taken over, and why it no longer counted."""
    reason = {
        "dead": "its process on this controller has ended",
        "expired": f"it was not renewed for {holder.get('lease_s', LEASE_S)} s",
        "broken": "fleet_lock_break is set",
    }[why]
    verb = "would take" if check else "has taken"
    return f"this run {verb} over the lock of {locked_by(holder)}, since {reason}"


def locked_by(holder: dict[str, Any]) -> str:
    """Return who has locked a host, for which stage, and since when."""
    stage = holder.get("stage") or "changes"
    return f"{holder.get('who', 'another run')} ({stage}, since {holder.get('clock')})"


def locked(holder: dict[str, Any], since: str) -> str:
    """Return the conflicting run, and since when it has the lock."""
    who, stage = holder.get("who", "another run"), holder.get("stage") or "changes"
    if since == "changed":
        return f"{who} has changed this host ({stage}, {holder.get('clock')}) since this run looked at it"
    return f"{who} has locked this host since {holder.get('clock')} ({stage})"


def refusal(host: str, holder: dict[str, Any], since: str, variables: dict[str, Any]) -> str:
    """Return the sentence for the run that must wait.

    AWX sets ``awx_job_id`` in every job, and ``awx_workflow_job_id`` in those of a workflow. A workflow does not ask,
    because its later jobs would take over locks hours after the answer.
    """
    told = f"{host}: {locked(holder, since)}"
    if since == "changed":
        return f"{told}; nothing was changed, because the plan is out of date. Run again"
    question = 'answer true to the question "Take over hosts that another run has locked"'
    died = "-e fleet_lock_break=true"
    if variables.get("awx_workflow_job_id"):
        died = f"template images: launch it, {question}, and launch the workflow again"
    elif variables.get("awx_job_id"):
        died = f"this template: launch it, and {question}"
    return (
        f"{told}. Run again when that has ended; if it crashed, its lock ends {holder.get('lease_s', LEASE_S)} s "
        f"after it was last renewed, or at once with {died}"
    )
