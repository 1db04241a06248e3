"""numactl knows the simulated host's cores and nodes, and no others."""

from __future__ import annotations

from typing import Any

import pytest

NUMACTL = "serving/bin/numactl"


def test_runs_the_command(host: Any) -> None:
    assert host.run(NUMACTL, "-C", "0-9,10-19", "-p", "0", "echo", "-n", "ran").stdout == "ran"
    assert host.run(NUMACTL, "--cpunodebind=1", "--membind=1", "echo", "ran").stdout == "ran\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-C", "0-160", "true"], "cpu argument 160 is out of range"),
        (["-p", "2", "true"], "node argument 2 is out of range"),
        (["-C", "a-b", "true"], "<a-b> is invalid"),
        (["--nonsense", "true"], "unrecognized option"),
        (["-C", "0"], "usage:"),
        (["-C"], "requires an argument"),
        (["-p", "0", "no-such-program"], "No such file or directory"),
    ],
)
def test_refusals(host: Any, words: list[str], message: str) -> None:
    result = host.run(NUMACTL, *words)
    assert result.returncode == 1
    assert message in result.stderr
