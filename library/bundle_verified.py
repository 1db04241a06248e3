#!/usr/bin/python
"""Ansible module: checks the signature of a bundle and every file of it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: bundle_verified
short_description: Checks the signature of a bundle and every file of it
description:
  - Fails with each file that is missing, differs, or is not signed.
  - A verified bundle is read again only when the size or time of one of its files has changed.
options:
  bundle:
    description: Folder of the bundle, an absolute path.
    type: str
    required: true
  fingerprint:
    description: Fingerprint of the key that must have signed the bundle.
    type: str
    required: true
  record:
    description: File that records the verified bundle.
    type: path
    required: true
  system:
    description: Package repository that the bundle must contain, such as C(debian-12-amd64). Empty requires none.
    type: str
    default: ''
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Check the bundle
  bundle_verified:
    bundle: /srv/bundle
    fingerprint: 0123456789ABCDEF0123456789ABCDEF01234567
    record: /var/lib/gaudi-mirror-server/verified.json
"""

RETURN = r"""
read:
  description: Whether the files were read. False if the last verification is still valid.
  returned: always
  type: bool
"""

import hashlib
import json
import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.core.atomic_write import write_whole
from ansible.module_utils.gaudi_serve.core.run import read_text
from ansible.module_utils.gaudi_serve.host.bundle_verify import signature_problem, verify
from ansible.module_utils.gaudi_serve.host.mirror_bundle import place_problem, serve_problems

MOST = 20  # problems that a message names


def state_of(folder: Path, fingerprint: str) -> str:
    """Return a digest of the signer and of the name, size and time of all in it. A new digest needs a new check."""
    found = hashlib.sha256(fingerprint.encode())
    for place, folders, files in os.walk(folder):
        folders.sort()
        # Folders too, because a link to a folder counts as one.
        for name in sorted((*files, *folders)):
            known = Path(place, name).lstat()
            found.update(f"{place}/{name} {known.st_size} {known.st_mtime_ns} {known.st_ctime_ns}\n".encode())
    return found.hexdigest()


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "bundle": {"type": "str", "required": True},
            "fingerprint": {"type": "str", "required": True},
            "record": {"type": "path", "required": True},
            "system": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    given = module.params
    if wrong := place_problem(given["bundle"]):
        module.fail_json(msg=f"Nothing has been changed. {wrong}")
    folder, record = Path(given["bundle"]), Path(given["record"])
    state = state_of(folder, given["fingerprint"])
    text = json.dumps({"verified": state}) + "\n"
    known = read_text(record) == text
    # A key can expire after its bundle was read.
    wrong = signature_problem(folder, given["fingerprint"]) if known else ""
    problems = [wrong] if wrong else [] if known else verify(str(folder), given["fingerprint"])
    if problems := problems or serve_problems(str(folder), given["system"]):
        more = f"; and {len(problems) - MOST} more" if len(problems) > MOST else ""
        module.fail_json(
            msg=f"Nothing has been changed. The bundle {folder} is refused: {'; '.join(problems[:MOST])}{more}"
        )
    if known:
        module.exit_json(changed=False, read=False)
    if not module.check_mode:
        record.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_whole(record, text, 0o644)
    module.exit_json(changed=False, read=True)


if __name__ == "__main__":
    main()
