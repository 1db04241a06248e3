"""Stand-in for hccl_demo: takes the cards, meets the other node, and prints figures in the real format.

`hccl_fault` in the simulated host's state makes it slow, silent, crash or hang; a port that is down ends it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, "/usr/local/lib/python3.11/dist-packages")
from vllm.standin import cards

ROOT = os.environ.get("GAUDI_SIM_ROOT", "")
UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30}
TITLES = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter", "all2all": "All2All"}
SPEED = {"HL-225": 258.259144, "HL-288": 18.9}
LINE = "#" * 79


def size(text: str) -> int:
    """Return bytes from 32m and the like."""
    match = re.fullmatch(r"(\d+)([bkmg]?)", text.lower())
    if not match:
        raise argparse.ArgumentTypeError(f"invalid size {text}")
    return int(match[1]) * UNITS[match[2]]


def arguments() -> argparse.Namespace:
    """Read the options of the real program; another is an error."""
    parser = argparse.ArgumentParser(prog="run_hccl_demo.py", allow_abbrev=False)
    parser.add_argument("--nranks", type=int, required=True)
    parser.add_argument("--ranks_per_node", type=int, required=True)
    parser.add_argument("--node_id", type=int, default=0)
    parser.add_argument("--size", type=size, default=size("32m"))
    parser.add_argument("--size_range", type=size, nargs=2)
    parser.add_argument("--test", choices=sorted(TITLES), default="all_reduce")
    parser.add_argument("--loop", type=int, default=10)
    parser.add_argument("--custom_comm")
    parser.add_argument("--measure", choices=["bandwidth", "latency"], default="bandwidth")
    parser.add_argument("-no_color", action="store_true")
    given = parser.parse_args()
    if given.nranks % given.ranks_per_node or given.node_id >= given.nranks // given.ranks_per_node:
        parser.error("nranks, ranks_per_node and node_id do not go together")
    return given


def meet(given: argparse.Namespace) -> None:
    """Wait for the other node at HCCL_COMM_ID, where there is one."""
    match = re.fullmatch(r"([\d.]+):(\d+)", os.environ.get("HCCL_COMM_ID", ""))
    if not match:
        sys.exit("HCCL_COMM_ID is not an address and a port")
    if given.nranks == given.ranks_per_node:
        return
    address = (match[1], int(match[2]))
    if given.node_id == 0:
        with socket.create_server(address) as server:
            server.settimeout(60)
            server.accept()[0].close()
        return
    for _ in range(120):
        try:
            socket.create_connection(address, timeout=5).close()
            return
        except OSError:
            time.sleep(0.5)
    sys.exit(f"hcclCommInitRank failed: nobody at {address[0]}:{address[1]}")


def report(given: argparse.Namespace, speed: float) -> None:
    """Print the figures of one size or of a range."""
    if not given.size_range:
        print(
            f"{LINE}\n[BENCHMARK] hccl{TITLES[given.test]}(dataSize={given.size}, count={given.size // 4}, "
            f"dtype=float, iterations={given.loop})"
        )
        if given.measure == "latency":
            print("[BENCHMARK]     Host Latency   : 0.0213 ms\n[BENCHMARK]     Device Latency : 0.2271 ms")
        else:
            print(f"[BENCHMARK]     NW Bandwidth   : {speed:.6f} GB/s")
            print(f"[BENCHMARK]     Algo Bandwidth : {speed * 4 / 7:.6f} GB/s")
        print(LINE)
        return
    print(f"{LINE}\n[BANDWIDTH SUMMARY REPORT]\n(src!=dst, collective={given.test}, iterations={given.loop})\n")
    print("size        count       type      redop     time        algoBW          nw_bw")
    step, last = given.size_range
    while step <= last:
        share = speed * step / last
        print(f"{step:<11} {step // 4:<11} float     sum       0.2 ms      {share * 4 / 7:.4f} GB/s   {share:.4f} GB/s")
        step *= 2


def main() -> None:
    """Measure what the state of the host says."""
    given = arguments()
    print("Welcome to HCCL demo", flush=True)
    state = json.loads(Path(f"{ROOT}/etc/gaudi-sim/state.json").read_text(encoding="utf-8"))
    try:
        cards.acquire(given.ranks_per_node)
    except RuntimeError as problem:
        sys.exit(str(problem))
    meet(given)
    fault = state.get("hccl_fault")
    if fault == "hang":
        time.sleep(3600)
    if fault == "crash":
        sys.exit("terminate called after throwing an instance of 'hccl exception': hcclInternalError")
    ranks = [int(rank) for rank in given.custom_comm.split(",")] if given.custom_comm else range(given.ranks_per_node)
    for card in state["cards"]:
        if card["index"] in ranks and "DOWN" in card["links"]:
            sys.exit(f"hcclCommInitRank failed: port of card {card['module_id']} is down")
    speed = next((value for name, value in SPEED.items() if state["device_name"].startswith(name)), 200.0)
    if given.custom_comm and state["device_name"].startswith("HL-288"):
        speed *= 8
    if fault != "silent":
        report(given, speed / 10 if fault == "slow" else speed)


if __name__ == "__main__":
    main()
