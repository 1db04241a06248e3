"""The state of a virtual machine after a boot."""

from __future__ import annotations

import json

from helpers.machine import MODEL, PORT, Machine
from runs import eventually

TUNED = ["cpufreq.default_governor=performance", "intel_idle.max_cstate=0"]
# From the distribution, a cloud image's drop-in and the site; tuning replaces the drop-in's max_cstate.
OWN = ["net.ifnames=0", "console=tty0", "console=ttyS0", "panic=30", "mitigations=off"]
SERVING_S = 900


def cmdline(machine: Machine) -> list[str]:
    """Return the arguments of the running kernel."""
    return machine.ssh("cat /proc/cmdline").stdout.split()


def values(machine: Machine) -> list[str]:
    """Return the live values of NUMA balancing and hugepages."""
    return machine.ssh("cat /proc/sys/kernel/numa_balancing /proc/sys/vm/nr_hugepages").stdout.split()


def menu(machine: Machine) -> list[str]:
    """Return the kernel arguments of GRUB's first entry, after checking that the menu is complete."""
    machine.root("grub-script-check /boot/grub/grub.cfg")
    line = machine.root("grep -m1 vmlinuz /boot/grub/grub.cfg")
    return line.split()[2:]


def answer(machine: Machine) -> str:
    """Return the model's answer to a question."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "List 3 countries and their capitals."}]}
    url = f"http://127.0.0.1:{PORT}/v1/chat/completions"
    command = f"curl -sS -m 60 -H 'Content-Type: application/json' -d '{json.dumps(body)}' {url}"
    found = json.loads(machine.ssh(command).stdout)
    return str(found["choices"][0]["message"]["content"])


def back(machine: Machine) -> None:
    """Assert that the engine and the model have started since the boot, and that the model answers."""
    unit = f"vllm-{MODEL}.service"
    assert machine.root("systemctl is-active docker.service") == "active"
    booted = machine.root("uptime -s")
    if not eventually(lambda: machine.ssh(f"systemctl is-active -q {unit}", check=False).returncode == 0, SERVING_S, 2):
        raise AssertionError(machine.root(f"journalctl -u {unit} -n 40 -o cat --no-pager"))
    assert machine.root(f"date -d $(docker inspect --format '{{{{.State.StartedAt}}}}' vllm-{MODEL}) '+%F %T'") > booted
    assert "Paris" in answer(machine)
