#!/usr/bin/python
"""Ansible module: writes the files of a gateway's HAProxy, all of them or none."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: haproxy_config
short_description: Writes the files of a gateway, and reloads its HAProxy
description:
  - Writes them into a new folder, checks them there with HAProxy, and then points a link to the folder.
  - If the gateway runs, new workers take over from the old ones, which complete their requests. Drained servers stay
    drained. If HAProxy refuses the files or does not start with them, the previous files stay in use.
  - In check mode it returns the differences.
options:
  files:
    description: Texts by name.
    type: dict
    required: true
  secrets:
    description:
      - Texts with keys by name. No output shows them.
      - C(@stored:NAME) stands for the API key in the secret file of model NAME on this host.
    type: dict
    default: {}
  certificate:
    description: Path of the file with the gateway's certificate and key. Empty for none.
    type: str
    default: ''
  state:
    description: V(compared) only returns the differences, as in check mode.
    type: str
    choices: [present, compared]
    default: present
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Write the files of the gateway
  haproxy_config:
    files: "{{ __gateway_config.files }}"
    secrets: "{{ __gateway_config.secrets }}"
"""

RETURN = r"""
differs:
  description: Names of the files that differed.
  returned: always
  type: list
certificate:
  description: Problem of the certificate's file; empty without one.
  returned: always
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.core.errors import InputError
from ansible.module_utils.gaudi_serve.core.run import read_text
from ansible.module_utils.gaudi_serve.gateway.haproxy import (
    FOLDER,
    certificate_problem,
    current,
    differing,
    install,
    with_stored,
)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "dict", "required": True},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
            "certificate": {"type": "str", "default": ""},
            "state": {"type": "str", "choices": ["present", "compared"], "default": "present"},
        },
        supports_check_mode=True,
    )
    files, secrets = module.params["files"], with_stored(module.params["secrets"])
    certificate = certificate_problem(module.params["certificate"]) if module.params["certificate"] else ""
    folder = FOLDER / (current() or "-")
    differs = differing(files, secrets)
    # The paths in the files contain the new folder's name, which is not a difference.
    diff = [
        {
            "before_header": str(FOLDER / name),
            "after_header": str(FOLDER / name),
            "before": (read_text(folder / name) or "").replace(folder.name, "@FOLDER@"),
            "after": files[name],
        }
        for name in differs
        if name in files
    ]
    changed = bool(differs) and module.params["state"] == "present"
    if not module.check_mode and module.params["state"] == "present":
        try:
            changed = install(files, secrets)
        except (InputError, OSError) as problem:
            module.fail_json(msg=str(problem))
    module.exit_json(changed=changed, differs=differs, certificate=certificate, diff=diff)


if __name__ == "__main__":
    main()
