"""AMD's GPUs: what is recognised, observed, given to a container and refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gaudi_serve.core.errors import InputError
from gaudi_serve.core.run import Result
from gaudi_serve.inventory.facts import checked_host
from gaudi_serve.model.architecture import Architecture
from gaudi_serve.model.host import Card, Host
from gaudi_serve.model.spec import Spec
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.platforms import amd_smi, platform_here, rocm, sick_cards
from gaudi_serve.platforms.amd_smi import amd_cards
from gaudi_serve.platforms.kfd import gfx_name, kfd_gpus
from helpers.gpu_hosts import (
    GIB,
    RADEON,
    GpuHost,
    add_amd,
    amd_host,
    drm_nodes,
    kfd_node,
    model,
    pci_device,
    process,
    put,
)
from helpers.programs import load_program

BUSES = ["0000:05:00.0", "0000:26:00.0", "0000:46:00.0", "0000:65:00.0", "0000:85:00.0", "0000:a6:00.0"]
BUSES += ["0000:c6:00.0", "0000:e5:00.0"]
# What amd-smi has printed on hosts with an MI300X, cut to what is read.
LISTED = """[
    {"gpu": 0, "bdf": "0000:23:00.0", "uuid": "96ff74a1-0000-1000-8000-000000000001", "kfd_id": 45412, "node_id": 1,
     "partition_id": 0}
]"""
STATIC = """{"gpu_data": [{"gpu": 0, "asic": {"market_name": "AMD Instinct MI300X OAM", "device_id": "0x74a1",
 "target_graphics_version": "gfx942"}, "vram": {"type": "HBM", "size": {"value": 196592, "unit": "MB"}}}]}"""


@pytest.fixture
def eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuHost:
    """Return a host with eight MI300X of one hive."""
    host = amd_host(tmp_path, BUSES, hive=7654321)
    host.answers(monkeypatch, amd_smi)
    return host


@pytest.fixture
def radeons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuHost:
    """Return a host with two Radeon cards that PCIe alone connects."""
    host = amd_host(tmp_path, ["0000:03:00.0", "0000:83:00.0"], RADEON)
    host.answers(monkeypatch, amd_smi)
    return host


def observed(host: GpuHost) -> dict[str, Any]:
    return rocm.observe(str(host.root))


def cards(gfx: str, count: int = 1, **more: Any) -> list[Card]:
    return [Card(number, capability=gfx, **more) for number in range(count)]


def refusals(gfx: str, config: Architecture | None = None, **keys: Any) -> list[tuple[str, str]]:
    """Return the keys and sentences by which a model is refused on one GPU."""
    spec = Spec({"name": "m", "weights": "/m/x", "tensor_parallel_size": 1, **keys})
    host = Host(cards=tuple(cards(gfx)))
    return [
        (key, text) for key, _, text in rocm.PLATFORM.capability_problems(spec, config or model(), host, host.cards)
    ]


def test_eight_gpus_of_one_hive_are_observed(eight: GpuHost) -> None:
    assert rocm.PLATFORM.here(str(eight.root))
    found = observed(eight)
    assert found["device_name"] == "AMD Instinct MI300X OAM"
    assert (found["driver_version"], found["memory_mib"], found["pci_cards"]) == ("6.12.12", 196592, 8)
    assert found["unusable_cards"] == [] and found["notes"] == []
    assert [module["module_id"] for module in found["modules"]] == list(range(8))
    first = found["modules"][0]
    assert {key: first[key] for key in ("index", "device_id", "bus_id", "capability", "numa_node")} == {
        "index": 128,
        "device_id": "0000:05:00.0",
        "bus_id": "0000:05:00.0",
        "capability": "gfx942",
        "numa_node": 0,
    }
    assert first["cpus"] == ["0-31", "64-95"]
    assert first["links"] == {str(other): "XGMI" for other in range(1, 8)}
    assert first["no_peer"] == [] and first["problem"] is None and not first["in_use"]


def test_numbers_are_those_of_the_tool_whatever_the_order_of_the_kernel(eight: GpuHost) -> None:
    eight.state["cards"].reverse()
    eight.save()
    modules = observed(eight)["modules"]
    assert [module["bus_id"] for module in modules] == BUSES[::-1]
    assert [module["index"] for module in modules] == list(range(135, 127, -1))


@pytest.mark.parametrize("state", [{"wrapped": True}, {"warns": True}, {"release": "24.6.1"}])
def test_each_form_of_the_tools_output_is_read(eight: GpuHost, state: dict[str, Any]) -> None:
    before = observed(eight)
    eight.save(**state)
    assert observed(eight) == before


def test_without_the_tool_the_kernels_files_are_enough(eight: GpuHost) -> None:
    eight.installed = False
    found = observed(eight)
    assert found["notes"] == ["amd-smi: not found"]
    assert len(found["modules"]) == 8 and found["device_name"] == "AMD Instinct MI300X"
    assert found["modules"][3]["memory_mib"] == 196592


def test_a_tool_that_hangs_is_a_sentence_and_is_asked_once(eight: GpuHost, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def hangs(argv: list[str]) -> Result:
        calls.append(argv)
        return Result(124, "", "amd-smi: no answer within 20 s")

    monkeypatch.setattr(amd_smi, "run", hangs)
    found = observed(eight)
    assert found["problem"] == ["amd-smi: no answer within 20 s; on the PCI bus: AMD Instinct MI300X (1002:74a1)"]
    assert found["modules"] == [] and found["pci_cards"] == 8 and len(calls) == 1


@pytest.mark.parametrize("odd", ["static", "metric", "bad-pages"])
def test_an_odd_answer_on_one_thing_leaves_the_others(
    odd: str, eight: GpuHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    eight.state["cards"][1]["uncorrectable"] = 3
    eight.state["cards"][2]["pending"] = ["0x1000"]
    eight.save()
    real = amd_smi.run
    monkeypatch.setattr(amd_smi, "run", lambda argv: Result(0, "[null]\n", "") if argv[1] == odd else real(argv))
    found = observed(eight)
    assert found["notes"] == ["amd-smi: '[null]' is not its list of GPUs"]
    assert found["modules"][1]["ecc_uncorrectable"] == (None if odd == "metric" else 3)
    assert found["modules"][2]["bad_pages"] == (None if odd == "bad-pages" else 1)
    assert found["device_name"] == ("AMD Instinct MI300X" if odd == "static" else "AMD Instinct MI300X OAM")


def test_a_tool_without_json_is_a_note(eight: GpuHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amd_smi, "run", lambda argv: Result(0, "GPU: 0\n    BDF: 0000:05:00.0\n", ""))
    found = observed(eight)
    assert len(found["modules"]) == 8
    assert found["notes"] == ["amd-smi: 'GPU: 0\\n    BDF: 0000:05:00.0' is not its list of GPUs"]


def test_a_lost_card_is_named_by_its_place(eight: GpuHost) -> None:
    (eight.root / "sys/class/kfd/kfd/topology/nodes/4/properties").unlink()
    eight.state["cards"][3]["missing"] = True
    eight.save()
    found = observed(eight)
    assert len(found["modules"]) == 7 and found["pci_cards"] == 8
    lost = {"bus_id": "0000:65:00.0", "problem": "it is on the PCI bus, and /dev/kfd does not show it"}
    assert found["unusable_cards"] == [lost]
    # The tool counts again, without it.
    assert [module["module_id"] for module in found["modules"]] == list(range(7))


def test_a_card_that_the_tool_alone_lacks_comes_last_with_a_note(eight: GpuHost) -> None:
    eight.state["cards"][0]["missing"] = True
    eight.save()
    found = observed(eight)
    assert found["modules"][-1]["bus_id"] == BUSES[0]
    assert found["notes"] == ["GPU 0000:05:00.0: /dev/kfd shows it, and amd-smi does not"]


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("sys/module/amdgpu", "kernel module amdgpu is not loaded"),
        ("dev/kfd", "its node /dev/kfd is missing"),
        ("sys/class/kfd", "/dev/kfd shows no GPU"),
    ],
)
def test_a_driver_that_shows_nothing_is_a_sentence(eight: GpuHost, missing: str, sentence: str) -> None:
    (eight.root / missing).rename(eight.root / "away")
    found = observed(eight)
    assert found["problem"][0].startswith(sentence)
    assert found["problem"][0].endswith("; on the PCI bus: AMD Instinct MI300X (1002:74a1)")
    assert found["modules"] == [] and found["pci_cards"] == 8
    host = Host.of({"accelerator": "gaudi", **found})
    ((key, text),) = rocm.PLATFORM.reasons(host, "g", 0, "")
    assert key == "cards" and text.startswith(f"g: the cards do not answer: {sentence}")


def test_fields_that_cannot_be_read_cost_nothing_that_the_kernel_reports(eight: GpuHost) -> None:
    eight.state["cards"][2]["unread"] = ["bdf", "uuid", "market_name", "size", "total_uncorrectable_count"]
    eight.save()
    module = observed(eight)["modules"][2]
    assert (module["memory_mib"], module["ecc_uncorrectable"]) == (196592, None)
    # Another of its kind reports how it is called.
    assert module["name"] == "AMD Instinct MI300X OAM"
    assert module["problem"] is None


def test_memory_that_nobody_reports_is_the_problem_of_one_card(eight: GpuHost) -> None:
    (eight.root / "sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties").unlink()
    (eight.root / f"sys/bus/pci/devices/{BUSES[0]}/mem_info_vram_total").write_text("-22\n", encoding="ascii")
    eight.state["cards"][0]["unread"] = ["vram"]
    eight.save()
    assert [module["problem"] for module in observed(eight)["modules"]] == ["its memory cannot be read", *[None] * 7]


def test_a_missing_node_is_the_problem_of_one_card(eight: GpuHost) -> None:
    (eight.root / "dev/dri/renderD129").unlink()
    assert observed(eight)["modules"][1]["problem"] == "its node /dev/dri/renderD129 is missing"


def test_a_node_that_its_group_may_not_use_is_a_note(eight: GpuHost) -> None:
    (eight.root / "dev/dri/renderD130").chmod(0o600)
    (note,) = observed(eight)["notes"]
    assert note.startswith("the group of renderD130 in /dev/dri may not read and write them")


def test_who_has_memory_of_a_card_holds_it_and_who_sees_it_does_not(eight: GpuHost) -> None:
    # ROCm opens the nodes of all GPUs for a program that computes on one.
    for render in range(128, 136):
        process(eight.root, 4711, "python3", f"/dev/dri/renderD{render}")
    for gpu in range(45000, 45008):
        put(eight.root, f"sys/class/kfd/kfd/proc/4711/vram_{gpu}", f"{40 * GIB if gpu == 45002 else 0}\n")
    process(eight.root, 812, "Xorg", "/dev/dri/renderD132", "drm-memory-vram:\t900000 KiB\n")
    process(eight.root, 813, "mpv", "/dev/dri/renderD133", "drm-driver:\tamdgpu\ndrm-memory-vram:\t300 KiB\n")
    process(eight.root, 814, "blender", "/dev/dri/renderD134", "drm-driver:\tamdgpu\ndrm-memory-vram:\t900000 KiB\n")
    put(eight.root, f"sys/bus/pci/devices/{BUSES[2]}/mem_info_vram_used", f"{(40 << 10) + 283 << 20}\n")
    modules = observed(eight)["modules"]
    held = {module["module_id"]: module["held_by"] for module in modules if module["in_use"]}
    assert {module["memory_others_mib"] for module in modules} == {283}
    assert held == {2: "python3 (pid 4711)", 6: "blender (pid 814), which has /dev/dri/renderD134 open"}


def test_memory_that_no_program_shows_holds_a_card(eight: GpuHost) -> None:
    put(eight.root, f"sys/bus/pci/devices/{BUSES[5]}/mem_info_vram_used", f"{90000 << 20}\n")
    module = observed(eight)["modules"][5]
    assert module["held_by"] == "a program that is not shown (90000 of its 196592 MiB are used)"
    assert module["memory_used_mib"] == module["memory_others_mib"] == 90000


def test_errors_of_memory_make_a_card_sick(eight: GpuHost) -> None:
    eight.state["cards"][1]["uncorrectable"] = 3
    eight.state["cards"][2]["pending"] = ["0x1000"]
    eight.state["cards"][4]["pending"] = ["0x1000", "0x2000"]
    eight.save()
    sick = [rocm.PLATFORM.health(module) for module in observed(eight)["modules"]]
    assert sick[1] == "its memory had 3 uncorrectable errors since the driver was loaded"
    assert sick[2] is not None and sick[2].startswith("1 bad page")
    assert sick[4] is not None and sick[4].startswith("2 bad pages")
    assert [sick[place] for place in (0, 3, 5, 6, 7)] == [None] * 5


def test_errors_and_resets_in_the_kernel_s_log_make_a_gpu_sick(eight: GpuHost) -> None:
    eight.log = [
        f"amdgpu {BUSES[3]}: amdgpu: 2 uncorrectable hardware errors detected in umc block",
        f"amdgpu {BUSES[3]}: amdgpu: no uncorrectable hardware errors detected in gfx block",
        f"amdgpu {BUSES[5]}: amdgpu: GPU reset begin!",
    ]
    eight.state["cards"][5]["uncorrectable"] = 3
    eight.save()
    found = observed(eight)
    errors = "the kernel's log of this boot: 2 uncorrectable errors in its block umc at 2026-11-27 00:00:00 UTC"
    reset = "1 reset by its driver, the last at 2026-11-27 00:00:02 UTC: each ends what runs on it"
    assert sick_cards({"accelerator": "rocm", **found}) == [
        f"card 3 is sick: {errors}",
        "card 5 is sick: its memory had 3 uncorrectable errors since the driver was loaded; "
        f"the kernel's log of this boot: {reset}",
    ]
    assert {module["problem"] for module in found["modules"]} == {None}
    assert checked_host({"accelerator": "rocm", **found})[1] == []


def test_radeon_cards_count_by_their_memory_and_integrated_graphics_never(radeons: GpuHost) -> None:
    root = radeons.root
    # A display of a workstation, and a processor's graphics to which the firmware gives much.
    pci_device(root, "0000:04:00.0", "0x1002", "7422", "0x030000")
    put(root, "sys/bus/pci/devices/0000:04:00.0/mem_info_vram_total", str(4 * GIB))
    add_amd(radeons, "0000:c5:00.0", 2, ("1586", "0x038000", 110501, "gfx1151", 65536, "Radeon 8060S"), 0, {})
    pci_device(root, "0000:06:00.0", "0x1002", "15bf", "0x030000")
    assert rocm.PLATFORM.pci(str(root)) == {"0000:03:00.0": "744c", "0000:83:00.0": "744c"}
    found = observed(radeons)
    assert [module["name"] for module in found["modules"]] == ["AMD Radeon RX 7900 XTX"] * 2
    assert found["modules"][0]["links"] == {"1": "PCIE"}


def test_graphics_of_a_processor_alone_are_no_rocm_host(tmp_path: Path) -> None:
    amd_host(tmp_path, ["0000:c5:00.0"], ("15bf", "0x030000", 110003, "gfx1103", 98304, "Radeon 780M"))
    assert not rocm.PLATFORM.here(str(tmp_path))


@pytest.mark.parametrize(("firmware_mib", "mib"), [(512, 63694), (98304, 98304)])
def test_a_strix_halo_serves_with_the_memory_that_rocm_uses(
    firmware_mib: int, mib: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default ROCm uses half of the host's memory in place of the 512 MiB of the firmware."""
    bus_id = "0000:c5:00.0"
    host = amd_host(tmp_path, [bus_id], ("1586", "0x038000", 110501, "gfx1151", mib, "Radeon 8060S Graphics"))
    host.answers(monkeypatch, amd_smi)
    folder = f"sys/bus/pci/devices/{bus_id}"
    put(tmp_path, f"{folder}/mem_info_vram_total", f"{firmware_mib << 20}\n")
    put(tmp_path, f"{folder}/mem_info_gtt_used", f"{900 << 20}\n")
    assert platform_here(str(tmp_path)).name == "rocm"
    found = observed(host)
    (module,) = found["modules"]
    assert (module["name"], module["capability"], module["memory_mib"]) == ("AMD Radeon 8060S Graphics", "gfx1151", mib)
    assert (module["problem"], module["in_use"]) == (None, False)
    assert module["memory_used_mib"] == (900 if firmware_mib == 512 else 283)
    config = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
    config |= {"vocab_size": 128256, "intermediate_size": 14336, "max_position_embeddings": 131072}
    spec = {"name": "m", "weights": "/m/x", "config": config, "weight_bytes": 16 * 10**9, "max_model_len": 32768}
    plan = vllm_plan([spec], checked_host({"accelerator": "rocm", **found})[0], host_name="g")
    assert plan["errors"] == [] and plan["models"][0]["image"] == "vllm/vllm-openai-rocm:v0.33.0-rocm72"
    # Other programs of the host may leave less of its memory than ROCm may use.
    put(tmp_path, "proc/meminfo", "MemTotal: 131072000 kB\nMemAvailable: 41943040 kB\n")
    others = observed(host)["modules"][0]["memory_others_mib"]
    assert others == (mib - 40960 if firmware_mib == 512 else 283)


