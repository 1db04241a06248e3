"""The addresses at which the hosts of one model reach each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_interface
from typing import Any

from ..core.words import some_names
from ..model.host import Host, Network


@dataclass(frozen=True)
class Reach:
    """How other hosts may reach a host.

    said: vllm_cluster_address, empty if it is not set. ip: the address of the default route. networks: those of the
    host. serving: by model, the address of the host in the group of the running model.
    """

    said: str = ""
    ip: str = ""
    networks: tuple[Network, ...] = ()
    serving: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, said: str, facts: Mapping[str, Any]) -> Reach:
        """Return how to reach a host, from its inventory and its ``gaudi_host``."""
        host = Host.of(facts)
        groups = {name: live.launch.get("group") or {} for name, live in host.services.items() if live.runs}
        serving = {
            name: str(found[0])
            for name, one in groups.items()
            if (found := list(one.get("addresses") or ())[int(one.get("rank") or 0) :])
        }
        return cls(said, str(host.ip or ""), host.networks, serving)

    @property
    def address(self) -> str:
        """Return the address that the inventory sets, or that of the default route."""
        return self.said or self.ip

    def network_of(self, address: str) -> str | None:
        """Return the network of one of the host's addresses; None if unknown."""
        return next((_name(one) for one in self.networks if one.address == address), None)

    def within(self, network: str) -> str:
        """Return the host's address in a network; empty without one."""
        return next((one.address for one in self.networks if _name(one) == network), "")


def addresses_of(model: str, names: Sequence[str], hosts: Mapping[str, Reach]) -> dict[str, str]:
    """Return by host its address for a model; hosts without facts are missing.

    If the inventory does not set all of them, and default routes are on several networks, they are those of the one
    network that all hosts share. A running model keeps its addresses.
    """
    known = {name: hosts[name] for name in names if name in hosts}
    found = {name: one.address for name, one in known.items()}
    if len(_used(found, known)) < 2:
        return found
    if live := _live(model, known):
        return live
    own = [{str(one.network_of(one.said))} if one.said else _chosen_of(one.networks) for one in known.values()]
    # The bridge of a container engine has the same address on every host.
    choices = [[one.said or one.within(network) for one in known.values()] for network in set.intersection(*own)]
    choices = [one for one in choices if all(one) and len(set(one)) == len(one)]
    return dict(zip(known, choices[0], strict=True)) if len(choices) == 1 else found


def apart(model: str, names: Sequence[str], hosts: Mapping[str, Reach]) -> str:
    """Return why hosts cannot reach each other; empty if they can, or if the inventory sets every address."""
    found = addresses_of(model, names, hosts)
    known = {name: hosts[name] for name in found}
    families = {_family(address): name for name, address in found.items() if _family(address)}
    if len(families) > 1:
        each = " and ".join(f"IPv{family} on {name}" for family, name in sorted(families.items()))
        return f"is {each}: use one family on all hosts"
    if all(one.said for one in known.values()) or len(_used(found, known)) < 2 or _live(model, known):
        return ""
    where = [f"{name} in {hosts[name].network_of(address)}" for name, address in found.items()]
    return f"must be set on each host: the hosts have no network in common, or several ({some_names(where)})"


def _chosen_of(networks: Sequence[Network]) -> set[str]:
    """Return the networks that may be chosen; many servers have a link-local one to their BMC."""
    return {name for one in networks if (name := _name(one)) and not ip_interface(name).is_link_local}


def _used(found: Mapping[str, str], known: Mapping[str, Reach]) -> set[str]:
    """Return the networks of addresses; empty if one is unknown."""
    networks = {known[name].network_of(address) for name, address in found.items()}
    return set() if None in networks else {str(one) for one in networks}


def _live(model: str, known: Mapping[str, Reach]) -> dict[str, str]:
    """Return the addresses with which a model runs, if its hosts still have them; otherwise empty."""
    found = {name: one.serving.get(model, "") for name, one in known.items()}
    kept = all(one.network_of(found[name]) and one.said in ("", found[name]) for name, one in known.items())
    return found if kept else {}


def _name(network: Network) -> str:
    try:
        return str(ip_interface(f"{network.address}/{network.prefix}").network)
    except ValueError:
        return ""


def _family(address: str) -> int:
    """Return the version of an address; 0 if it is none, which is refused elsewhere."""
    try:
        return ip_address(address).version
    except ValueError:
        return 0
