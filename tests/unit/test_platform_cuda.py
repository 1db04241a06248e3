"""NVIDIA GPUs as real machines show them: one, two, eight, mixed, divided, lost, held, sick; what they cannot do."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.core.run import Result, run
from gaudi_serve.inventory.facts import checked_host
from gaudi_serve.model.architecture import Architecture
from gaudi_serve.model.host import Host
from gaudi_serve.model.spec import Spec
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.platforms import PLATFORMS, cuda, nvidia_smi, sick_cards
from gaudi_serve.platforms.releases import vllm_of
from gpu_trees import add_nvidia
from helpers.catalogs import CATALOG, only_plugin
from helpers.gpu_hosts import GpuHost, pci_device, put
from helpers.standin_host import STANDINS

KINDS = {
    "T4": ("Tesla T4", 15360, "7.5"),
    "L4": ("NVIDIA L4", 23034, "8.9"),
    "P100": ("Tesla P100-PCIE-16GB", 16384, "6.0"),
    "V100": ("Tesla V100-SXM2-16GB", 16384, "7.0"),
    "5090": ("NVIDIA GeForce RTX 5090", 32607, "12.0"),
    "A100": ("NVIDIA A100-SXM4-80GB", 81920, "8.0"),
    "4090": ("NVIDIA GeForce RTX 4090", 24564, "8.9"),
    "3090": ("NVIDIA GeForce RTX 3090", 24576, "8.6"),
    "H100": ("NVIDIA H100 80GB HBM3", 81559, "9.0"),
    "B200": ("NVIDIA B200", 183359, "10.0"),
    "GB200": ("NVIDIA GB200", 189471, "10.0"),
    "GB10": ("NVIDIA GB10", 0, "12.1"),
}


def card(kind: str, number: int = 0, **more: Any) -> dict[str, Any]:
    """Return a card of the stand-in's state."""
    name, memory, capability = KINDS[kind]
    known = {"uuid": f"GPU-{number:08}", "bus_id": f"0000:{0x17 + number:02x}:00.0", "name": name}
    return {**known, "memory_mib": memory, "compute_cap": capability, **more}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what sets a machine up, with these cards, and observes it."""
    host = GpuHost(tmp_path, "nvidia-smi")
    host.answers(monkeypatch, nvidia_smi)
    put(tmp_path, "proc/meminfo", "MemTotal:       125829120 kB\n")

    def observe(
        *cards: dict[str, Any], switches: int = 0, minors: tuple[int, ...] = (), log: tuple[str, ...] = (), **state: Any
    ) -> Any:
        for place, one in enumerate(cards):
            number = minors[place] if minors else place
            add_nvidia(tmp_path, one, number, place * 2 // len(cards))
        for place in range(switches):
            on_bus(tmp_path, f"0000:{0xA0 + place:02x}:00.0", "0x068000")
        host.state = {"driver_version": "580.95.05", "cards": cards, **state}
        host.log = list(log)
        host.save()
        return cuda.observe(str(tmp_path))

    return observe


def on_bus(root: Path, bus_id: str, kind: str = "0x030200", node: int = 0) -> None:
    """Show a device of NVIDIA on the PCI bus."""
    pci_device(root, bus_id, "0x10de", "2330", kind, node)


def test_one_card(machine: Any) -> None:
    found = machine(card("L4"))
    (module,) = found["modules"]
    assert module == {
        **{"module_id": 0, "index": 0, "device_id": "GPU-00000000", "bus_id": "0000:17:00.0", "name": "NVIDIA L4"},
        **{"memory_mib": 23034, "memory_used_mib": 1, "capability": "8.9", "numa_node": 0, "cpus": ["0-31", "64-95"]},
        **{"in_use": False, "held_by": None, "problem": None, "sick": "", "links": {}, "no_peer": []},
        **{"memory_others_mib": 1, "serial": None, "firmware": "96.00.5E.00.03", "pcie_gb_s": 0.0},
    }
    assert (found["device_name"], found["driver_version"], found["pci_cards"]) == ("NVIDIA L4", "580.95.05", 1)
    assert found["notes"] == found["unusable_cards"] == []
    host, problems = checked_host({"accelerator": "gaudi", **found})
    assert [one for one in problems if "device_name" not in one[0]] == []
    assert host["modules"][0]["capability"] == "8.9"


def test_eight_cards_are_linked_and_lie_on_two_nodes(machine: Any) -> None:
    links = {f"{one}-{other}": "NV18" for one in range(8) for other in range(one + 1, 8)}
    found = machine(*[card("H100", number) for number in range(8)], links=links)
    assert [module["numa_node"] for module in found["modules"]] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert found["modules"][3]["links"] == {str(other): "NV18" for other in range(8) if other != 3}
    assert found["modules"][3]["no_peer"] == []


def test_two_consumer_cards_of_two_kinds_without_peer_access(machine: Any) -> None:
    found = machine(card("4090", 0), card("3090", 1), links={"0-1": "PHB"}, peers={"0-1": "GNS"})
    first, second = found["modules"]
    assert (first["links"], second["links"], first["no_peer"], second["no_peer"]) == (
        {"1": "PHB"},
        {"0": "PHB"},
        [1],
        [0],
    )
    assert found["notes"] == ["it has cards of several kinds: 1 NVIDIA GeForce RTX 4090, 1 NVIDIA GeForce RTX 3090"]


def test_the_node_of_a_card_is_its_minor_and_not_its_index(machine: Any) -> None:
    found = machine(card("L4", 0), card("L4", 1), minors=(2, 0))
    assert [(one["module_id"], one["index"]) for one in found["modules"]] == [(0, 2), (1, 0)]


def test_a_lost_card_is_named_by_its_place_and_the_others_are_served(machine: Any) -> None:
    found = machine(card("L4", 0), card("L4", 1, lost="GPU is lost. Reboot the system to recover this GPU"))
    assert [module["module_id"] for module in found["modules"]] == [0]
    assert found["unusable_cards"] == [
        {
            "bus_id": "0000:18:00.0",
            "problem": "nvidia-smi: GPU is lost. Reboot the system to recover this GPU",
        }
    ]
    found = machine(card("L4", 0), card("L4", 1, missing=True))
    assert found["unusable_cards"] == [
        {"bus_id": "0000:18:00.0", "problem": "it is on the PCI bus, and nvidia-smi does not show it"}
    ]
    assert found["pci_cards"] == 2


@pytest.mark.parametrize(
    ("odd", "problem"),
    [
        ({"memory.used": "[Unknown Error]"}, "nvidia-smi shows [Unknown Error] for it"),
        ({"memory.total": "[GPU is lost]"}, "nvidia-smi shows [GPU is lost] for it"),
        ({"uuid": "[N/A]"}, "nvidia-smi cannot read its UUID"),
        ({"memory.used": "[N/A]"}, None),
        ({"mig.mode.current": "[Not Supported]"}, None),
    ],
)
def test_a_field_that_cannot_be_read_is_the_card_s_alone(
    odd: dict[str, str], problem: str | None, machine: Any
) -> None:
    found = machine(card("L4", 0), card("L4", 1, odd=odd))
    assert [module["problem"] for module in found["modules"]] == [None, problem]


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (
            {"answer": [9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."]},
            "(status 9: the",
        ),
        ({"answer": [18, "Failed to initialize NVML: Driver/library version mismatch"]}, "reboot the host"),
        (
            {"answer": [12, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system."]},
            "library NVML is missing",
        ),
    ],
)
def test_a_tool_that_does_not_answer(state: dict[str, Any], problem: str, machine: Any) -> None:
    found = machine(card("H100"), **state)
    assert found["modules"] == [] and problem in found["problem"][0]
    assert found["problem"][0].endswith("; on the PCI bus: NVIDIA card (10de:2330)")


@pytest.mark.parametrize(("status", "notes"), [(14, True), (10, False), (8, False)])
def test_a_warning_about_one_card_does_not_take_the_host(
    status: int, notes: bool, machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a corrupt infoROM nvidia-smi shows all cards, a warning below them, and ends with 14; CUDA works."""
    warning = "infoROM is corrupted at gpu 0000:17:00.0"

    def answer(argv: list[str], timeout: float = 0) -> Result:
        told = real(argv, timeout)
        return Result(status, f"{told.out}\nWARNING: {warning}\n" if notes else told.out, told.err)

    machine(card("L4", 0), card("L4", 1))
    real = nvidia_smi.run
    monkeypatch.setattr(nvidia_smi, "run", answer)
    found = machine(card("L4", 0), card("L4", 1))
    assert [module["problem"] for module in found["modules"]] == [None, None]
    assert found["notes"] == ([f"nvidia-smi: {warning}"] if notes else [])


