"""Runs that are cut off anywhere: the next one completes, and the one after that changes nothing."""

from __future__ import annotations

import dataclasses

import pytest
from helpers.boots import OWN, TUNED, back, cmdline, menu, values
from helpers.cuts import STAGES, completes, converges, cut_off, slow_grub
from helpers.machine import Machine

UNTUNED = {"host_tuning_kernel_args": [], "host_tuning_hugepages": 0, "host_tuning_reboot_allowed": True}


def taken_back(machine: Machine) -> None:
    """The machine has been restarted with its owner's arguments and values alone, and serves."""
    for words in (cmdline(machine), menu(machine)):
        assert not set(TUNED) & set(words)
        assert [word for word in words if word in OWN] == OWN
        assert "intel_idle.max_cstate=9" in words
    assert machine.root("find /boot/grub -name 'grub.cfg.new'") == ""
    assert values(machine) == ["0", "0"]
    back(machine)


@pytest.mark.long
def test_a_variable_changed_back_is_taken_back_although_the_power_is_cut(machine: Machine) -> None:
    stage = dataclasses.replace(STAGES["update-grub"], holds=taken_back, extra=UNTUNED)
    slow_grub(machine)
    cut_off(machine, stage, "power")
    # The menu that the machine had, whole: it is this one's boot.
    for words in (cmdline(machine), menu(machine)):
        assert set(TUNED) <= set(words)
    completes(machine, stage)


@pytest.mark.long
@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, stage in STAGES.items() for kind in stage.kinds])
def test_a_run_is_cut_off_and_the_next_completes(machine: Machine, name: str, kind: str) -> None:
    converges(machine, name, kind)
