"""The network between hosts by its playbooks, on simulated hosts: check mode, run, second run, status, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import forked
import pytest
from gaudi_serve.host.observe_network import BEFORE, FILES, GAUDINET
from helpers.simulated.fleet import ROOT, change, fleet, state_of

NETWORK = "playbooks/network.yml"


def port(number: int) -> dict[str, Any]:
    """Return a port of card 0 after a boot: down."""
    found: dict[str, Any] = {"module_id": 0, "port": number, "interface": f"ens{number}", "mac": "b0:fd:0b:00:00:01"}
    found |= {"up": False, "carrier": True, "mtu": 1500, "speed": 100_000, "addresses": []}
    return {**found, "neighbors": []}


def routed(host: int, number: int) -> dict[str, Any]:
    """Return what an inventory sets of a port."""
    mac = f"0c:42:a1:00:0{host}:{number:02}"
    return {"module_id": 0, "port": number, "address": f"10.200.{host}.{number * 4 + 1}/30", "gateway_mac": mac}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of runs on two hosts with two ports each."""
    found = fleet(tmp_path, 2, {"network": {"ports": [port(8), port(22)]}}, accelerator_network_between="ports")
    path = tmp_path / "hosts.json"
    hosts = json.loads(path.read_text(encoding="utf-8"))
    for place in (1, 2):
        hosts["all"]["hosts"][f"h0{place}"] = {"accelerator_network_ports": [routed(place, 8), routed(place, 22)]}
    path.write_text(json.dumps(hosts), encoding="utf-8")
    return found


def play(folder: Path, environment: dict[str, str], *options: str, status: int = 0, **given: Any) -> str:
    """Run the playbook, and return its output as one line."""
    argv = ["ansible-playbook", "-i", str(folder / "hosts.json"), *(options or (NETWORK,)), "-e", json.dumps(given)]
    ended, text = forked.playbook(argv, ROOT, environment, 300)
    assert ended == status, text
    return " ".join(text.split())


def test_ports_are_activated_once_and_watched(tmp_path: Path, environment: dict[str, str]) -> None:
    change(tmp_path, "h01", files={GAUDINET: "mine"})
    before = [state_of(tmp_path, name) for name in ("h01", "h02")]
    checked = play(tmp_path, environment, NETWORK, "--check", "--diff", accelerator_network_mtu=9000)
    assert "card 0 port 8 (ens8) is down" in checked and "MTU 1500 -> 9000" in checked
    assert [state_of(tmp_path, name)["network"] for name in ("h01", "h02")] == [one["network"] for one in before]
    assert {*FILES} & {*state_of(tmp_path, "h01")["files"]} == {GAUDINET}
    play(tmp_path, environment, accelerator_network_mtu=9000)
    for place in (1, 2):
        state = state_of(tmp_path, f"h0{place}")
        missing = {*FILES} - {*state["files"]}
        assert missing == ({BEFORE} if place == 2 else set()) and state["network"]["enabled"]
        entries = json.loads(state["files"][GAUDINET])["NIC_NET_CONFIG"]
        assert [one["NIC_IP"] for one in entries] == [f"10.200.{place}.33", f"10.200.{place}.89"]
        assert all(one["up"] and one["mtu"] == 9000 and one["addresses"] for one in state["network"]["ports"])
    again = play(tmp_path, environment, accelerator_network_mtu=9000)
    assert "h01, h02: nothing changed" in again, again
    # Someone takes one down.
    network = state_of(tmp_path, "h02")["network"]
    network["ports"][0]["up"] = False
    change(tmp_path, "h02", network=network)
    status = play(tmp_path, environment, "playbooks/status.yml", status=2, accelerator_network_mtu=9000)
    assert "network: card 0 port 8 (ens8) is down" in status, status
    # Other addresses replace the earlier ones.
    inventory = tmp_path / "hosts.json"
    hosts = json.loads(inventory.read_text(encoding="utf-8"))
    hosts["all"]["hosts"]["h01"]["accelerator_network_ports"] = [routed(7, 8), routed(7, 22)]
    inventory.write_text(json.dumps(hosts), encoding="utf-8")
    play(tmp_path, environment, "--limit", "h01", NETWORK)
    addresses = [one["addresses"] for one in state_of(tmp_path, "h01")["network"]["ports"]]
    assert addresses == [["10.200.7.33/30"], ["10.200.7.89/30"]]
    # Without the variable, a run takes back what it has set.
    play(tmp_path, environment, accelerator_network_between="", accelerator_network_ports=[])
    state = state_of(tmp_path, "h01")
    assert {path: state["files"].get(path) for path in FILES if path in state["files"]} == {GAUDINET: "mine"}
    assert [one["addresses"] for one in state["network"]["ports"]] == [[], []] and not state["network"]["enabled"]


def test_mistakes_of_all_hosts_are_named_before_anything_is_changed(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    change(tmp_path, "h02", network={"ports": [port(8)]})
    refused = play(tmp_path, environment, status=3)
    assert "h02: accelerator_network_ports: card 0 port 22: the host has no such port; it has" in refused
    assert not {*FILES} & {*state_of(tmp_path, "h01")["files"]}
    twice = play(tmp_path, environment, status=3, accelerator_network_ports=[routed(1, 8)])
    assert "address 10.200.1.33 is also on h02" in twice or "address 10.200.1.33 is also on h01" in twice
    wrong = play(tmp_path, environment, status=3, accelerator_network_between="port")
    assert "accelerator_network_between 'port': must be ports (the cards' own), nics" in wrong
