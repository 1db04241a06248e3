"""Machines that are recognised and not served: each with a sentence on why, and on the vendor's way."""

from __future__ import annotations

from pathlib import Path

import pytest
from gaudi_serve.model.host import Host
from gaudi_serve.platforms.elsewhere import ELSEWHERE
from helpers.gpu_hosts import pci_device, put

BY_NAME = {one.name: one for one in ELSEWHERE}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tpu", "vllm/vllm-tpu"),
        ("neuron", "deep-learning containers with the Neuron SDK"),
        ("apple", "vllm-metal"),
        ("openvino", "accelerator: cpu"),
    ],
)
def test_each_reports_in_one_sentence_why_and_where_it_is_served(name: str, reason: str) -> None:
    one = BY_NAME[name]
    assert reason in one.refused and "not served here" in one.refused
    assert not one.refused.endswith(".") and ". " not in one.refused and one.refused.isprintable()
    assert one.access(Host()) is None and not one.devices
    assert one.observe()["modules"] == [] and one.about(Host()) == [f"{one.title} host, which is not served"]


def test_a_tpu_is_recognised_on_the_bus(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:00:05.0", "0x1ae0", "0063", "0xff0000")
    assert BY_NAME["tpu"].pci(str(tmp_path)) == {"0000:00:05.0": "0063"}
    assert BY_NAME["tpu"].here(str(tmp_path))
    assert not BY_NAME["neuron"].here(str(tmp_path))


def test_network_cards_and_disks_of_the_same_vendors_are_none(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:00:04.0", "0x1ae0", "0042", "0x020000")  # gVNIC
    pci_device(tmp_path, "0000:00:06.0", "0x1ae0", "001f", "0x010802")  # a disk
    pci_device(tmp_path, "0000:00:07.0", "0x1d0f", "ec20", "0x020000")  # ENA
    pci_device(tmp_path, "0000:00:08.0", "0x1d0f", "8061", "0x010802")  # EBS
    put(tmp_path, "dev/vfio/0")
    put(tmp_path, "dev/accel/accel0")
    assert [one.name for one in ELSEWHERE if one.here(str(tmp_path))] == []


def test_a_neuron_device_is_recognised_on_the_bus_and_by_its_node(tmp_path: Path) -> None:
    put(tmp_path, "dev/neuron0")
    assert BY_NAME["neuron"].here(str(tmp_path))
    pci_device(tmp_path, "0000:00:1e.0", "0x1d0f", "7164", "0x088000")
    assert BY_NAME["neuron"].pci(str(tmp_path)) == {"0000:00:1e.0": "7164"}
    assert BY_NAME["neuron"].observe(str(tmp_path))["pci_cards"] == 1


def test_an_npu_beside_a_processor_is_no_reason(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:00:0b.0", "0x8086", "7d1d", "0x120000", 0, "intel_vpu")
    assert [one.name for one in ELSEWHERE if one.here(str(tmp_path))] == []
