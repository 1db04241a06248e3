#!/usr/bin/python
"""Ansible module: reloads Prometheus or Alertmanager, and waits until it has read its files."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: monitoring_read
short_description: Waits until a program of monitoring has read its files
description:
  - Reloads the program if its files changed after it started, and reads from the program when it last loaded its
    configuration. If it refuses the configuration, it uses the previous one, and the module reports why.
options:
  name:
    description: The program, C(prometheus) or C(alertmanager).
    type: str
    choices: [prometheus, alertmanager]
    required: true
  listens:
    description: Address of the program, such as C(127.0.0.1:9090).
    type: str
    required: true
  again:
    description: Whether to reload in any case, such as after a file was removed.
    type: bool
    default: false
  timeout:
    description: Seconds in which the program must have read its files. A program with a long history reads that first.
    type: int
    default: 300
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Reload the rules of Prometheus
  monitoring_read:
    name: prometheus
    listens: 127.0.0.1:9090
"""

RETURN = r"""
reloaded:
  description: Whether a reload was needed.
  returned: always
  type: bool
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.core.redact import redacted
from ansible.module_utils.gaudi_serve.core.run import run
from ansible.module_utils.gaudi_serve.host import observe_metrics

REFUSED_S = 5  # after this time a reload without success counts as refused


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "choices": list(observe_metrics.READ), "required": True},
            "listens": {"type": "str", "required": True},
            "again": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    name, given = module.params["name"], module.params
    unit = f"gaudi-{name}.service"
    changed = time.time() if given["again"] else max(observe_metrics.changed_at(name), default=0.0)
    end, told = time.monotonic() + given["timeout"], 0.0
    reload = False
    while True:
        found = observe_metrics.reloaded(given["listens"])
        if found and found["ok"] and found["at"] >= changed:
            module.exit_json(changed=reload, reloaded=reload)
        if module.check_mode:
            module.exit_json(changed=True, reloaded=True)
        if found and not reload:
            reload, told = True, time.monotonic()
            run(["systemctl", "reload", unit])
        refused = found and not found["ok"] and reload and time.monotonic() - told > REFUSED_S
        if refused or time.monotonic() > end:
            said = run(["journalctl", "-u", unit, "-n", "15", "-o", "cat", "--no-pager"]).out.strip()[-1500:]
            what = "refuses its new configuration, and uses the previous one" if found else "does not answer"
            module.fail_json(msg=f"{name} {what}: {redacted(said)}")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
