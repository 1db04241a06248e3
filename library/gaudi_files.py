#!/usr/bin/python
"""Ansible module: makes any number of small files what they should be, in one call."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gaudi_files
short_description: Writes and removes many small files in one call
description:
  - Compares content and mode, writes beside and renames, creates missing folders.
  - Works in check mode on a host where not even the folder exists, and shows a diff.
options:
  files:
    description: Files that must exist, each with C(path), C(content), C(mode) (octal text) and, for
      what is long or secret, C(hide); owner is root.
    type: list
    elements: dict
    default: []
  absent:
    description: Paths that must not exist.
    type: list
    elements: path
    default: []
  folder_mode:
    description: Mode of the folders it creates.
    type: str
    default: '0755'
  hide:
    description: Show no content in the diff.
    type: bool
    default: false
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Write two files
  gaudi_files:
    files:
      - {path: /etc/gaudi-serve/a.env, content: "A=1\n", mode: '0640'}
      - {path: /etc/gaudi-serve/b.env, content: "B=2\n", mode: '0640'}
"""

RETURN = r"""
written:
  description: Paths that differed.
  returned: always
  type: list
  elements: str
removed:
  description: Paths that existed and should not.
  returned: always
  type: list
  elements: str
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.found import with_passwords
from ansible.module_utils.gaudi_serve.run import read_text
from ansible.module_utils.gaudi_serve.veil import veiled
from ansible.module_utils.gaudi_serve.whole import sync_folder, write_whole


def mode_of(path: Path) -> int | None:
    """Return a file's permission bits, or None where there is no file."""
    try:
        return path.stat().st_mode & 0o7777
    except OSError:
        return None


def make_folder(path: Path, mode: int) -> None:
    """Create a folder and its parents; folders that exist stay as they are."""
    if not path.is_dir():
        make_folder(path.parent, 0o755)
        path.mkdir(mode=mode)
        path.chmod(mode)


def write(module: AnsibleModule, file: dict[str, Any], folder_mode: int) -> None:
    """Write a file and the folders to it."""
    path = Path(file["path"])
    try:
        make_folder(path.parent, folder_mode)
        write_whole(path, file["content"], int(file["mode"], 8))
    except OSError as problem:
        module.fail_json(msg=f"{path}: cannot be written: {problem.strerror}; the file is as it was")


def with_all_passwords(module: AnsibleModule, files: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the files with the passwords of the host's own that the controller has never seen."""
    try:
        return [{**file, "content": with_passwords(file["content"])} for file in files]
    except ValueError as problem:
        module.fail_json(msg=f"{files[0]['path']} and others: {problem}; nothing is written")
        raise


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "list", "elements": "dict", "default": []},
            "absent": {"type": "list", "elements": "path", "default": []},
            "folder_mode": {"type": "str", "default": "0755"},
            "hide": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given = module.params
    written, removed, diff = [], [], []
    for file in with_all_passwords(module, given["files"]):
        before, mode = read_text(file["path"]), mode_of(Path(file["path"]))
        if before == file["content"] and mode == int(file["mode"], 8):
            continue
        written.append(file["path"])
        if not (given["hide"] or file.get("hide")):
            header = {"before_header": file["path"], "after_header": file["path"]}
            diff.append({**header, "before": veiled(before) or "", "after": veiled(file["content"])})
        if not module.check_mode:
            write(module, file, int(given["folder_mode"], 8))
    for path in given["absent"]:
        if Path(path).exists() or Path(path).is_symlink():
            removed.append(path)
            if not module.check_mode:
                Path(path).unlink()
                sync_folder(Path(path).parent)
    module.exit_json(changed=bool(written or removed), written=written, removed=removed, diff=diff)


if __name__ == "__main__":
    main()
