"""Arguments, values and models of a machine that is restarted. The tests build on each other, as do the cuts."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from helpers.boots import OWN, TUNED, answer, cmdline, menu, values
from helpers.cuts import STAGES, cut_off, untuned
from helpers.machine import MODEL, PAGES, Machine
from runs import eventually

REBOOTS: dict[str, Any] = {"host_tuning_reboot_allowed": True}
# What serves after a boot is shown on hosts that are not emulated, and here in the long tests.
# A host without models is prepared by a run that names its stages.
BARE: dict[str, Any] = {
    **REBOOTS,
    "vllm_models": [],
    "vllm_images": [],
    "gaudi_stages": ["host_tuning", "container_runtime"],
}


def boots(machine: Machine) -> int:
    """Return how often a kernel has started."""
    return machine.said().count("Linux version ")


def started(machine: Machine) -> str:
    """Return when the model's container was started."""
    return machine.root(f"docker inspect --format '{{{{.State.StartedAt}}}}' vllm-{MODEL}")


def test_a_machine_that_was_never_tuned_balances_and_has_no_pages(machine: Machine) -> None:
    assert values(machine) == ["1", "0"]
    for words in (cmdline(machine), menu(machine)):
        assert not set(TUNED) & set(words)


@pytest.mark.long
def test_a_reboot_that_is_not_allowed_is_only_reported(machine: Machine) -> None:
    boot = machine.boot_id()
    run = machine.play("playbooks/host.yml")
    assert run.status == 0, run.text
    assert "the running kernel lacks intel_idle.max_cstate=0" in run.flat
    assert machine.boot_id() == boot
    assert values(machine) == ["0", str(PAGES)]
    assert not set(TUNED) & set(cmdline(machine))
    # The tests that follow begin with a machine that was never tuned.
    untuned(machine)


def untouched(machine: Machine) -> None:
    """The machine has been started by the menu that it had, whole, with nothing of the toolkit's."""
    for words in (cmdline(machine), menu(machine)):
        assert not set(TUNED) & set(words)
        assert [word for word in words if word in OWN] == OWN


def arguments_in_force(machine: Machine) -> None:
    """The machine has been started with the arguments, each once, beside its owner's, and has the values."""
    for words in (cmdline(machine), menu(machine)):
        assert [word for word in words if word.partition("=")[0] in {arg.partition("=")[0] for arg in TUNED}] == TUNED
        assert [word for word in words if word in OWN] == OWN
        assert "lost.on.purpose=1" not in words  # the cloud image's doing, not the toolkit's
    assert machine.root("find /boot/grub -name 'grub.cfg.new'") == ""
    assert values(machine) == ["0", str(PAGES)]


def test_a_run_restarts_the_machine_and_the_next_changes_nothing(machine: Machine) -> None:
    # Only what a boot itself sets shall count.
    machine.root("sysctl -q kernel.numa_balancing=1")
    before = boots(machine)
    run = machine.play("playbooks/host.yml", **REBOOTS)
    assert run.status == 0, run.text
    # The boot has set the values: no task did after it.
    assert "Sysctl | Load the file" not in run.text.partition("Reboot | Reboot the host")[2]
    assert boots(machine) == before + 1
    arguments_in_force(machine)
    run = machine.play("playbooks/host.yml", **REBOOTS)
    assert run.changed_nothing, run.text
    assert boots(machine) == before + 1


@pytest.mark.long
def test_a_power_cut_in_update_grub_leaves_the_menu_that_was_there(machine: Machine) -> None:
    stage = dataclasses.replace(STAGES["update-grub"], playbook="site.yml", extra=BARE)
    # Untuned again, after the tests before it: the cut is the boot that counts.
    stage.prepare(machine)
    cut_off(machine, stage, "power")
    untouched(machine)


@pytest.mark.long
def test_the_next_run_restarts_the_machine_and_is_completed_although_the_power_is_cut_in_apt(machine: Machine) -> None:
    # Only what a boot itself sets shall count.
    machine.root("sysctl -q kernel.numa_balancing=1")
    stage = dataclasses.replace(STAGES["apt-configure"], playbook="site.yml", extra=BARE)
    stage.prepare(machine)
    before = boots(machine)
    text = cut_off(machine, stage, "power")
    assert "Reboot the host" in text
    assert boots(machine) == before + 2  # one by the run, one by the cut
    # The boot has set the values: no task did after it.
    assert "Sysctl | Load the file" not in text.partition("Reboot | Reboot the host")[2]
    arguments_in_force(machine)
    run = machine.play(stage.playbook, **stage.extra)
    assert run.status == 0, run.text
    stage.holds(machine)


@pytest.mark.long
def test_second_run_of_everything_changes_nothing_and_does_not_reboot(machine: Machine) -> None:
    boot = machine.boot_id()
    run = machine.play("site.yml", **BARE)
    assert run.changed_nothing, run.text
    assert machine.boot_id() == boot


@pytest.mark.long
def test_a_model_serves_and_a_second_run_leaves_it_alone(machine: Machine) -> None:
    machine.put_model()
    run = machine.play("site.yml", **REBOOTS)
    assert run.status == 0, run.text
    assert "Paris" in answer(machine)
    before = started(machine)
    run = machine.play("site.yml", **REBOOTS)
    assert run.changed_nothing, run.text
    assert started(machine) == before


@pytest.mark.long
def test_a_clock_that_jumps_stops_nothing(machine: Machine) -> None:
    before = started(machine)
    for jump in ("+2 days", "-4 days", "+2 days"):
        machine.root(f"date -s '{jump}'")
        assert "Paris" in answer(machine)
    # Also while the server is silent: by the clock it would have been so for days, and be started again.
    told = f"systemctl show vllm-{MODEL}.service --property=StatusText --value"
    machine.root(f"docker pause vllm-{MODEL}")
    assert eventually(lambda: "has not answered" in machine.root(told), 90, 1)
    machine.root("date -s '+2 days'")
    before_jump = machine.root(told)
    assert eventually(lambda: machine.root(told) != before_jump, 90, 1)
    machine.root(f"docker unpause vllm-{MODEL}; date -s '-2 days'")
    assert "Paris" in answer(machine)
    machine.root("date -s '-4 days'")
    run = machine.play("site.yml")
    assert run.changed_nothing, run.text
    machine.root("date -s '+4 days'")
    assert machine.root(f"systemctl is-active vllm-{MODEL}.service") == "active"
    assert started(machine) == before