def test_a_tool_that_hangs_is_not_waited_for(machine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The stand-in is a program of its own here, which ends later than anybody waits."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-smi").symlink_to(STANDINS / "nvidia-smi")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("GAUDI_SIM_ROOT", str(tmp_path))
    monkeypatch.setattr(nvidia_smi, "run", lambda argv, _: run(argv, 0.3))
    assert "nvidia-smi: no answer within 0.3 s" in machine(card("H100"), hang_s=3)["problem"][0]


def test_parts_of_divided_cards_are_the_devices(machine: Any) -> None:
    parts = [
        {"profile": "3g.40gb", "uuid": "MIG-a", "programs": [[7, "/usr/bin/python3"]], "memory_mib": 40448},
        {"profile": "1g.10gb", "uuid": "MIG-b", "memory_mib": 9984},
    ]
    found = machine(card("H100", 0, parts=parts, used_mib=40000), card("H100", 1), card("H100", 2, parts=[]))
    shown = [
        (one["module_id"], one["device_id"], one["memory_mib"], one.get("alone", False)) for one in found["modules"]
    ]
    assert shown == [
        (0, "MIG-a", 40448, True),
        (1, "MIG-b", 9984, True),
        (2, "GPU-00000001", 81559, False),
        (3, "GPU-00000002", 81559, False),
    ]
    assert [one["held_by"] for one in found["modules"]] == ["python3 (pid 7)", None, None, None]
    assert found["modules"][3]["problem"].startswith("its MIG mode is on, and it has no parts")
    access = cuda.PLATFORM.access(Host.of(found))
    assert access and not access.files and access.shown.startswith(r"\(UUID: (?P<id>MIG")


# What real cards have shown: the rows of nvidia-smi, and of nvidia-smi mig -lgip (of B200, H200, H100 NVL and GB200).
MIG_TABLE = """
|   1  NVIDIA A100-SXM4-40GB          On  | 00000000:B7:00.0 Off |                   On |
| N/A   36C    P0              43W / 400W |  24205MiB / 40960MiB |     N/A      Default |
| MIG devices:                                                                |
|==================+======================+===========+=======================|
|  1    3   0   0  |  14366MiB / 19968MiB | 28      0 |  2   0    1    0    0 |
|                  |      4MiB / 32767MiB |           |                       |
+------------------+----------------------+-----------+-----------------------+
|  1    6   0   1  |     13MiB /  9728MiB | 28      0 |  2   0    1    0    0 |
"""
MIG_PROFILES = """
|   0  MIG 1g.23gb       19     7/7        20.50      No     18     1     0   |
|                                                             2     1     0   |
|   0  MIG 2g.45gb       14     3/3        44.25      No     36     2     0   |
|   1  MIG 1g.18gb       19     7/7        16.00      No     16     1     0   |
|   1  MIG 1g.18gb+me    20     1/1        16.00      No     16     1     0   |
|   2  MIG 1g.12gb       19     7/7        10.75      No     16     1     0   |
|   3  MIG 1g.24gb         14     4/4        23.12      No     46     1     1   |
"""


def test_the_memory_of_a_part_is_the_tool_s_figure_and_not_that_of_its_name() -> None:
    def of(text: str, **more: str) -> list[tuple[int, int | None]]:
        return [(part.memory_mib, part.used_mib) for part in nvidia_smi.parts(text, **more)]

    listed = "GPU {}: NVIDIA X (UUID: GPU-x)\n  MIG {:<15} Device  {}: (UUID: MIG-a)\n"
    assert of(listed.format(1, "2g.20gb", 0), table=MIG_TABLE) == [(19968, 14366)]
    assert of(listed.format(1, "1g.10gb", 1), table=MIG_TABLE) == [(9728, 13)]
    # The table shows no figures to some users; profiles have them, also that of a compute instance.
    for gpu, name, mib in (
        (0, "1g.23gb", 20992),
        (0, "1c.2g.45gb", 45312),
        (1, "1g.18gb+me", 16384),
        (3, "1g.24gb", 23674),
    ):
        hidden = MIG_TABLE.replace("MiB /", "N/A /")
        assert of(listed.format(gpu, name, 0), table=hidden, profiles=MIG_PROFILES) == [(mib, None)]
    # Where both are silent, a name counts for no more than the least known part: 20.00 GiB of 1g.24gb.
    assert of(listed.format(0, "1g.24gb", 0)) == [(20398, None)]


def test_parts_of_a_b200_have_the_memory_of_their_profile(machine: Any) -> None:
    parts = [{"profile": "1g.23gb", "uuid": "MIG-a", "memory_mib": 20992, "used_mib": 62}]
    (module,) = machine(card("B200", parts=parts))["modules"]
    assert (module["memory_mib"], module["memory_used_mib"], module["memory_others_mib"]) == (20992, 62, 62)
    parts = [{"profile": "1g.23gb", "uuid": "MIG-a"}]
    (module,) = machine(card("B200", parts=parts, profiles={"1g.23gb": 20.5}))["modules"]
    assert (module["memory_mib"], module["memory_others_mib"]) == (20992, None)


