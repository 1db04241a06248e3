"""Playbooks that run without hosts."""

from __future__ import annotations

import os
from pathlib import Path

import forked

ROOT = Path(__file__).parents[2]
# As in a job of AWX: artifacts are shown, and the home folder is not writable.
AWX = {"ANSIBLE_SHOW_CUSTOM_STATS": "1", "HOME": "/proc/none", "ANSIBLE_STDOUT_CALLBACK": "default"}


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run the playbook on an existing inventory and facts."""
    return read(folder, "-e", f"plan_facts_dir={folder}/facts", *arguments)


def read(folder: Path, *arguments: str, playbook: str = "plan") -> tuple[int, str]:
    """Run the playbook with a home folder that is not writable; without saved facts it reads the hosts."""
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", **AWX}
    argv = ["ansible-playbook", "-i", str(folder / "hosts.yml"), f"playbooks/{playbook}.yml", *arguments]
    return forked.playbook(argv, ROOT, environment, 120)
