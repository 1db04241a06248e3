"""Rollouts over three hosts under load: nobody notices those that go well, nor those that go back."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from clients import CHAT, Load, ask, chat, inside

# To repair four hosts takes a minute: what changes them all comes last.
GATEWAY = pytest.mark.on("mol-fleet-gw")
HOSTS = ("mol-fleet-a", "mol-fleet-b", "mol-fleet-c")
ROLLOUT = "molecule/fleet/rollout.yml"
STAGES = ["container_runtime", "vllm_image", "vllm_service", "gateway"]
APPROVED = {"rollout_approved": True}


def launched(name: str) -> str:
    """Return which containers serve on a host, and since when."""
    return inside(name, "docker inspect --format '{{.Id}} {{.State.StartedAt}}' vllm-large vllm-small")


def sequences(name: str) -> str:
    """Return the --max-num-seqs that the large model runs with on a host."""
    found = inside(name, "docker inspect --format '{{join .Config.Cmd \" \"}}' vllm-large")
    return found.partition("--max-num-seqs ")[2].partition(" ")[0]


def proving(name: str) -> bool:
    """Return whether a host with the change is asked or measured: drained, it has no request of anybody else."""
    metrics = "curl -s http://$(ss -Hltn 'sport = :30001' | awk '{print $4}')/metrics"
    return sequences(name) == "24" and inside(name, f"{metrics} | grep '^vllm:num_requests_running.* [1-9]'") != ""


def drained(name: str) -> bool:
    """Return whether a host is drained at the gateway, by what the gateway has kept of it."""
    lines = inside("mol-fleet-gw", "cat /var/lib/gaudi-serve/gateway/state").splitlines()
    # Bits 8 and 16 of the administrative state, the seventh column.
    return any(f" {name}." in line and int(line.split()[6]) & 24 for line in lines)


@pytest.mark.long
@GATEWAY
def test_who_may_not_begin_is_reported_so(playbook: Any) -> None:
    before = {name: launched(name) for name in HOSTS}
    once = playbook("playbooks/models.yml", mol_seqs=24)
    assert once.status != 0
    assert "models would be down on mol-fleet-a, mol-fleet-b, mol-fleet-c at the same time" in once.flat
    wrong = playbook(ROLLOUT, mol_seqs=24, rollout_sreial=2)
    assert wrong.status != 0
    assert "rollout_sreial: is not a variable of a rollout; did you mean rollout_serial?" in wrong.flat
    assert {name: launched(name) for name in HOSTS} == before


@pytest.mark.long
@GATEWAY
def test_a_second_rollout_waits_and_the_first_stops_for_a_word(playbook: Any, address: str, tmp_path: Any) -> None:
    before = {name: launched(name) for name in HOSTS}
    with playbook.stopped(
        playbook.argv(ROLLOUT, mol_seqs=24, rollout_canary="mol-fleet-c"), lambda: drained("mol-fleet-c")
    ) as first:
        second = playbook(ROLLOUT, mol_seqs=20)
        assert second.status != 0
        assert f"process {first.pid}) has locked this host since" in second.flat, second.text
        assert {name: launched(name) for name in HOSTS} == before
    assert first.run.status == 0, first.run.text
    assert "the rollout stops after the canary mol-fleet-c, which serves with the change" in first.run.flat
    assert [sequences(name) for name in HOSTS] == ["16", "16", "24"]
    assert {name: launched(name) for name in HOSTS[:2]} == {name: before[name] for name in HOSTS[:2]}
    assert ask(address, CHAT, chat("small")).status == 200
    # Taken back by a rollout of what was before, of the one host that differs.
    place = f"{tmp_path}/%s-{{{{ inventory_hostname }}}}"
    commands = {f"rollout_{state}_command": f"touch {place % state}" for state in ("drain", "ready")}
    back = playbook(ROLLOUT, **commands)
    assert back.status == 0 and "1 host in 1 wave" in back.text, back.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drain-mol-fleet-c", "ready-mol-fleet-c"]


def goes_back(playbook: Any, address: str, requested: dict[str, Any], said: str) -> None:
    """Let a canary not prove itself, and see that nobody notices and all serves as before."""
    before = {name: launched(name) for name in HOSTS[1:]}
    environment = inside("mol-fleet-a", "cat /etc/gaudi-serve/*.env")
    assert environment
    with Load(address, 16) as load:
        limits = {"vllm_service_max_restarts": 1, "mol_tolerance": 0.6}
        run = playbook(ROLLOUT, "--limit", "mol-fleet-*", mol_env=requested, **limits, **APPROVED)
        time.sleep(2)
    assert run.status != 0
    assert said in run.flat, run.text
    assert "mol-fleet-a failed its checks, and the rollout stops" in run.flat
    assert "It serves the same models as before" in run.flat
    assert load.failed == []
    assert {name: launched(name) for name in HOSTS[1:]} == before
    assert not drained("mol-fleet-a")
    assert inside("mol-fleet-a", "ls -A /var/lib/gaudi-serve/rollout") == ""
    assert inside("mol-fleet-a", "cat /etc/gaudi-serve/*.env") == environment


@GATEWAY
def test_a_canary_that_does_not_come_up_goes_back(playbook: Any, address: str) -> None:
    goes_back(playbook, address, {"STANDIN_FAULT": "crash_at_start"}, "Engine core initialization failed")


# In make test hosts that are a file each show what a run makes of either, and the life `service` how nonsense is seen.
@GATEWAY
@pytest.mark.long
@pytest.mark.parametrize(
    ("requested", "said"),
    [
        ({"STANDIN_FAULT": "garbled_answer"}, "the answer names no country with its capital"),
        ({"STANDIN_TOKEN_S": "0.2"}, "tokens a second, 0."),
    ],
)
def test_a_canary_that_talks_nonsense_or_is_too_slow_goes_back(
    playbook: Any, address: str, requested: dict[str, str], said: str
) -> None:
    goes_back(playbook, address, requested, said)


def dies_in_its_proof(lost: str, playbook: Any, address: str) -> None:
    """Let a canary's server or host die while it is asked, and see that nobody notices and all serves as before."""

    def docker(*words: str) -> None:
        subprocess.run(["docker", *words], check=True, capture_output=True)

    before = {name: launched(name) for name in HOSTS[1:]}
    # As after a power cut, while the run waits for it.
    comes_back = threading.Timer(8, docker, ("start", "mol-fleet-a"))
    with Load(address, 10) as load:
        with playbook.stopped(playbook.argv(ROLLOUT, mol_seqs=24, **APPROVED), lambda: proving("mol-fleet-a")) as run:
            if lost == "server":
                inside("mol-fleet-a", "docker kill vllm-large")
            else:
                docker("kill", "mol-fleet-a")
                comes_back.start()
        time.sleep(2)
    assert run.run.status == 2, run.run.text
    ended = {"server": "failed its checks", "host": "could not be reached while it was changed"}[lost]
    assert f"mol-fleet-a {ended}, and the rollout stops" in run.run.flat, run.run.text
    assert "It serves the same models as before" in run.run.flat, run.run.text
    assert load.failed == []
    assert {name: launched(name) for name in HOSTS[1:]} == before
    assert (sequences("mol-fleet-a"), drained("mol-fleet-a")) == ("16", False)
    assert inside("mol-fleet-a", "ls -A /var/lib/gaudi-serve/rollout") == ""


