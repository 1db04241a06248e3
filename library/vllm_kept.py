#!/usr/bin/python
"""Ansible module: keeps what serves on a host before it is changed, and goes back to it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: vllm_kept
short_description: Keeps what serves on a host before it is changed, and goes back to it
description:
  - Keeps units, launch files, environments and secrets of all models below C(/var/lib/gaudi-serve/rollout), of mode
    0700, with what they were measured with. What is kept already stays, since it is what last proved itself.
  - Goes back to it - models that did not run are stopped, images get their names back, what differs is started again.
options:
  state:
    description: C(kept) keeps, C(restored) goes back, C(absent) lets go of what was kept.
    type: str
    choices: [kept, restored, absent]
    required: true
  measured:
    description: What module vllm_benchmark gave.
    type: dict
    default: {}
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Keep what serves
  vllm_kept:
    state: kept
"""

RETURN = r"""
models:
  description: With C(restored), the models to wait for and to ask.
  returned: always
  type: list
measured:
  description: What they were measured with when they were kept.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.core.errors import InputError
from ansible.module_utils.gaudi_serve.host.rollout import forget, keep, kept, restore


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["kept", "restored", "absent"], "required": True},
            "measured": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    state, record = module.params["state"], kept()
    if module.check_mode:
        module.exit_json(changed=bool(record) != (state == "kept"), models=[], measured=record.get("measured", {}))
    if state == "absent":
        module.exit_json(changed=forget(), models=[], measured={})
    if state == "kept":
        found = keep(module.params["measured"])
        module.exit_json(changed=not record, models=[], measured=found["measured"])
    try:
        models = restore()
    except InputError as problem:
        module.fail_json(msg=str(problem))
    module.exit_json(changed=bool(record), models=models, measured=record.get("measured", {}))


if __name__ == "__main__":
    main()
