#!/usr/bin/python
"""Ansible module: a secret that several hosts share, created on one of them."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gaudi_token
short_description: Reads a secret, and creates it if it is missing
description:
  - Two simultaneous runs get the same secret. Use no_log with it.
options:
  path:
    description: Path of the file, which only root can read. Its folder is created if it is missing.
    type: path
    required: true
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Read or create a secret
  gaudi_token:
    path: /etc/gaudi-serve/deepseek-r1.token
  no_log: true
"""

RETURN = r"""
token:
  description: The secret, 64 hexadecimal digits; empty in check mode if there is none.
  returned: always
  type: str
"""

import fcntl
import os
import secrets
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.core.atomic_write import write_whole
from ansible.module_utils.gaudi_serve.host.permissions import make_folder


def text_of(path: Path) -> str:
    """Return the secret; empty if there is none."""
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""


def make(path: Path) -> None:
    """Create a secret, unless another run was faster."""
    make_folder(path.parent)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        # A full disk leaves an empty file.
        if not text_of(path):
            write_whole(path, f"{secrets.token_hex(32)}\n", 0o600)
    finally:
        os.close(folder)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={"path": {"type": "path", "required": True}}, supports_check_mode=True)
    path = Path(module.params["path"])
    try:
        token = text_of(path)
        missing = not token
        if missing and not module.check_mode:
            make(path)
            token = text_of(path)
    except OSError as problem:
        module.fail_json(msg=f"{path}: {problem.strerror}")
    module.exit_json(changed=missing, token=token)


if __name__ == "__main__":
    main()
