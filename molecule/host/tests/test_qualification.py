"""Acceptance tests of the cards: their table, what is kept, what they refuse, and a driver that a killed run left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

STATE = "/etc/gaudi-sim/state.json"
FOLDER = "/var/lib/gaudi-serve/qualification"
LOCKED = "/sys/module/habanalabs/parameters/timeout_locked"
PLAYBOOK = "playbooks/qualify.yml"
# Index 3 is module 1 of these hosts.
GRAB = "import socket, time; s = socket.socket(socket.AF_UNIX); s.bind(chr(0) + 'gaudi-sim-card-3'); time.sleep(300)"


@pytest.fixture
def tool(host: Any) -> Iterator[None]:
    """Let the host have the vendor's tool, and a driver that was loaded by modprobe; take both back."""
    host.check_output("apt-get install -qq habanalabs-qual=1.21.3-57 >/dev/null 2>&1")
    before = host.file(STATE).content_string
    yield
    host.check_output("echo %s > %s", before, STATE)
    host.check_output(f"rm -rf {FOLDER}; dpkg --purge habanalabs-qual")


def simulate(host: Any, **changes: Any) -> None:
    """Change the simulated machine."""
    host.check_output("echo %s > %s", json.dumps({**json.loads(host.file(STATE).content_string), **changes}), STATE)


def test_a_suite_runs_is_kept_and_is_compared_with_the_run_before(host: Any, playbook: Any, tool: None) -> None:
    check = playbook(PLAYBOOK, "--check")
    assert check.status == 0, check.text
    assert "mol-host: would run suite quick on 8 cards" in check.flat and "about 2" in check.flat
    assert not host.file(FOLDER).exists
    simulate(host, qual={"-f2": {"fail": [3]}})
    run = playbook(PLAYBOOK, qualification_poll=1)
    assert run.status != 0
    assert "3 (AM50000003)" in run.flat and "hl_qual, suite quick: failed (8 cards)" in run.flat
    simulate(host, qual={})
    again = playbook(PLAYBOOK, qualification_poll=1)
    assert again.status == 0, again.text
    assert "hl_qual, suite quick: passed (8 cards)" in again.flat and "failed 20" in again.flat
    kept = json.loads(host.file(f"{FOLDER}/results.json").content_string)["cards"]
    assert len(kept) == 8 and kept["AM50000003"]["1.21.3-fw-59.2.3-sec-9"]["quick"]["tests"]["functional"] == "passed"


def test_a_card_that_a_program_holds_is_named_and_a_left_driver_is_repaired(
    host: Any, playbook: Any, tool: None
) -> None:
    host.check_output("systemd-run --quiet --unit=foreign python3 -c %s", GRAB)
    try:
        held = playbook(PLAYBOOK)
    finally:
        host.run("systemctl stop foreign")
    assert held.status != 0 and "mol-host: card 1 is used by python3" in held.flat
    # As a run leaves it that is killed while it tests the memory.
    modules = "habanalabs habanalabs_ib habanalabs_en habanalabs_cn"
    host.check_output(f"for name in {modules}; do modprobe -r $name; done")
    host.check_output("for name in habanalabs_cn habanalabs_ib habanalabs_en; do modprobe $name; done")
    host.check_output(f"modprobe habanalabs timeout_locked=0; mkdir -p {FOLDER}")
    mark = json.dumps({"modules": ["habanalabs_cn", "habanalabs_ib", "habanalabs_en", "habanalabs"]})
    host.check_output("echo %s > %s", mark, f"{FOLDER}/driver-unlocked")
    run = playbook(PLAYBOOK, qualification_poll=1)
    assert run.status == 0, run.text
    assert host.file(LOCKED).content_string == "30\n" and not host.file(f"{FOLDER}/driver-unlocked").exists
    for name in modules.split():
        assert host.file(f"/sys/module/{name}").is_directory
