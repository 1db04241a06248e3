"""The network between devices of several hosts: the ports of the cards, or network cards with RDMA."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import getsource
from ipaddress import IPv4Interface
from typing import Any

from ..core.checks import Rule, is_flag_text, is_line, is_true, list_of, matching, one_of
from ..core.errors import is_whole, near, one_line, readable, shown, unknown
from ..core.paths import UNITS
from ..core.run import sha256_text
from ..core.versions import comparable
from ..core.words import counted
from ..host import ports as program
from ..host.observe_network import BEFORE, GAUDINET, PROGRAM, RULE, UNIT
from ..host.permissions import mode_of
from ..host.ports import SETTINGS
from ..model.between import NEITHER, NICS, PORTS, Between, DesiredPort
from ..model.distributed import hosts_of
from ..model.host import live_models
from ..platforms import platform_of
from ..platforms.between import DIRECT_KERNEL
from .base import Given, Pending, Stage
from .reset import new_packages

Known = Mapping[str, Any]
ROLE = "accelerator_network"
UNIT_PATH = f"{UNITS}/{UNIT}"
MOST = 63  # of module_ids and ports
MAC = re.compile(r"([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}")
NO_PORTS = f"{ROLE}_between: 'ports': the driver shows no ports that lead to other hosts"
PREFIX = re.compile(r"/\d{1,2}$")
# What a port of the inventory is compared with, by key.
LLDP = {"neighbor": "names", "neighbor_port": "ports"}
PORT_KEYS = ("module_id", "port", "address", "gateway_mac", "neighbor", "neighbor_port")
UNIT_TEXT = """# Written by gaudi-serve; the next run overwrites changes made here.
[Unit]
Description=gaudi-serve: ports of Gaudi cards that lead to other hosts
StartLimitIntervalSec=0
X-Gaudi-Serve=accelerator_network

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 {program} up
TimeoutStartSec=300
CapabilityBoundingSet=CAP_NET_ADMIN
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes

