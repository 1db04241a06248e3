#!/usr/bin/python
"""Ansible module: pulls an image, with the login of its registry if it needs one."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: image_pull
short_description: Pulls an image, with a login that is stored nowhere
description:
  - Docker gets the login only with this request. No file, process list or environment contains it.
options:
  name:
    description: The image, with a tag or a digest.
    type: str
    required: true
  login:
    description: C(username) and C(password) of the registry, or of the mirror. Omit it if none is needed.
    type: dict
    options:
      username:
        description: Name of the user.
        type: str
        required: true
      password:
        description: Password or token of the user.
        type: str
        required: true
  mirror:
    description: Registry, with a path if it has one, that has all images under <registry>/<name>. Empty for none.
    type: str
    default: ''
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Pull the image
  image_pull:
    name: "{{ item.name }}"
    login: "{{ vllm_image_registries | registry_login(item.name) | default(omit, true) }}"
"""

RETURN = r"""
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.core.errors import InputError
from ansible.module_utils.gaudi_serve.host.pull import pull, pull_mirrored


def main() -> None:
    """Run the module."""
    login = {
        "username": {"type": "str", "required": True},
        "password": {"type": "str", "required": True, "no_log": True},
    }
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "login": {"type": "dict", "options": login},
            "mirror": {"type": "str", "default": ""},
        }
    )
    try:
        given = module.params
        if given["mirror"]:
            pull_mirrored(given["name"], given["mirror"], given["login"] or {})
        else:
            pull(given["name"], given["login"] or {})
    except InputError as problem:
        module.fail_json(msg=str(problem))
        raise
    module.exit_json(changed=True)


if __name__ == "__main__":
    main()
