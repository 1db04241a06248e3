"""One host's part of a process group by gloo, in the environment of every launch file of a folder.

Usage, in a container with PyTorch and the host's network: gloo_member.py FOLDER RANK ADDRESS_OF_RANK_0
Prints {name of the launch's folder: the sum of rank + 1 over all hosts, or the error}.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

FIRST_PORT, LIMIT_S = 39_000, 30


def variables(supervisor: ModuleType, launch: Path) -> dict[str, str]:
    """Return the environment that the supervisor gives the container of a launch."""
    options = supervisor.Supervisor(launch).options(list(range(8)))
    given = [options[place + 1] for place, one in enumerate(options) if one == "--env"]
    lines = [*launch.with_suffix(".env").read_text(encoding="utf-8").splitlines(), *given]
    return dict(line.split("=", 1) for line in lines if "=" in line)


def summed(environment: dict[str, str], rank: int, address: str) -> float:
    """Join the group of two hosts; return the sum of rank + 1 over it."""
    import torch
    from torch import distributed

    os.environ.update(environment)
    distributed.init_process_group("gloo", f"tcp://{address}", timedelta(seconds=LIMIT_S), 2, rank)
    value = torch.ones(1) * (rank + 1)
    distributed.all_reduce(value)
    distributed.barrier()
    return float(value)


def member(environment: dict[str, str], rank: int, address: str) -> Any:
    """Join the group in a process of its own, which reads the environment again."""
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            answer: Any = summed(environment, rank, address)
        except Exception as problem:
            answer = f"{type(problem).__name__}: {problem}"
        os.write(write, json.dumps(answer).encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.wait()
    return json.loads(text)


def main() -> None:
    """Join a group for each launch, one after the other, in the same order on both hosts."""

    folder, rank, head = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    supervisor = ModuleType("vllm_supervisor")
    SourceFileLoader("vllm_supervisor", "/usr/local/lib/gaudi-serve/vllm-supervisor").exec_module(supervisor)
    found = {}
    for number, launch in enumerate(sorted(folder.glob("*/big.json"))):
        found[launch.parent.name] = member(variables(supervisor, launch), rank, f"{head}:{FIRST_PORT + number}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
