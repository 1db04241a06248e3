#!/usr/bin/python
"""Ansible module: sends a load to a model's server with the benchmark tool of its image."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: vllm_bench
short_description: Sends a load to a model's server with the benchmark tool of its image
description:
  - Returns what can be measured of a model, or sends one load from a container of the model's own image without a card.
  - Restarts nothing, and changes nothing on the host. In check mode it sends nothing.
options:
  state:
    description: C(probed) reads the model, its server and its image; C(measured) sends a load.
    type: str
    choices: [probed, measured]
    default: probed
  name:
    description: The model; its unit is C(vllm-<name>.service).
    type: str
    required: true
  argv:
    description: Command line of the tool, as the image has it.
    type: list
    elements: str
    default: []
  files:
    description: Texts by file name, for the tool's folder C(/out).
    type: dict
    default: {}
  key:
    description: API key of the endpoint.
    type: str
    default: ''
  own_key:
    description: Whether to use the key of the model's server if C(key) is not set. Only for requests to that server.
    type: bool
    default: false
  timeout:
    description: Limit for the tool, in seconds.
    type: int
    default: 3600
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Read what can be measured
  vllm_bench:
    name: qwq-32b
  register: probed
"""

RETURN = r"""
probed:
  description: >-
    C(models) that its server serves, C(tool) of its image, C(url), C(max_num_seqs), C(running), C(waiting),
    C(mean_token_s), C(others) and C(host); null if it is not measured here.
  returned: with state probed
  type: dict
absent:
  description: Why there is nothing to measure on this host, which is not a mistake; empty if there is.
  returned: with state probed
  type: str
refusal:
  description: Why the model cannot be measured; empty if it can.
  returned: with state probed
  type: str
measured:
  description: >-
    C(result) of the tool, C(seconds), C(compiled) shapes and requests of C(of_others) meanwhile, and how the host was
    C(before) and C(after).
  returned: with state measured
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.core.errors import InputError
from ansible.module_utils.gaudi_serve.host.bench import NotHere, measure, probe
from ansible.module_utils.gaudi_serve.host.observe_services import CONFIG
from ansible.module_utils.gaudi_serve.host.secret import own_api_key


def probed(name: str) -> dict[str, Any]:
    """Return what can be measured of a model, or why nothing can. The plan over all hosts judges that."""
    try:
        return {"probed": probe(name, 30.0), "absent": "", "refusal": ""}
    except NotHere as reason:
        return {"probed": None, "absent": str(reason), "refusal": ""}
    except InputError as problem:
        return {"probed": None, "absent": "", "refusal": str(problem)}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["probed", "measured"], "default": "probed"},
            "name": {"type": "str", "required": True},
            "argv": {"type": "list", "elements": "str", "default": []},
            "files": {"type": "dict", "default": {}},
            "key": {"type": "str", "default": "", "no_log": True},
            "own_key": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 3600},
        },
        supports_check_mode=True,
    )
    given = module.params
    key = given["key"] or (own_api_key(CONFIG / f"{given['name']}.secret") if given["own_key"] else "")
    module.no_log_values.update({key} if key else ())
    try:
        if given["state"] == "probed":
            module.exit_json(changed=False, **probed(given["name"]))
        if module.check_mode:
            module.exit_json(changed=False, measured=None)
        module.exit_json(changed=False, measured=measure(given, key))
    except InputError as problem:
        module.fail_json(msg=str(problem))


if __name__ == "__main__":
    main()
