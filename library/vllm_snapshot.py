#!/usr/bin/python
"""Ansible module: saves a snapshot of the serving models of a host before a change, and restores it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: vllm_snapshot
short_description: Saves a snapshot of the serving models of a host before a change, and restores it
description:
  - Saves units, launch files, environments and secrets of all models below C(/var/lib/gaudi-serve/rollout) with mode
    0700, with their measurements. An existing snapshot is not replaced, because it is the last verified state.
  - Restores it - stops models that did not run, restores the names of images, and starts changed models again.
options:
  state:
    description: C(saved) saves, C(restored) restores, and C(absent) removes the snapshot.
    type: str
    choices: [saved, restored, absent]
    required: true
  measured:
    description: Result of module vllm_benchmark.
    type: dict
    default: {}
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Save a snapshot
  vllm_snapshot:
    state: saved
"""

RETURN = r"""
models:
  description: With C(restored), the models to wait for and to test.
  returned: always
  type: list
measured:
  description: Measurements from the time of the snapshot.
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
            "state": {"type": "str", "choices": ["saved", "restored", "absent"], "required": True},
            "measured": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    state, record = module.params["state"], kept()
    if module.check_mode:
        module.exit_json(changed=bool(record) != (state == "saved"), models=[], measured=record.get("measured", {}))
    if state == "absent":
        module.exit_json(changed=forget(), models=[], measured={})
    if state == "saved":
        found = keep(module.params["measured"])
        module.exit_json(changed=not record, models=[], measured=found["measured"])
    try:
        models = restore()
    except InputError as problem:
        module.fail_json(msg=str(problem))
    module.exit_json(changed=bool(record), models=models, measured=record.get("measured", {}))


if __name__ == "__main__":
    main()
