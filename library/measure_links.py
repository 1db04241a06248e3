#!/usr/bin/python
"""Ansible module: measures the links between a host's devices, in the serving image."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: measure_links
short_description: Measures the links between the devices of a host
description:
  - Runs one measurement after the other in the serving image. The container gets only the devices that it measures.
  - On Gaudi it runs C(run_hccl_demo.py) of the image. If that is missing, it is cloned and built in the container as in
    the vendor's manual. On other cards it runs all_reduce with the torch.distributed of the image.
  - Saves the result on the host, with the last good value of every measurement, also when it fails.
options:
  image:
    description: The serving image.
    type: str
    required: true
  host:
    description: Facts of the devices - C(accelerator), C(cdi) and C(modules) of C(gaudi_host).
    type: dict
    required: true
  runs:
    description: Measurements, as stage link_validation returns them.
    type: list
    elements: dict
    required: true
  fingerprint:
    description: Driver, image and cards for which the measurement is valid, as stage link_validation returns them.
    type: dict
    required: true
  env:
    description: Environment variables of the communication library.
    type: dict
    default: {}
  nccl_tests:
    description: Program of nccl-tests or rccl-tests in the image that measures one host of NVIDIA or AMD, such as
      C(/opt/nccl-tests/build/all_reduce_perf). Empty uses torch.
    type: str
    default: ""
  nics:
    description: RDMA devices of the network cards for a measurement of several hosts.
    type: list
    elements: str
    default: []
  options:
    description: Options of hccl_demo - C(size) or C(size_range), C(loop), C(test), C(measure).
    type: dict
    default: {}
  aside:
    description: Name of a separate result, which does not replace the host's own - several hosts, latency, other sizes.
      Empty for the host's own result.
    type: str
    default: ""
  nodes:
    description: Number of hosts that measure together.
    type: int
    default: 1
  node:
    description: Index of this host among them.
    type: int
    default: 0
  address:
    description: Address of the first host, to which all ranks connect.
    type: str
    default: 127.0.0.1
  port:
    description: Port at that address.
    type: int
    default: 5555
  checkout:
    description: Folder of hccl_demo in the image.
    type: path
    default: /opt/hccl_demo
  repository:
    description: Repository from which hccl_demo is cloned if the image lacks it.
    type: str
    default: https://github.com/HabanaAI/hccl_demo.git
  commit:
    description: Commit to check out after cloning. Empty uses the newest.
    type: str
    default: ""
  timeout:
    description: Limit for one measurement, in seconds.
    type: int
    default: 900
  state:
    description: File for the result.
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
  description: One entry for each measurement - C(name), C(passed), C(nw_gb_s), C(problem), C(results).
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