[Install]
WantedBy=multi-user.target
"""
# After a driver is reloaded, its ports appear again and are down.
RULE_TEXT = (
    "# Written by gaudi-serve; the next run overwrites changes made here.\n"
    'ACTION=="add", SUBSYSTEM=="net", DRIVERS=="habanalabs*", TAG+="systemd", ENV{{SYSTEMD_WANTS}}+="{unit}"\n'
)


def _address(value: Any) -> bool:
    try:
        found = IPv4Interface(value)
    except ValueError:
        return False
    fits = found.network.prefixlen < 31 and found.ip not in (found.network[0], found.network[-1])
    return bool(PREFIX.search(str(value))) and (fits or found.network.prefixlen == 31)


def _port_problem(entry: Any) -> str:
    """Return the error in an entry of ``accelerator_network_ports``; empty if it is valid."""
    if not isinstance(entry, Mapping):
        return "must be a mapping of module_id, port and, with addresses, address and gateway_mac"
    if strange := [key for key in entry if key not in PORT_KEYS]:
        return f"{readable(strange[0])}: {unknown(strange[0], PORT_KEYS)}"
    for key in ("module_id", "port"):
        if not is_whole(entry.get(key), 0, MOST):
            return f"{key}: {shown(entry.get(key))}: must be an integer from 0 to {MOST}"
    for key in ("neighbor", "neighbor_port"):
        if not (entry.get(key) is None or is_line(entry[key])):
            return f"{key}: {shown(entry[key])}: must be a quoted text, as LLDP shows it"
    return _address_problem(entry)


def _address_problem(entry: Known) -> str:
    address, mac = entry.get("address"), entry.get("gateway_mac")
    if address and not _address(address):
        return f"address: {shown(address)}: must be an IPv4 address of a host with its prefix, such as 10.200.10.1/30"
    if mac and not (isinstance(mac, str) and MAC.fullmatch(mac)):
        return f"gateway_mac: {shown(mac)}: must be the quoted MAC of the switch's port, such as '0c:42:a1:00:00:01'"
    if bool(address) != bool(mac):
        missing = "gateway_mac" if address else "address"
        return f"{missing} is missing: HCCL needs both, or neither where all ports share one switch"
    return ""


FORMS = {
    f"{ROLE}_between": Rule(
        one_of("", PORTS, NICS), "must be ports (the cards' own), nics (network cards with RDMA), or '' for neither"
    ),
    f"{ROLE}_devices": Rule(
        list_of(matching(r"[A-Za-z][\w.-]{0,62}")), "must be a list of RDMA devices, such as [mlx5_0, mlx5_1]"
    ),
    # network_problems reports the error of each entry.
    f"{ROLE}_ports": Rule(lambda value: isinstance(value, list), "must be a list of ports (docs/guides/networks.md)"),
}


def between_of(known: Known) -> Between:
    """Return the rendered variables ``accelerator_network_*``; network_problems reports errors in them.

    If the ports are not a list of mappings with numbers, no port is read.
    """
    own = {key: known.get(f"{ROLE}_{key}") for key in ("between", "mtu", "ports", "devices", "direct")}
    ports, devices, mtu = own["ports"] or [], own["devices"] or [], str(own["mtu"] or 0)
    sound = isinstance(ports, list) and not any(map(_port_problem, ports))
    return Between(
        str(own["between"] or ""),
        int(mtu) if mtu.isdecimal() else 0,
        tuple(_desired(one) for one in ports) if sound else (),
        tuple(map(str, devices)) if isinstance(devices, list) else (),
        is_flag_text(own["direct"]) and is_true(own["direct"]),
    )


def _desired(entry: Known) -> DesiredPort:
    texts = {key: str(entry.get(key) or "") for key in ("address", "neighbor", "neighbor_port")}
    mac = str(entry.get("gateway_mac") or "").lower()
    return DesiredPort(int(entry["module_id"]), int(entry["port"]), gateway_mac=mac, **texts)


def network_problems(values: Known, host_name: str, hostvars: Known | None = None) -> list[str]:
    """Return the errors in a host's network variables that depend on each other or on other hosts.

    Args:
        values: rendered variables of the host.
        host_name: name of the host in messages.
        hostvars: raw variables of all hosts; an address must be unique among them.
    """
    listed = values.get(f"{ROLE}_ports") or []
    if not isinstance(listed, list):
        return []
    wrong = [f"{ROLE}_ports[{place}]: {text}" for place, one in enumerate(listed) if (text := _port_problem(one))]
    found = wrong or [*_misplaced(between_of(values), values), *_twice(between_of(values).ports)]
    return [
        one_line(f"{host_name}: {text}")
        for text in [*found, *([] if wrong else _elsewhere(listed, host_name, hostvars))]
    ]


def _misplaced(between: Between, values: Known) -> list[str]:
    """Return the variables that have no effect with the chosen kind of network."""
    mine = {PORTS: ("ports", "mtu"), NICS: ("devices", "direct")}.get(between.kind, ())
    kinds = {"ports": PORTS, "mtu": PORTS, "devices": NICS, "direct": NICS}
    said = {key: getattr(between, key) for key in kinds if f"{ROLE}_{key}" in values}
    return [
        f"{ROLE}_{key} {shown(values[f'{ROLE}_{key}'])}: has an effect only with {ROLE}_between: {kinds[key]}, "
        f"which is {shown(between.kind)} here; leave it out"
        for key, value in said.items()
        if value and key not in mine
    ]


def _twice(ports: Sequence[DesiredPort]) -> list[str]:
    found: list[str] = []
    names: set[str] = set()
    addresses: dict[str, str] = {}
    for one in ports:
        if one.name in names:
            found.append(f"{ROLE}_ports: {one.name} is listed twice")
        names.add(one.name)
        ip = one.address.partition("/")[0]
        if ip and ip in addresses:
            found.append(f"{ROLE}_ports: {one.name}: address {ip} is also the address of {addresses[ip]}")
        addresses[ip] = one.name
    with_address = [one.name for one in ports if one.address]
    if with_address and len(with_address) < len(ports):
        lacking = next(one.name for one in ports if not one.address)
        found.append(
            f"{ROLE}_ports: {lacking} has no address, and {with_address[0]} has one; give every port an address, "
            "or none"
        )
    return found


def _elsewhere(listed: Sequence[Any], host_name: str, hostvars: Known | None) -> list[str]:
    """Return the addresses that another host has too."""
    mine = {str(one.get("address")).partition("/")[0] for one in listed if one.get("address")}
    found = []
    for other in hostvars or () if mine else ():
        theirs = (hostvars or {})[other].get(f"{ROLE}_ports") if other != host_name else None
        for one in theirs if isinstance(theirs, list) else ():
            ip = str(one.get("address") or "").partition("/")[0] if isinstance(one, Mapping) else ""
            if ip in mine:
                found.append(f"{ROLE}_ports: address {ip} is also on {other}; an address belongs to one host")
    return found


@dataclass(frozen=True)
class Live:
    """The live state of a port; see host/observe_network.py."""

    module_id: int
    port: int
    interface: str
    mac: str
    up: bool
    carrier: bool
    mtu: int
    addresses: tuple[str, ...]
    neighbors: tuple[Known, ...]
    speed: int = 0

    @property
    def name(self) -> str:
        """Return the name of the port in messages."""
        return f"card {self.module_id} port {self.port} ({self.interface})"


def live_ports(network: Known) -> dict[tuple[int, int], Live]:
    """Return the ports of ``gaudi_network`` by card and port."""
    lists = ("addresses", "neighbors")
    found = [Live(**{**one, **{name: tuple(one[name]) for name in lists}}) for one in network["ports"]]
    return {(one.module_id, one.port): one for one in found}


def link_lines(
    between: Between, live: Mapping[tuple[int, int], Live], former: Mapping[str, Sequence[str]]
) -> tuple[list[str], list[str]]:
    """Return how the ports of a host differ from the inventory, a line each.

    Args:
        between: network settings of the inventory.
        live: live ports by card and port.
        former: addresses of earlier settings that are no longer wanted, by port.

    Returns:
        The lines of ports that are down, and the lines of changes to a port that may carry traffic.
    """
    wanted = {(one.module_id, one.port): one.address for one in between.ports}
    down: list[str] = []
    lines: list[str] = []
    for key, one in sorted(live.items()):
        down += [] if one.up else [f"{one.name} is down"]
        found = [f"MTU {one.mtu} -> {between.mtu}"] if between.mtu and one.mtu != between.mtu else []
        address = wanted.get(key, "")
        found += [f"address {address} is missing"] if address and address not in one.addresses else []
        gone = [text for text in former.get(f"{key[0]}/{key[1]}", ()) if text in one.addresses]
        found += [f"address {text} is no longer planned" for text in gone]
        (lines if one.up else down).extend(f"{one.name}: {text}" for text in found)
    return down, lines


def ports_down(known: Known) -> dict[str, list[int]]:
    """Return the ports that are down by card, except ports to other hosts, which the driver leaves down.

    Args:
        known: the facts of the host.
    """
    down, outside = (known.get("gaudi_driver") or {}).get("ports") or {}, _outside(known)
    return {card: [port for port in ports if (int(card), int(port)) not in outside] for card, ports in down.items()}


def _outside(known: Known) -> dict[tuple[int, int], Known]:
    """Return the ports that lead to other hosts, by card and port."""
    ports = (known.get("gaudi_network") or {}).get("ports") or ()
    return {(int(one["module_id"]), int(one["port"])): one for one in ports}


def port_warnings(known: Known) -> list[str]:
    """Return warnings about ports of a host's Gaudi cards without a link, a sentence a card.

    Ports to other cards are checked with hl-smi (``gaudi_driver``), except those of ``driver_ports_may_be_down``. Ports
    to other hosts are reported if ``accelerator_network_ports`` lists them and they are up without a carrier; a run
    sets ports up that are down.

    Args:
        known: the variables and facts of the host.
    """
    between, outside = between_of(known), _outside(known)
    may_be_down = {str(port) for port in known.get("driver_ports_may_be_down") or ()}
    inside = {
        int(card): dead
        for card, ports in sorted(ports_down(known).items(), key=lambda item: int(item[0]))
        if (dead := [str(port) for port in ports if str(port) not in may_be_down])
    }
    dark: dict[int, list[str]] = {}
    for one in between.ports if between.kind == PORTS else ():
        live = outside.get((one.module_id, one.port))
        if live and live["up"] and not live["carrier"]:
            dark.setdefault(one.module_id, []).append(str(one.port))
    return [
        *(f"card {card}: no link to other cards on {_numbers(dead)} (hl-smi -n link)" for card, dead in inside.items()),
        *(f"card {card}: no link to other hosts on {_numbers(dead)} ({ROLE}_ports)" for card, dead in dark.items()),
    ]


def _numbers(ports: Sequence[str]) -> str:
    return f"port{'s' * (len(ports) > 1)} {', '.join(ports)}"


def former_addresses(between: Between, settings: Known | None) -> dict[str, list[str]]:
    """Return the addresses of earlier settings that are no longer in the inventory, by port."""
    before, now = settings or {}, {f"{one.module_id}/{one.port}": one.address for one in between.ports}
    known: dict[str, set[str]] = {name: {*texts} for name, texts in (before.get("former") or {}).items()}
    for name, address in (before.get("addresses") or {}).items():
        known.setdefault(name, set()).add(address)
    left = {name: sorted(texts - {now.get(name, "")}) for name, texts in known.items()}
    return {name: texts for name, texts in sorted(left.items()) if texts}


def cabling(between: Between, live: Mapping[tuple[int, int], Live]) -> list[str]:
    """Return the ports whose cables do not match the inventory, a line each.

    A port matches if one of its neighbors has both the switch and the port.
    """
    lines = []
    for one in between.ports:
        here = live.get((one.module_id, one.port))
        wanted = {"neighbor": one.neighbor, "neighbor_port": one.neighbor_port}
        wanted = {what: text for what, text in wanted.items() if text}
        if not here or any(all(text in other[LLDP[what]] for what, text in wanted.items()) for other in here.neighbors):
            continue
        wrong = [what for what in wanted if not any(wanted[what] in other[LLDP[what]] for other in here.neighbors)]
        # Both are there, of different neighbors.
        for what in wrong or list(wanted)[-1:]:
            seen = " and ".join(_shown(other, what) for other in here.neighbors) or "nothing"
            lines.append(f"{here.name}: {what} must be {wanted[what]}, but LLDP shows {seen}")
    return lines


def _shown(neighbor: Known, what: str) -> str:
    """Return a neighbor as LLDP shows it: its name, or its port, with its other names."""
    names = neighbor[LLDP[what]][:1] if what == "neighbor" else neighbor[LLDP[what]]
    first, *others = names or ["nothing"]
    return f"{first} ({', '.join(others)})" if others else first


def gaudinet(between: Between, live: Mapping[tuple[int, int], Live]) -> str:
    """Return the text of gaudinet.json, from which HCCL reads addresses; empty if no port has an address."""
    entries = []
    for one in sorted(between.ports, key=lambda port: (port.module_id, port.port)):
        here = live.get((one.module_id, one.port))
        if one.address and here:
            address = IPv4Interface(one.address)
            entries.append(
                {
                    **{"NIC_MAC": here.mac, "NIC_IP": str(address.ip), "SUBNET_MASK": str(address.netmask)},
                    "GATEWAY_MAC": one.gateway_mac,
                }
            )
    return json.dumps({"NIC_NET_CONFIG": entries}, indent=2) + "\n" if entries else ""


def desired_files(network: Known, between: Between) -> dict[str, str]:
    """Return the text of each required file by its path, in the order of writing.

    A gaudinet.json that existed before the toolkit is saved next to it, and restored when no file is needed any more.
    The settings file marks gaudinet.json as the toolkit's; it is written last, so that an interrupted run loses
    nothing.
    """
    text = gaudinet(between, live_ports(network)) if between.kind == PORTS else ""
    ours, before = bool((network["settings"] or {}).get("gaudinet")), network["before"]
    found: dict[str, str] = {}
    if text:
        foreign = network["gaudinet"] if not ours and network["gaudinet"] != text else None
        kept = foreign if before is None else before
        found |= {} if kept is None else {BEFORE: kept}
        found[GAUDINET] = text
    elif ours and before is not None:
        found[GAUDINET] = before
    if between.kind != PORTS:
        return found
    addresses = {f"{one.module_id}/{one.port}": one.address for one in between.ports if one.address}
    settings = {"mtu": between.mtu, "addresses": addresses, "gaudinet": bool(text)}
    settings["former"] = former_addresses(between, network["settings"])
    return {
        **found,
        PROGRAM: getsource(program),
        UNIT_PATH: UNIT_TEXT.format(program=PROGRAM),
        RULE: RULE_TEXT.format(unit=UNIT),
        SETTINGS: json.dumps(settings, indent=2, sort_keys=True) + "\n",
    }


def network_refusal(known: Known, between: Between) -> list[str]:
    """Return why a host cannot have the network of its inventory; empty if it can."""
    platform = platform_of(known["gaudi_system"]["accelerator"])
    if between.kind == PORTS:
        if platform.name != "gaudi":
            return [f"{ROLE}_between: 'ports': {platform.title} hosts have no ports of their own; nics is for them"]
        return _unknown_ports(between, live_ports(known["gaudi_network"]))
    if between.kind == NICS:
        if not platform.over_nics(between, ["x"]):
            return [f"{ROLE}_between: 'nics': {platform.title} hosts have no devices that send over network cards"]
        return _of_nics(known["gaudi_network"], between, known["gaudi_system"])
    return []


def _unknown_ports(between: Between, live: Mapping[tuple[int, int], Live]) -> list[str]:
    """Return the inventory's ports that the host lacks, and the ports of the host that lack an address."""
    if not live:
        return []
    names = ", ".join(f"{card}/{port}" for card, port in sorted(live))
    found = [
        f"{ROLE}_ports: {one.name}: the host has no such port; it has (module_id/port) {names}"
        for one in between.ports
        if (one.module_id, one.port) not in live
    ]
    routed = [(one.module_id, one.port) for one in between.ports if one.address]
    lacking = [one.name for key, one in sorted(live.items()) if routed and key not in routed]
    if lacking and not found:
        found.append(
            f"{ROLE}_ports: {lacking[0]} has no address ({counted(len(lacking), 'port')} of {len(live)} lack one): "
            "with addresses, HCCL needs one for each port that leads to other hosts"
        )
    return found


