#!/usr/bin/python
"""Ansible module: keeps a gateway from asking the servers of a host, or lets it ask them again."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gateway_servers
short_description: Drains the servers of a host at a gateway, or makes them ready
description:
  - Through HAProxy's runtime socket, without a reload. A drained server ends what it has begun and gets nothing new.
  - What was said outlives a reload, and a restart of HAProxy.
options:
  host:
    description: Host of the inventory whose servers are meant.
    type: str
    required: true
  state:
    description: C(drain) or C(ready).
    type: str
    choices: [drain, ready]
    required: true
  timeout:
    description: With C(ready), seconds in which all of them must be found up; 0 does not wait.
    type: int
    default: 0
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Keep requests away
  gateway_servers:
    host: gaudi01
    state: drain
  delegate_to: gw01
"""

RETURN = r"""
servers:
  description: Those whose state has changed, as C(backend/server).
  returned: always
  type: list
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.core.errors import InputError
from ansible.module_utils.gaudi_serve.host.haproxy import set_state, wait_up


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["drain", "ready"], "required": True},
            "timeout": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    try:
        found = set_state(module.params["host"], module.params["state"], check=module.check_mode)
        if module.params["timeout"] and not module.check_mode:
            wait_up(module.params["host"], module.params["timeout"])
    except InputError as problem:
        module.fail_json(msg=str(problem))
        raise
    module.exit_json(changed=bool(found), servers=found)


if __name__ == "__main__":
    main()
