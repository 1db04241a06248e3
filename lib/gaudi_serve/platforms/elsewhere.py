"""Machines that are recognised but not supported: each with the reason and its vendor's alternative in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..model.vllm_options import vllm_options
from .base import Platform
from .pci import pci_devices

TPU_VENDOR, NEURON_VENDOR = "0x1ae0", "0x1d0f"
# Both vendors also have network cards and disks in the same clouds, so the ids decide.
TPU_IDS = ("0027", "0056", "005e", "0062", "0063", "006f", "0076")
NEURON_IDS = ("7064", "7065", "7066", "7067", "7164", "7264", "7364", "7564")
TPU = (
    "its TPUs are not served here: vLLM has them in a package of its own, tpu-inference, which needs privileged "
    "containers and one process that holds them all; use Google's image vllm/vllm-tpu"
)
NEURON = (
    "its Trainium or Inferentia devices are not served here: vLLM has them in AWS's own vllm-neuron, which compiles "
    "each model first; use AWS's deep-learning containers with the Neuron SDK"
)
APPLE = (
    "Apple's machines are not served here: macOS has neither systemd nor containers that see the GPU; use vllm-metal "
    "(macOS 15, arm64), or vLLM's CPU build from source"
)
JETSON = "it is an NVIDIA Jetson, which the images of vllm/vllm-openai do not serve; use NVIDIA's own images for Jetson"
OPENVINO = (
    "OpenVINO is not served here: vLLM has dropped it; accelerator: cpu serves on the processors, and xpu on "
    "Intel's graphics cards, while an NPU serves no model"
)


def _on_bus(vendor: str, ids: tuple[str, ...]) -> Callable[[str], dict[str, str]]:
    """Return a function that lists a vendor's accelerators on the bus by their PCI device ids."""

    def pci(root: str) -> dict[str, str]:
        found = pci_devices(root, vendor, ("0x",))
        return {bus_id: one.device for bus_id, one in found.items() if one.device in ids}

    return pci


def _elsewhere(
    name: str, title: str, refused: str, pci: Callable[[str], dict[str, str]] = lambda root: {}, nodes: str = ""
) -> Platform:
    """Return a platform that is not supported.

    Args:
        name: of the platform.
        title: its hosts' name in messages.
        refused: the reason, and the vendor's alternative.
        pci: its devices on the bus; without it, no Linux host is recognised, and only an inventory can name it.
        nodes: a pattern of files of its driver, for machines that hide their bus.
    """

    def observe(root: str = "/") -> dict[str, Any]:
        problem = [f"{title} devices are not served"]
        return {"device_name": None, "modules": [], "pci_cards": len(pci(root)), "problem": problem}

    return Platform(
        name=name,
        title=title,
        engine="vllm",
        options=vllm_options,
        software=lambda release: f"vLLM for {title}",
        here=lambda root: bool(pci(root)) or (nodes != "" and any(Path(root).glob(nodes))),
        pci=pci,
        observe=observe,
        about=lambda host: [f"{title} host, which is not served"],
        refused=refused,
    )


# A VFIO node may belong to any passed-through device; it counts only together with one of Google's on the bus.
ELSEWHERE = (
    _elsewhere("tpu", "TPU", TPU, _on_bus(TPU_VENDOR, TPU_IDS)),
    _elsewhere("neuron", "Neuron", NEURON, _on_bus(NEURON_VENDOR, NEURON_IDS), "dev/neuron[0-9]*"),
    _elsewhere("jetson", "Jetson", JETSON, nodes="etc/nv_tegra_release"),
    _elsewhere("apple", "Apple", APPLE),
    _elsewhere("openvino", "OpenVINO", OPENVINO),
)
