"""A module inside an action plugin, run as a separate task would run it."""

from __future__ import annotations

from typing import Any


def run_as_task(action: Any, name: str, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a module. It runs through its action plugin if it has one.

    Args:
        action: The calling action plugin.
        name: The name of the module.
        arguments: The arguments of the module.
        variables: The variables of the task.
    """
    task = action._task.copy()
    task.action, task.args = name, arguments
    loader = action._shared_loader_obj
    found = loader.action_loader.get(
        name,
        task=task,
        connection=action._connection,
        play_context=action._play_context,
        loader=action._loader,
        templar=action._templar,
        shared_loader_obj=loader,
    )
    if found is None:
        return dict(action._execute_module(name, arguments, task_vars=variables))
    return dict(found.run(task_vars=variables))
