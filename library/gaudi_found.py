#!/usr/bin/python
"""Ansible module: saves the baseline of a host, what it had before a role's first change, for a reset."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gaudi_baseline
short_description: Saves what a host had before a role's first change
description:
  - Writes C(/var/lib/gaudi-serve/found/<role>.json), of mode 0600. Values are written once and never again;
    what is installed later is added.
  - On a host that was changed before there were such records, it notes that the original values are not known.
options:
  role:
    description: Whose record.
    type: str
    required: true
  values:
    description: What is there before the first change. C(found) is its name of before, for one release.
    type: dict
    aliases: [found]
  packages:
    description: Save the names of all installed packages too.
    type: bool
    default: false
  paths:
    description: Paths by kind; those that are not there are noted as the role's.
    type: dict
    default: {}
  installed:
    description: >-
      By kind, what the role installs, and what is known of each. C(brought) is its name of before, for one release.
    type: dict
    default: {}
    aliases: [brought]
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
            "values": {"type": "dict", "aliases": ["found"]},
            "packages": {"type": "bool", "default": False},
            "paths": {"type": "dict", "default": {}},
            "installed": {"type": "dict", "default": {}, "aliases": ["brought"]},
        },
        supports_check_mode=True,
    )
    given = module.params
    for old, new in (("found", "values"), ("brought", "installed")):
        if given.get(old) is not None:
            module.deprecate(f"option {old} of gaudi_baseline is {new} now; the next release knows {new} alone")
    path = RECORDS / f"{given['role']}.json"
    names = {"packages": given["packages"], "paths": given["paths"], "brought": given["installed"]}
    try:
        # A check makes no folder, and writes nothing that could be lost.
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
