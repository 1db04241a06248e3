#!/usr/bin/python
"""Ansible module: a registry on one host for as long as others take images from it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: image_registry
short_description: Gives images of one host to others, through a registry that ends with the run
description:
  - C(serving) starts Debian's docker-registry on the host, with certificates of this run, and puts images of its engine
    into it. C(taken) brings one of them to another host, by its digest. C(stopped) ends it.
  - Layers that the registry, or an engine, has already are not sent again, however they came there.
options:
  state:
    description: What the host is to do.
    type: str
    choices: [serving, taken, stopped]
    required: true
  address:
    description: For C(serving), where it listens; empty takes the address of the default route.
    type: str
    default: ''
  port:
    description: For C(serving), its port.
    type: int
  names:
    description: For C(serving), images of the host's engine.
    type: list
    elements: str
    default: []
  timeout:
    description: Seconds after which the registry ends by itself, and a transfer is given up.
    type: int
    default: 7200
  unit:
    description: For C(stopped), what C(serving) has returned.
    type: str
  registry:
    description: For C(taken), where it is.
    type: str
  name:
    description: For C(taken), the image.
    type: str
  digest:
    description: For C(taken), what it must be.
    type: str
  authority:
    description: For C(taken), the certificate that the registry shows.
    type: str
  certificate:
    description: For C(taken), the certificate that the host shows.
    type: str
  key:
    description: For C(taken), its key.
    type: str
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Give an image
  image_registry:
    state: serving
    port: 8874
    names: [registry.example.net/vllm-gaudi:1.24.1]
"""

RETURN = r"""
unit:
  description: The registry's unit.
  returned: when serving
  type: str
registry:
  description: Its address and port.
  returned: when serving
  type: str
digests:
  description: What each image is, by name.
  returned: when serving
  type: dict
authority:
  description: The certificate that it shows.
  returned: when serving
  type: str
certificate:
  description: The certificate that hosts are to show.
  returned: when serving
  type: str
key_file:
  description: The file with its key, readable by root alone; it is gone when the registry is stopped.
  returned: when serving
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.core.errors import InputError
from ansible.module_utils.gaudi_serve.host.registry import RegistryClient, end, key_file, save_key, serve, take

SPEC = {
    "state": {"type": "str", "choices": ["serving", "taken", "stopped"], "required": True},
    "address": {"type": "str", "default": ""},
    "port": {"type": "int"},
    "names": {"type": "list", "elements": "str", "default": []},
    "timeout": {"type": "int", "default": 7200},
    "unit": {"type": "str"},
    "registry": {"type": "str"},
    "name": {"type": "str"},
    "digest": {"type": "str"},
    "authority": {"type": "str"},
    "certificate": {"type": "str"},
    "key": {"type": "str", "no_log": True},
}
NEEDED = [
    ("state", "serving", ["port", "names"]),
    ("state", "taken", ["registry", "name", "digest", "authority", "certificate", "key"]),
    ("state", "stopped", ["unit"]),
]


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=SPEC, required_if=NEEDED, supports_check_mode=True)
    given = module.params
    if module.check_mode:
        module.exit_json(changed=given["state"] == "taken")
    try:
        if given["state"] == "serving":
            unit, client, digests = serve(given["address"], given["port"], given["names"], given["timeout"])
            save_key(unit, client.key)
            told = {"registry": client.registry, "authority": client.authority, "certificate": client.certificate}
            module.exit_json(changed=False, unit=unit, digests=digests, key_file=str(key_file(unit)), **told)
        if given["state"] == "taken":
            client = RegistryClient(given["registry"], given["authority"], given["certificate"], given["key"])
            take(client, given["name"], given["digest"], given["timeout"])
            module.exit_json(changed=True)
        end(given["unit"])
    except (InputError, OSError) as problem:
        module.fail_json(msg=str(problem))
    module.exit_json(changed=False)


if __name__ == "__main__":
    main()
