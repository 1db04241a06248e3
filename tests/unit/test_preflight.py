"""What preflight makes of a live host's facts: canned ones."""

from __future__ import annotations

from typing import Any

from gaudi_serve.fleet import vllm_fleet_plan
from gaudi_serve.refusal import plan_refusal
from test_plan import gaudi_host
from test_report import DEBIAN, EMPTY

# Cards of two NUMA nodes that are said to have the same cores, as a broken table of the machine's firmware tells.
CORES = {number: ["0-39"] if number < 4 else ["20-59"] for number in range(8)}
SENTENCE = 'facts: gaudi_host.modules[4].cpus ["20-59"]: overlaps with ["0-39"] of [0], a card of another NUMA node'


def contradictory() -> dict[str, Any]:
    """Return a host whose cards have cores that contradict each other."""
    host = gaudi_host(driver_version="1.21.3-57")
    host["modules"] = [{**module, "cpus": CORES[module["module_id"]]} for module in host["modules"]]
    return host


def test_contradictory_cores_are_refused_by_a_run_as_by_a_plan() -> None:
    host = contradictory()
    assert plan_refusal(EMPTY, DEBIAN, host, host_name="g") == [f"g: {SENTENCE}"]
    fleet = vllm_fleet_plan({"g": {"gaudi_host": host, "gaudi_system": DEBIAN, "vllm_models": []}}, ["g"], [])
    assert [error["message"] for error in fleet["errors"]] == [f"g: {SENTENCE}"]
    differing = gaudi_host(driver_version="1.21.3-57")
    differing["modules"][1]["cpus"] = ["1-2"]
    (reason,) = plan_refusal(EMPTY, DEBIAN, differing, host_name="g")
    assert reason.startswith('g: facts: gaudi_host.modules[1].cpus ["1-2"]: differs from ')
