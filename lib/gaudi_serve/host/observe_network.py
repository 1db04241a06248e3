"""The network between the devices of several hosts: Gaudi's own ports, network cards with RDMA, their neighbors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.paths import UNITS
from ..core.run import read_text, run, sha256_text
from .dpkg import packages
from .ports import SETTINGS, interfaces

VERBS = "sys/class/infiniband"
# Devices of Gaudi's own driver, new and old.
OWN = ("hbl_", "hlib_")
PROGRAM, UNIT = "/usr/local/lib/gaudi-serve/gaudi-ports", "gaudi-ports.service"
RULE = "/etc/udev/rules.d/90-gaudi-serve-ports.rules"
GAUDINET = "/etc/habanalabs/gaudinet.json"
# The file that the host had there before the toolkit.
BEFORE = f"{GAUDINET}.before-gaudi-serve"
FILES = (SETTINGS, PROGRAM, f"{UNITS}/{UNIT}", RULE, GAUDINET, BEFORE)
PACKAGES = ("rdma-core", "lldpd")
BRIDGE = "0x0604"
# PCI Express: the extended capability of access control, its control register, and the bits with which a bridge
# redirects traffic between two devices below it to the processor: request redirect and completion redirect.
ACS, CONTROL, REDIRECTS = 0x000D, 6, 0x0004 | 0x0008


def observe(root: str = "/") -> dict[str, Any]:
    """Return ``gaudi_network``.

    ``ports``: each port of a Gaudi card that leads to other hosts, with module_id, port, interface, mac, up, carrier,
    mtu (bytes), speed (Mbit/s; 0 if unknown), addresses (with prefix), and neighbors: the other ends according to LLDP,
    as lldp returns them. ``nics``: each RDMA device of a network card, with device, interfaces, active, gbit_s, and
    link_layer. ``redirects``: PCI bridges that redirect traffic between devices to the processor, if there are network
    cards. ``files``: SHA-256 of the role's files, None for a missing one. ``gaudinet``: the text of HCCL's file,
    ``before``: of the file that the host had there before. ``settings``: the last settings of the ports; None if the
    role has set none. ``enabled``: the ports are set up at boot. ``packages``: the installed ones of those that the
    role needs.
    """
    files = {path: read_text(Path(root, path.lstrip("/"))) for path in FILES}
    here, nics = interfaces(root), verbs(root)
    enabled = (
        files[f"{UNITS}/{UNIT}"] is not None
        and Path(root, f"etc/systemd/system/multi-user.target.wants/{UNIT}").is_symlink()
    )
    involved = here or nics or any(files.values())
    return {
        "ports": _ports(here, root) if here else [],
        "nics": nics,
        "redirects": redirects(root) if nics else [],
        "files": {path: None if text is None else sha256_text(text) for path, text in files.items()},
        **{"gaudinet": files[GAUDINET], "before": files[BEFORE], "settings": _settings(files[SETTINGS])},
        "enabled": enabled,
        "packages": sorted(one.name for one in packages(*PACKAGES) if one.state == "installed") if involved else [],
    }


def _settings(text: str | None) -> dict[str, Any] | None:
    """Return the last settings of the ports; empty if the text is invalid."""
    try:
        found = None if text is None else json.loads(text)
    except ValueError:
        return {}
    return found if found is None or isinstance(found, dict) else {}


def verbs_names(root: str = "/") -> list[str]:
    """Return the names of the RDMA devices of network cards."""
    return [path.name for path in sorted(Path(root, VERBS).glob("*")) if not path.name.startswith(OWN)]


def verbs(root: str = "/") -> list[dict[str, Any]]:
    """Return the RDMA devices of network cards, in the form of observe."""
    found = []
    for name in verbs_names(root):
        port = Path(root, VERBS, name, "ports/1")
        rate = re.match(r"\s*([\d.]+)", read_text(port / "rate") or "")
        found.append(
            {
                "device": name,
                "interfaces": sorted(path.name for path in Path(root, VERBS, name, "device/net").glob("*")),
                "active": "ACTIVE" in (read_text(port / "state") or "").split(":")[-1],
                "gbit_s": float(rate[1]) if rate else 0.0,
                "link_layer": (read_text(port / "link_layer") or "").strip(),
            }
        )
    return found


def _ports(here: Mapping[tuple[int, int], str], root: str) -> list[dict[str, Any]]:
    links = {one.get("ifname"): one for one in _json(["ip", "-j", "address"])}
    neighbors = lldp(run(["lldpctl", "-f", "json"]).out)
    found = []
    for (module_id, port), interface in sorted(here.items()):
        link = links.get(interface) or {}
        flags = link.get("flags") or []
        found.append(
            {
                **{"module_id": module_id, "port": port, "interface": interface, "mac": link.get("address") or ""},
                **{"up": "UP" in flags, "carrier": "LOWER_UP" in flags, "mtu": int(link.get("mtu") or 0)},
                "speed": _speed(interface, root),
                "addresses": [
                    f"{one['local']}/{one['prefixlen']}"
                    for one in link.get("addr_info") or []
                    if one.get("family") == "inet"
                ],
                "neighbors": neighbors.get(interface, []),
            }
        )
    return found


def _speed(interface: str, root: str) -> int:
    for path in Path(root).glob(f"sys/bus/pci/drivers/habanalabs*/*:*/net/{interface}/speed"):
        text = (read_text(path) or "").strip()
        return int(text) if text.isdecimal() else 0
    return 0


def _json(argv: list[str]) -> list[dict[str, Any]]:
    try:
        found = json.loads(run(argv).out)
    except ValueError:
        return []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def lldp(text: str) -> dict[str, list[dict[str, list[str]]]]:
    """Return the neighbors of each interface from the output of ``lldpctl -f json``: their ``names`` and ``ports``.

    A single interface is a mapping there, several are a list of mappings, and an interface with several neighbors is in
    the list for each: an old entry that has not expired, another protocol, or a switch that forwards LLDP. The name of
    a switch is the key of its chassis; the ID of the chassis names it too. SONiC sends the alias of a port as its ID,
    and the port's name as its description, or the reverse; so both are names of the port.
    """
    try:
        listed = json.loads(text or "{}").get("lldp", {}).get("interface", [])
    except (ValueError, AttributeError):
        return {}
    found: dict[str, list[dict[str, list[str]]]] = {}
    for entry in listed if isinstance(listed, list) else [listed]:
        for interface, about in entry.items() if isinstance(entry, dict) else ():
            if isinstance(about, dict):
                one = {"names": _chassis(about.get("chassis")), "ports": _port(about.get("port"))}
                known = found.setdefault(interface, [])
                known += [] if one in known else [one]
    return found


def _chassis(chassis: Any) -> list[str]:
    if not isinstance(chassis, dict) or not chassis:
        return []
    own = chassis.get("id")
    if isinstance(own, dict) and "value" in own:
        return [str(own["value"])]
    name, about = next(iter(chassis.items()))
    return [name, *(_chassis({"id": about.get("id")}) if isinstance(about, dict) and about.get("id") else [])]


def _port(port: Any) -> list[str]:
    known = port if isinstance(port, dict) else {}
    own = known.get("id")
    texts = [own.get("value") if isinstance(own, dict) else None, known.get("descr")]
    return list(dict.fromkeys(text for text in texts if isinstance(text, str) and text))


def redirects(root: str = "/") -> list[str]:
    """Return the PCI bridges whose access control redirects traffic between devices to the processor."""
    found = []
    for path in sorted(Path(root, "sys/bus/pci/devices").glob("*")):
        if (read_text(path / "class") or "").startswith(BRIDGE):
            try:
                config = (path / "config").read_bytes()
            except OSError:
                continue
            if _acs_control(config) & REDIRECTS:
                found.append(path.name)
    return found


def _acs_control(config: bytes) -> int:
    """Return the control register of access control in a configuration space; 0 without this capability."""
    place, seen = 0x100, set()
    while 0x100 <= place <= len(config) - 8 and place not in seen:
        seen.add(place)
        header = int.from_bytes(config[place : place + 4], "little")
        if header & 0xFFFF == ACS:
            return int.from_bytes(config[place + CONTROL : place + CONTROL + 2], "little")
        place = header >> 20
    return 0
