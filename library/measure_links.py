#!/usr/bin/python
"""Ansible module: measures the links between a host's devices, in the serving image."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: measure_links
short_description: Measures the links between the devices of a host
description:
  - Runs one measurement after the other in the serving image, whose container gets exactly its devices.
  - On Gaudi, C(run_hccl_demo.py) of the image; it is cloned and built in the container where it is missing, as the
    manual does. Elsewhere all_reduce with the torch.distributed of the image.
  - Keeps the result on the host, with the last good figure of every measurement, also when it fails.
options:
  image:
    description: The serving image.
    type: str
    required: true
  host:
    description: What is known of the devices - C(accelerator), C(cdi) and C(modules) of C(gaudi_host).
    type: dict
    required: true
  runs:
    description: Measurements, as stage link_validation gives them.
    type: list
    elements: dict
    required: true
  fingerprint:
    description: What the measurement is valid for; as the same stage gives it.
    type: dict
    required: true
  env:
    description: Variables of the library that sends between the devices.
    type: dict
    default: {}
  nccl_tests:
    description: >-
      Program of nccl-tests or rccl-tests in the image that measures one host of NVIDIA or AMD, as
      C(/opt/nccl-tests/build/all_reduce_perf); empty for torch.
    type: str
    default: ""
  nics:
    description: RDMA devices of network cards that hosts measure over together.
    type: list
    elements: str
    default: []
  options:
    description: Of hccl_demo - C(size) or C(size_range), C(loop), C(test), C(measure).
    type: dict
    default: {}
  aside:
    description: >-
      Name under which the result is kept beside the host's own one, of which it is none - hosts together, latency,
      other sizes; empty for the host's own.
    type: str
    default: ""
  nodes:
    description: How many hosts measure together.
    type: int
    default: 1
  node:
    description: Which of them this one is.
    type: int
    default: 0
  address:
    description: Where the ranks meet.
    type: str
    default: 127.0.0.1
  port:
    description: The port there.
    type: int
    default: 5555
  checkout:
    description: Folder of hccl_demo in the image.
    type: path
    default: /opt/hccl_demo
  repository:
    description: Where hccl_demo is cloned from when the image lacks it.
    type: str
    default: https://github.com/HabanaAI/hccl_demo.git
  commit:
    description: What is checked out after cloning; empty takes the newest.
    type: str
    default: ""
  timeout:
    description: Limit for one measurement, in seconds.
    type: int
    default: 900
  state:
    description: File that keeps the result.
    type: path
    default: /var/lib/gaudi-serve/hccl.json
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Measure what is pending
  measure_links:
    image: vllm/vllm-openai:v0.33.0
    host: "{{ pending.changes.host }}"
    runs: "{{ pending.changes.runs }}"
    fingerprint: "{{ pending.changes.fingerprint }}"
"""

RETURN = r"""
runs:
  description: One measurement each - C(name), C(passed), C(nw_gb_s), C(problem), C(results).
  returned: always
  type: list
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.core.run import write_json
from ansible.module_utils.gaudi_serve.host.links import kept, measured
from ansible.module_utils.gaudi_serve.host.observe_services import hccl_state
from ansible.module_utils.gaudi_serve.model.host import Host


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "str", "required": True},
            "host": {"type": "dict", "required": True},
            "runs": {"type": "list", "elements": "dict", "required": True},
            "fingerprint": {"type": "dict", "required": True},
            "env": {"type": "dict", "default": {}},
            "nccl_tests": {"type": "str", "default": ""},
            "nics": {"type": "list", "elements": "str", "default": []},
            "options": {"type": "dict", "default": {}},
            "aside": {"type": "str", "default": ""},
            "nodes": {"type": "int", "default": 1},
            "node": {"type": "int", "default": 0},
            "address": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "default": 5555},
            "checkout": {"type": "path", "default": "/opt/hccl_demo"},
            "repository": {"type": "str", "default": "https://github.com/HabanaAI/hccl_demo.git"},
            "commit": {"type": "str", "default": ""},
            "timeout": {"type": "int", "default": 900},
            "state": {"type": "path", "default": "/var/lib/gaudi-serve/hccl.json"},
        },
        supports_check_mode=True,
    )
    given = module.params
    if module.check_mode:
        module.exit_json(changed=True, runs=[], msg="not measured in check mode")
    host = Host.of(given["host"])
    runs = [measured(given, host, run) for run in given["runs"]]
    problems = [run["problem"] for run in runs if not run["passed"]]
    write_json(given["state"], kept(given, hccl_state(), runs))
    if problems:
        module.fail_json(msg="; ".join(problems), runs=runs)
    module.exit_json(changed=True, runs=runs)


if __name__ == "__main__":
    main()
