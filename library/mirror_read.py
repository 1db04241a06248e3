#!/usr/bin/python
"""Ansible module: reads the content of a site's mirror, from the host that will fetch from it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: mirror_read
short_description: Reads the content of the mirror of a site without internet
description:
  - Queries the mirror from the host itself, so that a run reports an unreachable mirror before it changes anything.
  - Changes nothing.
options:
  url:
    description: Address of the mirror, with https and a port if it is not 443.
    type: str
    required: true
  authority:
    description: Certificate of the authority that signed the mirror's certificate, in PEM.
    type: str
    required: true
  system:
    description: Name of the package repository of this host, such as C(debian-12-amd64).
    type: str
    required: true
  timeout:
    description: Limit for one answer, in seconds.
    type: int
    default: 20
  wait:
    description: Seconds in which a mirror that was just started must begin to answer.
    type: int
    default: 0
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Query the mirror
  mirror_read:
    url: https://mirror.site:8443
    authority: "{{ lookup('ansible.builtin.file', 'ca.crt') }}"
    system: debian-12-amd64
"""

RETURN = r"""
problem:
  description: Why the mirror cannot be used; empty if it can.
  returned: always
  type: str
release:
  description: SHA-256 of the signed index of the host's package repository; empty if the mirror has none.
  returned: always
  type: str
items:
  description: The items of the bundle that the mirror serves - kind, name, version and system of each.
  returned: always
  type: list
  elements: list
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.host.mirror import read


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "authority": {"type": "str", "required": True},
            "system": {"type": "str", "required": True},
            "timeout": {"type": "int", "default": 20},
            "wait": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    given = module.params
    deadline = time.monotonic() + given["wait"]
    while True:
        found = read(given["url"], given["authority"], given["system"], given["timeout"])
        if not found["problem"] or time.monotonic() >= deadline:
            break
        time.sleep(0.5)
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
