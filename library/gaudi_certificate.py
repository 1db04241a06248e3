#!/usr/bin/python
"""Ansible module: creates a self-signed certificate with its key, with which a host authenticates."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gaudi_certificate
short_description: Creates a key and its certificate if they are missing, have another name, or expire soon
description:
  - Key and certificate are in one file, which HAProxy and Prometheus can read. The key never leaves the host.
options:
  path:
    description: Path of the file. Its folder is created if it is missing.
    type: path
    required: true
  name:
    description: Address or name of the host in the certificate.
    type: str
    required: true
  group:
    description: Group that may read the file. If the group does not exist, only root can read it.
    type: str
    default: root
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Create the certificate of the host
  gaudi_certificate:
    path: /etc/gaudi-monitoring/host.pem
    name: 10.0.0.5
"""

RETURN = r"""
why:
  description: Why the certificate was created; empty if it was valid.
  returned: always
  type: str
"""

import grp
import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.core.errors import InputError
from ansible.module_utils.gaudi_serve.host import certificate


def group_of(name: str) -> int:
    """Return the number of a group, or root's if the group does not exist."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return 0


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "name": {"type": "str", "required": True},
            "group": {"type": "str", "default": "root"},
        },
        supports_check_mode=True,
    )
    path, name, group = Path(module.params["path"]), module.params["name"], group_of(module.params["group"])
    mode = 0o640 if group else 0o600
    why = certificate.problem(certificate.read(path), name)
    changed = bool(why) or path.stat().st_gid != group or path.stat().st_mode & 0o777 != mode
    try:
        if changed and not module.check_mode:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            if why:
                certificate.make(path, name)
            os.chown(path, 0, group)
            path.chmod(mode)
    except InputError as problem:
        module.fail_json(msg=str(problem))
    except OSError as problem:
        module.fail_json(msg=f"{path}: {problem.strerror}")
    module.exit_json(changed=changed, why=why)


if __name__ == "__main__":
    main()
