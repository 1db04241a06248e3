#!/usr/bin/python
"""Ansible module: copies the images of a bundle to the registry of a mirror."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: mirror_images
short_description: Copies the images of a bundle to the registry of a mirror
description:
  - Copies missing images with skopeo, and checks that each image has its digest there.
options:
  bundle:
    description: Folder of the bundle.
    type: path
    required: true
  registry:
    description: Address of the registry, on loopback and without TLS.
    type: str
    required: true
  store:
    description: Folder of the registry's files. Its disk must have room for the missing images.
    type: path
    required: true
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Copy the images to the registry
  mirror_images:
    bundle: /srv/bundle
    registry: 127.0.0.1:8875
    store: /var/lib/gaudi-mirror-server/registry
"""

RETURN = r"""
copied:
  description: The images that the registry lacked.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.core.errors import InputError
from ansible.module_utils.gaudi_serve.host.mirror_images import filled


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "bundle": {"type": "path", "required": True},
            "registry": {"type": "str", "required": True},
            "store": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    try:
        given = module.params
        copied = filled(given["bundle"], given["registry"], given["store"], module.check_mode)
    except InputError as problem:
        module.fail_json(msg=str(problem))
        raise
    module.exit_json(changed=bool(copied), copied=copied)


if __name__ == "__main__":
    main()
