#!/usr/bin/python
"""Ansible module: writes and removes any number of small files in one call."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gaudi_files
short_description: Writes and removes many small files in one call
description:
  - Compares content and mode, writes a temporary file and renames it, and creates missing folders.
  - Works in check mode even if the folder does not exist, and shows a diff.
options:
  files:
    description: Files that must exist. Their owner is root.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: The absolute path.
        type: str
        required: true
      content:
        description: The complete text.
        type: str
        required: true
      mode:
        description:
          - Permission bits as octal digits with a leading zero.
          - Files in the toolkit's table of permissions have theirs there. Other files require this option.
        type: str
      hide:
        description: Whether to hide the content in the diff, because it is long or secret.
        type: bool
        default: false
      stored:
        description: Whether variables of the present file that the text does not set stay, in a file of secrets.
        type: bool
        default: false
      validate:
        description:
          - Program and arguments that check the new text, C(%s), before any file is written, also in check mode.
          - A missing program, or one that does not know its first argument, is ignored.
        type: list
        elements: str
        default: []
      model:
        description: Name of the model, as a comment.
        type: str
  absent:
    description: Files and links that must not exist. Folders are refused.
    type: list
    elements: path
    default: []
  hide:
    description: Whether to hide the content in the diff.
    type: bool
    default: false
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Write two files
  gaudi_files:
    files:
      - {path: /etc/gaudi-serve/a.env, content: "A=1\n"}
      - {path: /etc/site/b.env, content: "B=2\n", mode: '0640'}
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

import re
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.core.atomic_write import sync_folder, write_whole
from ansible.module_utils.gaudi_serve.core.hide import without_credentials
from ansible.module_utils.gaudi_serve.core.redact import redacted
from ansible.module_utils.gaudi_serve.core.run import read_text, run
from ansible.module_utils.gaudi_serve.host.baseline import with_passwords
from ansible.module_utils.gaudi_serve.host.permissions import make_folder, mode_of
from ansible.module_utils.gaudi_serve.host.secret import with_stored_secrets

FILE = {
    "path": {"type": "str", "required": True},
    "content": {"type": "str", "required": True},
    "mode": {"type": "str"},
    "hide": {"type": "bool", "default": False},
    "stored": {"type": "bool", "default": False},
    "validate": {"type": "list", "elements": "str", "default": []},
    "model": {"type": "str"},
}


def live_mode(path: Path) -> int | None:
    """Return a file's permission bits, or None if there is no file."""
    try:
        return path.stat().st_mode & 0o7777
    except OSError:
        return None


def refusal(files: list[dict[str, Any]], absent: list[str]) -> str | None:
    """Return why files cannot be written, before any of them is changed; None if they can."""
    for file in files:
        path, mode = Path(file["path"]), file["mode"]
        if not path.is_absolute():
            return f"{path}: must be an absolute path"
        if not re.fullmatch(r"0[0-7]{3,4}", mode or ""):
            return f"{path}: mode {mode!r}: must be quoted octal digits such as '0640'"
        above = next(one for one in path.parents if one.exists())
        if not above.is_dir():
            return f"{above}: is a file, but must be a folder; move it away and run again. Nothing has been written"
        if path.is_dir():
            return f"{path}: is a folder, but must be a file; move it away and run again. Nothing has been written"
    for path in map(Path, absent):
        if path.is_dir() and not path.is_symlink():
            text = "is a folder, but must be a file to remove; move it away and run again. Nothing has been written"
            return f"{path}: {text}"
    return None


def invalid(file: dict[str, Any]) -> str | None:
    """Return why a program refuses the new text of a file; None if it accepts it, or cannot check it."""
    if not file["validate"]:
        return None
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".json") as text:
        text.write(file["content"])
        text.flush()
        told = run([word.replace("%s", text.name) for word in file["validate"]])
        reason = without_credentials((told.err or told.out).strip().replace(text.name, file["path"]))
    if told.status in (0, 124, 126, 127) or re.search(r"unknown (?:long |short )?flag", reason):
        return None
    return f"{file['path']}: {file['validate'][0]} does not take the new text: {reason}; nothing is written"


def remove(module: AnsibleModule, path: Path) -> None:
    """Remove a file or a link."""
    try:
        path.unlink()
        sync_folder(path.parent)
    except OSError as problem:
        module.fail_json(msg=f"{path}: cannot be removed: {problem.strerror}")


def write(module: AnsibleModule, file: dict[str, Any]) -> None:
    """Write a file and the folders to it."""
    path = Path(file["path"])
    try:
        make_folder(path.parent)
        write_whole(path, file["content"], int(file["mode"], 8))
    except OSError as problem:
        module.fail_json(msg=f"{path}: cannot be written: {problem.strerror}; the file is as it was")


def with_all_passwords(module: AnsibleModule, files: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the files, with passwords of the host that the controller does not know."""
    try:
        return [{**file, "content": with_passwords(file["content"])} for file in files]
    except ValueError as problem:
        module.fail_json(msg=f"{files[0]['path']} and others: {problem}; nothing is written")
        raise


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "list", "elements": "dict", "default": [], "options": FILE},
            "absent": {"type": "list", "elements": "path", "default": []},
            "hide": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given = module.params
    for file in given["files"]:
        file["mode"] = file["mode"] or mode_of(file["path"]) or None
    if wrong := refusal(given["files"], given["absent"]):
        module.fail_json(msg=wrong)
    written, removed, diff = [], [], []
    files = with_all_passwords(module, given["files"])
    for file in files:
        if file["stored"]:
            file["content"] = with_stored_secrets(read_text(file["path"]) or "", file["content"])
    if wrong := next(filter(None, map(invalid, files)), None):
        module.fail_json(msg=wrong)
    for file in files:
        before, mode = read_text(file["path"]), live_mode(Path(file["path"]))
        if before == file["content"] and mode == int(file["mode"], 8):
            continue
        written.append(file["path"])
        if not (given["hide"] or file["hide"]):
            header = {"before_header": file["path"], "after_header": file["path"]}
            diff.append({**header, "before": redacted(before) or "", "after": redacted(file["content"])})
        if not module.check_mode:
            write(module, file)
    for path in given["absent"]:
        if Path(path).exists() or Path(path).is_symlink():
            removed.append(path)
            if not module.check_mode:
                remove(module, Path(path))
    module.exit_json(changed=bool(written or removed), written=written, removed=removed, diff=diff)


if __name__ == "__main__":
    main()
