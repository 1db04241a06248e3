"""Start a rollout from a Python program, follow its events, and read its result (docs/guides/runner.md).

    python docs/guides/rollout.py FOLDER IMAGE

FOLDER is a private data folder of ansible-runner with your ``inventory``. IMAGE is an execution environment.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ansible_runner


@dataclass
class Outcome:
    """The result of a rollout.

    failures: last message of each failed host; for a host that was rolled back, the reason.
    hosts: result of each changed host: ``outcome``, ``text`` and figures of artifact ``gaudi_rollout``.
    """

    succeeded: bool = False
    changed: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    hosts: dict[str, Any] = field(default_factory=dict)


def rollout(folder: Path, show: Callable[[str], Any] = print, **options: Any) -> Outcome:
    """Roll out the inventory of a private data folder, and return the result.

    Args:
        folder: the private data folder. Without ``rollout_approved: true`` in its ``env/extravars``, the rollout stops
            after the canary.
        show: called with the name of each stage's task when it begins.
        options: options of ``ansible_runner.run``, such as the image and mounts.

    Returns:
        The result, also of a failed run.
    """
    outcome = Outcome()

    def follow(event: Mapping[str, Any]) -> bool:
        data = event.get("event_data") or {}
        if event["event"] == "playbook_on_task_start" and " | " in data.get("name", ""):
            show(data["name"])
        if event["event"] in ("runner_on_failed", "runner_on_unreachable") and not data.get("ignore_errors"):
            outcome.failures[data["host"]] = str(data["res"].get("msg", ""))
        if event["event"] == "playbook_on_stats":
            outcome.hosts = data.get("artifact_data", {}).get("gaudi_rollout", {}).get("hosts", {})
        return True  # keep the event among the artifacts

    run = ansible_runner.run(
        private_data_dir=str(folder), playbook="playbooks/rollout.yml", event_handler=follow, quiet=True, **options
    )
    outcome.succeeded = run.status == "successful"
    outcome.changed = sorted((run.stats or {}).get("changed", {}))
    return outcome


if __name__ == "__main__":
    place, image = Path(sys.argv[1]), sys.argv[2]
    isolated = {"process_isolation": True, "process_isolation_executable": "podman", "container_image": image}
    # In a rootless container, root is the calling user, and may read files that ansible-runner closes to others.
    ended = rollout(place, container_options=["--user=root"], **isolated)
    print(ended)
    sys.exit(not ended.succeeded)
