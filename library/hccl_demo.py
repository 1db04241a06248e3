#!/usr/bin/python
"""Ansible module: measures the links between a host's cards with hccl_demo, in the serving image."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: hccl_demo
short_description: Measures the links between Gaudi cards with hccl_demo
description:
  - Runs C(run_hccl_demo.py) in the serving image under the habana runtime, one measurement after the other.
  - The checkout is the image's, or is cloned and built in the container, as the manual does.
  - Keeps the result on the host, with the last good figure of every measurement, also when it fails.
options:
  image:
    description: The serving image.
    type: str
    required: true
  runs:
    description: Measurements, as filter hccl_validation_plan gives them.
    type: list
    elements: dict
    required: true
  fingerprint:
    description: What the measurement is valid for; as the same filter gives it.
    type: dict
    required: true
  indices:
    description: Driver indices of all cards of the host.
    type: list
    elements: int
    required: true
  options:
    description: C(size) or C(size_range), C(loop), C(test), C(measure), C(node_id), C(nodes).
    type: dict
    default: {}
  aside:
    description: >-
      Name under which the result is kept beside the host's own one, of which it is none - hosts together, latency,
      other sizes; empty for the host's own.
    type: str
    default: ""
  comm_id:
    description: Address and port at which the ranks meet.
    type: str
    default: 127.0.0.1:5555
  checkout:
    description: Folder of hccl_demo in the image.
    type: path
    default: /opt/hccl_demo
  repository:
    description: Where hccl_demo is cloned from when the image lacks it.
    type: str
    default: https://github.com/HabanaAI/hccl_demo.git
  commit:
    description: What is checked out after cloning; empty takes the newest.
    type: str
    default: ""
  timeout:
    description: Limit for one measurement, in seconds.
    type: int
    default: 900
  state:
    description: File that keeps the result.
    type: path
    default: /var/lib/gaudi-serve/hccl.json
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Measure all cards
  hccl_demo:
    image: registry.example.net/vllm-gaudi:1.21.3
    runs: "{{ plan.runs }}"
    fingerprint: "{{ plan.fingerprint }}"
    indices: [0, 1, 2, 3, 4, 5, 6, 7]
"""

RETURN = r"""
runs:
  description: One measurement each - C(name), C(passed), C(nw_gb_s), C(problem), C(results).
  returned: always
  type: list
"""

import subprocess
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.core.errors import InputError
from ansible.module_utils.gaudi_serve.core.run import write_json
from ansible.module_utils.gaudi_serve.host.hccl import hccl_arguments, hccl_benchmark, hccl_verdict, last_good
from ansible.module_utils.gaudi_serve.host.observe_services import hccl_state
from ansible.module_utils.gaudi_serve.platforms.gaudi import ACCESS

CONTAINER = "gaudi-serve-hccl"
# Its words come as arguments: nothing of a variable is ever read as shell.
SCRIPT = """set -e
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


def docker_command(given: dict[str, Any], words: list[str]) -> list[str]:
    """Return the command of one measurement, with the manual's settings of a container."""
    return [
        *("docker", "run", "--rm", "--name", CONTAINER, "--label", "gaudi-serve.hccl=1"),
        *ACCESS.docker_options(given["indices"]),
        *("--env", f"HCCL_COMM_ID={given['comm_id']}"),
        *("--env", "OMPI_MCA_btl_vader_single_copy_mechanism=none", "--cap-add", "SYS_NICE"),
        *("--net", "host", "--ipc", "host"),
        *("--entrypoint", "bash", given["image"], "-c", SCRIPT, "hccl"),
        *(given["checkout"], given["repository"], given["commit"], *words),
    ]


def measured(given: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """Run one measurement within its limit and judge it."""
    # One that was cut off may have left its container.
    subprocess.run(["docker", "rm", "--force", CONTAINER], capture_output=True, check=False)
    words = hccl_arguments(run, {**given["options"], "cards": len(given["indices"])})
    try:
        done = subprocess.run(
            docker_command(given, words),
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
        return {**run, "passed": False, "problem": f"{run['name']}: no end after {given['timeout']} s"}
    last = " | ".join(done.stdout.strip().splitlines()[-5:])
    if done.returncode:
        return {**run, "passed": False, "problem": f"{run['name']}: hccl_demo ended with {done.returncode}: {last}"}
    return judged(run, done.stdout, str(given["options"].get("measure") or "bandwidth"))


def judged(run: dict[str, Any], output: str, measure: str) -> dict[str, Any]:
    """Return a measurement with its figures and whether they pass; latency has no threshold."""
    try:
        found = hccl_benchmark(output)
    except InputError as problem:
        return {**run, "passed": False, "problem": f"{run['name']}: {problem}"}
    if measure == "latency":
        fault = None if "device_latency_ms" in found else f"{run['name']}: no latency in the output"
    else:
        fault = hccl_verdict(run, found.get("nw_gb_s"))
    return {**run, **found, "passed": fault is None, "problem": fault}


def kept(given: dict[str, Any], runs: list[dict[str, Any]], passed: bool) -> dict[str, Any]:
    """Return what is kept: of a measurement aside, nothing that the host's own is judged by."""
    state, fingerprint = hccl_state(), given["fingerprint"]
    good = last_good(state, fingerprint)
    if not given["options"].get("measure") and not given["options"].get("size_range"):
        good.update({run["name"]: run["nw_gb_s"] for run in runs if run["passed"] and run.get("nw_gb_s")})
    result = {"time": time.time(), "runs": runs, "passed": passed}
    aside = dict(state.get("aside") or {})
    if given["aside"]:
        aside[given["aside"]] = result
        return {"fingerprint": fingerprint, **state, "last_good": good, "aside": aside}
    return {**result, "fingerprint": fingerprint, "last_good": good, "aside": aside}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "str", "required": True},
            "runs": {"type": "list", "elements": "dict", "required": True},
            "fingerprint": {"type": "dict", "required": True},
            "indices": {"type": "list", "elements": "int", "required": True},
            "options": {"type": "dict", "default": {}},
            "aside": {"type": "str", "default": ""},
            "comm_id": {"type": "str", "default": "127.0.0.1:5555"},
            "checkout": {"type": "path", "default": "/opt/hccl_demo"},
            "repository": {"type": "str", "default": "https://github.com/HabanaAI/hccl_demo.git"},
            "commit": {"type": "str", "default": ""},
            "timeout": {"type": "int", "default": 900},
            "state": {"type": "path", "default": "/var/lib/gaudi-serve/hccl.json"},
        },
        supports_check_mode=True,
    )
    given = module.params
    if module.check_mode:
        module.exit_json(changed=True, runs=[], msg="not measured in check mode")
    runs = [measured(given, run) for run in given["runs"]]
    problems = [run["problem"] for run in runs if not run["passed"]]
    write_json(given["state"], kept(given, runs, not problems))
    if problems:
        module.fail_json(msg="; ".join(problems), runs=runs)
    module.exit_json(changed=True, runs=runs)


if __name__ == "__main__":
    main()
