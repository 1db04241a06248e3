#!/usr/bin/python
"""Ansible module: keeps what a host had before a role's first change, so that a reset can go back to it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gaudi_found
short_description: Keeps what was found before a role's first change
description:
  - Writes C(/var/lib/gaudi-serve/found/<role>.json), of mode 0600. What was found is written once and never again;
    what is brought later is added.
  - On a host that was changed before there were such records, it notes that the original values are not known.
options:
  role:
    description: Whose record.
    type: str
    required: true
  found:
    description: What is there before the first change.
    type: dict
  packages:
    description: Keep the names of all installed packages too.
    type: bool
    default: false
  paths:
    description: Paths by kind; those that are not there are noted as brought.
    type: dict
    default: {}
  brought:
    description: By kind, what the role brings, and what is known of each.
    type: dict
    default: {}
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Keep what was found
  gaudi_found:
    role: host_tuning
    found: "{{ {'sysctl': gaudi_tuning.sysctl} }}"
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
            "found": {"type": "dict"},
            "packages": {"type": "bool", "default": False},
            "paths": {"type": "dict", "default": {}},
            "brought": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    given = dict(module.params)
    path = RECORDS / f"{given['role']}.json"
    try:
        # A check makes no folder, and writes nothing that could be lost.
        with contextlib.nullcontext() if module.check_mode else alone():
            text = keep(given.pop("role"), given.pop("found"), **given)
            if text is not None and not module.check_mode:
                write_record(path, text)
    except ValueError as problem:
        module.fail_json(msg=f"{path}: {problem}; nothing is written")
        raise
    module.exit_json(changed=text is not None, path=str(path))


if __name__ == "__main__":
    main()
