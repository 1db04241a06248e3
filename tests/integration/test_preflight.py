"""What preflight makes of a live host's facts: canned ones, in the very tasks that a run asks its stages with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from gaudi_serve.plan.fleet import vllm_fleet_plan
from gaudi_serve.plan.refusal import host_findings
from helpers.plans import DEBIAN, EMPTY, gaudi_host, model

ROOT = Path(__file__).parents[2]
# Cards of two NUMA nodes that are reported to have the same cores, as a broken table of the machine's firmware reports.
CORES = {number: ["0-39"] if number < 4 else ["20-59"] for number in range(8)}
SENTENCE = 'facts: gaudi_host.modules[4].cpus ["20-59"]: overlaps with ["0-39"] of [0], a card of another NUMA node'


def contradictory() -> dict[str, Any]:
    """Return a host whose cards have cores that contradict each other."""
    host = gaudi_host(driver_version="1.21.3-57")
    host["modules"] = [{**module, "cpus": CORES[module["module_id"]]} for module in host["modules"]]
    return host


def test_contradictory_cores_are_refused_by_a_run_as_by_a_plan() -> None:
    host = contradictory()
    assert [one.message for one in host_findings(EMPTY, DEBIAN, host, host_name="g")] == [f"g: {SENTENCE}"]
    known = {"gaudi_host": host, "gaudi_system": DEBIAN, "vllm_models": [model()], "accelerator_release": "1.21.3"}
    fleet = vllm_fleet_plan({"g": known}, ["g"], [])
    assert [error["message"] for error in fleet["errors"]] == [f"g: {SENTENCE}"]
    differing = gaudi_host(driver_version="1.21.3-57")
    differing["modules"][1]["cpus"] = ["1-2"]
    (reason,) = host_findings(EMPTY, DEBIAN, differing, host_name="g")
    assert reason.message.startswith('g: facts: gaudi_host.modules[1].cpus ["1-2"]: differs from ')


TUNING = {
    **{"cmdline": [], "sysctl": {"kernel.numa_balancing": "0", "vm.nr_hugepages": "0"}, "sysctl_file_sha256": None},
    **{"sysctl_others": [], "hugepage_kib": 2048, "mem_total_kib": 2**25, "cpuidle_driver": ""},
    "governor": {"values": {"cpu0": "powersave"}, "available": ["performance", "powersave"], "cpupower": True},
    "grub": {
        **{"present": True, "entries": [[]], "cfg_mtime": 1.0},
        **{"dropin_sha256": None, "dropin_mtime": None, "dropin_folder_mtime": None},
    },
}


def test_preflight_refuses_a_governor_that_the_kernel_lacks_and_cores_that_contradict_each_other(
    tmp_path: Path,
) -> None:
    facts = {
        **{"gaudi_host": contradictory(), "gaudi_tuning": TUNING, "gaudi_observed_at": "now"},
        "gaudi_system": {**DEBIAN, "kernel": "6.1.0-1-amd64", "accelerator": "gaudi"},
        "gaudi_runtime": {"daemon_json": None, "habana_config": None},
        "gaudi_services": {"images": {}, "units": {}, "supervisor_sha256": None},
    }
    variables = {"ansible_connection": "local", "vllm_models": [], "host_tuning_governor": "ondemand", **facts}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"g": variables}}}))
    play = {
        **{"hosts": "all", "gather_facts": False, "vars": {"gaudi_stages": ["host_tuning", "vllm_service"]}},
        "vars_files": [f"{ROOT}/playbooks/vars/{name}.yml" for name in ("preflight", "stages")],
        "tasks": [
            {"name": "Plan the changes", "gaudi_plan": {"due": True, "judge": True}},
            {"name": "Judge", "ansible.builtin.import_role": {"name": "preflight", "tasks_from": "judge"}},
        ],
    }
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    environment["ANSIBLE_STDOUT_CALLBACK"] = "default"
    argv = [Path(sys.executable).with_name("ansible-playbook"), "-i", tmp_path / "hosts.yml", tmp_path / "play.yml"]
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    text = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0
    assert "Nothing has been changed. What must be fixed first:" in text, text
    for sentence in (
        "g: host_tuning_governor: 'ondemand': must be one that the host has: performance, powersave",
        f"g: {SENTENCE}",
    ):
        assert sentence.replace("'", "") in text.replace("'", ""), text
    assert "Show the pending changes" not in text
