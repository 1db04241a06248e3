#!/usr/bin/python
"""Ansible module: saves the baseline of a host, its state before a role's first change, for a reset."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gaudi_baseline
short_description: Saves what a host had before a role's first change
description:
  - Writes C(/var/lib/gaudi-serve/found/<role>.json) with mode 0600. Values are written once and never overwritten;
    items that are installed later are added.
  - On a host that an older version of the toolkit has changed, it records that the original values are unknown.
options:
  role:
    description: Role of the record.
    type: str
    required: true
  values:
    description: Values before the first change.
    type: dict
  packages:
    description: Whether to save the names of all installed packages too.
    type: bool
    default: false
  paths:
    description: Paths by kind. Paths that do not exist are recorded as created by the role.
    type: dict
    default: {}
  installed:
    description: Items that the role installs, by kind, with their details.
    type: dict
    default: {}
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Save the baseline
  gaudi_baseline:
    role: host_tuning
    values: "{{ {'sysctl': gaudi_tuning.sysctl} }}"
"""

RETURN = r"""
path:
  description: The record.
  returned: always
  type: str
"""

import contextlib

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.host.baseline import RECORDS, alone, keep, write_record


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "role": {"type": "str", "required": True},
            "values": {"type": "dict"},
            "packages": {"type": "bool", "default": False},
            "paths": {"type": "dict", "default": {}},
            "installed": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    given = module.params
    path = RECORDS / f"{given['role']}.json"
    names = {"packages": given["packages"], "paths": given["paths"], "brought": given["installed"]}
    try:
        # A check creates no folder, and writes nothing.
        with contextlib.nullcontext() if module.check_mode else alone():
            text = keep(given["role"], given["values"], **names)
            if text is not None and not module.check_mode:
                write_record(path, text)
    except ValueError as problem:
        module.fail_json(msg=f"{path}: {problem}; nothing is written")
        raise
    module.exit_json(changed=text is not None, path=str(path))


if __name__ == "__main__":
    main()
