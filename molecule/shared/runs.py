"""What tests of scenarios and of the virtual machine share: the result of a run, and patience."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

BUSY = 3  # how many times slower than alone a test may be beside others


class Run(NamedTuple):
    """What an ansible-playbook run gave."""

    status: int
    text: str

    @property
    def flat(self) -> str:
        """Return the text as one line, since Ansible folds long messages."""
        return " ".join(self.text.split())

    @property
    def changed_nothing(self) -> bool:
        """Return whether the run succeeded without a change on any host."""
        recap = re.findall(r"changed=(\d+) .*?failed=(\d+)", self.text.rpartition("PLAY RECAP")[2])
        return self.status == 0 and bool(recap) and set(recap) == {("0", "0")}


def host_name(host: Any) -> str:
    """Return the inventory's name of a host of testinfra."""
    name: str = host.backend.get_pytest_id().rpartition("/")[2]
    return name


def eventually(condition: Callable[[], bool], seconds: float = 60, pause: float = 1) -> bool:
    """Look again and again until the condition holds or the time is over.

    Args:
        condition: What to wait for.
        seconds: The time that it takes on a quiet machine, at most. Beside others it takes up to ``BUSY`` times that.
        pause: Seconds between two looks.
    """
    deadline = time.monotonic() + seconds * BUSY
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def beyond_loopback(host: Any, model: str) -> list[str]:
    """Return the sockets of a model's container that listen on another address than loopback, as address:port."""
    listing = host.check_output(
        f'for pid in $(docker top vllm-{model} -eo pid | tail -n +2); do ss -Hltnp | grep "pid=$pid,"; done; true'
    )
    found = {line.split()[3] for line in listing.splitlines()}
    assert found, f"nothing of {model} listens"
    return sorted(one for one in found if not one.startswith(("127.", "[::1]")))


def reboot(host: Any) -> None:
    """Restart a host, and come back when its new systemd answers: it has its boot id a while before that."""
    boot_id = "cat /proc/sys/kernel/random/boot_id"
    before = host.check_output(boot_id)
    host.run("systemctl reboot")
    assert eventually(lambda: host.run(boot_id).stdout.strip() not in ("", before), 60)
    assert eventually(lambda: host.run("systemctl show --property=Version").rc == 0, 60)


def tear(host: Any, package: str, want: str) -> None:
    """Make a package one whose files are half there, as a power cut leaves it while dpkg unpacks or removes it."""
    status = f"Status: {want} reinstreq half-installed"
    host.check_output(f"sed -i '/^Package: {package}$/,/^$/s/^Status: .*/{status}/' /var/lib/dpkg/status")
    assert package in host.check_output("dpkg --audit")
