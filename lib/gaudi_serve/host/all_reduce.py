"""Measures all_reduce between the devices of a container with torch.distributed, and prints one line of JSON.

Module measure_links hands this file as text to the python3 of the serving image, which has torch; so it imports
nothing else of the toolkit, and starts its ranks as forks before torch is loaded.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

SIZE = 256 << 20  # bytes; much smaller ones measure how long a message takes to begin
WARM_UP, ITERATIONS = 5, 20
FLOAT = 4  # bytes


def bus_gb_s(size: int, seconds: float, ranks: int) -> float:
    """Return the bus bandwidth in GB/s as nccl-tests define it: what each link carries, however many ranks there are.

    Args:
        size: of what each rank has, in bytes.
        seconds: that one all_reduce takes.
        ranks: how many take part.
    """
    return size / seconds * 2 * (ranks - 1) / ranks / 1e9


def environment(given: Mapping[str, Any], local: int) -> dict[str, str]:
    """Return by which variables a rank finds the others, as torchrun sets them; the arguments are those of measure."""
    ranks = given["ranks"]
    numbers = {"RANK": given["node"] * ranks + local, "WORLD_SIZE": given["nodes"] * ranks}
    numbers |= {"LOCAL_RANK": local, "LOCAL_WORLD_SIZE": ranks}
    numbers |= {"MASTER_ADDR": given["address"], "MASTER_PORT": given["port"]}
    return {name: str(value) for name, value in numbers.items()}


def median_s(work: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Return how many seconds some work takes in the middle of its tries, after those that warm up.

    Args:
        work: what only begins it.
        wait: returns when it is done.
    """
    times = []
    for _ in range(WARM_UP + ITERATIONS):
        wait()
        begin = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[WARM_UP:])


def measure(given: Mapping[str, Any], local: int) -> dict[str, Any]:
    """Return what one rank has measured.

    Args:
        given: ``backend`` of torch.distributed; ``devices``, how torch calls them (cpu in tests); ``ranks`` of this
            host; ``node`` of ``nodes`` hosts with as many each; ``address`` and ``port`` where the ranks meet;
            ``size`` in bytes; ``timeout`` in seconds.
        local: the rank's number on this host, which is its device's.

    Raises:
        RuntimeError: where the container has other devices, or the sum is wrong.
    """
    ranks, world = given["ranks"], given["nodes"] * given["ranks"]
    os.environ.update(environment(given, local))
    # After the fork, and in an image alone.
    torch, dist = importlib.import_module("torch"), importlib.import_module("torch.distributed")
    kind = given["devices"]
    runtime = getattr(torch, kind)
    device = torch.device(kind)
    if kind != "cpu":
        if (count := runtime.device_count()) != ranks:
            raise RuntimeError(f"the container has {count} devices instead of {ranks}")
        device = torch.device(kind, local)
        runtime.set_device(device)
    dist.init_process_group(given["backend"], timeout=timedelta(seconds=given["timeout"]))
    data = torch.ones(given["size"] // FLOAT, dtype=torch.float32, device=device)
    dist.all_reduce(data)
    if not bool((data == world).all()):
        raise RuntimeError(f"the sum over {world} ranks is wrong: a link or a device changes what it carries")
    data.zero_()  # sums of sums would grow beyond all numbers
    seconds = median_s(lambda: dist.all_reduce(data), runtime.synchronize)
    dist.destroy_process_group()
    found = {"collective": "all_reduce", "dtype": "float", "iterations": ITERATIONS, "size_bytes": given["size"]}
    figures = {"nw_gb_s": bus_gb_s(given["size"], seconds, world), "algo_gb_s": given["size"] / seconds / 1e9}
    return {**found, **figures, "time_ms": seconds * 1e3}


def run_rank(given: Mapping[str, Any], local: int) -> int:
    """Return the exit status of one rank; the first of a host prints what it has measured."""
    try:
        found = measure(given, local)
    except Exception as problem:
        print(f"rank {local}: {type(problem).__name__}: {problem}", flush=True)
        return 1
    if local == 0:
        print(json.dumps(found), flush=True)
    return 0


def main() -> int:
    """Run a fork for each rank; when one fails, the others would wait for it."""
    given = json.loads(sys.argv[1])
    left = set()
    for local in range(given["ranks"]):
        pid = os.fork()
        if not pid:
            # What the libraries leave for the end of a process may hang.
            os._exit(run_rank(given, local))
        left.add(pid)
    while left:
        pid, status = os.wait()
        left.discard(pid)
        if status:
            for other in left:
                os.kill(other, signal.SIGKILL)
            if os.WIFSIGNALED(status):
                print(f"a rank was ended by signal {os.WTERMSIG(status)}", flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
