"""The network that devices of several hosts use: how an inventory describes it."""

from __future__ import annotations

from dataclasses import dataclass

PORTS, NICS = "ports", "nics"


@dataclass(frozen=True)
class DesiredPort:
    """A port of a card that leads to other hosts.

    module_id, port: which card, and which of its ports. address: IPv4 with its prefix, such as 10.200.10.1/30; empty
    where the ports share one switch without addresses. gateway_mac: that of the switch's port. neighbor, neighbor_port:
    the switch and its port as LLDP names them; empty where nobody has said them.
    """

    module_id: int
    port: int
    address: str = ""
    gateway_mac: str = ""
    neighbor: str = ""
    neighbor_port: str = ""

    @property
    def name(self) -> str:
        """Return how messages call it."""
        return f"card {self.module_id} port {self.port}"


@dataclass(frozen=True)
class Between:
    """The network between the devices of several hosts.

    kind: ``ports`` (the cards' own), ``nics`` (network cards of the host with RDMA), or empty where nobody has said it.
    mtu: of the ports, in bytes; 0 leaves it as it is. ports: those that the inventory describes. devices: the RDMA
    devices of the network cards, such as mlx5_0; empty for all. direct: network cards read the memory of the devices
    (Gaudi Direct).
    """

    kind: str = ""
    mtu: int = 0
    ports: tuple[DesiredPort, ...] = ()
    devices: tuple[str, ...] = ()
    direct: bool = False

    def used(self, verbs: tuple[str, ...]) -> tuple[str, ...]:
        """Return the RDMA devices that carry the traffic, of those that the host has."""
        return self.devices or verbs


NEITHER = Between()
