"""Interrupts a run at any point: the next run completes it, and the one after that changes nothing.

A run is interrupted in three ways: its process is killed, its connection is cut, or the machine loses its power.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

from helpers.machine import MODEL, PAGES, PROJECT, WEIGHTS, Machine
from runs import eventually

EVERY = ("run", "line", "power")
REACH_S = 3600
SYSCTL, DAEMON, DROPIN = "/etc/sysctl.d/zz-gaudi-serve.conf", "/etc/docker/daemon.json", "zz-gaudi-serve.cfg"
OWNERS = {"log-driver": "json-file", "log-opts": {"max-size": "11m"}}
# Makes a slow step of real servers, such as a search for other systems or a slow start, slow here too, and reports it.
SLOW = """#!/bin/sh
if [ -e /run/slow ]; then rm /run/slow; echo "stage: $(basename $0)" >/dev/ttyS0; sleep 90; fi
"""
TELL = '#!/bin/sh\nwhile read -r line; do echo "dpkg: $line" >/dev/ttyS0; done\n'


@dataclasses.dataclass(frozen=True)
class Stage:
    """One place at which to interrupt a run.

    ``at`` is the console output at that place (a pattern), or ``begin`` or ``end`` and a task; ``then`` is a command on
    the machine that must succeed afterwards. ``prepare`` makes the step necessary. ``outlives``: the run polls a long
    task, and finds it again after the connection is back. ``kinds`` are the ways in which it is interrupted: each stage
    by a power cut, which alone loses what is not yet on the disk. Those that leave a process on the machine, which goes
    on beside the next run, also in the other ways.
    """

    playbook: str
    at: str
    prepare: Callable[[Machine], None]
    holds: Callable[[Machine], None]
    then: str = ""
    outlives: bool = False
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    kinds: tuple[str, ...] = ("power",)


def untuned(machine: Machine) -> None:
    """Remove all tuning from the machine."""
    machine.root(f"rm -f {SYSCTL} /etc/default/grub.d/{DROPIN}; update-grub 2>&1")
    machine.root("sysctl -qw vm.nr_hugepages=0 kernel.numa_balancing=1; sync")


def slow_grub(machine: Machine) -> None:
    """Make the next update-grub slow."""
    machine.write("/etc/grub.d/09_slow", SLOW, "0755")
    machine.root("touch /run/slow; sync")


def slow_untuned(machine: Machine) -> None:
    """Remove all tuning from the machine, and make the next update-grub slow."""
    untuned(machine)
    slow_grub(machine)


def tuned(machine: Machine) -> None:
    """Assert that the menu is complete with the arguments, and that the values are live and persistent."""
    machine.root("grub-script-check /boot/grub/grub.cfg")
    lines = machine.root("grep -E 'linux\\s+/boot/vmlinuz' /boot/grub/grub.cfg").splitlines()
    normal = [line.split() for line in lines if " single" not in line]
    assert normal
    for words in normal:
        assert words.count("intel_idle.max_cstate=0") == 1
        assert "panic=30" in words
    assert machine.root("find /boot/grub -name 'grub.cfg.new'") == ""
    assert machine.root(f"cat {SYSCTL}").splitlines()[1:] == ["kernel.numa_balancing = 0", f"vm.nr_hugepages = {PAGES}"]
    assert machine.root("cat /proc/sys/vm/nr_hugepages") == str(PAGES)


def engineless(machine: Machine) -> None:
    """Remove the engine; make dpkg report to the console, and the start of the engine slow."""
    machine.write("/usr/local/sbin/tell", TELL, "0755")
    machine.write("/usr/sbin/policy-rc.d", SLOW, "0755")
    machine.root(
        "if dpkg -s docker.io >/dev/null 2>&1; then apt-get remove -qq -y docker.io apparmor >/dev/null 2>&1; fi; sync"
    )
    machine.write("/etc/dpkg/dpkg.cfg.d/tell", "status-logger=/usr/local/sbin/tell\n")
    machine.root("sync")


def slow_engineless(machine: Machine) -> None:
    """Remove the engine, and make the first start of a service slow."""
    engineless(machine)
    machine.root("touch /run/slow")


def engine_whole(machine: Machine) -> None:
    """Assert that no package is half installed, apt works, and the engine runs and starts at boot."""
    assert machine.root("dpkg --audit") == ""
    assert machine.root("ls /var/lib/dpkg/updates") == ""
    machine.root("apt-get check -qq; dpkg --verify docker.io apparmor")
    assert machine.root("systemctl is-enabled docker.service") == "enabled"
    assert machine.root("docker info --format '{{.LiveRestoreEnabled}}'") == "true"


def owners_engine(machine: Machine) -> None:
    """Run the engine with only its owner's settings."""
    if machine.ssh("command -v dockerd", check=False).returncode != 0:
        run = machine.play("playbooks/runtime.yml")
        assert run.status == 0, run.text
    machine.write(DAEMON, json.dumps(OWNERS))
    machine.root("systemctl reset-failed docker.service; systemctl restart docker.service; sync")


