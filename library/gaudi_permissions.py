#!/usr/bin/python
"""Ansible module: corrects the modes and owners of a role's files."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gaudi_permissions
short_description: Corrects modes and owners of the files of one role
description:
  - Compares mode, owner and group of all files and folders of a role with the toolkit's table, and corrects those that
    differ. It writes no content and follows no link.
  - Returns the fact I(gaudi_permissions), which C(gaudi_facts) also returns.
options:
  role:
    description: The role.
    type: str
    required: true
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Correct the permissions of all files of models
  gaudi_permissions:
    role: vllm_service
"""

RETURN = r"""
corrected:
  description: The files that differed, with the differences.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.host import permissions


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"role": {"type": "str", "required": True}},
        supports_check_mode=True,
    )
    role, before = module.params["role"], permissions.observe()
    if role in before and not module.check_mode:
        try:
            permissions.repair(role)
        except OSError as problem:
            module.fail_json(msg=f"{problem.filename or role}: its permissions cannot be corrected: {problem.strerror}")
    lines = before.get(role, [])
    diff = {"before": "\n".join(lines), "after": ""}
    facts = {"gaudi_permissions": before if module.check_mode else permissions.observe()}
    module.exit_json(changed=bool(lines), corrected=lines, diff=diff, ansible_facts=facts)


if __name__ == "__main__":
    main()
