#!/usr/bin/python
"""Ansible module: reads the requests that a model's server has had since it started."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: vllm_traffic
short_description: Reads the requests that a model's server has had since it started
description:
  - Reads vLLM's histograms of prompt and generation tokens from C(/metrics) of the server, which needs no key, and
    counts in the unit's journal which shapes were compiled while it served.
  - Changes nothing, and never fails. If the server cannot be read, it returns the reason.
options:
  name:
    description: The model; its unit is C(vllm-<name>.service).
    type: str
    required: true
  host:
    description: Address of the server.
    type: str
    default: 127.0.0.1
  port:
    description: Port of the server.
    type: int
    required: true
  timeout:
    description: Limit for the server's answer, in seconds.
    type: float
    default: 10
  journal_timeout:
    description: Limit for reading the journal, in seconds.
    type: float
    default: 60
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Read the requests of the model
  vllm_traffic:
    name: qwq-32b
    port: 30001
"""

RETURN = r"""
traffic:
  description: >-
    C(prompt_tokens) and C(generation_tokens), each C(buckets) (edge, requests up to it) and C(sum);
    C(requests) that ended in C(uptime_s); C(running) and C(waiting) now; C(mean_request_s); C(mean_token_s);
    C(num_blocks) of the KV cache; C(compiled), shapes that were compiled while serving, or null and
    C(journal_problem).
    Null if the server cannot be read.
  returned: always
  type: dict
problem:
  description: Why the server cannot be read; an empty text if it can.
  returned: always
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.host.observe_traffic import Unread, observe


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "host": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "required": True},
            "timeout": {"type": "float", "default": 10},
            "journal_timeout": {"type": "float", "default": 60},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(changed=False, traffic=observe(**module.params), problem="")
    except Unread as problem:
        module.exit_json(changed=False, traffic=None, problem=str(problem))


if __name__ == "__main__":
    main()
