#!/usr/bin/python
"""Ansible module: replaces the supervisors of serving models; the new ones adopt the containers."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: vllm_adopt
short_description: Replaces the supervisors of running models, without a restart of their servers
description:
  - Stops the supervisor of each unit, but not its container. systemd starts the installed supervisor, which adopts the
    container.
options:
  models:
    description: Names of the models.
    type: list
    elements: str
    required: true
  version:
    description: SHA-256 of the installed supervisor.
    type: str
    required: true
  timeout:
    description: Limit for all of them, in seconds.
    type: int
    default: 60
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Replace the supervisor
  vllm_adopt:
    models: [qwq-32b]
    version: "{{ lookup('ansible.builtin.file', 'vllm-supervisor', rstrip=false) | hash('sha256') }}"
"""

RETURN = r"""
left:
  description: Models that still run another supervisor.
  returned: on failure
  type: list
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.host.adopt import adopt


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "models": {"type": "list", "elements": "str", "required": True},
            "version": {"type": "str", "required": True},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    names = module.params["models"]
    if module.check_mode:
        module.exit_json(changed=bool(names))
    left = adopt(names, module.params["version"], module.params["timeout"])
    if left:
        text = f"the new supervisor has not adopted {', '.join(left)} within {module.params['timeout']} s"
        module.fail_json(msg=f"{text}; see journalctl -u vllm-{left[0]}", left=left)
    module.exit_json(changed=bool(names))


if __name__ == "__main__":
    main()
