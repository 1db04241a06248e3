#!/usr/bin/python
"""Ansible module: watches units until one of them changes, so that no query each second is needed over the network."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: vllm_units
short_description: Watches the units of models until one of them changes
description:
  - Returns when a unit is no longer starting (active, failed, vanished) or has restarted once more, at the latest after
    I(for_s). The action plugin vllm_wait calls it repeatedly.
  - Changes nothing.
options:
  models:
    description: Models whose units are watched.
    type: list
    elements: str
    required: true
  restarts:
    description: Known number of restarts of each model. One more ends the wait.
    type: dict
    default: {}
  for_s:
    description: Seconds after which it returns in any case.
    type: float
    default: 30
  interval:
    description: Seconds between two checks.
    type: float
    default: 1
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Watch a model until it serves
  vllm_units:
    models: [qwq-32b]
"""

RETURN = r"""
units:
  description: C(active), C(state), C(sub_state), C(status), C(restarts) by model; nothing for a model without a unit.
  returned: always
  type: dict
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.host.observe_services import unit_states


def settled(units: dict[str, Any], models: list[str], restarts: dict[str, Any]) -> bool:
    """Return whether one of the models has something to report."""
    for name in models:
        unit = units.get(name)
        if unit is None or unit["active"] or unit["state"] in ("failed", "inactive"):
            return True
        if unit["restarts"] > int(restarts.get(name, unit["restarts"])):
            return True
    return False


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "models": {"type": "list", "elements": "str", "required": True},
            "restarts": {"type": "dict", "default": {}},
            "for_s": {"type": "float", "default": 30},
            "interval": {"type": "float", "default": 1},
        },
        supports_check_mode=True,
    )
    given = module.params
    deadline = time.monotonic() + given["for_s"]
    while True:
        units = unit_states(given["models"])
        if settled(units, given["models"], given["restarts"]) or time.monotonic() >= deadline:
            module.exit_json(changed=False, units=units)
        time.sleep(max(0.1, min(given["interval"], deadline - time.monotonic())))


if __name__ == "__main__":
    main()
