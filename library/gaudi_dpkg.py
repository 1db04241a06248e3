#!/usr/bin/python
"""Ansible module: repairs an interrupted dpkg run."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gaudi_dpkg
short_description: Waits for other package runs, and repairs an interrupted dpkg run
description:
  - After a power failure or a killed installation, apt refuses to install packages until dpkg is configured again.
  - Installs a package again whose files are incomplete although apt lists it as installed. Completes interrupted
    removals.
  - Waits for an installation that goes on after a lost connection, because dpkg itself does not wait.
  - Does not change configuration files that an owner has modified.
options:
  timeout:
    description: Longest time to wait for another package run, in seconds.
    type: int
    default: 900
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Repair an interrupted dpkg run
  gaudi_dpkg:
"""

RETURN = r"""
interrupted:
  description: The incomplete packages, and where dpkg had stopped; empty if nothing was to repair.
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
from ansible.module_utils.gaudi_serve.host.dpkg import interrupted_dpkg, packages, versions

LOCK = Path("/var/lib/dpkg/lock-frontend")
KEEP = ("--force-confdef", "--force-confold")


def locked(handle: IO[str], timeout: float) -> bool:
    """Take the lock that apt holds for a run. Return whether it was free within the time (seconds)."""
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


def command(module: AnsibleModule, argv: list[str], found: str, must: bool = True) -> None:
    """Run a command without prompts. Fail with its last output, unless a later step may repair it."""
    # Like apt: this module has the lock, so dpkg must not take it.
    more = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    more |= {"DPKG_FRONTEND_LOCKED": "true"} if argv[0] == "dpkg" else {}
    environment = {**os.environ, **more}
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=False)
    if must and done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
        module.fail_json(msg=f"{found}; {' '.join(argv)}: status {done.returncode}\n{tail}", interrupted=found)


def finish(module: AnsibleModule, found: str) -> list[str]:
    """Configure packages with dpkg, and return the packages that apt must install again."""
    torn = [package for package in packages() if package.torn]
    # Complete interrupted removals too.
    going = [package for package in torn if package.want in ("deinstall", "purge")]
    for package in going:
        action = "--purge" if package.want == "purge" else "--remove"
        command(module, ["dpkg", "--force-remove-reinstreq", action, package.unique], found)
    again = [package for package in torn if package not in going]
    command(module, ["dpkg", *KEEP, "--configure", "--pending"], found, must=not again)
    # Install the same version if a repository has it, so that held packages stay held.
    return [
        f"{package.unique}={package.version}" if package.version in versions(package.unique) else package.unique
        for package in again
    ]


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={"timeout": {"type": "int", "default": 900}}, supports_check_mode=True)
    if module.check_mode:
        found = interrupted_dpkg()
        module.exit_json(changed=bool(found), interrupted=found)
    timeout = module.params["timeout"]
    with LOCK.open("a", encoding="ascii") as handle:
        if not locked(handle, timeout):
            module.fail_json(msg=f"another package run locks {LOCK} for more than {timeout} s")
        found = interrupted_dpkg()
        again = finish(module, found) if found else []
    if again:
        options = [f"-oDPkg::Lock::Timeout={timeout}", *(f"-oDpkg::Options::={option}" for option in KEEP)]
        command(
            module,
            ["apt-get", "install", "--reinstall", "--no-install-recommends", "-qq", "-y", *options, *again],
            found,
        )
    left = interrupted_dpkg() if found else ""
    if left:
        module.fail_json(msg=f"dpkg and apt could not repair these packages: {left}", interrupted=left)
    module.exit_json(changed=bool(found), interrupted=found)


if __name__ == "__main__":
    main()
