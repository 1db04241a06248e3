#!/usr/bin/python
"""Ansible module: runs a registry on a source host while other hosts pull images from it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: image_registry
short_description: Serves images of one host to others, through a registry that stops with the run
description:
  - C(serving) starts Debian's docker-registry on the source host, with certificates of this run, and copies images of
    its Docker to it. C(taken) pulls one of them on another host, by its digest. C(stopped) stops the registry.
  - Layers that the registry or Docker already has are not sent again, wherever they came from.
options:
  state:
    description: Task of the host.
    type: str
    choices: [serving, taken, stopped]
    required: true
  address:
    description: For C(serving), the address on which the registry listens. Empty uses the address of the default route.
    type: str
    default: ''
  port:
    description: For C(serving), the port.
    type: int
  names:
    description: For C(serving), images of the host's Docker.
    type: list
    elements: str
    default: []
  timeout:
    description: Seconds after which the registry stops by itself, and a transfer fails.
    type: int
    default: 7200
  unit:
    description: For C(stopped), the unit that C(serving) has returned.
    type: str
  registry:
    description: For C(taken), the address of the registry.
    type: str
  name:
    description: For C(taken), the image.
    type: str
  digest:
    description: For C(taken), the expected digest.
    type: str
  authority:
    description: For C(taken), the certificate of the registry.
    type: str
  certificate:
    description: For C(taken), the client certificate of the host.
    type: str
  key:
    description: For C(taken), the key of the client certificate.
    type: str
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Serve an image
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
  description: Digest of each image, by name.
  returned: when serving
  type: dict
authority:
  description: The certificate of the registry.
  returned: when serving
  type: str
certificate:
  description: The client certificate of the hosts.
  returned: when serving
  type: str
key_file:
  description: The file with its key, readable only by root. It is removed when the registry stops.
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
