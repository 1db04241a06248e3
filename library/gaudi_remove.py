#!/usr/bin/python
"""Ansible module: removes what the toolkit has created, and nothing else."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gaudi_remove
short_description: Removes files, folders and weights that the toolkit has created
description:
  - Ignores missing paths. Removes links without following them. Refuses a folder with a mounted file system.
options:
  paths:
    description: Files, and folders with their content.
    type: list
    elements: path
    default: []
  weights:
    description: Folders of weights. The files of their record are removed, and then the folder if it is empty.
    type: list
    elements: path
    default: []
  empty:
    description: Folders that are removed if they are empty, in this order.
    type: list
    elements: path
    default: []
  stay:
    description: Folders of I(paths) and I(weights) that are only emptied, because the toolkit did not create them.
    type: list
    elements: path
    default: []
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Remove the state of a model
  gaudi_remove:
    paths: [/var/lib/gaudi-serve/qwq-32b]
    empty: [/var/lib/gaudi-serve]
"""

RETURN = r"""
removed:
  description: Removed paths.
  returned: always
  type: list
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.host.remove import remove_all


def main() -> None:
    """Run the module."""
    lists = {"type": "list", "elements": "path", "default": []}
    names = ("paths", "weights", "empty", "stay")
    module = AnsibleModule(argument_spec=dict.fromkeys(names, lists), supports_check_mode=True)
    given = {name: [Path(path) for path in module.params[name]] for name in names}
    try:
        removed = [str(path) for path in remove_all(**given, dry=module.check_mode)]
    except OSError as problem:
        module.fail_json(msg=f"{problem.filename}: cannot be removed: {problem.strerror}")
    header = {"before_header": "on the host", "after_header": "after the reset"}
    diff = [{**header, "before": "".join(f"{path}\n" for path in removed), "after": ""}] if removed else []
    module.exit_json(changed=bool(removed), removed=removed, diff=diff)


if __name__ == "__main__":
    main()
