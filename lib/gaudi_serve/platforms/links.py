"""Links between the devices of a host: which devices they connect, how they are measured, and the thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..model.host import Card

# Kinds of links as the vendors' tools name them, the slowest first.
SLOWEST_FIRST = ("SYS", "NODE", "PHB", "PCIE", "PXB", "PIX", "MDF", "XL", "XGMI", "PACKAGE", "NV")


# Kinds of links of a pair of devices that has PCI Express only.
PCIE = ("SYS", "NODE", "PHB", "PCIE", "PXB", "PIX")


@dataclass(frozen=True)
class Threshold:
    """The minimum result of a measurement.

    device: first part of the names of all devices. gb_s: network or bus bandwidth. cards: number of participating
    devices on each host. link: first part of the kind of the slowest link between two of them; empty for any. hosts: 1,
    or 2 for two or more.
    """

    device: str
    gb_s: float
    cards: int
    link: str = ""
    hosts: int = 1


@dataclass(frozen=True)
class Links:
    """How the links between a platform's devices are measured.

    library: the name in messages of the communication library. thresholds: the first matching one counts; on other
    machines the first figure passes. backend: that of torch.distributed; if it is empty, hccl_demo measures. devices:
    the devices' name in torch. env: variables that the library needs. host_by_host: hosts are not measured together.
    tests: the vendor's own programs that print the table of nccl-tests; empty if there are none. pcie_part: the part of
    PCI Express's rate that a pair of devices without other links must reach if no threshold matches; 0 for none.
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
        """Return the GB/s that a measurement of some cards must reach; None if unknown.

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
        """Return the minimum for a pair over PCI Express, by the slower card; None for other groups (unknown rate)."""
        rate = min((card.pcie_gb_s for card in cards), default=0.0) * self.pcie_part
        return round(rate, 1) or None if len(cards) == 2 and link.startswith(PCIE) else None


def slowest_link(cards: Sequence[Card]) -> str:
    """Return the kind of the slowest link between two of some cards; empty if one of the links is unknown."""
    kinds = [one.links.get(other.module_id, "") for one in cards for other in cards if one is not other]
    if not all(kind.startswith(SLOWEST_FIRST) for kind in kinds):
        return ""
    return next((kind for slow in SLOWEST_FIRST for kind in kinds if kind.startswith(slow)), "")


def islands(cards: Sequence[Card], near: Sequence[tuple[str, ...]]) -> dict[int, int]:
    """Return the island of each card: the lowest module_id of those that links of the nearest kind connect.

    Args:
        cards: of a host.
        near: kinds of links in levels, as their platform has them; the first level with any link counts.
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
