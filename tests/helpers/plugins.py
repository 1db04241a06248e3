"""Modules and actions as Ansible loads them: by file, with the shared code under the name that it has on hosts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import ansible.module_utils
import gaudi_serve

ROOT = Path(__file__).parents[2]


def load(path: str) -> ModuleType:
    """Return a plugin as a module, given its path in the repository."""
    sys.modules["ansible.module_utils.gaudi_serve"] = gaudi_serve
    ansible.module_utils.gaudi_serve = gaudi_serve
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), ROOT / path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