def test_an_instinct_card_is_recognised_without_a_driver(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:63:00.0", "0x1002", "740f", "0x038000")
    assert rocm.PLATFORM.here(str(tmp_path))
    assert rocm.observe(str(tmp_path))["problem"] == [
        "kernel module amdgpu is not loaded; on the PCI bus: AMD Instinct MI210 (1002:740f)"
    ]


def test_cards_of_two_sockets_and_without_peer_access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = amd_host(tmp_path, ["0000:03:00.0", "0000:83:00.0"], RADEON)
    host.answers(monkeypatch, amd_smi)
    put(tmp_path, "sys/bus/pci/devices/0000:83:00.0/numa_node", "1\n")
    for path in tmp_path.glob("sys/class/kfd/kfd/topology/nodes/*/p2p_links/*/properties"):
        path.unlink()
    first, second = observed(host)["modules"]
    assert (first["links"], second["links"]) == ({"1": "SYS"}, {"0": "SYS"})
    assert (first["no_peer"], second["no_peer"]) == ([1], [0])


def divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buses: Sequence[str] = BUSES[:2]) -> GpuHost:
    """Return a host with two GPUs of two parts each."""
    host = amd_host(tmp_path, list(buses), hive=9)
    for card, place in enumerate(buses):
        bus, domain = int(place[5:7], 16), int(place[:4], 16)
        node, render, gpu_id = 11 + card, 140 + card, 46000 + card
        values = {"simd_count": 608, "gfx_target_version": 90402, "vendor_id": 4098, "device_id": 29857}
        values |= {"location_id": 1 << 28 | bus << 8, "domain": domain, "drm_render_minor": render, "hive_id": 9}
        kfd_node(tmp_path, node, gpu_id, {**values, "unique_id": 7}, 96 * GIB, {})
        put(tmp_path, f"sys/devices/platform/amdgpu_xcp_{card}/drm/renderD{render}/dev", f"226:{render}\n")
        drm_nodes(tmp_path, "0000:99:00.0", render, render)
        first = host.state["cards"][card]
        host.state["cards"].append({**first, "kfd_id": gpu_id, "node_id": node, "partition_id": 1, "render": render})
    host.state["cards"] = [host.state["cards"][place] for place in (0, 2, 1, 3)]
    host.save()
    host.answers(monkeypatch, amd_smi)
    return host


