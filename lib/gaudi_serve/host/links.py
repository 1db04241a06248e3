"""Measurements of links in a container: their commands, their results, the verdict, and the saved state."""

from __future__ import annotations

import inspect
import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core.errors import InputError, shown
from ..model.host import Card, Host
from ..platforms import platform_of
from ..platforms.between import CAPABILITY, ULIMIT, verbs_nodes
from ..platforms.device_access import DeviceAccess
from . import all_reduce
from .hccl import hccl_arguments, hccl_benchmark
from .nccl_tests import perf_arguments, perf_figures

Result = dict[str, Any]

# A reset finds the container of every version by its label.
CONTAINER = "gaudi-serve-hccl"
# A figure below this share of the last good one does not pass, whatever the threshold.
DROP = 0.8
BEGINS = '{"collective"'
# Values come as arguments, so that the shell never interprets a variable.
HCCL_DEMO = """set -e
checkout=$1 repository=$2 commit=$3
shift 3
if [ ! -d "$checkout" ]; then
  git clone "$repository" "$checkout"
  [ -z "$commit" ] || git -C "$checkout" checkout --detach "$commit"
fi
cd "$checkout"
[ ! -f Makefile ] || make -j
exec python3 run_hccl_demo.py "$@"
"""


def missing_nodes(host: Host, run: Mapping[str, Any], root: str = "/") -> str:
    """Return the missing device nodes of a measurement, as a sentence; empty if all exist."""
    cards = _cards(host, run)
    access = _access(host)
    missing = access.missing_nodes(_indices(cards), _ids(cards), root)
    return f"the driver does not show {', '.join(missing)}; {access.without}" if missing else ""


def _beside(given: Mapping[str, Any]) -> DeviceAccess:
    """Return the nodes of the network cards that a measurement uses; empty for one host."""
    devices = given.get("nics") or ()
    return DeviceAccess(beside=verbs_nodes(list(devices))) if devices else DeviceAccess()


def docker_command(given: Mapping[str, Any], host: Host, run: Mapping[str, Any], root: str = "/") -> list[str]:
    """Return the command of one measurement, whose container gets exactly its devices, in the same way as a model's.

    Args:
        given: ``image``, ``env``, ``nodes`` and ``node`` (index of this one), ``address`` and ``port`` of the ranks'
            meeting point, ``timeout`` in seconds, ``nics`` (RDMA devices to use); for hccl_demo ``options``,
            ``checkout``, ``repository`` and ``commit``. ``nccl_tests``: path of all_reduce_perf in the image; empty for
            torch.
        host: the host of the devices.
        run: one of link_runs.
        root: folder above the device nodes.
    """
    platform, cards = platform_of(host.accelerator), _cards(host, run)
    links = platform.links
    command = ["docker", "run", "--rm", "--name", CONTAINER, "--label", "gaudi-serve.hccl=1"]
    command += _access(host).docker_options(_indices(cards), _ids(cards), root)
    beside = _beside(given)
    command += [word for node in beside.nodes_beside(root)[0] for word in ("--device", node)]
    command += ["--ulimit", ULIMIT, "--cap-add", CAPABILITY] if beside.beside and not platform.ulimits else []
    command += ["--net", "host", "--ipc", "host"]
    if links is None or not links.backend:
        command += _env({"HCCL_COMM_ID": f"{given['address']}:{given['port']}"})
        always = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
        command += [*_env({**always, **(given["env"] if given.get("nics") else {})}), "--cap-add", "SYS_NICE"]
        options = {**given["options"], "nodes": given["nodes"], "node_id": given["node"], "cards": len(cards)}
        command += ["--entrypoint", "bash", given["image"], "-c", HCCL_DEMO, "hccl"]
        return [*command, given["checkout"], given["repository"], given["commit"], *hccl_arguments(run, options)]
    command += ["--security-opt", "no-new-privileges", "--cap-drop", "ALL"]
    command += [word for name in platform.capabilities for word in ("--cap-add", name)]
    command += [word for limit in platform.ulimits for word in ("--ulimit", limit)]
    command += _env({**platform.env, **links.env, **given["env"]})
    if program := given.get("nccl_tests"):
        return [*command, "--entrypoint", program, given["image"], *perf_arguments(len(cards))]
    told = {"backend": links.backend, "devices": links.devices, "ranks": len(cards), "size": all_reduce.SIZE}
    told |= {key: given[key] for key in ("node", "nodes", "address", "port", "timeout")}
    return [*command, "--entrypoint", "python3", given["image"], "-c", inspect.getsource(all_reduce), json.dumps(told)]


def _env(variables: Mapping[str, str]) -> list[str]:
    return [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]


def _access(host: Host) -> DeviceAccess:
    return platform_of(host.accelerator).access(host) or DeviceAccess()


def _cards(host: Host, run: Mapping[str, Any]) -> list[Card]:
    return [card for card in host.cards if card.module_id in run["module_ids"]]


def _indices(cards: Sequence[Card]) -> list[int]:
    return [-1 if card.index is None else card.index for card in cards]