def merged(machine: Machine) -> None:
    """Assert that the file has the owner's settings, and that the running engine has the toolkit's."""
    assert json.loads(machine.root(f"cat {DAEMON}")) == {**OWNERS, "live-restore": True}
    assert machine.root("docker info --format '{{.LiveRestoreEnabled}}'") == "true"
    assert json.loads(machine.root(f"cat {DAEMON}.before-gaudi-serve")) == OWNERS


def serving(machine: Machine) -> None:
    """Run the model with another length than the desired one."""
    machine.put_model()
    for name in ("runtime", "models"):
        run = machine.play(f"playbooks/{name}.yml", vllm_models=[wish(machine, max_model_len=512)])
        assert run.status == 0, run.text
    machine.root("sync")


def wish(machine: Machine, **more: Any) -> dict[str, Any]:
    """Return the model of the inventory with other keys."""
    inventory = json.loads((machine.folder / "inventory.yml").read_text(encoding="utf-8"))
    return {**inventory["all"]["hosts"]["vm"]["vllm_models"][0], **more}


def served(machine: Machine) -> None:
    """Assert that the unit, its files and its container match the same model."""
    unit = f"vllm-{MODEL}.service"
    assert machine.root(f"systemctl is-active {unit}") == "active"
    assert machine.root(f"systemctl show {unit} --property=NeedDaemonReload --value") == "no"
    launch = json.loads(machine.root(f"cat /etc/gaudi-serve/{MODEL}.json"))
    label = machine.root(f"docker inspect --format '{{{{index .Config.Labels \"gaudi-serve.digest\"}}}}' vllm-{MODEL}")
    assert label == launch["digest"]
    assert "1024" in machine.root(f"docker inspect --format '{{{{.Args}}}}' vllm-{MODEL}").split()


def weightless(machine: Machine) -> None:
    """Create the source of a model of some size, and remove the desired folder."""
    machine.put_model()
    machine.root(
        f"rm -rf /srv/nfs {WEIGHTS}.partial /data/models/copy*; mkdir -p /srv/nfs; cp -r {WEIGHTS} /srv/nfs/copy;"
        "rm -r /srv/nfs/copy/card; head -c 400M /dev/urandom >/srv/nfs/copy/more.bin; sync"
    )


def fetched(machine: Machine) -> None:
    """Assert that the folder is complete, byte for byte, without leftovers."""
    machine.root("cd /srv/nfs/copy; for file in *; do cmp $file /data/models/copy/$file; done")
    assert machine.root("ls -d /data/models/copy*") == "/data/models/copy"