def _of_nics(network: Known, between: Between, system: Known) -> list[str]:
    nics = {str(one["device"]): one for one in network["nics"]}
    if not nics and not between.devices:
        installed = "rdma-core" in network["packages"]
        why = "its kernel shows no RDMA device" if installed else "rdma-core is not installed yet"
        return [f"{ROLE}_between: 'nics': the host has no network card with RDMA: {why}"] if installed else []
    found = [
        f"{ROLE}_devices: {shown(name)}: the host has no such RDMA device; it has "
        f"{', '.join(nics) or 'none'}{near(name, nics, 1)}"
        for name in between.devices
        if name not in nics and nics
    ]
    used = [one for name, one in nics.items() if not between.devices or name in between.devices]
    if nics and used and not any(one["active"] for one in used):
        found.append(f"{ROLE}_between: 'nics': no port of {', '.join(str(one['device']) for one in used)} is active")
    found += [
        f"{ROLE}_devices: {one['device']} ({', '.join(one['interfaces']) or 'no interface'}): its port is not active"
        for one in used
        if between.devices and not one["active"] and any(other["active"] for other in used)
    ]
    return found + (_of_direct(network, system) if between.direct else [])


def _of_direct(network: Known, system: Known) -> list[str]:
    """Return why network cards cannot access the memory of the devices."""
    found, kernel = [], re.match(r"\d+\.\d+", str(system["kernel"]))
    if kernel and comparable(kernel[0]) < comparable(DIRECT_KERNEL):
        found.append(f"{ROLE}_direct: true: needs kernel {DIRECT_KERNEL} or newer, and this is {system['kernel']}")
    if network["redirects"]:
        some = ", ".join(network["redirects"][:3])
        found.append(
            f"{ROLE}_direct: true: access control (ACS) of {counted(len(network['redirects']), 'PCI bridge')} "
            f"({some}) sends traffic between devices through the processor; turn ACS off in the BIOS, or leave it out"
        )
    return found


