"""Values of this machine's kernel that test hosts change, since they share it."""

from __future__ import annotations

import json
from pathlib import Path

from .common import LABEL, HostError, cache, run, say

VALUES = ("kernel/numa_balancing", "vm/nr_hugepages", "fs/inotify/max_user_instances")
INOTIFY_MANY = 4096


def saved() -> Path:
    """Return the file that keeps the old values."""
    return cache() / "kernel.json"


def save() -> None:
    """Keep the values as they are now; values kept before are older, and stay."""
    if saved().exists():
        say("kernel values: kept before")
        return
    values = {}
    for name in VALUES:
        path = Path("/proc/sys", name)
        if path.exists():
            values[name] = path.read_text(encoding="ascii").strip()
    beside = saved().with_suffix(".new")
    beside.write_text(json.dumps(values, indent=1) + "\n", encoding="ascii")
    beside.replace(saved())
    say("kernel values: saved")


def write(name: str, value: str) -> bool:
    """Write one value; return whether it differed."""
    path = Path("/proc/sys", name)
    if path.read_text(encoding="ascii").strip() == value:
        return False
    try:
        path.write_text(value + "\n", encoding="ascii")
    except OSError as problem:
        raise HostError(f"{name.replace('/', '.')} cannot be set to {value}: {problem.strerror}") from problem
    return True


def raise_inotify() -> None:
    """Let more than about 20 systemd hosts run at once."""
    save()
    now = int(Path("/proc/sys", VALUES[2]).read_text(encoding="ascii"))
    changed = now < INOTIFY_MANY and write(VALUES[2], str(INOTIFY_MANY))
    say(f"kernel values: inotify {'raised' if changed else 'enough'}")


def hosts_left() -> list[str]:
    """Return the names of the test hosts that exist."""
    return run("docker", "ps", "--all", "--filter", f"label={LABEL}", "--format", "{{.Names}}").split()


def restore(if_unused: bool = False) -> None:
    """Write the old values back and forget them."""
    if not saved().exists():
        say("kernel values: nothing kept")
        return
    left = hosts_left() if if_unused else []
    if left:
        say(f"kernel values: kept, {', '.join(left)} still there")
        return
    for name, value in json.loads(saved().read_text(encoding="ascii")).items():
        write(name, value)
    saved().unlink()
    say("kernel values: restored")
