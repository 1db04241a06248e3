#!/usr/bin/python
"""Ansible module: measures how fast the servers of a host are."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: vllm_benchmark
short_description: Measures how fast the servers of a host are
description:
  - Asks every model's server that runs for thirteen short answers, four at a time; only on a host that is drained the
    figures of two runs can be compared.
options:
  timeout:
    description: Seconds that one request may take.
    type: int
    default: 120
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Measure
  vllm_benchmark:
  register: before
"""

RETURN = r"""
measured:
  description: C(first_token_s) in seconds and C(tokens_s) a second, by the models' names for clients.
  returned: always
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.host.observe_services import CONFIG
from ansible.module_utils.gaudi_serve.host.rollout import benchmark, live_models
from ansible.module_utils.gaudi_serve.host.secret import own_api_key
from ansible.module_utils.gaudi_serve.host.smoke import Unhealthy


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "timeout": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    measured: dict[str, Any] = {}
    for model in [] if module.check_mode else live_models():
        if not model["active"]:
            continue
        key = own_api_key(CONFIG / f"{model['name']}.secret")
        module.no_log_values.update([key] if key else [])
        try:
            measured[model["served_model_name"]] = benchmark(model, module.params["timeout"], key)
        except Unhealthy as problem:
            module.fail_json(msg=f"model {model['name']}: {problem}", measured=measured)
    module.exit_json(changed=False, measured=measured)


if __name__ == "__main__":
    main()
