"""How the hosts of this scenario are repaired between tests."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from lives import Life, reset_failed


@pytest.fixture(scope="session")
def life() -> Life:
    """Return it."""

    def repair(playbook: Any, names: list[str]) -> None:
        reset_failed(names)
        run = playbook("molecule/fleet/converge.yml", fleet_all_at_once=True)
        assert run.status == 0, run.text
        for name in names:
            # Of a test that rolls another image out.
            subprocess.run(
                ["docker", "exec", name, "docker", "image", "rm", "gaudi-serve/vllm-standin:next"], check=False
            )

    return Life(("serving", "gateway"), repair)


@pytest.fixture
def address(host: Any) -> str:
    """Return where the gateway is reached."""
    words: list[str] = host.check_output("ip -o route get 1.1.1.1").split()
    return words[words.index("src") + 1]
