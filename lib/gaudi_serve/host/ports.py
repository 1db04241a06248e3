#!/usr/bin/python3
"""The ports of Gaudi cards that lead to other hosts: finds them and sets them up.

The driver leaves the ports down after a boot. Unit gaudi-ports runs this file on the host, so it imports nothing of the
toolkit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SETTINGS = "/etc/gaudi-serve/ports.json"
# The driver's interfaces; udev may rename them.
INTERFACES = "sys/bus/pci/drivers/habanalabs*/*:*/net/*"
# The cards appear one after the other.
STEADY_S, WAIT_S = 3, 120


def interfaces(root: str = "/") -> dict[tuple[int, int], str]:
    """Return ``{(module_id, port): interface}`` of the ports that lead to other hosts."""
    cards = {}
    for path in Path(root).glob("sys/class/accel/accel*/device/pci_addr"):
        number = _text(path.parent / "module_id")
        if number.isdecimal():
            cards[_text(path).lower()] = int(number)
    found = {}
    for path in sorted(Path(root).glob(INTERFACES)):
        module_id, port = cards.get(path.parent.parent.name.lower()), _text(path / "dev_port")
        if module_id is not None and port.isdecimal():
            found[(module_id, int(port))] = path.name
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def commands(settings: Mapping[str, Any], here: Mapping[tuple[int, int], str]) -> list[list[str]]:
    """Return the commands that set ports up.

    Args:
        settings: ``mtu`` in bytes (0 leaves it), ``addresses``: ``{"<module_id>/<port>": "<address>/<prefix>"}``, and
            ``former``: addresses of earlier settings to remove, by port.
        here: as interfaces returns them.
    """
    found = _deletions(settings.get("former", {}), here)
    for (module_id, port), interface in sorted(here.items()):
        mtu = ["mtu", str(settings["mtu"])] if settings.get("mtu") else []
        found.append(["ip", "link", "set", "dev", interface, *mtu, "up"])
        if address := settings.get("addresses", {}).get(f"{module_id}/{port}"):
            found.append(["ip", "address", "replace", address, "dev", interface])
    return found


def removals(settings: Mapping[str, Any], here: Mapping[tuple[int, int], str]) -> list[list[str]]:
    """Return the commands that remove the addresses of settings; the ports stay up."""
    known = {name: [address] for name, address in settings.get("addresses", {}).items()}
    return _deletions(known, here) + _deletions(settings.get("former", {}), here)


def _deletions(addresses: Mapping[str, list[str]], here: Mapping[tuple[int, int], str]) -> list[list[str]]:
    return [
        ["ip", "address", "delete", address, "dev", interface]
        for (module_id, port), interface in sorted(here.items())
        for address in addresses.get(f"{module_id}/{port}", [])
    ]


def settled(settings: Mapping[str, Any], root: str = "/", wait_s: float = WAIT_S) -> dict[tuple[int, int], str]:
    """Return the ports as soon as all in the settings exist and no more appear, or after ``wait_s`` seconds."""
    end, steady = time.monotonic() + wait_s, time.monotonic()
    found = interfaces(root)
    wanted = {tuple(map(int, name.split("/"))) for name in settings.get("addresses", {})}
    while time.monotonic() < end:
        if found and wanted <= set(found) and time.monotonic() - steady >= min(STEADY_S, wait_s):
            break
        time.sleep(min(0.5, wait_s))
        again = interfaces(root)
        if again != found:
            found, steady = again, time.monotonic()
    return found


def main(argv: list[str]) -> int:
    """Set the ports up, or remove their addresses (``down``); return 1 if a command failed."""
    settings = json.loads(Path(SETTINGS).read_text(encoding="utf-8"))
    down = argv[1:] == ["down"]
    here = interfaces() if down else settled(settings)
    failed = 0
    for command in removals(settings, here) if down else commands(settings, here):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        # An address to remove may be missing already.
        if done.returncode and "delete" not in command:
            print(f"{' '.join(command)}: {done.stderr.strip()}", file=sys.stderr)
            failed = 1
    print(f"{len(here)} ports {'without addresses' if down else 'up'}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv))
