#!/usr/bin/python
"""Ansible module: waits until no server of a host has a request."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: vllm_idle
short_description: Waits until no server of a host has a request
description:
  - Reads the running and waiting requests of every running server, until both are zero twice in a row.
  - A server that listens but does not show its counters is not idle. A server that does not listen is idle.
options:
  timeout:
    description: Seconds after which it fails.
    type: int
    default: 600
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Wait until running requests have ended
  vllm_idle:
    timeout: 600
"""

RETURN = r"""
seconds:
  description: Duration of the wait in seconds.
  returned: always
  type: float
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.host.rollout import live_models, wait_idle


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "timeout": {"type": "int", "default": 600},
        },
        supports_check_mode=True,
    )
    begin = time.monotonic()
    models = [one for one in live_models() if one["active"]]
    left = {} if module.check_mode else wait_idle(models, module.params["timeout"])
    if left:
        said = ", ".join(f"{name} has {count}" for name, count in left.items())
        module.fail_json(msg=f"requests have not ended within {module.params['timeout']} s: {said}")
    module.exit_json(changed=False, seconds=round(time.monotonic() - begin, 1))


if __name__ == "__main__":
    main()