@pytest.mark.long
@GATEWAY
def test_a_canary_that_dies_in_its_verification_goes_back(playbook: Any, address: str) -> None:
    dies_in_its_proof("host", playbook, address)


# In make test hosts that are a file each show what a run makes of a server that dies.
@GATEWAY
@pytest.mark.long
def test_a_canary_whose_server_dies_in_its_verification_goes_back(playbook: Any, address: str) -> None:
    dies_in_its_proof("server", playbook, address)


@pytest.mark.long
@GATEWAY
def test_a_rollout_that_is_killed_anywhere_goes_on(playbook: Any, address: str) -> None:
    def kept() -> bool:
        return inside("mol-fleet-a", "ls /var/lib/gaudi-serve/rollout/record.json") != ""

    def restarts() -> bool:
        return "24" in inside("mol-fleet-a", "grep -A1 max-num-seqs /etc/gaudi-serve/large.json")

    def proven() -> bool:
        return sequences("mol-fleet-a") == "24" and not kept()

    first: list[Callable[[], bool]] = [lambda: drained("mol-fleet-a"), kept]
    moments = [*first, restarts, lambda: proving("mol-fleet-a"), proven, lambda: drained("mol-fleet-b")]
    with Load(address, 10) as load:
        for moment in moments:
            playbook(ROLLOUT, until=moment, mol_seqs=24, **APPROVED)
        run = playbook(ROLLOUT, mol_seqs=24, **APPROVED)
        time.sleep(2)
    assert run.status == 0, run.text
    assert load.failed == []
    for name in HOSTS:
        assert (sequences(name), drained(name)) == ("24", False)
        assert inside(name, "ls -A /var/lib/gaudi-serve/rollout") == ""
    assert playbook(ROLLOUT, mol_seqs=24).changed_nothing


@GATEWAY
def test_a_whole_rollout_is_not_noticed(playbook: Any, address: str) -> None:
    for name in HOSTS:
        inside(name, "docker tag $(docker inspect --format '{{.Image}}' vllm-large) gaudi-serve/vllm-standin:next")
    boots = {name: inside(name, "cat /proc/sys/kernel/random/boot_id") for name in HOSTS}
    requested = {"mol_image": "gaudi-serve/vllm-standin:next", "mol_seqs": 24, "mol_port": 30011}
    # Never the same one: hosts may have been through this before.
    argument = f"fleet.round={int(time.time())}"
    kernel: dict[str, Any] = {"mol_stages": ["host_tuning", *STAGES], "host_tuning_reboot_allowed": True}
    kernel["host_tuning_kernel_args"] = [argument]
    check = playbook(ROLLOUT, "--check", "--diff", **requested, **kernel)
    assert check.status == 0, check.text
    assert "3 hosts in 3 waves" in check.text and "1 canary mol-fleet-a host, models" in check.flat
    assert "Qwen/QwQ-32B 2/3, small 2/3" in check.flat
    with Load(address) as load:
        time.sleep(2)
        run = playbook(ROLLOUT, **requested, **kernel, **APPROVED)
        time.sleep(2)
    assert run.status == 0, run.text
    assert load.failed == []
    assert load.done > 200
    for name in HOSTS:
        assert sequences(name) == "24"
        assert inside(name, "cat /proc/sys/kernel/random/boot_id") != boots[name]
        assert argument in inside(name, "cat /proc/cmdline")
        assert inside(name, "cat /proc/sys/kernel/numa_balancing /proc/sys/vm/nr_hugepages").split() == ["0", "64"]
        assert not drained(name)
    again = playbook(ROLLOUT, **requested, **kernel)
    assert again.changed_nothing, again.text
    assert "no host has pending changes" in again.text