def test_parts_of_gpus_are_numbered_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = observed(divided(tmp_path, monkeypatch))["modules"]
    assert [module["index"] for module in modules] == [128, 140, 129, 141]
    assert [module["device_id"] for module in modules] == ["1280", "268436736", "9728", "268445184"]
    assert modules[0]["links"] == {"1": "PACKAGE", "2": "XGMI", "3": "XGMI"}
    assert modules[1]["memory_mib"] == 98304


def test_a_part_is_found_again_after_a_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host.of({"accelerator": "gaudi", **observed(divided(tmp_path, monkeypatch))})
    access = rocm.PLATFORM.access(host)
    assert access is not None
    assert access.devices(str(tmp_path)) == {"128": "1280", "140": "268436736", "129": "9728", "141": "268445184"}


def test_parts_of_gpus_in_domains_of_the_bus_have_different_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPUs of a machine with MI300A are 0000:01:00.0, 0001:01:00.0 and so on: only their domains differ."""
    found = observed(divided(tmp_path, monkeypatch, ("0000:01:00.0", "0001:01:00.0")))
    ids = ["256", "268435712", "256 domain 1", "268435712 domain 1"]
    assert [module["device_id"] for module in found["modules"]] == ids
    assert [module["problem"] for module in found["modules"]] == [None] * 4
    host = Host.of({"accelerator": "gaudi", **found})
    access = rocm.PLATFORM.access(host)
    assert access is not None
    here = dict(zip(ids, (128, 140, 129, 141), strict=True))
    assert access.devices(str(tmp_path)) == {str(index): one for one, index in here.items()}
    supervisor = load_program(Path(__file__).parents[2] / "roles/vllm_service/files/vllm-supervisor")
    monkeypatch.setattr(supervisor, "ROOT", tmp_path)
    running = SimpleNamespace(access=access.as_dict())
    assert supervisor.Supervisor.devices(running) == here
    spec = Spec({"name": "m", "weights": "/m", "tensor_parallel_size": 2})
    refused = rocm.PLATFORM.capability_problems
    assert refused(spec, model(), host, host.cards[:2]) == []
    assert len(refused(spec, model(), host, (host.cards[0], host.cards[2]))) == 1


def test_a_model_has_parts_of_one_gpu_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host.of({"accelerator": "gaudi", **observed(divided(tmp_path, monkeypatch))})
    spec = Spec({"name": "m", "weights": "/m", "tensor_parallel_size": 2})
    refused = rocm.PLATFORM.capability_problems
    assert refused(spec, model(), host, host.cards[:2]) == []
    ((key, value, text),) = refused(spec, model(), host, (host.cards[0], host.cards[2]))
    assert (key, value) == ("tensor_parallel_size", 2) and "parts of several divided GPUs" in text


def test_a_container_gets_the_compute_node_and_its_render_nodes(eight: GpuHost) -> None:
    access = rocm.PLATFORM.access(Host.of({"accelerator": "gaudi", **observed(eight)}))
    assert access is not None
    given = access.docker_options([130, 128], ["0000:46:00.0", "0000:05:00.0"])
    assert given == [
        *("--device", "/dev/kfd", "--security-opt", "seccomp=unconfined"),
        *("--device", "/dev/dri/renderD130", "--device", "/dev/dri/renderD128"),
    ]
    assert access.devices(str(eight.root)) == {str(128 + place): bus_id for place, bus_id in enumerate(BUSES)}
    assert rocm.PLATFORM.capabilities == ("SYS_PTRACE",)
    assert {"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"} <= {*access.forbidden}
    assert {*access.forbidden} <= {*rocm.PLATFORM.card_variables}
    # Its groups are read from the nodes, since no image need know their names.
    assert access.groups == ("/dev/kfd", "/dev/dri/renderD{index}")


@pytest.mark.parametrize(
    ("version", "name"),
    [(90010, "gfx90a"), (90402, "gfx942"), (90500, "gfx950"), (110000, "gfx1100"), (120001, "gfx1201")],
)
def test_the_name_of_an_architecture(version: int, name: str) -> None:
    assert gfx_name(version) == name


def test_the_topology_of_an_mi210(tmp_path: Path) -> None:
    values = {"simd_count": 416, "gfx_target_version": 90010, "location_id": 25344, "domain": 0}
    kfd_node(tmp_path, 2, 51000, {**values, "drm_render_minor": 128}, 64 * GIB, {})
    (gpu,) = kfd_gpus(str(tmp_path))
    assert (gpu.bus_id, gpu.gfx, gpu.minor, gpu.memory) == ("0000:63:00.0", "gfx90a", 128, 64 * GIB)


def test_recorded_outputs_of_the_tool() -> None:
    (card,) = amd_cards(LISTED, STATIC, '[{"gpu": 0, "ecc": {"total_uncorrectable_count": "N/A"}}]', "")
    assert (card.bus_id, card.kfd_id, card.memory_mib) == ("0000:23:00.0", 45412, 196592)
    assert card.name == "AMD Instinct MI300X OAM" and card.uncorrectable is None
    assert amd_cards(json.dumps({"gpu_data": json.loads(LISTED)})) == amd_cards(LISTED)


@pytest.mark.parametrize("text", ["", "{}", '{"gpu_data": 3}', "[1]", "GPU: 0", "[", '{"error": "x", "code": -2}'])
def test_garbage_of_the_tool_is_refused_with_its_text(text: str) -> None:
    if text:
        with pytest.raises(InputError, match="amd-smi: "):
            amd_cards(text)
    else:
        assert amd_cards(text) == ()


@pytest.mark.parametrize(
    ("gfx", "keys", "config", "key", "says"),
    [
        ("gfx942", {"quantization": "bitsandbytes"}, {}, "quantization", "is not loaded on ROCm"),
        ("gfx942", {"quantization": "gptq_marlin"}, {}, "quantization", "awq, gptq, fp8"),
        ("gfx942", {}, {"quantization_config": {"quant_method": "experts_int8"}}, "weights", "'experts_int8'"),
        ("gfx90a", {"kv_cache_dtype": "fp8"}, {}, "kv_cache_dtype", "gfx942, gfx950, gfx1200, gfx1201"),
        ("gfx1100", {"kv_cache_dtype": "fp8_e4m3"}, {}, "kv_cache_dtype", "auto works"),
        ("gfx1100", {"quantization": "fp8"}, {}, "quantization", "gfx1100 does not compute with FP8"),
        ("gfx1100", {}, {"quantization_config": {"quant_method": "fp8"}}, "weights", "does not compute with FP8"),
        ("gfx90a", {"env": {"VLLM_ROCM_USE_AITER": "1"}}, {}, "env: VLLM_ROCM_USE_AITER", "gfx942 and gfx950"),
        ("gfx1030", {"image": "vllm/vllm-openai-rocm:v0.33.0"}, {}, "image", "is not built for gfx1030"),
        ("gfx906", {"image": "docker.io/vllm/vllm-openai-rocm:latest"}, {}, "image", "accelerator: cpu"),
    ],
)
def test_what_a_gpu_cannot_do_is_refused(
    gfx: str, keys: dict[str, Any], config: dict[str, Any], key: str, says: str
) -> None:
    ((about, text),) = refusals(gfx, model(**config), **keys)
    assert about == key and says in text


@pytest.mark.parametrize(
    ("gfx", "keys", "config"),
    [
        ("gfx942", {"quantization": "fp8", "kv_cache_dtype": "fp8", "env": {"VLLM_ROCM_USE_AITER": "1"}}, {}),
        ("gfx950", {"quantization": "mxfp4", "image": "vllm/vllm-openai-rocm:v0.33.0"}, {}),
        ("gfx1201", {"kv_cache_dtype": "fp8", "quantization": "fp8"}, {}),
        ("gfx90a", {"quantization": "awq"}, {"quantization_config": {"quant_method": "gptq"}}),
        ("gfx1030", {"image": "registry.example/my-rocm:1"}, {}),
        ("gfx1030", {"image": "vllm/vllm-openai-rocm:v0.33.0", "env": {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}}, {}),
        ("", {"quantization": "awq"}, {}),
    ],
)
def test_what_a_gpu_can_do_is_not_refused(gfx: str, keys: dict[str, Any], config: dict[str, Any]) -> None:
    assert refusals(gfx, model(**config), **keys) == []


def noted(gfx: str, count: int, links: dict[int, str], **keys: Any) -> list[str]:
    spec = Spec({"name": "m", "weights": "/m", "tensor_parallel_size": count, **keys})
    here = cards(gfx, count, links=links)
    return rocm.PLATFORM.capability_notes(spec, model(), Host(cards=tuple(here)), here)


def test_radeon_cards_over_pcie_hang_unless_they_are_kept_from_reading_each_other() -> None:
    (note,) = noted("gfx1100", 2, {0: "PCIE", 1: "PCIE"})
    assert note == (
        "several Radeon cards over PCIe hang at their start; set env: {NCCL_P2P_DISABLE: '1'} and "
        "disable_custom_all_reduce: true"
    )
    assert noted("gfx1100", 1, {1: "PCIE"}) == []
    assert noted("gfx942", 2, {0: "XGMI", 1: "XGMI"}) == []
    assert noted("gfx1100", 2, {}, env={"NCCL_P2P_DISABLE": "1"}, disable_custom_all_reduce=True) == []


def test_mx_formats_are_emulated_where_they_are_not_native() -> None:
    assert noted("gfx942", 1, {}, quantization="mxfp4") == [
        "mxfp4 is native on gfx950 alone; on gfx942 it is emulated, which is slow"
    ]
    assert noted("gfx950", 1, {}, quantization="mxfp4") == []


def test_the_number_of_cards_is_compared(eight: GpuHost) -> None:
    host = Host.of({"accelerator": "gaudi", **observed(eight)})
    assert rocm.PLATFORM.reasons(host, "g", 8, "") == []
    ((key, text),) = rocm.PLATFORM.reasons(host, "g", 6, "")
    assert key == "accelerator_cards" and "accelerator_cards is 6, but amd-smi shows 8" in text
    assert rocm.PLATFORM.about(host) == ["8 cards AMD Instinct MI300X OAM on 2 NUMA nodes", "driver 6.12.12"]


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("Radeon RX 7900 XT/7900 XTX/7900 GRE", "AMD Radeon RX 7900 XT/7900 XTX/7900 GRE"),
        ("AMD Instinct\u2122 MI300X  OAM", "AMD Instinct MI300X OAM"),
        ("N/A", "AMD Instinct MI300X"),
    ],
)
def test_names_of_devices_are_such_as_facts_may_have(eight: GpuHost, said: str, name: str) -> None:
    for card in eight.state["cards"]:
        card["name"] = said
    eight.save()
    assert observed(eight)["device_name"] == name
    assert rocm.PLATFORM.is_device_name(name) and not rocm.PLATFORM.is_device_name("HL-225")


def test_a_lost_radeon_card_is_known_by_another_of_its_kind(radeons: GpuHost) -> None:
    (radeons.root / "sys/class/kfd/kfd/topology/nodes/2/properties").unlink()
    (radeons.root / "sys/bus/pci/devices/0000:83:00.0/mem_info_vram_total").unlink()
    radeons.state["cards"].pop()
    radeons.save()
    found = observed(radeons)
    assert (len(found["modules"]), found["pci_cards"]) == (1, 2)
    assert [card["bus_id"] for card in found["unusable_cards"]] == ["0000:83:00.0"]
