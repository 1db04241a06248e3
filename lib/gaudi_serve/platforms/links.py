"""Links between the devices of a host: which devices they connect, how they are measured, and what is good enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..model.host import Card

# Kinds of links as the vendors' tools name them, the slowest first.
SLOWEST_FIRST = ("SYS", "NODE", "PHB", "PCIE", "PXB", "PIX", "MDF", "XL", "XGMI", "PACKAGE", "NV")


# Those over which a pair of devices has PCI Express alone.
PCIE = ("SYS", "NODE", "PHB", "PCIE", "PXB", "PIX")


@dataclass(frozen=True)
class Threshold:
    """What a measurement must reach at least.

    device: how the names of all devices begin. gb_s: network or bus bandwidth. cards: how many devices take part on
    each host. link: how the kind of the slowest link between two of them begins; empty for any. hosts: 1, or 2 for two
    or more.
    """

    device: str
    gb_s: float
    cards: int
    link: str = ""
    hosts: int = 1


@dataclass(frozen=True)
class Links:
    """How the links between a platform's devices are measured.

    library: what sends between them, as messages call it. thresholds: the first that fits counts; of other machines
    a first figure passes. backend: that of torch.distributed; where it is empty, hccl_demo measures. devices: how torch
    calls the devices. env: what the library needs. host_by_host: hosts are not measured together. tests: the vendor's
    own programs that print the table of nccl-tests; empty where there are none. pcie_part: the part of the rate of PCI
    Express that a pair of devices without other links must reach, where no threshold fits; 0 for none.
    """

    library: str
    thresholds: tuple[Threshold, ...] = ()
    backend: str = ""
    devices: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    host_by_host: bool = False
    tests: str = ""
    pcie_part: float = 0.0

    def threshold(self, cards: Sequence[Card], device_name: str, hosts: int = 1) -> float | None:
        """Return the GB/s that a measurement of some cards must reach; None where nothing is known of them.

        Args:
            cards: of one host.
            device_name: the name of a card that has none of its own.
            hosts: how many measure together.
        """
        names, link = {card.name or device_name for card in cards}, slowest_link(cards)
        published = next(
            (
                row.gb_s
                for row in self.thresholds
                if all(name.startswith(row.device) for name in names)
                and (row.cards, row.hosts) == (len(cards), min(hosts, 2))
                and link.startswith(row.link)
            ),
            None,
        )
        return self._over_pcie(cards, link) if published is None and hosts == 1 else published

    def _over_pcie(self, cards: Sequence[Card], link: str) -> float | None:
        """Return what a pair over PCI Express must reach, by the slower one; what more of them share nobody knows."""
        rate = min((card.pcie_gb_s for card in cards), default=0.0) * self.pcie_part
        return round(rate, 1) or None if len(cards) == 2 and link.startswith(PCIE) else None


def slowest_link(cards: Sequence[Card]) -> str:
    """Return the kind of the slowest link between two of some cards; empty where one of them is not known."""
    kinds = [one.links.get(other.module_id, "") for one in cards for other in cards if one is not other]
    if not all(kind.startswith(SLOWEST_FIRST) for kind in kinds):
        return ""
    return next((kind for slow in SLOWEST_FIRST for kind in kinds if kind.startswith(slow)), "")


def islands(cards: Sequence[Card], near: Sequence[tuple[str, ...]]) -> dict[int, int]:
    """Return the island of each card: the lowest module_id of those that links of the nearest kind connect.

    Args:
        cards: of a host.
        near: kinds of links in levels, as their platform has them; the first of which there is any decides.
    """
    for level in near:
        linked = {
            card.module_id: [other for other, kind in card.links.items() if kind.startswith(level)] for card in cards
        }
        if any(linked.values()):
            return {number: min(_reached(number, linked)) for number in linked}
    return {}


def _reached(first: int, linked: Mapping[int, Sequence[int]]) -> set[int]:
    found, left = set(), [first]
    while left:
        number = left.pop()
        if number not in found:
            found.add(number)
            left += linked.get(number, ())
    return found