def _served_over(host: Known) -> list[tuple[str, list[str]]]:
    """Return the models over several hosts that run on a host, with their hosts."""
    return [
        (name, hosts_of(live.launch)) for name, live in live_models(host).items() if live.runs and hosts_of(live.launch)
    ]


def network_packages(between: Between) -> list[str]:
    """Return the packages that a network between hosts needs."""
    looks = any(one.neighbor or one.neighbor_port for one in between.ports)
    return {PORTS: ["lldpd"] if looks else [], NICS: ["rdma-core"]}.get(between.kind, [])


def _file_lines(network: Known, files: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the files to write and the files to remove."""
    live, ours = network["files"], bool((network["settings"] or {}).get("gaudinet"))
    write = [path for path, text in files.items() if live.get(path) != sha256_text(text)]
    # The toolkit leaves files of HCCL alone that existed before.
    absent = [path for path, digest in live.items() if digest is not None and path not in files]
    # The settings file goes last: with it, the next run completes an interrupted one.
    absent.sort(key=lambda path: path == SETTINGS)
    return write, [path for path in absent if path != GAUDINET or ours]


@dataclass(frozen=True)
class Differences:
    """The differences between a host and the network of its inventory.

    install: packages. write, absent: paths of files. down: lines about ports that are down; links: lines about ports
    that may carry traffic. enable: the unit that sets the ports up at boot is not enabled. waits: the ports are known
    only after this run has installed the driver.
    """

    install: Sequence[str]
    write: Sequence[str]
    absent: Sequence[str]
    down: Sequence[str]
    links: Sequence[str]
    enable: bool
    waits: bool

    @classmethod
    def of(cls, network: Known, between: Between, files: Mapping[str, str]) -> Differences:
        """Compare a host's ``gaudi_network`` with the inventory, given the text of each required file."""
        ports, live = between.kind == PORTS, live_ports(network)
        former = former_addresses(between, network["settings"])
        return cls(
            [name for name in network_packages(between) if name not in network["packages"]],
            *_file_lines(network, files),
            *(link_lines(between, live, former) if ports else ([], [])),
            ports and not network["enabled"],
            ports and not live,
        )

    @property
    def lines(self) -> list[str]:
        """Return the differences as lines for users."""
        lines = [*(f"install {name}" for name in self.install), *(f"write {path}" for path in self.write)]
        lines += [*(f"remove {path}" for path in self.absent), *self.down, *self.links]
        return [*lines, *([f"enable {UNIT}"] if self.enable else [])]

    def changes(self, files: Mapping[str, str]) -> dict[str, Any]:
        """Return the values that the tasks of the role read."""
        touched, ports = {*self.write, *self.absent}, SETTINGS in files
        return {
            **{"needed": True, "due": bool(self.lines) or self.waits, "lines": self.lines},
            **{"install": list(self.install), "enable": self.enable, "absent": list(self.absent)},
            "files": [_file(path, files[path]) for path in self.write],
            "start": ports and not self.waits and bool(self.down or self.links or self.write or self.enable),
            **{"down": SETTINGS in self.absent, "reload": UNIT_PATH in touched, "rules": RULE in touched},
        }


def _pending(given: Given) -> Pending:
    known, network = given.known, given.known["gaudi_network"]
    between, live = between_of(known), live_ports(network)
    files = desired_files(network, between)
    found = Differences.of(network, between, files)
    # The plan of the fleet reads no facts of ports; it needs these.
    told = {"warnings": warnings} if (warnings := port_warnings(known)) else {}
    if not between.kind and not found.absent and not found.write:
        return Pending(changes={"due": False, "needed": False}, facts={"needed": False, **told})
    wrong = [f"{given.host}: {text}" for text in [*network_refusal(known, between), *_serving(known, found)]]
    left = [*([NO_PORTS] if found.waits else []), *found.lines, *cabling(between, live)]
    soon = ["activate the ports when their driver is installed"] if found.waits else []
    return Pending(
        changes=found.changes(files),
        due=[] if wrong else found.lines or soon,
        left=given.left(left),
        refusal=wrong,
        drift=wrong or left,
        notes=_notes(between, live, network),
        facts={"needed": True, **told},
    )


def _serving(known: Known, found: Differences) -> list[str]:
    """Return the models to stop first: servers read addresses at their start, and a new MTU interrupts a port."""
    if not (found.links or GAUDINET in (*found.write, *found.absent) or SETTINGS in found.absent):
        return []
    return [
        f"model {name} ({', '.join(hosts)}) serves over these ports; stop it first "
        f"(playbooks/stop.yml -e model={name}). Pending changes: {'; '.join(found.lines)[:200]}"
        for name, hosts in _served_over(known.get("gaudi_host") or {})
    ]


def _file(path: str, text: str) -> dict[str, str]:
    return {"path": path, "content": text, "mode": mode_of(path)}


def _notes(between: Between, live: Mapping[tuple[int, int], Live], network: Known) -> list[str]:
    if between.kind == NICS:
        used = [one for one in network["nics"] if not between.devices or one["device"] in between.devices]
        shown_nics = ", ".join(f"{one['device']} {one['gbit_s']:g} Gbit/s" for one in used)
        return [f"network cards between hosts: {shown_nics or 'none'}"]
    dark = [one.name for one in live.values() if one.up and not one.carrier]
    lit = sum(one.carrier for one in live.values())
    without = f"; without a carrier: {', '.join(dark)}" if dark else ""
    return [f"ports between hosts: {lit} of {len(live)} have a carrier{without}"] if live else []


def _reset(given: Given) -> dict[str, Any]:
    network, left = given.known["gaudi_network"], given.known["gaudi_left"]
    files = desired_files(network, NEITHER)
    _, paths = _file_lines(network, files)
    done = network["settings"] is not None
    return {
        "paths": paths,
        "files": [_file(path, text) for path, text in files.items()],
        **{"enabled": network["enabled"], "addresses": done, "due": bool(paths or files)},
        "did": [f"ports between hosts: unit, addresses, {counted(len(paths), 'file')}"] if paths or files else [],
        "left": ["ports between hosts: they stay up until a reboot"] if done and network["ports"] else [],
        "packages": new_packages(left, ROLE, ["lldpd", "rdma-core"]),
    }


STAGE = Stage(
    role=ROLE,
    tag="network",
    reads=("system", "services", "host", "network"),
    reports=("needed", "warnings"),
    noted=("report", "status"),
    pending=_pending,
    reset=_reset,
)
