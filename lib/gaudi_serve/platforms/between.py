"""Requirements for sending over network cards with RDMA: variables of the libraries, and nodes of the cards."""

from __future__ import annotations

from collections.abc import Sequence

from ..model.between import Between
from .device_access import Node

# Kernel from which network cards can read the memory of Gaudi cards (dma-buf).
DIRECT_KERNEL = "5.12"
# RDMA pins memory, and the verbs library maps its queues.
ULIMIT, CAPABILITY = "memlock=-1:-1", "IPC_LOCK"
CONNECTIONS = Node("/dev/infiniband/rdma_cm")
# Part of the line rate that all_reduce over hosts must reach: over network cards, and over a card's own ports. The
# vendor reports 205.9 GB/s for two hosts of Gaudi2, whose 24 ports have 300 GB/s together.
NICS_PART, PORTS_PART = 1 / 2, 1 / 3


def over_hccl(between: Between, verbs: Sequence[str]) -> dict[str, str]:
    """Return the variables by which HCCL sends over network cards.

    HCCL selects for each card the nearest network card, and takes a list of those that it must not use.

    Args:
        between: network settings of the inventory.
        verbs: RDMA devices of the host.
    """
    env = {"HCCL_OVER_OFI": "1"}
    if between.direct:
        env |= {"HCCL_GAUDI_DIRECT": "1", "RDMAV_FORK_SAFE": "1", "MLX5_SCATTER_TO_CQE": "0"}
        env |= {"FI_EFA_USE_DEVICE_RDMA": "1"} if any(name.startswith("efa") for name in verbs) else {}
    left = [name for name in verbs if between.devices and name not in between.devices]
    return env | ({"HCL_HNIC_VERBS_EXCLUDE_IF": ",".join(left)} if left else {})


def over_nccl(between: Between, verbs: Sequence[str]) -> dict[str, str]:
    """Return the variables by which NCCL and RCCL send over network cards; an equals sign selects exactly these."""
    used = between.used(tuple(verbs))
    return {"NCCL_IB_HCA": f"={','.join(used)}"} if used else {}


def verbs_nodes(devices: Sequence[str]) -> tuple[Node, ...]:
    """Return the nodes of RDMA devices; the kernel may number them differently after each boot."""
    named = "/sys/class/infiniband/{}/device/infiniband_verbs/*"
    return (*(Node("/dev/infiniband/{name}", named_by=named.format(name)) for name in devices), CONNECTIONS)


def line_rate(gbit_s: Sequence[float]) -> float:
    """Return the GB/s of links, in one direction, from their Gbit/s."""
    return sum(gbit_s) / 8
