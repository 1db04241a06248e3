#!/usr/bin/python
"""Ansible module: drains the servers of a host at a gateway, or returns them to service."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gateway_servers
short_description: Drains the servers of a host at a gateway, returns them to service, or sets their weight
description:
  - Uses HAProxy's runtime socket, without a reload. A drained server completes its requests and gets no new ones.
  - The state survives a reload and a restart of HAProxy.
options:
  host:
    description: Inventory name of the host whose servers change.
    type: str
    required: true
  state:
    description: C(drain) or C(ready). Without it the state does not change.
    type: str
    choices: [drain, ready]
  weight:
    description: Weight of the servers, in percent of their normal share. Without it the weight does not change.
    type: int
  timeout:
    description:
      - With C(ready), seconds in which all servers must be up. With C(drain), seconds in which their requests must end,
        including uploads. 0 does not wait.
    type: int
    default: 0
  strict:
    description:
      - Whether to fail if the gateway has no server of the host, or if no gateway runs yet. A rollout also adds such
        hosts.
    type: bool
    default: true
  reboot:
    description:
      - With C(drain), drains for a reboot of the host, and records it, so that a later run returns the host to service
        if this run is interrupted.
      - With C(ready), returns only servers to service that were drained for a reboot.
    type: bool
    default: false
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Drain the host
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
        # The gateway has not been set up yet, so no request reaches the host through it.
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
