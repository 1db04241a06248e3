"""Modules and actions as Ansible loads them: by file, with the shared code under its name on hosts."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

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


def acting(plugin: ModuleType, execute: Callable[..., Any], check: bool = False, **args: Any) -> Any:
    """Return the action of a plugin with its task's arguments; ``execute(module, arguments)`` simulates its host."""

    class Action(plugin.ActionModule):  # type: ignore[name-defined,misc]  # loaded by its file
        def _execute_module(self, module_name: str, module_args: dict[str, Any], task_vars: Any = None) -> Any:
            return execute(module_name, module_args)

    task = SimpleNamespace(args=args, check_mode=check, async_val=0, action=plugin.__name__)
    connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/nowhere"))
    return Action(task, connection, None, None, None)


def run_module(name: str, **arguments: Any) -> dict[str, Any]:
    """Return the result of a module, run by its file in a separate process, as on a host.

    It runs in check mode, unless ``_ansible_check_mode`` sets another value.
    """
    start = f"from helpers.plugins import load; load('library/{name}.py').main()"
    return _run(start, {"_ansible_check_mode": True, **arguments})


def run_collection_module(collection: str, name: str, **arguments: Any) -> dict[str, Any]:
    """Return the result of an installed collection's module, run in a separate process without check mode."""
    return _run(f"from ansible_collections.{collection}.plugins.modules.{name} import main; main()", arguments)


def _run(start: str, arguments: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", start],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return dict(json.loads(done.stdout))