COPIED = {
    **{"name": "copy", "image": "{{ vllm_images[0].name }}", "weights": "/data/models/copy"},
    "source": {"kind": "path", "path": "/srv/nfs/copy"},
}
STAGES = {
    "update-grub": Stage("playbooks/host.yml", "stage: 09_slow", slow_untuned, tuned, kinds=EVERY),
    "sysctl": Stage("playbooks/host.yml", "end Sysctl | Write the file", untuned, tuned),
    # dpkg first reports and then writes, so after a cut only the written data exists.
    "apt-unpack": Stage(
        "playbooks/runtime.yml",
        r"dpkg: status: docker.io\S* half-installed",
        engineless,
        engine_whole,
        then="grep -qs half-installed /var/lib/dpkg/updates/*",
    ),
    # The engine is complete then, but not its required packages.
    "apt-configure": Stage("playbooks/runtime.yml", "dpkg: processing: configure: apparmor", engineless, engine_whole),
    "apt-start": Stage("playbooks/runtime.yml", "stage: policy-rc.d", slow_engineless, engine_whole, kinds=EVERY),
    "daemon.json": Stage("playbooks/runtime.yml", "end Configure | Write the files", owners_engine, merged),
    "unit": Stage("playbooks/models.yml", "end Apply | Write units, environments and launch files", serving, served),
    "start": Stage("playbooks/models.yml", "end Apply | Start units", serving, served),
    "weights": Stage(
        "playbooks/weights.yml",
        "begin Step | Run the step",
        weightless,
        fetched,
        then="test $(du -sm /data/models/copy.partial 2>/dev/null | cut -f1) -gt 40",
        outlives=True,
        extra={"vllm_models": [COPIED], "model_weights_parallel": 1},
        kinds=EVERY,
    ),
}


@contextlib.contextmanager
def held(machine: Machine, stage: Stage) -> Iterator[subprocess.Popen[bytes]]:
    """Start a run and yield it when it reaches its stage; at the end it is killed."""
    reached, go = machine.folder / "reached", machine.folder / "go"
    for path in (reached, go):
        path.unlink(missing_ok=True)
    of_task = stage.at.startswith(("begin ", "end "))
    environment = machine.environment(
        ANSIBLE_CALLBACK_PLUGINS=f"{PROJECT}/callback_plugins:{PROJECT}/tests/vm/callback",
        GAUDI_VM_STAGE=stage.at if of_task else "none",
        GAUDI_VM_REACHED=str(reached),
        GAUDI_VM_GO=str(go),
    )
    said = len(machine.said())
    argv = machine.play_argv(stage.playbook, **stage.extra)
    with (machine.folder / "cut.log").open("wb") as log:
        process = subprocess.Popen(
            argv,
            cwd=PROJECT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            there = reached.exists if of_task else lambda: re.search(stage.at, machine.said()[said:]) is not None
            eventually(lambda: there() or process.poll() is not None, REACH_S, 0.05)
            assert there(), (machine.folder / "cut.log").read_text(encoding="utf-8")
            if stage.then:
                go.touch()
                # Use a separate connection, because Ansible's is one of those that are killed.
                assert eventually(
                    lambda: machine.ssh(f"sudo sh -c '{stage.then}'", check=False).returncode == 0, REACH_S, 0.05
                )
            yield process
            go.touch()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def cut_off(machine: Machine, stage: Stage, kind: str) -> str:
    """Start a run, interrupt it at its stage, and return its output."""
    with held(machine, stage) as process:
        if kind == "run":
            os.killpg(process.pid, signal.SIGKILL)
        elif kind == "line" and stage.outlives:
            machine.close_connections()
            (machine.folder / "go").touch()
            assert process.wait(REACH_S) == 0, (machine.folder / "cut.log").read_text(encoding="utf-8")
        elif kind == "line":
            with machine.no_line():
                (machine.folder / "go").touch()
                assert process.wait(REACH_S) != 0, (machine.folder / "cut.log").read_text(encoding="utf-8")
        else:
            machine.cut()
    machine.close_connections()
    if kind == "power":
        machine.start()
    return (machine.folder / "cut.log").read_text(encoding="utf-8")


def completes(machine: Machine, stage: Stage) -> None:
    """Assert that the next run completes the work, and that the one after that changes nothing."""
    run = machine.play(stage.playbook, **stage.extra)
    assert run.status == 0, run.text
    stage.holds(machine)
    run = machine.play(stage.playbook, **stage.extra)
    assert run.changed_nothing, run.text


def converges(machine: Machine, name: str, kind: str) -> None:
    """Interrupt a run; assert that the next one completes, and that the one after that changes nothing."""
    stage = STAGES[name]
    stage.prepare(machine)
    begin = time.monotonic()
    cut_off(machine, stage, kind)
    print(f"{name}, {kind}: cut off and back after {time.monotonic() - begin:.0f} s")
    completes(machine, stage)
