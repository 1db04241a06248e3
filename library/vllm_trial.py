#!/usr/bin/python
"""Ansible module: lets Docker judge the next containers of serving models."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: vllm_trial
short_description: Checks that Docker can create the next containers of serving models
description:
  - Creates a second container of each model beside the one that serves, and starts a shell in it, without devices.
    Docker checks options, mounts and limits thereby, and the shell checks that the server's files are visible.
  - Removes the containers. Does nothing in check mode.
options:
  models:
    description: Models with their C(name) and their planned C(files) by path. Without C(files), those on the host.
    type: list
    elements: dict
    required: true
  supervisor:
    description: Text of the supervisor program.
    type: str
    required: true
  host:
    description: Name of the host in messages.
    type: str
    required: true
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Check the next containers
  vllm_trial:
    models: "{{ changes.trials }}"
    supervisor: "{{ lookup('ansible.builtin.file', 'vllm-supervisor', rstrip=false) }}"
    host: "{{ inventory_hostname }}"
"""

RETURN = r"""
refused:
  description: Docker's reasons by model.
  returned: on failure
  type: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.host.trial import refused


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "models": {"type": "list", "elements": "dict", "required": True},
            "supervisor": {"type": "str", "required": True},
            "host": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=False)
    reasons = refused(module.params["models"], module.params["supervisor"], Path("/etc/gaudi-serve"))
    if reasons:
        texts = [
            f"{module.params['host']}: model {name}: {why}. Its server keeps running as before"
            for name, why in reasons.items()
        ]
        module.fail_json(msg="; ".join(texts), refused=reasons)
    module.exit_json(changed=False)


if __name__ == "__main__":
    main()