def _ids(cards: Sequence[Card]) -> list[str]:
    return [card.device_id or str(card.module_id) for card in cards]


def measured(given: Mapping[str, Any], host: Host, run: Mapping[str, Any], root: str = "/") -> Result:
    """Run one measurement within its time limit and judge it; the arguments are those of docker_command."""
    if missing := missing_nodes(host, run, root):
        return failed(run, missing)
    if lacking := _beside(given).nodes_beside(root)[1]:
        return failed(run, f"the network card's {', '.join(lacking)} is not there; is its driver loaded?")
    name, read = _reader(given, host, run)
    # An interrupted run may have left its container.
    subprocess.run(["docker", "rm", "--force", CONTAINER], capture_output=True, check=False)
    try:
        done = subprocess.run(
            docker_command(given, host, run, root),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=given["timeout"],
            check=False,
        )
    except subprocess.TimeoutExpired:
        subprocess.run(["docker", "rm", "--force", CONTAINER], capture_output=True, check=False)
        return failed(run, f"it did not end within {given['timeout']} s")
    if done.returncode:
        last = " | ".join(done.stdout.strip().splitlines()[-5:])
        return failed(run, f"{name} ended with {done.returncode}: {last}")
    return judged(run, done.stdout, str(given["options"].get("measure") or "bandwidth"), read)


def _reader(given: Mapping[str, Any], host: Host, run: Mapping[str, Any]) -> tuple[str, Callable[[str], Result]]:
    """Return the command that measures, and the parser of its output."""
    links = platform_of(host.accelerator).links
    if links is None or not links.backend:
        return "hccl_demo", hccl_benchmark
    if program := given.get("nccl_tests"):
        return str(program), lambda output: perf_figures(output, len(_cards(host, run)))
    return "all_reduce", all_reduce_figures


def kept(given: Mapping[str, Any], state: Mapping[str, Any], runs: Sequence[Result]) -> Result:
    """Return the state to save; a special measurement does not affect figures by which the host is judged.

    Args:
        given: ``fingerprint`` and ``aside`` of link_validation_plan; ``options`` of hccl_demo.
        state: the previously saved state.
        runs: the results of measured.
    """
    fingerprint = given["fingerprint"]
    good = last_good(state, fingerprint)
    if not given["options"].get("measure") and not given["options"].get("size_range"):
        good.update({run["name"]: run["nw_gb_s"] for run in runs if run["passed"] and run.get("nw_gb_s")})
    result = {"time": time.time(), "runs": list(runs), "passed": all(run["passed"] for run in runs)}
    aside = dict(state.get("aside") or {})
    if given["aside"]:
        aside[given["aside"]] = result
        return {"fingerprint": fingerprint, **state, "last_good": good, "aside": aside}
    return {**result, "fingerprint": fingerprint, "last_good": good, "aside": aside}


def judged(
    run: Mapping[str, Any], output: str, measure: str = "bandwidth", read: Callable[[str], Result] | None = None
) -> Result:
    """Return a measurement with its figures and whether they pass; latency has no threshold.

    Args:
        run: one of link_runs.
        output: output of its container.
        measure: bandwidth or latency.
        read: parser of the output; that of all_reduce.py if None.
    """
    try:
        found = (read or all_reduce_figures)(output)
    except InputError as problem:
        return failed(run, str(problem))
    if measure == "latency":
        fault = None if "device_latency_ms" in found else f"{run['name']}: no latency in the output"
    else:
        fault = link_verdict(run, found.get("nw_gb_s"))
    return {**run, **found, "passed": fault is None, "problem": fault}


def failed(run: Mapping[str, Any], why: str) -> Result:
    """Return a failed measurement without a figure."""
    return {**run, "passed": False, "problem": f"{run['name']}: {why}"}


def all_reduce_figures(output: str) -> Result:
    """Return the figures of all_reduce.py from output that may contain other lines.

    Raises:
        InputError: if there are none.
    """
    lines = output.strip().splitlines()
    for line in reversed(lines):
        if line.startswith(BEGINS):
            try:
                found: Result = json.loads(line)
            except ValueError:
                break
            return found
    raise InputError(f"no figure in the output, which ends with: {shown(lines[-1] if lines else '')}")


def last_good(state: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> dict[str, float]:
    """Return the last good figures, GB/s by measurement, if they are of the same cards."""
    before = state.get("fingerprint") or {}
    same = all(before.get(key) == fingerprint.get(key) for key in ("device", "cards"))
    return dict(state.get("last_good") or {}) if same else {}


def link_verdict(run: Mapping[str, Any], figure: float | None) -> str | None:
    """Return why a measurement does not pass, or None: a figure (GB/s) must exist and reach its limits."""
    if figure is None:
        return f"{run['name']}: no bandwidth in the output"
    if run["threshold"] is not None and figure < run["threshold"]:
        return f"{run['name']}: {figure:.1f} GB/s is below {run['threshold']:g} GB/s"
    if run["last_good"] and figure < DROP * run["last_good"]:
        return f"{run['name']}: {figure:.1f} GB/s is far below the last good {run['last_good']:.1f} GB/s"
    return None
