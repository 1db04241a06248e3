"""What runs on the control node of the site, where nothing of this machine is reached."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from runs import Run

CONTROL = "mol-site-control"
VENV = "/opt/gaudi-serve-venv/bin"


@pytest.fixture(scope="session")
def site() -> Callable[..., Run]:
    """Return what runs a playbook on the site's control node."""

    def run(name: str, *arguments: str, **extra: Any) -> Run:
        given = ["-e", json.dumps({"mol_inside": True, "fleet_all_at_once": True, **extra})]
        playbook = [f"{VENV}/ansible-playbook", "-i", "molecule/offline/inventory", name, *arguments, *given]
        settings = ["--env", "ANSIBLE_STDOUT_CALLBACK=default", "--env", "ANSIBLE_HOST_KEY_CHECKING=false"]
        argv = ["docker", "exec", "--workdir", "/opt/gaudi-serve", *settings, CONTROL, *playbook]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
        return Run(done.returncode, done.stdout + done.stderr)

    return run
