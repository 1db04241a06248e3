"""The network between the devices of several hosts, as an inventory describes it."""

from __future__ import annotations

from dataclasses import dataclass

PORTS, NICS = "ports", "nics"


@dataclass(frozen=True)
class DesiredPort:
    """A port of a card that leads to other hosts.

    module_id, port: the card, and its port. address: IPv4 with its prefix, such as 10.200.10.1/30; empty if the ports
    share one switch without addresses. gateway_mac: that of the switch's port. neighbor, neighbor_port: the switch
    and its port as LLDP names them; empty if the inventory does not set them.
    """

    module_id: int
    port: int
    address: str = ""
    gateway_mac: str = ""
    neighbor: str = ""
    neighbor_port: str = ""

    @property
    def name(self) -> str:
        """Return the name of the port in messages."""
        return f"card {self.module_id} port {self.port}"


@dataclass(frozen=True)
class Between:
    """The network between the devices of several hosts.

    kind: ``ports`` (the cards' own), ``nics`` (RDMA network cards of the host), or empty if it is not set.
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
        """Return which of the host's RDMA devices carry the traffic."""
        return self.devices or verbs


NEITHER = Between()
