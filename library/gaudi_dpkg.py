#!/usr/bin/python
"""Ansible module: finishes what dpkg was cut off in."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gaudi_dpkg
short_description: Waits for other package runs, and finishes what dpkg was cut off in
description:
  - After a power cut or a killed installation, apt refuses every further one until dpkg has been told to finish.
  - An installation whose connection broke goes on alone; it is waited for, since dpkg itself does not wait.
  - Configuration files that an owner has changed stay as they are.
options:
  timeout:
    description: Longest time to wait for another package run, in seconds.
    type: int
    default: 900
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Finish what dpkg was cut off in
  gaudi_dpkg:
"""

RETURN = r"""
interrupted:
  description: What dpkg said of packages that were not wholly installed; empty where nothing was to be done.
  returned: always
  type: str
"""

import fcntl
import os
import subprocess
import time
from pathlib import Path
from typing import IO

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.run import interrupted_dpkg

LOCK = Path("/var/lib/dpkg/lock-frontend")


def locked(handle: IO[str], timeout: float) -> bool:
    """Take the lock that apt and its like hold for a whole run; tell whether it was had in time (seconds)."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(1)
        else:
            return True


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={"timeout": {"type": "int", "default": 900}}, supports_check_mode=True)
    if module.check_mode:
        found = interrupted_dpkg()
        module.exit_json(changed=bool(found), interrupted=found)
    with LOCK.open("a", encoding="ascii") as handle:
        if not locked(handle, module.params["timeout"]):
            module.fail_json(msg=f"another package run holds {LOCK} for more than {module.params['timeout']} s")
        found = interrupted_dpkg()
        if found:
            argv = ["dpkg", "--force-confdef", "--force-confold", "--configure", "--pending"]
            # As apt does it: the lock is this module's, dpkg must not ask for it.
            more = {"DEBIAN_FRONTEND": "noninteractive", "DPKG_FRONTEND_LOCKED": "true", "LC_ALL": "C"}
            environment = {**os.environ, **more}
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=False
            )
            if done.returncode:
                tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
                module.fail_json(msg=f"{' '.join(argv)}: status {done.returncode}\n{tail}", interrupted=found)
    module.exit_json(changed=bool(found), interrupted=found)


if __name__ == "__main__":
    main()
