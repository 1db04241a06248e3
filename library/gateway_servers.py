#!/usr/bin/python
"""Ansible module: keeps a gateway from asking the servers of a host, or lets it ask them again."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gateway_servers
short_description: Drains the servers of a host at a gateway, makes them ready, or gives them less
description:
  - Through HAProxy's runtime socket, without a reload. A drained server ends what it has begun and gets nothing new.
  - What was said outlives a reload, and a restart of HAProxy.
options:
  host:
    description: Host of the inventory whose servers are meant.
    type: str
    required: true
  state:
    description: C(drain) or C(ready); what is left out stays.
    type: str
    choices: [drain, ready]
  weight:
    description: The part of their share that the servers get, in percent; what is left out stays.
    type: int
  timeout:
    description:
      - With C(ready), seconds in which all of them must be found up. With C(drain), seconds in which the requests must
        end that the gateway has given them, uploads among them. 0 does not wait.
    type: int
    default: 0
  strict:
    description:
      - Whether a host is refused of which the gateway serves nothing, and where no gateway runs yet. A rollout brings
        such hosts too.
    type: bool
    default: true
  reboot:
    description:
      - With C(drain), drains for a reboot of the host, and records that, so that a later run returns the host to
        service where this one is cut off.
      - With C(ready), returns to service what was drained for a reboot, and nothing that somebody else has drained.
    type: bool
    default: false
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
from ansible.module_utils.gaudi_serve.gateway.haproxy import (
    current,
    refuse_unknown_host,
    set_state,
    set_weight,
    wait_left,
    wait_up,
)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["drain", "ready"]},
            "weight": {"type": "int"},
            "timeout": {"type": "int", "default": 0},
            "strict": {"type": "bool", "default": True},
            "reboot": {"type": "bool", "default": False},
        },
        required_one_of=[["state", "weight"]],
        supports_check_mode=True,
    )
    host, state, weight = (module.params[key] for key in ("host", "state", "weight"))
    if weight is not None and not 0 <= weight <= 100:
        module.fail_json(msg=f"weight: {weight} is not a percentage from 0 to 100")
    found = []
    if not module.params["strict"] and not current():
        # Its first run has not come to it: nothing reaches the host through it.
        module.exit_json(changed=False, servers=[])
    try:
        if module.params["strict"]:
            refuse_unknown_host(host)
        if weight is not None:
            found += set_weight(host, weight, check=module.check_mode)
        if state:
            found += set_state(host, state, check=module.check_mode, reboot=module.params["reboot"])
        if module.params["timeout"] and not module.check_mode:
            (wait_left if state == "drain" else wait_up)(host, module.params["timeout"])
    except InputError as problem:
        module.fail_json(msg=str(problem))
        raise
    module.exit_json(changed=bool(found), servers=sorted(set(found)))


if __name__ == "__main__":
    main()
