#!/usr/bin/python
"""Ansible module: lets only one run at a time change a host."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gaudi_lock
short_description: Locks a host for one run while it changes something, and unlocks it
description:
  - A run locks a host only while it changes something. A run without changes takes no lock.
  - Fails if another run has changed the host since this run read it, because its facts are outdated.
  - The lock file is in /run, so that it does not survive a boot. The lock of a run that has died on the same controller
    is taken over at once. The lock of a run on another controller is taken over when it has not been renewed for
    I(lease_s); a process next to the run renews it while the run lives.
  - Returns a lock that was taken over, for the report of the action plugin. In check mode the module only reads the
    lock.
  - Tasks set only I(stage) and I(state). The action plugin of the same name adds the run.
options:
  state:
    description:
      - Whether the host is locked. C(renewed) only renews a lock of this run, and C(free) only checks whether another
        run has the lock.
    type: str
    choices: [present, absent, renewed, free]
    default: present
  name:
    description: Name of the lock. A rollout has its own lock, because its stages use C(run).
    type: str
    choices: [run, rollout]
    default: run
  stage:
    description: Stage that changes the host, for the message to other runs.
    type: str
    default: ''
  run:
    description: The run, as C({id, who, controller, pid, begin}).
    type: dict
    default: {}
  observed:
    description:
      - When the run read the host, as C(at) in seconds since the host's boot, and C(boot), the identifier of that boot.
      - In a run with a plan it is when the facts of the plan were read. Empty if the run has not read the host.
    type: dict
    default: {}
  lease_s:
    description: Seconds after which a lock of a run on another controller is ignored if it is not renewed.
    type: int
    default: 300
  instead_of:
    description: Identifier of a dead run whose lock is taken over.
    type: str
    default: ''
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Lock the host
  gaudi_lock:
    stage: container_runtime

- name: Unlock the host
  gaudi_lock:
    state: absent
"""

RETURN = r"""
held:
  description: Whether this run has the lock now.
  returned: always
  type: bool
holder:
  description: The record of the conflicting run; empty without one.
  returned: always
  type: dict
taken_over:
  description: The record of a dead run whose lock this run has taken over; empty without one.
  returned: always
  type: dict
since:
  description: C(held) if another run has the lock, C(changed) if another run has changed the host since it was read.
  returned: when I(holder) is not empty
  type: str
"""

import fcntl
import json
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.core.run import boot_id, read_text, since_boot, write_json

FOLDER = Path("/run/gaudi-serve")


def record(path: Path) -> dict[str, Any]:
    """Return the record of the last run; {} if there is none since the boot, or it cannot be read."""
    try:
        found = json.loads(read_text(path) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def conflict(found: dict[str, Any], given: dict[str, Any]) -> str:
    """Return why another run prevents this run from changing the host: held, changed, or nothing."""
    if not found or found.get("id") in (given["run"]["id"], given["instead_of"] or None):
        return ""
    if found.get("held"):
        # The action plugin knows whether a run on the same controller still lives.
        near = found.get("controller") == given["run"]["controller"]
        # The lease of the record counts, not that of the requesting run.
        lease = float(found.get("lease_s", given["lease_s"]))
        return "held" if near or since_boot() - float(found.get("at", 0)) < lease else ""
    seen = given["observed"]
    # The record does not survive a boot: a record after a boot that this run has not seen is from a later run.
    booted = bool(seen.get("boot")) and seen["boot"] != boot_id()
    return "changed" if seen and (booted or float(seen["at"]) < float(found.get("at", 0))) else ""


def stale(found: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the record of another run that holds the lock but no longer counts; empty without one."""
    return found if found.get("held") and found.get("id") != given["run"]["id"] else {}


def looked(found: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the conflict of a run that would take the lock."""
    if why := conflict(found, given):
        return {"held": False, "holder": found, "since": why, "taken_over": {}}
    return {"held": False, "holder": {}, "taken_over": stale(found, given)}


def carried_out(path: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Take, release, renew or read a lock, and return the result of the module."""
    found, state = record(path), given["state"]
    mine = found.get("id") == given["run"]["id"]
    holds = bool(mine and found.get("held"))
    if state == "renewed":
        if holds:
            write_json(path, {**found, "at": since_boot()})
        return {"held": holds, "holder": {}, "taken_over": {}}
    meets = looked(found, given)
    if state in ("present", "free") and meets["holder"]:
        return meets
    if state == "free":
        return {"held": holds, "holder": {}, "taken_over": {}}
    lock = state == "present"
    # A run whose lock was taken over does not release the lock of the other run.
    if lock or mine:
        said = {"stage": given["stage"] or found.get("stage", ""), "clock": time.strftime("%F %T")}
        said["lease_s"] = given["lease_s"]
        write_json(path, {**given["run"], **said, "held": lock, "at": since_boot()})
    return {"held": lock, "holder": {}, "taken_over": meets["taken_over"] if lock else {}}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent", "renewed", "free"], "default": "present"},
            "name": {"type": "str", "choices": ["run", "rollout"], "default": "run"},
            "stage": {"type": "str", "default": ""},
            "run": {"type": "dict", "default": {}},
            "observed": {"type": "dict", "default": {}},
            "lease_s": {"type": "int", "default": 300},
            "instead_of": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    given = module.params
    path = FOLDER / f"{given['name']}.json"
    if module.check_mode:
        module.exit_json(changed=False, **looked(record(path), given))
    FOLDER.mkdir(mode=0o755, exist_ok=True)
    with (FOLDER / "run.lock").open("w", encoding="ascii") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        answer = carried_out(path, given)
    # Not reported as a change: a run that only takes the lock has changed nothing.
    module.exit_json(changed=False, **answer)


if __name__ == "__main__":
    main()
