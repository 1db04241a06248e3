#!/usr/bin/python
"""Ansible module: reads and sets BIOS settings through the Redfish service of a BMC."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: bios_settings
short_description: Reads and sets BIOS settings through the Redfish service of a BMC
description:
  - Runs on the control node, in its action plugin, which reads the BMC from the variables of role bios. With
    C(bios_bmc_via=host) it runs on the host.
  - Opens one session, sends one request at a time, and closes the session.
  - In check mode nothing is sent for I(state=staged) and I(state=settled).
options:
  state:
    description:
      - C(read) returns the state of the BMC. C(staged) sends settings, which the BMC applies at the next reset.
        C(settled) waits after a reset until the BIOS has applied them.
    type: str
    choices: [read, staged, settled]
    default: read
  bmc:
    description: Address and login of the BMC. The action plugin adds them.
    type: dict
    required: true
    suboptions:
      address:
        description: Host, or host:port.
        type: str
        required: true
      user:
        description: User of the BMC.
        type: str
        required: true
      password:
        description: Password of the user.
        type: str
        required: true
      ca:
        description: Certificates of authorities, as PEM text. Empty uses those of the system.
        type: str
        default: ""
      fingerprint:
        description: SHA-256 fingerprint of the BMC's certificate. It replaces C(ca).
        type: str
        default: ""
      serial:
        description: Serial number or service tag of the system, if the BMC has several.
        type: str
        default: ""
      wait_s:
        description: Seconds in which a starting BMC must answer.
        type: float
        default: 60
      pause_s:
        description: Seconds between two tries.
        type: float
        default: 5
  settings:
    description: Values by attribute, both as the BMC's registry spells them.
    type: dict
    default: {}
  before:
    description: Current values of these attributes, for the diff.
    type: dict
    default: {}
  job:
    description: Identifier of the BMC's job for an earlier part of the same change.
    type: str
    default: ""
  settle_s:
    description: Seconds in which values must be current after a reset, for I(state=settled).
    type: float
    default: 120
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Send settings, which the next reset takes over
  bios_settings:
    state: staged
    settings: {ProcCStates: Disabled}
"""

RETURN = r"""
bios:
  description: For I(state=read), the system, its current and pending values, the registry, and unfinished jobs.
  returned: when the BMC could be read
  type: dict
problem:
  description: For I(state=read), why the BMC could not be read.
  returned: when it could not
  type: str
job:
  description: The BMC's job - its identifier for I(state=staged); identifier, state and message for I(state=settled).
  returned: for I(state=staged) and I(state=settled)
  type: raw
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.bios.work import carried_out

BMC = {
    **{name: {"type": "str", "required": True} for name in ("address", "user")},
    "password": {"type": "str", "required": True, "no_log": True},
    **{name: {"type": "str", "default": ""} for name in ("ca", "fingerprint", "serial")},
    **{"wait_s": {"type": "float", "default": 60}, "pause_s": {"type": "float", "default": 5}},
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["read", "staged", "settled"], "default": "read"},
            "bmc": {"type": "dict", "required": True, "options": BMC},
            **{name: {"type": "dict", "default": {}} for name in ("settings", "before")},
            "job": {"type": "str", "default": ""},
            "settle_s": {"type": "float", "default": 120},
        },
        supports_check_mode=True,
    )
    result = carried_out(module.params, check=module.check_mode)
    if result.get("failed"):
        module.fail_json(msg=result["msg"])
    module.exit_json(**result)


if __name__ == "__main__":
    main()
