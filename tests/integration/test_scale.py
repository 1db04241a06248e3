"""Many hosts at once: what the controller does, with hosts that are a file each."""

from __future__ import annotations

import re
from pathlib import Path

import forked
import pytest
from helpers.simulated.fleet import ROOT, change, fleet, state_of

HOSTS = 32
NAMES = [f"h{number:02}" for number in range(1, HOSTS + 1)]
BROKEN = {"h02": "host", "h03": "images", "h04": "models"}
DONE = [name for name in NAMES if name not in BROKEN]
# These serve already.
AS_WISHED = NAMES[16:]


def site(folder: Path, environment: dict[str, str], *arguments: str) -> tuple[int, list[str]]:
    """Run ``site.yml`` on the hosts of a folder, and return its status and the lines that it printed."""
    argv = ["ansible-playbook", "-i", str(folder / "hosts.json"), "site.yml", *arguments]
    status, text = forked.playbook(argv, ROOT, environment, 600)
    return status, text.splitlines()


@pytest.fixture
def provisioned(tmp_path: Path) -> Path:
    """Return a folder with hosts that have all but a running model, and half of them that too, as a run leaves one."""
    status, lines = site(tmp_path, fleet(tmp_path, 1))
    assert (status, re.sub(r"\d+ s", "0 s", lines[-1])) == (0, "h01: changed: host, images, validate, models (0 s)")
    fleet(tmp_path, HOSTS, state_of(tmp_path, "h01"))
    for name in NAMES:
        if name not in AS_WISHED:
            change(tmp_path, name, units={})
    return tmp_path


def test_of_32_hosts_three_fail_in_different_stages_and_the_others_are_done(provisioned: Path) -> None:
    # What is due there, for its stage to have something to fail in.
    due = {"h02": {"sysctl": {"kernel.numa_balancing": "1", "vm.nr_hugepages": "0"}}, "h03": {"images": {}}, "h04": {}}
    for name, stage in BROKEN.items():
        change(provisioned, name, fault=stage, **due[name])
    status, lines = site(provisioned, fleet(provisioned, HOSTS))
    text = "\n".join(lines)
    # Of the three one could not be reached.
    assert status == 4, text
    assert [line.split()[0] for line in lines if re.match(r"h\d\d +m +0 +active ", line)] == DONE, text
    serving = [name for name in NAMES if state_of(provisioned, name)["units"].get("m", {}).get("smoke")]
    assert serving == DONE
    assert [line.split()[1] for line in lines if re.match("FAILED|UNREACHABLE", line)] == list(BROKEN)
    assert [line.split(":")[0] for line in lines if "dropped out of this run" in line] == list(BROKEN)
    assert [re.sub(r" \(\d+ s\)$", "", line) for line in lines[-5:]] == [
        f"{', '.join(name for name in DONE if name not in AS_WISHED)}: changed: models",
        f"{', '.join(AS_WISHED)}: nothing changed",
        "h02: failed in host: sysctl: permission denied; changed: host",
        "h03: cannot be reached: No route to host; changed: images",
        "h04: failed in models: model m does not serve: its unit is failed; out of cards; changed: models",
    ]
