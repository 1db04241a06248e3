"""A rollout from a Python program: started, followed event by event, and its result read (docs/guides/runner.md).

    python docs/guides/rollout.py FOLDER IMAGE

FOLDER is a private data folder of ansible-runner whose ``inventory`` is yours, IMAGE an execution environment.
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
    """How a rollout has ended.

    failures: what each host that failed said last; of a host that went back, why.
    hosts: what became of each that was changed: ``outcome``, ``text`` and figures of artifact ``gaudi_rollout``.
    """

    succeeded: bool = False
    changed: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    hosts: dict[str, Any] = field(default_factory=dict)


def rollout(folder: Path, say: Callable[[str], Any] = print, **options: Any) -> Outcome:
    """Roll out what the inventory in a private data folder says.

    Args:
        folder: the private data folder; ``env/extravars`` in it may say ``rollout_approved: true``, without which the
            rollout stops after the canary.
        say: gets a line where a task begins that people follow.
        options: of ``ansible_runner.run``: the image, what is mounted.
    """
    outcome = Outcome()

    def follow(event: Mapping[str, Any]) -> bool:
        data = event.get("event_data") or {}
        if event["event"] == "playbook_on_task_start" and " | " in data.get("name", ""):
            say(data["name"])
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
    # Root in a container of podman without root is who starts it, and may read what ansible-runner closes to others.
    ended = rollout(place, container_options=["--user=root"], **isolated)
    print(ended)
    sys.exit(not ended.succeeded)
