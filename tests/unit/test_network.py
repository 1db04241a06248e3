"""The network between the devices of several hosts: ports of Gaudi cards, network cards with RDMA, their users."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.core.run import sha256_text
from gaudi_serve.host import observe_network, ports
from gaudi_serve.host.links import docker_command, measured
from gaudi_serve.model.between import Between
from gaudi_serve.model.host import Host
from gaudi_serve.plan.host import plan_models
from gaudi_serve.plan.wanted import Wanted
from gaudi_serve.stages.accelerator_network import STAGE, between_of, desired_files, network_problems
from gaudi_serve.stages.base import Given, Pending
from gaudi_serve.stages.links import between_hosts, by_line_rate, link_runs
from helpers.network import loopback_alone
from helpers.plans import gaudi_host, model

ROLE = "accelerator_network"
ROUTED = {"module_id": 0, "port": 8, "address": "10.200.10.1/30", "gateway_mac": "0C:42:A1:00:00:01"}
SYSTEM = {"accelerator": "gaudi", "kernel": "6.1.0-1-amd64"}
VERBS = ["mlx5_0", "mlx5_1"]


def port(number: int = 8, **more: Any) -> dict[str, Any]:
    """Return a port of card 0 as it is observed: up, with a carrier."""
    found: dict[str, Any] = {
        "module_id": 0,
        "port": number,
        "interface": f"ens{number}",
        "mac": f"b0:fd:0b:00:00:{number:02}",
    }
    found |= {"up": True, "carrier": True, "mtu": 1500, "speed": 100_000, "addresses": []}
    return {**found, "neighbors": [], **more}


def nic(name: str, **more: Any) -> dict[str, Any]:
    """Return an RDMA device of a network card as it is observed."""
    about = {"interfaces": [f"{name}np"], "active": True, "gbit_s": 100.0, "link_layer": "Ethernet"}
    return {"device": name, **about, **more}


def network(**more: Any) -> dict[str, Any]:
    """Return ``gaudi_network`` of a host on which the role never ran."""
    nothing: dict[str, Any] = {"ports": [], "nics": [], "redirects": [], "packages": [], "gaudinet": None}
    nothing |= {"before": None, "settings": None}
    return {**nothing, "enabled": False, "files": dict.fromkeys(observe_network.FILES), **more}


def pending(seen: dict[str, Any], **variables: Any) -> Pending:
    """Return what the stage would do; variables are those of the role, without its prefix."""
    known = {"gaudi_network": seen, "gaudi_system": SYSTEM, "gaudi_host": {"services": {}}}
    own = {f"{ROLE}_{key}": value for key, value in variables.items() if not key.startswith("gaudi_")}
    known |= {key: value for key, value in variables.items() if key.startswith("gaudi_")}
    return STAGE.pending(Given("h", {**known, **own}))


def done(seen: dict[str, Any], **variables: Any) -> dict[str, Any]:
    """Return the host when the role has written its files and enabled its unit."""
    between = between_of({f"{ROLE}_{key}": value for key, value in variables.items()})
    files = desired_files(seen, between)
    live = {path: sha256_text(files[path]) if path in files else None for path in observe_network.FILES}
    texts = {"gaudinet": files.get(observe_network.GAUDINET), "before": files.get(observe_network.BEFORE)}
    return {**seen, **texts, "files": live, "enabled": True, "settings": json.loads(files[ports.SETTINGS])}


def test_nothing_is_reported_and_nothing_is_done() -> None:
    found = pending(network(ports=[port(up=False)], nics=[nic("mlx5_0")]))
    assert (found.due, found.drift, found.left, found.notes, found.facts) == ((), (), (), None, {"needed": False})


def test_ports_are_activated_once() -> None:
    seen = network(ports=[port(8, up=False, carrier=False), port(22, mtu=9000)])
    found = pending(seen, between="ports", mtu=9000)
    assert found.due[-3:] == [
        *("card 0 port 8 (ens8) is down", "card 0 port 8 (ens8): MTU 1500 -> 9000"),
        "enable gaudi-ports.service",
    ]
    assert found.changes["start"] and not found.refusal
    after = done(network(ports=[port(8, mtu=9000), port(22, mtu=9000, carrier=False)]), between="ports", mtu=9000)
    again = pending(after, between="ports", mtu=9000)
    assert (again.due, list(again.left), list(again.drift)) == ([], [], [])
    assert again.notes == ["ports between hosts: 1 of 2 have a carrier; without a carrier: card 0 port 22 (ens22)"]


@pytest.mark.parametrize("change", [{"mtu": 8000}, {"ports": [{**ROUTED, "address": "10.200.10.2/30"}]}])
def test_every_changed_setting_is_seen(change: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"between": "ports", "mtu": 9000, "ports": [ROUTED]}
    seen = done(network(ports=[port(mtu=9000, addresses=["10.200.10.1/30"])]), **usual)
    assert pending(seen, **usual).due == []
    assert pending(seen, **{**usual, **change}).due != []
    # What someone has changed on the host too.
    for live in ({"mtu": 1500}, {"up": False}, {"addresses": []}):
        assert pending({**seen, "ports": [{**seen["ports"][0], **live}]}, **usual).due != []
    for path in {*observe_network.FILES} - {observe_network.BEFORE}:
        assert pending({**seen, "files": {**seen["files"], path: "0"}}, **usual).due == [f"write {path}"]


def test_hccl_finds_addresses_in_its_file() -> None:
    between = between_of({f"{ROLE}_between": "ports", f"{ROLE}_ports": [ROUTED]})
    files = desired_files(network(ports=[port()]), between)
    assert json.loads(files[observe_network.GAUDINET]) == {
        "NIC_NET_CONFIG": [
            {
                **{"NIC_MAC": "b0:fd:0b:00:00:08", "NIC_IP": "10.200.10.1", "SUBNET_MASK": "255.255.255.252"},
                "GATEWAY_MAC": "0c:42:a1:00:00:01",
            }
        ]
    }


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"between": "ports", "ports": [{**ROUTED, "port": 9}]}, "card 0 port 9: the host has no such port; it has"),
        (
            {"between": "ports", "ports": [ROUTED], "gaudi_network": network(ports=[port(), port(22)])},
            "card 0 port 22 (ens22) has no address (1 port of 2 lack one)",
        ),
        (
            {"between": "ports", "gaudi_system": {**SYSTEM, "accelerator": "cuda"}},
            "NVIDIA hosts have no ports of their own",
        ),
        (
            {"between": "nics", "gaudi_system": {**SYSTEM, "accelerator": "cpu"}},
            "hosts have no devices that send over network cards",
        ),
        ({"between": "nics", "devices": ["mlx5_9"]}, "'mlx5_9': the host has no such RDMA device; it has mlx5_0"),
        (
            {"between": "nics", "gaudi_network": network(nics=[nic("mlx5_0", active=False)])},
            "no port of mlx5_0 is active",
        ),
        ({"between": "nics", "gaudi_network": network(packages=["rdma-core"])}, "its kernel shows no RDMA device"),
        (
            {"between": "nics", "direct": True, "gaudi_system": {**SYSTEM, "kernel": "5.10.0-9"}},
            "needs kernel 5.12 or newer, and this is 5.10",
        ),
        (
            {
                "between": "nics",
                "direct": True,
                "gaudi_network": network(nics=[nic("mlx5_0")], redirects=["0000:17:00.0"]),
            },
            "access control (ACS) of 1 PCI bridge (0000:17:00.0) sends traffic between devices through the processor",
        ),
    ],
)
def test_what_the_host_cannot_is_refused(variables: dict[str, Any], message: str) -> None:
    seen = network(ports=[port()], nics=[nic("mlx5_0")])
    found = pending(variables.get("gaudi_network", seen), **variables)
    assert len(found.refusal) == 1 and found.refusal[0].startswith("h: ") and message in found.refusal[0]
    assert found.due == [] and list(found.drift) == found.refusal


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ports": [7]}, "ports[0]: must be a mapping of module_id, port"),
        ({"ports": [{**ROUTED, "module": 1}]}, "ports[0]: module: is not a known name"),
        ({"ports": [{**ROUTED, "module_id": "a"}]}, "ports[0]: module_id: 'a': must be an integer from 0 to 63"),
        ({"ports": [{**ROUTED, "address": "10.200.10.0/30"}]}, "must be an IPv4 address of a host with its prefix"),
        ({"ports": [{**ROUTED, "address": "10.200.10.1"}]}, "must be an IPv4 address of a host with its prefix"),
        (
            {"ports": [{**ROUTED, "address": "10.200.10.1/255.255.255.252"}]},
            "must be an IPv4 address of a host with its",
        ),
        ({"ports": [{**ROUTED, "neighbor": ["leaf1"]}]}, 'neighbor: ["leaf1"]: must be a quoted text'),
        ({"ports": [{**ROUTED, "gateway_mac": "0c:42"}]}, "must be the quoted MAC of the switch's port"),
        ({"ports": [{**ROUTED, "gateway_mac": ""}]}, "gateway_mac is missing: HCCL needs both"),
        ({"ports": [ROUTED, ROUTED]}, "card 0 port 8 is listed twice"),
        ({"ports": [ROUTED, {**ROUTED, "port": 22}]}, "address 10.200.10.1 is also the address of card 0 port 8"),
        ({"ports": [ROUTED, {"module_id": 0, "port": 22}]}, "card 0 port 22 has no address, and card 0 port 8 has one"),
        ({"devices": ["mlx5_0"]}, "has an effect only with accelerator_network_between: nics, which is 'ports' here"),
        (
            {"between": "nics", "mtu": 9000},
            "has an effect only with accelerator_network_between: ports, which is 'nics' here",
        ),
        ({"ports": [ROUTED], "others": {f"{ROLE}_ports": [ROUTED]}}, "address 10.200.10.1 is also on g"),
    ],
)
def test_a_mistake_in_the_inventory_is_one_sentence(values: dict[str, Any], message: str) -> None:
    others = values.pop("others", {})
    given = {f"{ROLE}_{key}": value for key, value in {"between": "ports", **values}.items()}
    found = network_problems(given, "h", {"g": others, "h": given})
    assert found and found[0].startswith("h: accelerator_network_") and message in found[0], found


def test_a_model_over_the_ports_is_stopped_first() -> None:
    live = {"active": True, "launch": {"group": {"hosts": ["h", "g"], "answers": True}}}
    host = {"services": {"split": live, "alone": {"active": True, "launch": {}}}}
    usual: dict[str, Any] = {"between": "ports", "mtu": 9000}
    seen = network(ports=[port()])
    found = pending(done(seen, **usual), **usual, gaudi_host=host)
    message = (
        "h: model split (h, g) serves over these ports; stop it first (playbooks/stop.yml -e model=split). "
        "Pending changes: "
    )
    assert [text.startswith(message) for text in found.refusal] == [True]
    # Ports that are down serve nothing, and nothing interrupts those that are as they should be.
    assert not pending(network(ports=[port(up=False), port(22, mtu=9000)]), **usual, gaudi_host=host).refusal
    assert not pending(done(network(ports=[port(mtu=9000)]), **usual), **usual, gaudi_host=host).refusal


def test_cabling_is_compared_with_lldp() -> None:
    entry = {"module_id": 0, "port": 8, "neighbor": "leaf1", "neighbor_port": "Ethernet1"}
    usual: dict[str, Any] = {"between": "ports", "ports": [entry]}
    assert "install lldpd" in pending(network(ports=[port()]), **usual).due
    other = {"names": ["leaf1"], "ports": ["Ethernet2"]}
    seen = done(network(ports=[port(neighbors=[other])], packages=["lldpd"]), **usual)
    found = pending(seen, **usual)
    line = "card 0 port 8 (ens8): neighbor_port must be Ethernet1, but LLDP shows Ethernet2"
    assert (found.due, list(found.drift)) == ([], [line]) and line in found.left[0]


@pytest.mark.parametrize(
    ("neighbors", "line"),
    [
        # The entry of the old cable has not expired yet.
        ([["leaf2", "Ethernet9"], ["leaf1", "Ethernet1"]], ""),
        # SONiC: the alias is the ID and the name the description, or the reverse.
        ([["leaf1", "etp1", "Ethernet1"]], ""),
        ([["leaf1", "Ethernet1", "Eth1/1"]], ""),
        ([["leaf1", "etp2", "Ethernet4"]], "neighbor_port must be Ethernet1, but LLDP shows etp2 (Ethernet4)"),
        (
            [["leaf1", "Ethernet2"], ["leaf2", "Ethernet1"]],
            "neighbor_port must be Ethernet1, but LLDP shows Ethernet2 and Ethernet1",
        ),
        ([["leaf2", "Ethernet1"]], "neighbor must be leaf1, but LLDP shows leaf2"),
        ([["leaf1"]], "neighbor_port must be Ethernet1, but LLDP shows nothing"),
    ],
)
def test_one_of_several_neighbors_is_enough_and_a_port_has_several_names(neighbors: list[Any], line: str) -> None:
    entry = {"module_id": 0, "port": 8, "neighbor": "leaf1", "neighbor_port": "Ethernet1"}
    usual: dict[str, Any] = {"between": "ports", "ports": [entry]}
    others = [{"names": [name, "aa:bb"], "ports": ports} for name, *ports in neighbors]
    seen = done(network(ports=[port(neighbors=others)], packages=["lldpd"]), **usual)
    assert list(pending(seen, **usual).drift) == ([f"card 0 port 8 (ens8): {line}"] if line else [])


def test_what_lldpctl_prints_is_read() -> None:
    one = {
        "chassis": {"leaf1": {"id": {"type": "mac", "value": "aa:bb"}}},
        "port": {"id": {"type": "ifname", "value": "Ethernet1"}},
    }
    bare = {"chassis": {"id": {"type": "mac", "value": "aa:bb"}}, "port": {"id": {"type": "local", "value": "7"}}}
    first = {"names": ["leaf1", "aa:bb"], "ports": ["Ethernet1"]}
    second = {"names": ["aa:bb"], "ports": ["7"]}
    assert observe_network.lldp(json.dumps({"lldp": {"interface": {"a": one}}})) == {"a": [first]}
    both = {"lldp": {"interface": [{"a": one}, {"b": bare}]}}
    assert observe_network.lldp(json.dumps(both)) == {"a": [first], "b": [second]}
    # Two neighbors on one interface; one of them twice, as lldpd 0.9.6 shows it.
    sonic = {**one, "port": {"id": {"type": "local", "value": "etp1"}, "descr": "Ethernet0", "ttl": "120"}}
    three = {"lldp": {"interface": [{"a": bare}, {"a": sonic}, {"a": bare}]}}
    third = {**first, "ports": ["etp1", "Ethernet0"]}
    assert observe_network.lldp(json.dumps(three)) == {"a": [second, third]}
    for nothing in ("", "{}", "no daemon", '{"lldp": {}}', '{"lldp": []}', '{"lldp": {"interface": [7]}}'):
        assert observe_network.lldp(nothing) == {}


@pytest.mark.parametrize("before", [None, "mine\n"])
def test_the_file_that_was_there_comes_back(before: str | None) -> None:
    usual: dict[str, Any] = {"between": "ports", "ports": [ROUTED]}
    files = {**dict.fromkeys(observe_network.FILES), observe_network.GAUDINET: before and sha256_text(before)}
    bare = network(ports=[port()], gaudinet=before, files=files)
    # Ports without addresses, a reset and a host without the variable leave it alone.
    for variables in ({"between": "ports"}, {}):
        assert observe_network.GAUDINET not in " ".join(pending(bare, **variables).due)
    left = {"records": {ROLE: {"found": {}, "installed": []}}, "installed": {}, "traces": []}
    assert not STAGE.reset(Given("h", {"gaudi_network": bare, "gaudi_left": left}))["due"]
    seen = done({**bare, "ports": [port(addresses=["10.200.10.1/30"])]}, **usual)
    assert pending(seen, **usual).due == [] and seen["before"] == before
    # A changed address keeps what was there first, not what the role has written.
    other = done(seen, between="ports", ports=[{**ROUTED, "address": "10.200.10.2/30"}])
    assert other["before"] == before
    back = pending(seen).changes
    restored = [] if before is None else [{"path": observe_network.GAUDINET, "content": before, "mode": "0644"}]
    gone = {*observe_network.FILES} - ({observe_network.GAUDINET} if before else {observe_network.BEFORE})
    assert (back["files"], {*back["absent"]}, back["absent"][-1]) == (restored, gone, ports.SETTINGS) and back["down"]
    reset = STAGE.reset(Given("h", {"gaudi_network": seen, "gaudi_left": left}))
    assert (reset["files"], {*reset["paths"]}, reset["addresses"]) == (restored, gone, True)
    assert reset["left"] == ["ports between hosts: they stay up until a reboot"]


def test_an_address_that_is_no_longer_wanted_goes() -> None:
    usual: dict[str, Any] = {"between": "ports", "ports": [ROUTED]}
    seen = done(network(ports=[port(addresses=["10.200.10.1/30", "192.0.2.7/24"])]), **usual)
    changed = {"between": "ports", "ports": [{**ROUTED, "address": "10.200.20.1/30"}]}
    assert pending(seen, **changed).due[-2:] == [
        "card 0 port 8 (ens8): address 10.200.20.1/30 is missing",
        "card 0 port 8 (ens8): address 10.200.10.1/30 is no longer planned",
    ]
    # Somebody's own address stays; also without any address in the inventory the earlier one goes.
    assert pending(seen, between="ports").due[-1] == "card 0 port 8 (ens8): address 10.200.10.1/30 is no longer planned"
    now = {**done(seen, **changed), "ports": [port(addresses=["10.200.20.1/30", "192.0.2.7/24"])]}
    assert pending(now, **changed).due == [] and now["settings"]["former"] == {"0/8": ["10.200.10.1/30"]}
    assert done(now, **usual)["settings"]["former"] == {"0/8": ["10.200.20.1/30"]}


def cards(root: Path, *interfaces: tuple[str, int]) -> None:
    """Write what the kernel shows of card 3 and its interfaces below a root."""
    device = root / "sys/class/accel/accel0/device"
    device.mkdir(parents=True)
    (device / "pci_addr").write_text("0000:33:00.0\n", encoding="utf-8")
    (device / "module_id").write_text("3\n", encoding="utf-8")
    for name, number in interfaces:
        interface(root, name, number)


def interface(root: Path, name: str, number: int) -> None:
    """Write what the kernel shows of an interface of card 3."""
    folder = root / f"sys/bus/pci/drivers/habanalabs_en/0000:33:00.0/net/{name}"
    folder.mkdir(parents=True)
    (folder / "dev_port").write_text(f"{number}\n", encoding="utf-8")
    (folder / "speed").write_text("100000\n", encoding="utf-8")


def wait(ready: Callable[[], bool]) -> None:
    """Wait until something is so, for ten seconds at most."""
    end = time.monotonic() + 10
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def own_network() -> Iterator[None]:
    """Let the test have a network of its own, with a pair of interfaces."""
    with loopback_alone() as alone:
        if not alone:
            pytest.skip("a network of its own needs CAP_SYS_ADMIN")
        subprocess.run(["ip", "link", "add", "up8", "type", "veth", "peer", "name", "far8"], check=True)
        subprocess.run(["ip", "link", "set", "far8", "up"], check=True)
        yield


@pytest.mark.usefixtures("own_network")
def test_the_program_fetches_real_interfaces_up_and_takes_its_addresses_away(tmp_path: Path) -> None:
    cards(tmp_path, ("up8", 8))
    before = observe_network.observe(str(tmp_path))["ports"]
    assert [(one["module_id"], one["port"], one["up"], one["speed"]) for one in before] == [(3, 8, False, 100_000)]
    settings = {"mtu": 9000, "addresses": {"3/8": "10.200.10.1/30"}, "former": {"3/8": ["192.0.2.9/24"]}}
    subprocess.run(["ip", "address", "add", "192.0.2.9/24", "dev", "up8"], check=True)
    here = ports.settled(settings, str(tmp_path), 0.1)
    for _ in range(2):
        for command in ports.commands(settings, here):
            subprocess.run(command, check="delete" not in command)
    (now,) = observe_network.observe(str(tmp_path))["ports"]
    assert (now["up"], now["carrier"], now["mtu"], now["addresses"]) == (True, True, 9000, ["10.200.10.1/30"])
    for command in ports.removals(settings, here):
        subprocess.run(command, check=False)
    (after,) = observe_network.observe(str(tmp_path))["ports"]
    assert (after["up"], after["addresses"]) == (True, [])


@pytest.mark.usefixtures("own_network")
def test_two_hosts_reach_each_other_by_libfabric_over_the_addresses_that_the_program_sets(tmp_path: Path) -> None:
    assert shutil.which("fi_pingpong"), "scripts/deps installs it"
    cards(tmp_path, ("up8", 8))
    other = subprocess.Popen(["unshare", "--net", "sleep", "60"])
    enter = ["nsenter", f"--net=/proc/{other.pid}/ns/net"]
    try:
        # The other host: it has its network a moment after its process.
        mine = Path("/proc/thread-self/ns/net").stat().st_ino
        wait(lambda: Path(f"/proc/{other.pid}/ns/net").stat().st_ino != mine)
        subprocess.run(["ip", "link", "set", "far8", "netns", str(other.pid)], check=True)
        hosts = ((ports.settled({}, str(tmp_path), 0.1), "10.200.10.1", []), ({(3, 8): "far8"}, "10.200.10.2", enter))
        for here, address, at in hosts:
            for command in ports.commands({"mtu": 9000, "addresses": {"3/8": f"{address}/30"}}, here):
                subprocess.run([*at, *command], check=True)
        # As HCCL asks for it: datagrams that arrive (rdm), larger than a packet.
        argv = ["fi_pingpong", "-p", "tcp", "-e", "rdm", "-I", "20", "-S", "1048576", "-c"]
        server = subprocess.Popen([*enter, *argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            wait(lambda: b":47592" in subprocess.run([*enter, "ss", "-ltn"], capture_output=True, check=True).stdout)
            done = subprocess.run([*argv, "10.200.10.2"], capture_output=True, text=True, timeout=20, check=False)
            assert (done.returncode, server.wait(10)) == (0, 0), done.stdout + done.stderr
        finally:
            server.kill()
            server.wait()
        (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith("1m")]
        assert row[:2] == ["1m", "20"] and float(row[5]) > 0, done.stdout
    finally:
        other.kill()
        other.wait()


def test_the_program_waits_for_the_ports_of_its_settings_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "STEADY_S", 0.05)
    cards(tmp_path, ("up8", 8))
    wanted = {"addresses": {"3/8": "x", "3/22": "y"}}
    assert ports.settled(wanted, str(tmp_path), 0.2) == {(3, 8): "up8"}
    # The driver shows the second one later.
    threading.Timer(0.7, interface, (tmp_path, "up22", 22)).start()
    assert ports.settled(wanted, str(tmp_path), 5) == {(3, 8): "up8", (3, 22): "up22"}
    assert ports.settled({}, str(tmp_path / "none"), 0.1) == {}


def test_the_file_of_the_program_stands_alone(tmp_path: Path) -> None:
    text = desired_files(network(), Between(kind="ports"))[observe_network.PROGRAM]
    path = tmp_path / "gaudi-ports"
    path.write_text(text.replace("/etc/gaudi-serve/ports.json", str(tmp_path / "none")), encoding="utf-8")
    run = subprocess.run(["python3", "-I", path, "up"], capture_output=True, text=True, check=False)
    assert "FileNotFoundError" in run.stderr and "ModuleNotFoundError" not in run.stderr


def rdma(root: Path, name: str, state: str = "4: ACTIVE", number: int = 0) -> None:
    """Write what the kernel shows of an RDMA device, and its node."""
    device = root / "sys/class/infiniband" / name
    (device / "ports/1").mkdir(parents=True)
    (device / "ports/1/state").write_text(f"{state}\n", encoding="utf-8")
    (device / "ports/1/rate").write_text("100 Gb/sec (4X EDR)\n", encoding="utf-8")
    (device / "ports/1/link_layer").write_text("Ethernet\n", encoding="utf-8")
    (device / f"device/infiniband_verbs/uverbs{number}").mkdir(parents=True)
    (device / f"device/net/{name}np").mkdir(parents=True)
    nodes = root / "dev/infiniband"
    nodes.mkdir(parents=True, exist_ok=True)
    for node in (f"uverbs{number}", "rdma_cm"):
        (nodes / node).touch()


def test_network_cards_are_found_beside_the_devices_of_the_cards_themselves(tmp_path: Path) -> None:
    rdma(tmp_path, "mlx5_0")
    rdma(tmp_path, "mlx5_1", "1: DOWN", 1)
    rdma(tmp_path, "hbl_0", number=2)
    found = observe_network.observe(str(tmp_path))["nics"]
    assert [(one["device"], one["active"], one["gbit_s"]) for one in found] == [
        ("mlx5_0", True, 100.0),
        ("mlx5_1", False, 100.0),
    ]
    assert found[0]["interfaces"] == ["mlx5_0np"] and found[0]["link_layer"] == "Ethernet"


@pytest.mark.parametrize(
    ("control", "expected"), [(0x001D, ["0000:17:00.0"]), (0x0011, []), (0x0004, ["0000:17:00.0"])]
)
def test_bridges_that_redirect_traffic_are_found(tmp_path: Path, control: int, expected: list[str]) -> None:
    bridge = tmp_path / "sys/bus/pci/devices/0000:17:00.0"
    bridge.mkdir(parents=True)
    (bridge / "class").write_text("0x060400\n", encoding="utf-8")
    config = bytearray(4096)
    # Advanced error reporting first, then access control at 0x148.
    config[0x100:0x104] = (0x0001 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")
    config[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
    config[0x14E:0x150] = control.to_bytes(2, "little")
    (bridge / "config").write_bytes(config)
    assert observe_network.redirects(str(tmp_path)) == expected
    (bridge / "config").write_bytes(config[:64])
    assert observe_network.redirects(str(tmp_path)) == []


def planned(between: Between, device: str = "HL-288", cards: int = 8, **more: Any) -> dict[str, Any]:
    """Return the plan of a model on a host with two network cards."""
    spec = model(tensor_parallel_size=cards, **more)
    host = gaudi_host(device_name=device, verbs=VERBS)
    found = plan_models("h", Wanted(models=[spec], release="1.21.3", between=between), host, []).as_dict()
    assert not found["errors"], found["errors"]
    (one,) = found["models"]
    return dict(one)


def test_a_model_over_both_groups_of_a_host_sends_over_its_network_cards() -> None:
    found = planned(Between("nics", devices=("mlx5_0",), direct=True))
    env = {"HCCL_OVER_OFI": "1", "HCCL_GAUDI_DIRECT": "1", "RDMAV_FORK_SAFE": "1", "MLX5_SCATTER_TO_CQE": "0"}
    assert env.items() <= found["env"].items() and found["env"]["HCL_HNIC_VERBS_EXCLUDE_IF"] == "mlx5_1"
    assert "IPC_LOCK" in found["cap_add"] and "memlock=-1:-1" in found["ulimits"]
    named = [node["named_by"] for node in found["device_access"]["beside"]]
    assert named == ["/sys/class/infiniband/mlx5_0/device/infiniband_verbs/*", ""]
    assert (
        planned(Between("nics", devices=("mlx5_0",), direct=True), env={"HCCL_OVER_OFI": "0"})["env"]["HCCL_OVER_OFI"]
        == "0"
    )


def test_a_model_that_needs_no_network_card_is_started_as_before() -> None:
    for found in (planned(Between("nics"), cards=4), planned(Between("nics"), "HL-225")):
        assert "HCCL_OVER_OFI" not in found["env"] and "beside" not in found["device_access"]
        assert "IPC_LOCK" not in found["cap_add"]
    plain = planned(Between(), "HL-225")
    assert (
        planned(Between("nics"), "HL-225")["digest"] == planned(Between("ports"), "HL-225")["digest"] == plain["digest"]
    )


def test_hosts_measure_over_their_network_cards_or_fail_without_their_nodes(tmp_path: Path) -> None:
    rdma(tmp_path, "mlx5_0", number=5)
    host = Host.of(gaudi_host())
    run = {
        "name": "all-2-hosts",
        "module_ids": [],
        "cards": 8,
        "custom_comm": None,
        "threshold": None,
        "last_good": None,
    }
    given: dict[str, Any] = {"image": "i", "env": {"HCCL_OVER_OFI": "1"}, "nodes": 2, "node": 0, "address": "10.0.0.1"}
    given |= {"port": 5555, "timeout": 9, "options": {}, "checkout": "/c", "repository": "r", "commit": ""}
    words = docker_command({**given, "nics": ["mlx5_0"]}, host, run, str(tmp_path))
    for pair in (
        ["--device", "/dev/infiniband/uverbs5"],
        ["--device", "/dev/infiniband/rdma_cm"],
        ["--env", "HCCL_OVER_OFI=1"],
    ):
        assert any(words[place : place + 2] == pair for place in range(len(words))), pair
    assert "HCCL_OVER_OFI=1" not in docker_command(given, host, run, str(tmp_path))
    lacking = measured({**given, "nics": ["mlx5_7"]}, host, run, str(tmp_path))
    assert not lacking["passed"] and "mlx5_7" in lacking["problem"]


@pytest.mark.parametrize(
    ("kind", "devices", "expected"),
    # Half of 25 GB/s, and a third of two ports of 100 Gbit/s each.
    [("nics", (), 12.5), ("nics", ("mlx5_0",), 6.2), ("ports", (), 8.3), ("", (), 8.3)],
)
def test_what_nobody_has_published_is_a_part_of_the_line_rate(
    kind: str, devices: tuple[str, ...], expected: float
) -> None:
    seen = network(nics=[nic("mlx5_0"), nic("mlx5_1")], ports=[port(8), port(22), port(23, carrier=False)])
    figure = between_hosts(seen, Between(kind, devices=devices))
    assert figure == expected
    (run,) = by_line_rate(link_runs(gaudi_host(device_name="HL-338"), {}, nodes=2), figure)
    assert run["threshold"] == expected
    (known,) = by_line_rate(link_runs(gaudi_host(device_name="HL-225"), {}, nodes=2), figure)
    assert known["threshold"] == 103.0
    assert between_hosts(network(), Between(kind, devices=devices)) is None
