#!/usr/bin/env python3
"""Runs tests with the newest ansible-core on the Python of Debian 13, in a container that only reads the repository."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "molecule/shared"))
from testhosts_lib import newest_image  # noqa: E402

sys.path.insert(0, str(ROOT / "tests"))
from helpers.monitoring_tools import folder  # noqa: E402

NAME = "gaudi-serve-newest"
# These need gpg, git, skopeo and ansible-lint, which this container lacks.
LEFT_OUT = ("test_bundle_fetch.py", "test_parts.py", "test_queue.py")
# Of the integration tests of simulated hosts those that go over every stage; a rollout is made of these.
MORE = ("tests/integration/test_preflight.py", "tests/integration/test_plan_against_site.py")


def main() -> None:
    """Make the image where it is missing, and become the program that runs it."""
    # Files that have nothing to do with Ansible compute the same with each of its releases.
    unit = [
        path
        for path in sorted(ROOT.glob("tests/unit/**/test_*.py"))
        if path.name not in LEFT_OUT and "ansible" in path.read_text(encoding="utf-8")
    ]
    files = [*(str(path.relative_to(ROOT)) for path in unit), *MORE]
    options = ["--init", "--rm", "--name", NAME, "--network", "none", "--tmpfs", "/tmp:exec"]
    options += ["--volume", f"{ROOT}:{ROOT}:ro", "--workdir", str(ROOT), "--env", "PYTHONPYCACHEPREFIX=/tmp/pycache"]
    # Prometheus' programs, which the container cannot fetch.
    if tools := folder():
        options += ["--volume", f"{tools}:{tools}:ro", "--env", f"GAUDI_SERVE_MONITORING_TOOLS={tools}"]
    argv = ["docker", "run", *options, newest_image.ensure(), "python3", "tests/alone.py", "1", *files]
    os.execvp(argv[0], argv)  # noqa: S606 - no shell


if __name__ == "__main__":
    main()
