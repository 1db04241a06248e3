#!/usr/bin/python
"""Ansible module: runs the acceptance tests of a host's cards."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: qualify_cards
short_description: Runs the acceptance tests of the cards of a host
description:
  - Runs one test of the vendor's tool after the other, and saves the results by the serial number and the firmware of
    each card, with the raw log.
  - Refuses while any program uses a card.
  - First reloads the driver with its normal parameters if an earlier run left it loaded for tests.
  - Fails if a test fails that healthy cards pass, or if a test has no result or did not run.
options:
  accelerator:
    description: The platform of the cards.
    type: str
    required: true
  device:
    description: Name of the cards.
    type: str
    required: true
  release:
    description: Release of the driver.
    type: str
    default: ""
  suite:
    description: Name of the suite.
    type: str
    default: quick
  tests:
    description: Names of the tests, in their order. An empty list only repairs the driver.
    type: list
    elements: str
    default: []
  cards:
    description: The cards to test, as in C(gaudi_host).
    type: list
    elements: dict
    default: []
  every:
    description: Whether the cards are all cards of the host.
    type: bool
    default: true
  folder:
    description: Folder of results and logs.
    type: path
    default: /var/lib/gaudi-serve/qualification
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Run the quick suite
  qualify_cards:
    accelerator: gaudi
    device: HL-225
    suite: quick
    tests: [functional, memory-bandwidth]
    cards: "{{ gaudi_host.modules }}"
"""

RETURN = r"""
tests:
  description:
    - One entry for each test - C(name), C(verdict), C(why), C(failed), C(untested), C(seconds), C(before), C(log).
  returned: always
  type: list
lines:
  description: The results as text.
  returned: always
  type: list
verdict:
  description: passed, failed, not tested or no result.
  returned: always
  type: str
"""

import fcntl
import os
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.core.errors import InputError
from ansible.module_utils.gaudi_serve.host import qualification
from ansible.module_utils.gaudi_serve.model.host import Card
from ansible.module_utils.gaudi_serve.platforms import Platform, platform_of
from ansible.module_utils.gaudi_serve.platforms.acceptance import PASSED, Acceptance


def held(platform: Platform) -> list[str]:
    """Return a sentence for each card that a program uses now."""
    cards = [Card.of(module) for module in platform.observe().get("modules") or ()]
    return [card.end_first for card in cards if card.in_use and not card.problem]


def only_one(module: AnsibleModule, folder: Path) -> Any:
    """Return a file that is locked, so that two runs do not test the same cards."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        module.fail_json(msg="another run tests the cards of this host; wait until it ends", tests=[], lines=[])
    return handle


def carried_out(module: AnsibleModule, platform: Platform, acceptance: Acceptance, folder: Path) -> dict[str, Any]:
    """Return the results of the tests, or nothing if only the driver was repaired."""
    given = {**module.params, "all": module.params["every"]}
    if texts := held(platform):
        module.fail_json(msg="; ".join(texts), tests=[], lines=[])
    qualification.lock_again(acceptance, given["device"], folder)
    if not given["tests"]:
        return {"tests": [], "lines": [], "verdict": PASSED}
    found: dict[str, Any] = qualification.qualify(acceptance, given, folder)
    return found


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "accelerator": {"type": "str", "required": True},
            "device": {"type": "str", "required": True},
            "release": {"type": "str", "default": ""},
            "suite": {"type": "str", "default": "quick"},
            "tests": {"type": "list", "elements": "str", "default": []},
            "cards": {"type": "list", "elements": "dict", "default": []},
            "every": {"type": "bool", "default": True},
            "folder": {"type": "path", "default": "/var/lib/gaudi-serve/qualification"},
        },
        supports_check_mode=True,
    )
    platform = platform_of(module.params["accelerator"])
    acceptance = platform.acceptance
    if acceptance is None:
        module.fail_json(msg=f"no acceptance test for this platform: {platform.title}", tests=[], lines=[])
        return
    if module.check_mode:
        module.exit_json(changed=True, tests=[], lines=[], verdict="", msg="not tested in check mode")
    folder = Path(module.params["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    lock = only_one(module, folder)
    try:
        found = carried_out(module, platform, acceptance, folder)
    except InputError as problem:
        module.fail_json(msg=str(problem), tests=[], lines=[])
        return
    finally:
        os.close(lock)
    if found["verdict"] != PASSED:
        module.fail_json(msg=found["lines"][-1], **found)
    module.exit_json(changed=True, **found)


if __name__ == "__main__":
    main()
