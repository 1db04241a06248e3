"""Measures all_reduce between the devices of a container with torch.distributed, and prints one line of JSON.

Module measure_links passes this file as text to the python3 of the serving image, which has torch. Therefore it imports
nothing else of the toolkit, and forks its ranks before torch is loaded.
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

SIZE = 256 << 20  # bytes; much smaller ones measure the start latency of a message
WARM_UP, ITERATIONS = 5, 20
FLOAT = 4  # bytes


def bus_gb_s(size: int, seconds: float, ranks: int) -> float:
    """Return the bus bandwidth in GB/s as nccl-tests define it: the rate of each link, whatever the number of ranks.

    Args:
        size: bytes of each rank.
        seconds: duration of one all_reduce.
        ranks: number of participating ranks.
    """
    return size / seconds * 2 * (ranks - 1) / ranks / 1e9


def environment(given: Mapping[str, Any], local: int) -> dict[str, str]:
    """Return the variables by which ranks find each other, named as torchrun does; for arguments see measure."""
    ranks = given["ranks"]
    numbers = {"RANK": given["node"] * ranks + local, "WORLD_SIZE": given["nodes"] * ranks}
    numbers |= {"LOCAL_RANK": local, "LOCAL_WORLD_SIZE": ranks}
    numbers |= {"MASTER_ADDR": given["address"], "MASTER_PORT": given["port"]}
    return {name: str(value) for name, value in numbers.items()}


def median_s(work: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Return the median duration of an operation in seconds, after warm-up runs.

    Args:
        work: starts the operation only.
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
    """Return the measurement of one rank.

    Args:
        given: ``backend`` of torch.distributed; ``devices``, their name in torch (cpu in tests); ``ranks`` of this
            host; ``node``: index of this host among ``nodes`` hosts with as many ranks each; ``address`` and ``port``
            of the meeting point; ``size`` in bytes; ``timeout`` in seconds.
        local: index of the rank on this host, and of its device.

    Raises:
        RuntimeError: if the container has other devices, or the sum is wrong.
    """
    ranks, world = given["ranks"], given["nodes"] * given["ranks"]
    os.environ.update(environment(given, local))
    # Import after the fork; only the image has torch.
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
        raise RuntimeError(f"the sum over {world} ranks is wrong: a link or a device corrupts data")
    data.zero_()  # sums of sums would overflow
    seconds = median_s(lambda: dist.all_reduce(data), runtime.synchronize)
    dist.destroy_process_group()
    found = {"collective": "all_reduce", "dtype": "float", "iterations": ITERATIONS, "size_bytes": given["size"]}
    figures = {"nw_gb_s": bus_gb_s(given["size"], seconds, world), "algo_gb_s": given["size"] / seconds / 1e9}
    return {**found, **figures, "time_ms": seconds * 1e3}


def run_rank(given: Mapping[str, Any], local: int) -> int:
    """Return the exit status of one rank; the first rank of a host prints its measurement."""
    try:
        found = measure(given, local)
    except Exception as problem:
        print(f"rank {local}: {type(problem).__name__}: {problem}", flush=True)
        return 1
    if local == 0:
        print(json.dumps(found), flush=True)
    return 0


def main() -> int:
    """Run a fork for each rank; if one fails, end the others, which would wait for it."""
    given = json.loads(sys.argv[1])
    left = set()
    for local in range(given["ranks"]):
        pid = os.fork()
        if not pid:
            # Exit handlers of the libraries may hang.
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