SPARK = {"memory.total": "[N/A]", "memory.used": "[N/A]"}
LLAMA = {
    **{"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "bfloat16"},
    **{"max_position_embeddings": 131072},
}


def planned_there(found: dict[str, Any], **spec: Any) -> tuple[dict[str, Any], list[str]]:
    """Return a plan of a model of 15 GiB on an observed host, and its errors."""
    model = {"name": "m", "weights": "/m/x", "image": "vllm/vllm-openai:v0.33.0", "config": LLAMA}
    facts, problems = checked_host({"accelerator": "cuda", **found})
    assert problems == []
    plan = vllm_plan([{**model, "weight_bytes": 16 * 10**9, **spec}], facts, host_name="g")
    return plan, [one["message"] for one in plan["errors"]]


def test_a_memory_that_processors_share_is_counted_as_cuda_and_vllm_do(machine: Any, tmp_path: Path) -> None:
    """Two DGX Spark had 102 of 121.69 GiB free at a start, so that 0.87 and 0.92 failed there."""
    put(tmp_path, "proc/meminfo", "MemTotal:       127600724 kB\nMemFree: 9 kB\nMemAvailable:   110624768 kB\n")
    found = machine(card("GB10", odd=SPARK))
    (module,) = found["modules"]
    assert (module["memory_mib"], module["memory_others_mib"], module["problem"]) == (124610, 16578, None)
    for share in ({}, {"gpu_memory_utilization": 0.87}):
        (error,) = planned_there(found, **share)[1]
        assert f"gpu_memory_utilization {share.get('gpu_memory_utilization', 0.92)}" in error
        assert "of 121.7 GiB must be free when the server starts" in error
        assert error.endswith("leave 101.5 GiB; end programs that use this memory, or set gpu_memory_utilization 0.83")
    plan, errors = planned_there(found, gpu_memory_utilization=0.83)
    assert errors == [] and plan["models"][0]["memory"]["device_gib"] == 121.7
    # Its own use of the memory is not that of others, and a server that serves has its share.
    held = machine(card("GB10", odd=SPARK, programs=[[7, "/usr/bin/python3", 15000]]))
    assert held["modules"][0]["memory_others_mib"] == 1578
    launch = {key: plan["models"][0][key] for key in ("device_access", "module_ids")}
    live = {"m": {"active": True, "holds": True, "digest": plan["models"][0]["digest"], "launch": launch}}
    used = {**found, "modules": [{**module, "memory_others_mib": 90000}]}
    assert planned_there({**used, "services": live}, gpu_memory_utilization=0.83)[1] == []
    assert len(planned_there(used, gpu_memory_utilization=0.83)[1]) == 1


def test_memory_of_a_desktop_is_not_a_model_s(machine: Any) -> None:
    """An idle card lets vLLM start with 0.97, and 2,900 MiB of a desktop with 0.86, not with its own 0.92."""
    errors = planned_there(machine(card("4090", used_mib=2900)), max_model_len=8192)[1]
    assert errors == [
        "g: model m: gpu_memory_utilization 0.92 (default): of 23.5 GiB must be free when the server starts, and "
        "other programs and its own processes leave 20.3 GiB; end programs that use this memory, or set "
        "gpu_memory_utilization 0.86"
    ]
    assert planned_there(machine(card("4090", used_mib=2900)), max_model_len=8192, gpu_memory_utilization=0.86)[1] == []
    assert planned_there(machine(card("4090", used_mib=12)), max_model_len=8192, gpu_memory_utilization=0.97)[1] == []
    # What is suggested fits, with every change that it then needs.
    (error,) = planned_there(machine(card("4090", used_mib=2900)), max_model_len=32768)[1]
    assert error.endswith("0.86 with max_model_len 29696 or gpu_memory_utilization 0.86 with kv_cache_dtype fp8"), error
    # The memory of a server of this toolkit is its own; a tool that shows no memory of it makes the rest unknown.
    for mib, others in ((20000, 2900), ("[N/A]", None)):
        found = machine(card("4090", used_mib=22900, programs=[[7, "/usr/bin/a, b", mib]]))
        assert (found["modules"][0]["memory_others_mib"], found["modules"][0]["held_by"]) == (others, "a, b (pid 7)")


def test_cards_are_held_by_programs_or_by_what_nobody_shows(machine: Any) -> None:
    found = machine(card("L4", 0, programs=[[4711, "/opt/vllm/bin/python3"]]), card("L4", 1, used_mib=9000))
    assert [module["held_by"] for module in found["modules"]] == [
        "python3 (pid 4711)",
        "a program that is not shown (9000 of its 23034 MiB are used)",
    ]


def test_errors_of_a_card_s_memory_take_it_out(machine: Any) -> None:
    found = machine(
        card("A100", 0, failure="Yes"),
        card("A100", 1, pending="Yes"),
        card("A100", 2, uncorrected=3),
        card("A100", 3, uncorrected=0),
    )
    problems = [module["problem"] for module in found["modules"]]
    assert problems[0].endswith("replace it") and problems[1].endswith("reset it or reboot the host")
    assert problems[2].startswith("it has 3 uncorrected memory errors") and problems[3] is None
    # An older driver knows not all of these fields.
    found = machine(card("A100", 0, failure="Yes"), unknown=["remapped_rows.failure"])
    assert found["modules"][0]["problem"] is None
    found = machine(card("A100", 0, failure="Yes"), **OLD)
    assert found["modules"][0]["problem"] == problems[0]


def xid(number: int, bus: int, words: str) -> str:
    """Return what NVIDIA's driver writes into the kernel's log."""
    return f"NVRM: Xid (PCI:0000:{bus:02x}:00): {number}, {words}"


HALTED = xid(62, 0x17, "023f0f30 00000000")
HALTED_TEXT = "Xid 62 (a controller in it halted) at 2026-11-27 00:00:00 UTC: 023f0f30 00000000"
OLD = {"unknown": ["gpu_recovery_action"]}


def test_an_error_in_the_kernel_s_log_takes_a_card_out_until_a_boot(machine: Any) -> None:
    log = (HALTED, xid(31, 0x18, "pid=7, name=python3, MMU Fault"), xid(94, 0x19, "Contained: SM (0x1)"))
    found = machine(*[card("A100", number) for number in range(3)], log=log, **OLD)
    assert [module["problem"] for module in found["modules"]] == [
        f"{HALTED_TEXT}; it is out of service until its driver is loaded again or the host boots",
        None,
        None,
    ]
    sick = "Xid 94 (contained error of its memory) at 2026-11-27 00:00:02 UTC: Contained: SM (0x1)"
    assert [module["sick"] for module in found["modules"]] == ["", "", sick]
    # Another boot has another log.
    assert machine(card("A100"), **OLD)["modules"][0]["problem"] is None
    facts = {"accelerator": "cuda", **found}
    assert checked_host(facts)[1] == [] and sick_cards(facts) == [f"card 2 is sick: {sick}"]


@pytest.mark.parametrize(
    "words", ["NETIR_LINK_EVT  Fatal   XC0 i0 Link 00 (0x026001c6)", "RLW_RXPIPE Fatal XC0 i0 Link 13"]
)
def test_a_fatal_error_of_an_nvlink_takes_a_card_out(words: str, machine: Any) -> None:
    """On a machine with B300, all collectives hung after such an error until a boot."""
    log = (xid(149, 0x17, words), xid(145, 0x18, "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2)"))
    first, second = machine(card("B200", 0), card("B200", 1), log=log, **OLD)["modules"]
    assert first["problem"].startswith("Xid 149 (fatal error of its NVLink) at 2026-11-27")
    assert (second["problem"], second["sick"]) == (None, "")
    first = machine(card("B200", 0), card("B200", 1), log=log)["modules"][0]
    assert first["problem"] is None and first["sick"].endswith("; its driver requires no recovery now")


def test_a_card_that_its_switches_do_not_link_is_named(machine: Any) -> None:
    pairs = [(one, other) for one in range(5) for other in range(one + 1, 6)]
    links = {f"{one}-{other}": "NODE" if 2 in (one, other) else "NV18" for one, other in pairs}
    found = machine(*[card("B200", number) for number in range(6)], links=links)
    said = "cards [2] have no NVLink, and the others have: NCCL may fail on them; reset them or reboot the host"
    assert said in found["notes"] and {module["problem"] for module in found["modules"]} == {None}
    # A bridge links two cards of several.
    bridged = {**dict.fromkeys(links, "SYS"), "0-1": "NV4"}
    assert said not in machine(*[card("3090", number) for number in range(6)], links=bridged)["notes"]
    assert not any("no NVLink" in note for note in machine(*[card("L4", number) for number in range(6)])["notes"])


def test_a_newer_driver_reports_whether_a_card_still_needs_a_reset(machine: Any) -> None:
    cards = card("A100", 0), card("A100", 1, action="Reset"), card("A100", 2, action="[N/A]")
    log = (HALTED, xid(95, 0x18, "Uncontained"), xid(48, 0x19, "DBE (double bit error)"))
    first, second, third = machine(*cards, log=log)["modules"]
    assert (first["problem"], first["sick"]) == (None, f"{HALTED_TEXT}; its driver requires no recovery now")
    assert second["problem"].startswith("its driver requires a recovery (Reset), after Xid 95 (uncontained error of")
    assert third["problem"].endswith("until its driver is loaded again or the host boots")
    # That the log has nothing of it, such as after it was cut, changes nothing.
    assert machine(*cards)["modules"][1]["problem"].startswith("its driver requires a recovery (Reset); it is out")


def test_a_card_that_needs_a_reset_cannot_be_asked(machine: Any) -> None:
    odd = {"remapped_rows.pending": "[GPU requires reset]"}
    assert machine(card("A100", odd=odd))["modules"][0]["problem"] == (
        "nvidia-smi shows that it requires a reset; reset it or reboot the host"
    )


def test_a_lost_card_is_shown_with_what_the_kernel_s_log_has_of_it(machine: Any) -> None:
    log = (xid(79, 0x18, "GPU has fallen off the bus."), xid(63, 0x17, "Row Remapper: New row"))
    fell = "Xid 79 (it fell off the bus) at 2026-11-27 00:00:00 UTC: GPU has fallen off the bus"
    found = machine(card("L4", 0), card("L4", 1, missing=True), log=log)
    assert found["unusable_cards"][0]["problem"] == (f"it is on the PCI bus, and nvidia-smi does not show it; {fell}")
    found = machine(card("L4", 0, missing=True), card("L4", 1, missing=True), log=log)
    assert found["problem"] == [
        "nvidia-smi: No devices were found (status 6: no device was found); on the PCI bus: NVIDIA card (10de:2330); "
        f"card 0000:18:00.0: {fell}"
    ]


def test_parts_of_a_card_with_an_error_are_out_with_it(machine: Any) -> None:
    parts = [{"profile": "3g.40gb", "uuid": "MIG-a"}, {"profile": "1g.10gb", "uuid": "MIG-b"}]
    found = machine(card("H100", 0, parts=parts), card("H100", 1), log=(HALTED,), **OLD)
    assert [bool(module["problem"]) for module in found["modules"]] == [True, True, False]


def test_a_tool_that_hangs_on_errors_is_not_asked_again(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, real = [], nvidia_smi.asked

    def hangs(argv: list[str], timeout: float = 20.0) -> Any:
        asked.append(argv)
        return (Result(124, "", "nvidia-smi: no answer within 20 s"), "") if "remapped" in argv[1] else real(argv)

    monkeypatch.setattr(nvidia_smi, "asked", hangs)
    assert machine(card("A100"))["modules"][0]["problem"] is None
    assert len([argv for argv in asked if "remapped" in argv[1]]) == 1


def test_a_kernel_s_log_that_cannot_be_read_is_a_note(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "kernel_log", lambda _: ([], ["the kernel's log cannot be read"]))
    assert machine(card("A100"))["notes"] == ["the kernel's log cannot be read"]


def test_a_model_stays_on_a_card_with_an_error_and_another_gets_a_good_one(machine: Any) -> None:
    image, host = "vllm/vllm-openai:v0.33.0", {"accelerator": "cuda", **machine(card("A100", 0), card("A100", 1))}
    base = {"weights": "/m/x", "image": image}
    specs = [{**base, "name": "old", "port": 30000}, {**base, "name": "new", "port": 30001}]
    (before,) = vllm_plan(specs[:1], checked_host(host)[0], host_name="g")["models"]
    launch = {"device_access": before["device_access"], "module_ids": [0]}
    live = {"module_ids": [0], "port": 30000, "active": True, "digest": before["digest"], "launch": launch}
    found = machine(card("A100", 0), card("A100", 1), log=(HALTED,), **OLD)
    problem = found["modules"][0]["problem"]
    host = {**host, **found}
    plan = vllm_plan(specs, {**checked_host(host)[0], "services": {"old": live}}, host_name="g")
    assert plan["errors"] == []
    assert [(one["name"], one["module_ids"]) for one in plan["models"]] == [("old", [0]), ("new", [1])]
    assert plan["models"][0]["digest"] == before["digest"]
    assert f"g: card 0: {problem}; model old runs on it" in plan["warnings"]
    # Where nothing runs on it, nothing is started there.
    plan = vllm_plan(specs[:1], checked_host(host)[0], host_name="g")
    assert plan["models"][0]["module_ids"] == [1]
    assert f"g: card 0 is not used: {problem}" in plan["warnings"]


MANAGER = "nvidia-fabricmanager of exactly version 580.95.05"


@pytest.mark.parametrize(
    ("kind", "switches", "fabric", "said"),
    [
        ("H100", 4, ["Completed", "Success"], None),
        (
            "H100",
            4,
            ["In Progress", "N/A"],
            f"not ready (In Progress), so CUDA fails with error 802: {MANAGER} must run",
        ),
        ("H100", 0, ["Not Started", "[N/A]"], "its fabric of NVSwitches is not ready (Not Started)"),
        # The switches of a B200 board are network devices of another vendor on the bus.
        ("B200", 0, ["In Progress", "[N/A]"], f"error 802: {MANAGER} and its subnet manager nvlsm must run"),
        ("B200", 0, ["Completed", "Success"], None),
        ("B200", 0, ["Completed", "Insufficient Resources"], "is not ready (Completed, Insufficient Resources), so"),
        ("GB200", 0, ["In Progress", "[N/A]"], "802: the fabric manager of the rack's switches must register it"),
    ],
)
@pytest.mark.parametrize("old", [False, True])
def test_switches_need_their_manager(
    kind: str, switches: int, fabric: list[str], said: str | None, old: bool, machine: Any
) -> None:
    state = {"unknown": ["fabric.state"]} if old else {}
    found = machine(
        card(kind, 0, fabric=["Completed", "Success"]), card(kind, 1, fabric=fabric), switches=switches, **state
    )
    first, second = (module["problem"] for module in found["modules"])
    assert first is None and ((second is None) if said is None else said in second), second
    assert found["pci_cards"] == 2 and found["notes"] == []


@pytest.mark.parametrize(
    ("kind", "switches", "state"), [("A100", 6, "N/A"), ("B200", 0, "[N/A]"), ("GB200", 0, "Not Supported")]
)
def test_a_fabric_of_unknown_state_is_reported(kind: str, switches: int, state: str, machine: Any) -> None:
    """Boards with A100 show no state while their manager runs."""
    assert machine(card("L4", 0), card("L4", 1), fabric=[state, state])["notes"] == []
    found = machine(card(kind, 0), card(kind, 1), switches=switches, fabric=[state, state])
    assert [module["problem"] for module in found["modules"]] == [None, None]
    assert found["notes"] == [
        "nvidia-smi shows no state of the fabric of cards [0, 1]: while it is not ready, CUDA fails with error 802"
    ]


@pytest.mark.parametrize(
    ("licence", "usable"),
    [
        ("Licensed (Expiry: 2026-12-24 5:13:4 GMT)", True),
        ("Unlicensed (Restricted)", False),
        ("Unlicensed (Unrestricted)", False),
        ("Unlicensed", False),
    ],
)
@pytest.mark.parametrize("name", ["NVIDIA A10-24Q", "GRID A100D-40C", "NVIDIA A100-1-5CME"])
def test_a_virtual_card_needs_a_licence(name: str, licence: str, usable: bool, machine: Any) -> None:
    """nvidia-smi shows an unlicensed one as healthy, and CUDA reports that it is busy or unavailable."""
    (module,) = machine(card("A100", name=name, licence=licence))["modules"]
    said = f"its vGPU has no licence ({licence}), so its driver slows CUDA down and then refuses it"
    assert module["problem"] is None if usable else module["problem"].startswith(said)


def test_a_licence_is_read_of_virtual_cards_alone(machine: Any) -> None:
    found = machine(card("A100", 0, licence="Unlicensed"), card("L4", 1, name="NVIDIA L4-12Q"))
    assert [module["problem"] for module in found["modules"]] == [None, None]
    assert (
        "nvidia-smi shows no state of the licence of the virtual cards [1]: without one, CUDA fails on them"
        in (found["notes"])
    )


@pytest.mark.parametrize(("ready", "usable"), [("ready", True), ("not-ready", False)])
def test_a_confidential_guest_must_be_ready(ready: str, usable: bool, machine: Any) -> None:
    found = machine(card("H100"), ready=ready)
    problem = found["modules"][0]["problem"]
    assert (problem is None) if usable else problem.endswith("then run nvidia-smi conf-compute -srs 1")
    assert machine(card("H100"), ready="")["notes"] == [
        "confidential computing is on, and nvidia-smi does not show whether the cards are ready for CUDA"
    ]
    assert machine(card("H100"))["modules"][0]["problem"] is None


def test_a_board_with_b200_needs_the_fabric_manager(tmp_path: Path) -> None:
    wanted = cuda.PLATFORM.driver.companion.wanted
    assert not wanted(str(tmp_path))
    pci_device(tmp_path, "0000:17:00.0", "0x10de", "2901", "0x030200", 0)
    assert wanted(str(tmp_path))


def test_persistence_that_is_off_is_reported(machine: Any) -> None:
    assert machine(card("L4", persistence="Disabled"))["notes"][0].startswith("persistence mode of cards [0] is off")


def test_a_card_that_is_too_old_for_all_images(machine: Any) -> None:
    assert machine(card("P100"))["modules"][0]["problem"] == (
        "its compute capability 6.0 is below 7.0, the least of all images of vLLM"
    )
    assert machine(card("V100"))["modules"][0]["problem"] is None


@pytest.mark.parametrize(
    ("kind", "tag", "said"),
    [
        ("V100", "v0.33.0", "is built for compute capabilities 7.5 to 12.x, and card 0 (Tesla V100-SXM2-16GB) has 7.0"),
        ("V100", "v0.20.2", "take an image of vLLM v0.19.1 or older"),
        ("V100", "v0.19.1", None),
        ("V100", "v0.32.0-cu129", None),
        ("V100", "v0.19.1-cu130", "is built for compute capabilities 7.5"),
        ("V100", "v0.6.3", None),
        ("T4", "v0.33.0", None),
        ("5090", "v0.8.5", "is built for compute capabilities 7.0 to 9.x, and card 0 (NVIDIA GeForce RTX 5090) has"),
        ("5090", "v0.9.1", "to 10.x, and card 0 (NVIDIA GeForce RTX 5090) has 12.0; take an image of vLLM v0.9.2 or"),
        ("5090", "v0.9.2", None),
        ("5090", "v0.33.0", None),
        ("GB10", "v0.33.0", None),
        ("B200", "v0.8.5", "to 9.x, and card 0 (NVIDIA B200) has 10.0; take an image of vLLM v0.9.2 or newer"),
        ("B200", "v0.9.0", None),
        ("H100", "v0.6.3", None),
        ("V100", "latest", "is built for compute capabilities 7.5"),
        ("V100", "v0.99.0", None),
    ],
)
def test_an_image_serves_the_generations_for_which_it_is_built(kind: str, tag: str, said: str | None) -> None:
    found = unable(kind, image=f"vllm/vllm-openai:{tag}")
    assert (found == []) if said is None else (len(found) == 1 and said in found[0]), found
    # An image of the user's own may have other kernels.
    assert unable(kind, image=f"registry.example.net/mine:{tag}") == []


def test_a_machine_is_recognised_by_its_bus(tmp_path: Path) -> None:
    assert not cuda.PLATFORM.here(str(tmp_path))
    on_bus(tmp_path, "0000:a0:00.0", "0x068000")
    assert not cuda.PLATFORM.here(str(tmp_path))
    on_bus(tmp_path, "0000:17:00.0", "0x030000")
    assert cuda.PLATFORM.here(str(tmp_path)) and cuda.pci(str(tmp_path)) == {"0000:17:00.0": "2330"}
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nv_tegra_release").touch()
    assert not cuda.PLATFORM.here(str(tmp_path)) and PLATFORMS["jetson"].here(str(tmp_path))


def unable(kind: str, config: dict[str, Any] | None = None, **spec: Any) -> list[str]:
    """Return what one card of a kind cannot do, as key and sentence."""
    name, memory, capability = KINDS[kind]
    module = {"module_id": 0, "name": name, "memory_mib": memory, "capability": capability}
    host = Host.of({"device_name": name, "driver_version": spec.pop("driver", "580.95.05"), "modules": [module]})
    model = Architecture.of(config or {})
    found = cuda.PLATFORM.capability_problems(Spec({"weights": "/w", **spec}), model, host, host.cards)
    return [f"{key}: {text}" for key, _, text in found]


def quantised(method: str, **more: Any) -> dict[str, Any]:
    """Return a config.json of quantised weights."""
    return {"quantization_config": {"quant_method": method, **more}}


INT8 = {"config_groups": {"a": {"weights": {"type": "int", "num_bits": 8}}}}
FP4 = {"format": "nvfp4-pack-quantized", "config_groups": {"a": {"weights": {"type": "float", "num_bits": 4}}}}


@pytest.mark.parametrize(
    ("kind", "config", "spec", "said"),
    [
        (
            "T4",
            None,
            {"dtype": "bfloat16"},
            "dtype: needs compute capability 8.0 or more, and card 0 (Tesla T4) has 7.5; set dtype: float16",
        ),
        ("T4", None, {"dtype": "float16"}, None),
        ("T4", {"model_type": "gemma3"}, {"dtype": "bfloat16"}, "has 7.5; set dtype: float32"),
        ("T4", {"model_type": "gemma2"}, {"dtype": "float16"}, "dtype: overflows in a model of kind gemma2, so that"),
        ("L4", {"model_type": "glm4"}, {"dtype": "float16"}, "so that vLLM refuses it; set dtype: bfloat16"),
        ("L4", {"model_type": "gemma3"}, {}, None),
        ("L4", None, {"dtype": "bfloat16"}, None),
        ("T4", None, {"kv_cache_dtype": "fp8"}, "kv_cache_dtype: needs compute capability 8.0 or more"),
        ("A100", None, {"kv_cache_dtype": "fp8"}, None),
        (
            "T4",
            quantised("mxfp4"),
            {},
            "weights: quantization_config.quant_method 'mxfp4' of its config.json needs compute capability 8.0",
        ),
        ("L4", quantised("mxfp4"), {}, None),
        ("T4", quantised("awq"), {}, None),
        ("H100", None, {"quantization": "fp_quant"}, "quantization: needs compute capability 10.0 or more"),
        ("B200", None, {"quantization": "fp_quant"}, None),
        ("H100", {}, {"quantization": "nvfp4_per_token"}, "needs compute capability 10.0 or more"),
        ("B200", {}, {"quantization": "nvfp4_per_token"}, None),
        ("B200", quantised("compressed-tensors", **INT8), {}, "with integers of eight bits has no kernels"),
        ("H100", quantised("compressed-tensors", **INT8), {}, None),
        ("A100", None, {"attention_backend": "FLASHMLA"}, "attention_backend: needs compute capability 9.0 or more"),
        ("T4", None, {"env": {"VLLM_ATTENTION_BACKEND": "FLASH_ATTN"}}, "env: VLLM_ATTENTION_BACKEND: needs compute"),
        ("H100", None, {"attention_backend": "FLASHMLA"}, None),
        ("T4", None, {"attention_backend": "FLASHINFER"}, None),
        ("B200", None, {"attention_backend": "CUTLASS_MLA"}, None),
        ("GB10", None, {"attention_backend": "CUTLASS_MLA"}, "attention_backend: needs compute capability 10.x, and"),
        ("H100", None, {"attention_backend": ["FLASHMLA"]}, None),
        ("H100", None, {"image": "vllm/vllm-openai:v0.33.0"}, None),
        (
            "H100",
            None,
            {"image": "vllm/vllm-openai:v0.33.0", "driver": "570.86.15"},
            "env: {VLLM_ENABLE_CUDA_COMPATIBILITY: '1'}",
        ),
        (
            "4090",
            None,
            {"image": "vllm/vllm-openai:v0.33.0", "driver": "570.86.15"},
            "install driver 580 or newer (playbooks/driver.yml -e driver_version=580 -e driver_upgrade_allowed=true)",
        ),
        ("H100", None, {"image": "vllm/vllm-openai:v0.19.1", "driver": "570.86.15"}, None),
        ("H100", None, {"image": "vllm/vllm-openai:v0.23.0-cu129", "driver": "570.86.15"}, None),
        ("H100", None, {"image": "vllm/vllm-openai:v0.20.2", "driver": "570.86.15"}, "is made with CUDA 13, which"),
        (
            "H100",
            None,
            {"image": "vllm/vllm-openai:v0.18.1-cu130", "driver": "570.86.15"},
            "is made with CUDA 13, which",
        ),
        (
            "H100",
            None,
            {"image": "vllm/vllm-openai:v0.19.1", "driver": "515.1"},
            "is made with CUDA 12, which needs driver 525",
        ),
        ("V100", None, {"quantization": "awq"}, "has 7.0; take weights by gptq, or of 16 bits"),
    ],
)
def test_what_a_card_cannot_do_is_refused_with_what_works(
    kind: str, config: dict[str, Any] | None, spec: dict[str, Any], said: str | None
) -> None:
    found = unable(kind, config, **spec)
    assert (found == []) if said is None else (len(found) == 1 and said in found[0]), found


def test_compatibility_is_for_cards_of_data_centres() -> None:
    spec = {"image": "vllm/vllm-openai:v0.33.0", "driver": "570.86.15", "env": {"VLLM_ENABLE_CUDA_COMPATIBILITY": "1"}}
    assert unable("H100", **spec) == []
    assert len(unable("4090", **spec)) == 1


@pytest.mark.parametrize(
    ("kind", "config", "spec", "said"),
    [
        ("T4", {"torch_dtype": "bfloat16"}, {}, "its weights of bfloat16 are served in float16"),
        ("T4", {"torch_dtype": "bfloat16", "model_type": "gemma3"}, {}, "are served in float32, which takes twice"),
        ("A100", quantised("fp8"), {}, "FP8 saves memory and no time"),
        ("H100", quantised("fp8"), {}, None),
        ("H100", quantised("modelopt", quant_algo="NVFP4"), {}, "NVFP4 saves memory and no time"),
        ("B200", quantised("modelopt", quant_algo="NVFP4"), {}, None),
        ("H100", quantised("compressed-tensors", **FP4), {}, "NVFP4 saves memory and no time"),
        ("B200", quantised("compressed-tensors", **FP4), {}, None),
    ],
)
def test_what_a_card_does_in_another_way_is_reported(
    kind: str, config: dict[str, Any], spec: dict[str, Any], said: str | None
) -> None:
    name, memory, capability = KINDS[kind]
    host = Host.of({"modules": [{"module_id": 0, "name": name, "memory_mib": memory, "capability": capability}]})
    found = cuda.PLATFORM.capability_notes(Spec({"weights": "/w", **spec}), Architecture.of(config), host, host.cards)
    assert (found == []) if said is None else said in found[0]


def test_a_model_is_planned_on_linked_cards_by_their_uuids() -> None:
    modules = [
        {"module_id": number, "device_id": f"GPU-{number}", "name": "NVIDIA L4", "memory_mib": 23034}
        | {"capability": "8.9", "numa_node": number // 2, "cpus": [f"{number // 2 * 32}-{number // 2 * 32 + 31}"]}
        | {"links": {str(number ^ 1): "NV4"}}
        for number in range(4)
    ]
    facts = {"accelerator": "cuda", "device_name": "NVIDIA L4", "driver_version": "580.95.05", "modules": modules}
    spec = {"name": "m", "weights": "/m/x", "image": "vllm/vllm-openai:v0.33.0", "tensor_parallel_size": 2}
    plan = vllm_plan([{**spec, "recipe_cache_path": "/c"}], checked_host(facts)[0], host_name="g")
    assert plan["errors"] == []
    (model,) = plan["models"]
    assert model["module_ids"] == [0, 1]
    access = model["device_access"]
    assert access["ids"] == ["GPU-0", "GPU-1"] and access["variables"] == {"NVIDIA_VISIBLE_DEVICES": "{ids}"}
    # The engine gives the nodes too, or a daemon-reload takes those that the runtime has given.
    control = ["--device", "/dev/nvidiactl", "--device", "/dev/nvidia-uvm"]
    assert access["options"] == [*control, "--cpuset-cpus", "0-31", "--cpuset-mems", "0"]
    assert access["each"] == ["--device=/dev/nvidia{index}"]
    assert model["runtime"] == "nvidia" and model["env"]["VLLM_CACHE_ROOT"].startswith("/c/")
    assert model["ulimits"] == ["memlock=-1:-1", "stack=67108864:67108864"]
    # The digest goes by what the cards are, and not by their numbers.
    moved = [{**one, "module_id": 3 - one["module_id"], "links": {}} for one in modules]
    launch = {"device_access": access, "module_ids": [0, 1]}
    live = {"m": {"module_ids": [0, 1], "active": True, "digest": model["digest"], "launch": launch}}
    again = vllm_plan(
        [{**spec, "recipe_cache_path": "/c"}], {**facts, "modules": moved, "services": live}, host_name="g"
    )
    assert again["models"][0]["module_ids"] == [3, 2]
    assert again["models"][0]["digest"] == model["digest"]
    # By CDI no runtime and no variable of an image gives anything.
    (by_cdi,) = vllm_plan([spec], {**facts, "cdi": True}, host_name="g")["models"]
    assert by_cdi["device_access"]["each"] == ["--device", "nvidia.com/gpu={id}"]
    assert "/dev/nvidiactl" not in by_cdi["device_access"]["options"]
    assert by_cdi["device_access"]["variables"] == {"NVIDIA_VISIBLE_DEVICES": "void"} and by_cdi["runtime"] is None


def test_a_whole_card_beside_a_divided_one_is_looked_for_by_its_own_uuid() -> None:
    whole = {"module_id": 1, "device_id": "GPU-1", "name": "NVIDIA H100 80GB HBM3", "memory_mib": 81559}
    part = {"module_id": 0, "device_id": "MIG-a", "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "memory_mib": 9984}
    facts = {"accelerator": "cuda", "device_name": "NVIDIA H100 80GB HBM3", "driver_version": "580.95.05"}
    facts["modules"] = [{**part, "alone": True, "capability": "9.0"}, {**whole, "capability": "9.0"}]
    specs = [
        {"name": name, "weights": "/m/x", "image": "vllm/vllm-openai:v0.33.0", "port": 30000 + number}
        | {"module_ids": [number]}
        for number, name in enumerate(("part", "whole"))
    ]
    plan = vllm_plan(specs, facts, host_name="g")
    assert plan["errors"] == []
    access = {model["name"]: model["device_access"] for model in plan["models"]}
    listed = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n  MIG 1g.10gb     Device  0: (UUID: MIG-a)\n"
    shown = {name: [one["id"] for one in re.finditer(given["shown"], listed)] for name, given in access.items()}
    assert shown == {"part": ["MIG-a"], "whole": ["GPU-1"]}
    assert access["whole"]["files"] and not access["part"].get("files")
    assert access["whole"]["each"] == ["--device=/dev/nvidia{index}"] and "each" not in access["part"]


def test_links_of_whole_cards_go_by_the_numbers_that_they_have_beside_parts(machine: Any) -> None:
    parts = [{"profile": "1g.10gb", "uuid": f"MIG-{place}"} for place in range(3)]
    links = {"0-1": "SYS", "0-2": "SYS", "1-2": "NV18"}
    peers = {"0-1": "CNS", "0-2": "CNS", "1-2": "CNS"}
    found = machine(card("H100", 0, parts=parts), card("H100", 1), card("H100", 2), links=links, peers=peers)
    assert [(one["module_id"], one["links"], one["no_peer"]) for one in found["modules"]] == [
        *[(number, {}, []) for number in range(3)],
        (3, {"4": "NV18"}, [4]),
        (4, {"3": "NV18"}, [3]),
    ]


def test_a_lost_card_is_named_as_newer_drivers_do_it() -> None:
    text = "Unable to determine the device handle for {}0000:02:00.0: Unknown Error"
    for before in ("GPU", "GPU ", "GPU1: ", "gpu "):
        assert nvidia_smi.lost_handles(text.format(before)) == {"0000:02:00.0": "nvidia-smi: Unknown Error"}


@pytest.mark.parametrize("status", [15, 255])
def test_one_lost_card_does_not_take_the_others_whatever_the_status(
    status: int, machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = nvidia_smi.run
    lost = "Unable to determine the device handle for gpu 0000:18:00.0: Unknown Error\n"

    def run_here(argv: list[str], timeout: float) -> Result:
        told = real(argv, timeout)
        return Result(status, told.out + lost, "") if "--query-gpu" in argv[1] else told

    monkeypatch.setattr(nvidia_smi, "run", run_here)
    found = machine(card("L4", 0), card("L4", 1, missing=True))
    assert [module["problem"] for module in found["modules"]] == [None]
    assert found["unusable_cards"] == [{"bus_id": "0000:18:00.0", "problem": "nvidia-smi: Unknown Error"}]
    # If it is the only one, its message is that of the host.
    monkeypatch.setattr(nvidia_smi, "run", lambda argv, timeout: Result(status, lost, ""))
    (problem,) = machine(card("L4", 0), card("L4", 1))["problem"]
    assert problem.endswith("NVIDIA card (10de:2330); card 0000:18:00.0: nvidia-smi: Unknown Error"), problem


def test_a_driver_that_does_not_know_the_query_is_too_old(machine: Any) -> None:
    (problem,) = machine(card("T4"), unknown=["compute_cap"], driver_version="470.256.02")["problem"]
    assert problem.startswith(
        'the driver 470.256.02 is too old: images of vLLM need 525 or newer (nvidia-smi: Field "compute_cap" is not a '
        "valid field to query.); on the PCI bus: NVIDIA card"
    ), problem


@pytest.mark.parametrize("capability", ["8.9a", "gfx942", "sm_89", "9"])
def test_a_capability_that_is_none_ends_no_plan(capability: str) -> None:
    module = {"module_id": 0, "name": "NVIDIA L4", "memory_mib": 23034, "capability": capability, "numa_node": 0}
    facts = {"accelerator": "cuda", "device_name": "NVIDIA L4", "driver_version": "580.95.05", "modules": [module]}
    problems = [text for key, _, text in checked_host(facts)[1] if key.endswith(".capability")]
    assert problems == ([] if capability == "gfx942" else ["must be a text such as '8.9' or gfx942"])
    spec = {"name": "m", "weights": "/m/x", "image": "vllm/vllm-openai:v0.33.0", "dtype": "bfloat16"}
    assert vllm_plan([spec], facts, host_name="g")["errors"] == []


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.9.2", "0.9.2"),
        ("vllm/vllm-openai:v0.10.1.1", "0.10.1"),
        ("registry.example.net:5000/vllm/vllm-openai-rocm:v0.33.0", "0.33.0"),
        ("vllm/vllm-openai:v0.33.0-x86_64-zstd", "0.33.0"),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai:nightly-0.9.2", None),
        ("mine/vllm:0.9.2", None),
    ],
)
def test_the_version_of_an_official_image_is_its_tag(image: str, version: str | None) -> None:
    assert vllm_of(image) == version


@pytest.mark.parametrize(
    ("accelerator", "image", "refused"),
    [
        ("cuda", "vllm/vllm-openai:v0.33.0", False),
        ("cuda", "mirror.example:5000/vllm/vllm-openai:v0.33.0", False),
        ("cuda", "mine/vllm-openai-rocm:1", False),
        ("cuda", "vllm/vllm-openai-rocm:v0.33.0", True),
        ("cuda", "vllm/vllm-openai-cpu:v0.33.0", True),
        ("cpu", "vllm/vllm-openai-cpu:v0.33.0", False),
        ("cpu", "vllm/vllm-openai:v0.33.0", True),
    ],
)
def test_an_official_image_is_refused_on_another_vendor_s_hosts(accelerator: str, image: str, refused: bool) -> None:
    modules = [{"module_id": 0, "name": "NVIDIA L4", "memory_mib": 23034, "capability": "8.9", "numa_node": 0}]
    facts = {
        "accelerator": accelerator,
        "device_name": "NVIDIA L4",
        "modules": modules if accelerator == "cuda" else [],
    }
    plan = vllm_plan([{"name": "m", "weights": "/m/x", "image": image}], checked_host(facts)[0], host_name="g")
    assert [one["key"] for one in plan["errors"]] == ["image"] * refused
    assert ["is vLLM's image for" in one["message"] for one in plan["errors"]] == [True] * refused


@pytest.mark.parametrize(("words", "cards", "refused"), [(151936, 3, True), (151936, 2, False), (151680, 3, False)])
def test_cards_that_do_not_divide_the_vocabulary_are_refused(words: int, cards: int, refused: bool) -> None:
    one = {"name": "NVIDIA L4", "memory_mib": 23034, "capability": "8.9", "numa_node": 0}
    facts = {"accelerator": "cuda", "device_name": "NVIDIA L4", "modules": [{"module_id": n, **one} for n in range(4)]}
    config = {"num_hidden_layers": 2, "hidden_size": 768, "num_attention_heads": 24, "num_key_value_heads": 24}
    spec = {"name": "m", "weights": "/m/x", "image": "vllm:1", "tensor_parallel_size": cards, "max_model_len": 512}
    spec |= {"config": {**config, "vocab_size": words, "intermediate_size": 3072}, "weight_bytes": 10**9}
    errors = vllm_plan([spec], checked_host(facts)[0], host_name="g")["errors"]
    assert ["a vocabulary of 151936; possible: [1, 2, 4, 8" in one["message"] for one in errors] == [True] * refused


def planned_on(kind: str, **spec: Any) -> dict[str, Any]:
    """Return the plan of one model on a host with one card."""
    name, memory, capability = KINDS[kind]
    module = {"module_id": 0, "name": name, "memory_mib": memory, "capability": capability, "numa_node": 0}
    facts, problems = checked_host({"accelerator": "cuda", "device_name": name, "modules": [module]})
    assert problems == []
    return vllm_plan([{"name": "m", "image": "vllm:1", **spec}], facts, CATALOG, host_name="g")


def test_a_plan_refuses_and_warns_of_what_its_card_cannot_do() -> None:
    plan = planned_on("T4", weights="/m/x", dtype="bfloat16")
    assert [one["message"] for one in plan["errors"]] == [
        "g: model m: dtype 'bfloat16': needs compute capability 8.0 or more, and card 0 (Tesla T4) has 7.5; set dtype: "
        "float16"
    ]
    plan = planned_on("T4", weights="/m/x", config={"torch_dtype": "bfloat16"})
    assert plan["errors"] == [] and any("are served in float16" in text for text in plan["warnings"])


def test_a_catalog_entry_that_names_the_plugin_alone_is_served_by_vllm_here() -> None:
    assert only_plugin("qwen2.5-vl-3b-instruct")
    plan = planned_on("L4", model="qwen2.5-vl-3b-instruct")
    assert plan["errors"] == [] and plan["models"][0]["launch_profile"] == "vllm"
