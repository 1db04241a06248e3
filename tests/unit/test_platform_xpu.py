"""Intel's graphics cards: what is recognised, observed, given to a container and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.core.errors import InputError
from gaudi_serve.core.run import Result
from gaudi_serve.model.architecture import Architecture
from gaudi_serve.model.host import Card, Host
from gaudi_serve.model.spec import Spec
from gaudi_serve.platforms import xpu, xpu_smi
from gaudi_serve.platforms.xpu_smi import xpu_cards, xpu_links
from helpers.gpu_hosts import GpuHost, intel_host, model, pci_device, process, put

BUSES = ["0000:03:00.0", "0000:83:00.0"]
B60 = "Intel(R) Arc(TM) Pro B60 Graphics"
# As the tool's release 1 prints it on a host with two cards of two tiles.
OLD_MATRIX = """         GPU 0/0|GPU 0/1|GPU 1/0|GPU 1/1|CPU Affinity
GPU 0/0 |S      |MDF    |XL*    |XL16   |0-23,48-71
GPU 0/1 |MDF    |S      |XL16   |XL*    |0-23,48-71
GPU 1/0 |XL*    |XL16   |S      |MDF    |24-47,72-95
GPU 1/1 |XL16   |XL*    |MDF    |S      |24-47,72-95
"""
LISTED = """{"device_list": [{"device_id": 0, "device_name": "Intel(R) Arc(TM) Pro B60 Graphics", "device_type": "GPU",
 "pci_bdf_address": "0000:03:00.0", "pci_device_id": "0xe211", "uuid": "00000000-0000-0003-0000-0000e2118086",
 "vendor_name": "Intel(R) Corporation"}]}"""


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuHost:
    """Return a host with two Arc Pro B60, one a socket."""
    host = intel_host(tmp_path, BUSES)
    host.answers(monkeypatch, xpu_smi)
    return host


def observed(host: GpuHost) -> dict[str, Any]:
    return xpu.observe(str(host.root))


@pytest.mark.parametrize("release", ["2.1", "1.3"])
def test_two_cards_are_observed_by_either_release_of_the_tool(two: GpuHost, release: str) -> None:
    two.save(release=release)
    found = observed(two)
    assert (found["device_name"], found["driver_version"], found["memory_mib"]) == (B60, "1.6.35", 24480)
    assert found["pci_cards"] == 2 and found["unusable_cards"] == [] and found["notes"] == []
    first, second = found["modules"]
    assert (first["module_id"], first["index"], first["device_id"], first["numa_node"]) == (0, 129, BUSES[0], 0)
    assert (second["module_id"], second["index"], second["device_id"], second["numa_node"]) == (1, 130, BUSES[1], 1)
    assert first["links"] == {"1": "PHB"} and second["links"] == {"0": "PHB"}
    assert first["cpus"] == ["0-31", "64-95"] and first["problem"] is None


def test_graphics_of_a_processor_never_count(tmp_path: Path) -> None:
    intel_host(tmp_path, [])
    assert not xpu.PLATFORM.here(str(tmp_path))
    pci_device(tmp_path, "0000:03:00.0", "0x8086", "e20b", "0x030000", 0, "xe")
    assert xpu.PLATFORM.pci(str(tmp_path)) == {"0000:03:00.0": "e20b"}


def test_a_card_that_is_passed_on_to_a_machine_does_not_count(tmp_path: Path) -> None:
    intel_host(tmp_path, BUSES, driver="vfio-pci")
    assert not xpu.PLATFORM.here(str(tmp_path))


def test_cards_without_a_driver_are_a_sentence(tmp_path: Path) -> None:
    intel_host(tmp_path, BUSES, driver="")
    assert xpu.PLATFORM.here(str(tmp_path))
    assert xpu.observe(str(tmp_path))["problem"] == [
        f"no kernel module drives them: neither xe nor i915; on the PCI bus: {B60} (8086:e211)"
    ]


def test_a_lost_card_is_named_by_its_place(two: GpuHost) -> None:
    two.state["cards"][0]["missing"] = True
    two.save()
    found = observed(two)
    assert [module["bus_id"] for module in found["modules"]] == [BUSES[1]]
    assert found["unusable_cards"] == [
        {"bus_id": BUSES[0], "problem": "it is on the PCI bus, and xpu-smi does not show it"}
    ]


def test_where_the_tool_shows_none_of_them_the_kernels_files_are_enough(two: GpuHost) -> None:
    """xpu-smi of some releases lists no B580, which servers use all the same."""
    two.save(cards=[])
    found = observed(two)
    assert "problem" not in found and [module["problem"] for module in found["modules"]] == [None, None]
    assert found["notes"] == [
        "xpu-smi shows none of the cards, so their health is unknown; they are numbered in the order of the bus"
    ]


@pytest.mark.parametrize("odd", [("discovery", "-d", "1", "-j"), ("health", "-l", "-j")])
def test_an_odd_answer_on_one_thing_leaves_the_others(
    odd: tuple[str, ...], two: GpuHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = xpu_smi.run
    text = "Segmentation fault (core dumped)\n"
    monkeypatch.setattr(xpu_smi, "run", lambda argv: Result(0, text, "") if tuple(argv[1:]) == odd else real(argv))
    found = observed(two)
    assert (found["driver_version"], found["modules"][0]["memory_mib"]) == ("1.6.35", 24480)
    assert found["notes"] == ["xpu-smi: 'Segmentation fault (core dumped)' is not its JSON"]


def test_a_tool_that_hangs_is_a_sentence_and_is_asked_once(two: GpuHost, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def hangs(argv: list[str]) -> Result:
        calls.append(argv)
        return Result(124, "", "xpu-smi: no answer within 20 s")

    monkeypatch.setattr(xpu_smi, "run", hangs)
    found = observed(two)
    assert found["problem"] == [f"xpu-smi: no answer within 20 s; on the PCI bus: {B60} (8086:e211)"]
    assert found["modules"] == [] and len(calls) == 1


def test_without_the_tool_the_kernels_files_are_enough(two: GpuHost) -> None:
    two.installed = False
    put(two.root, f"sys/bus/pci/devices/{BUSES[0]}/tile0/physical_vram_size_bytes", f"{24480 << 20}\n")
    found = observed(two)
    assert found["notes"] == ["xpu-smi: not found"]
    assert [module["memory_mib"] for module in found["modules"]] == [24480, 0]
    assert [module["problem"] for module in found["modules"]] == [None, None]
    assert found["device_name"] == B60


def test_a_tool_that_fails_is_a_note(two: GpuHost, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Result(1, '{"error": "Level Zero Initialization Error"}\n', "")
    monkeypatch.setattr(xpu_smi, "run", lambda argv: failed)
    found = observed(two)
    assert found["notes"] == ["xpu-smi discovery -j: Level Zero Initialization Error"]
    assert len(found["modules"]) == 2


def test_odd_states_are_the_problem_of_one_card(two: GpuHost) -> None:
    two.state["cards"][0]["state"] = "wedged"
    two.state["cards"][1]["memory_mib"] = 0
    two.save()
    first, second = observed(two)["modules"]
    assert first["problem"] == "xpu-smi shows that its state is wedged"
    assert second["problem"] == "xpu-smi cannot read its memory"


def test_survivability_mode_is_that_of_the_driver(two: GpuHost) -> None:
    """xpu-smi 2.0.1 shows it of cards that serve models; the kernel's file exists only in this mode."""
    state = "survivability mode (firmware update and cold reset are recommended)"
    for card in two.state["cards"]:
        card["state"] = state
    two.save()
    put(two.root, f"sys/bus/pci/devices/{BUSES[1]}/survivability_mode", "Boot\n")
    found = observed(two)
    first, second = (module["problem"] for module in found["modules"])
    assert first is None and second.startswith("it is in survivability mode, in which it does not compute")
    assert found["notes"] == [f"card 0: xpu-smi shows that its state is {state}, and its driver does not"]


@pytest.mark.parametrize(
    ("bus_id", "device", "counts"),
    [
        ("0000:00:07.0", "e20b", True),
        ("0000:00:05.0", "56a0", True),
        ("0000:00:02.0", "7d55", False),
        ("0000:06:10.0", "a780", False),
        ("0000:06:10.0", "46d1", False),
        ("0000:03:00.0", "ffff", True),
    ],
)
def test_cards_and_graphics_of_processors_in_guests(bus_id: str, device: str, counts: bool, tmp_path: Path) -> None:
    """A guest has cards on any bus, also on the first, and functions of the graphics of its host's processor."""
    pci_device(tmp_path, bus_id, "0x8086", device, "0x030000", 0, "xe")
    assert xpu.PLATFORM.here(str(tmp_path)) == counts


def test_functions_of_another_card_are_none_of_their_own(two: GpuHost) -> None:
    pci_device(two.root, "0000:03:00.1", "0x8086", "e211", "0x030000", 0, "xe")
    put(two.root, "sys/bus/pci/devices/0000:03:00.1/physfn/vendor", "0x8086")
    two.state["cards"].append({**two.state["cards"][0], "bdf": "0000:03:00.1", "virtual": True})
    two.save()
    assert [module["bus_id"] for module in observed(two)["modules"]] == BUSES


def test_health_is_that_of_the_tool(two: GpuHost) -> None:
    two.state["cards"][0]["health"] = {"memory_health": ["Critical", "The device memory has failed."]}
    two.state["cards"][1]["health"] = {"core_temperature": ["Warning", "Unhealthy temperature sensor value"]}
    two.save()
    found = observed(two)
    assert [xpu.PLATFORM.health(module) for module in found["modules"]] == ["The device memory has failed.", None]
    assert found["notes"] == ["card 1: Unhealthy temperature sensor value"]


def test_who_has_memory_of_a_card_holds_it(two: GpuHost) -> None:
    idle = "drm-driver:\txe\ndrm-resident-vram0:\t0\ndrm-total-vram0:\t0\n"
    process(two.root, 4711, "python3", "/dev/dri/renderD129", "drm-driver:\txe\ndrm-resident-vram0:\t9000000 KiB\n")
    process(two.root, 4712, "python3", "/dev/dri/renderD130", f"{idle}drm-resident-vram0:\t12 KiB\n")
    held = [module["held_by"] for module in observed(two)["modules"]]
    assert held == ["python3 (pid 4711), which has /dev/dri/renderD129 open", None]


def test_a_missing_node_is_the_problem_of_one_card(two: GpuHost) -> None:
    (two.root / "dev/dri/renderD130").unlink()
    assert [module["problem"] for module in observed(two)["modules"]] == [
        None,
        "its node /dev/dri/renderD130 is missing",
    ]


def test_a_container_gets_its_render_nodes_and_their_links(two: GpuHost) -> None:
    access = xpu.PLATFORM.access(Host())
    assert access is not None
    given = access.docker_options([130], [BUSES[1]])
    assert given == ["--volume", "/dev/dri/by-path:/dev/dri/by-path:ro", "--device", "/dev/dri/renderD130"]
    assert access.devices(str(two.root)) == {"128": "0000:00:02.0", "129": BUSES[0], "130": BUSES[1]}
    assert {"ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"} <= {*access.forbidden} <= {*xpu.PLATFORM.card_variables}
    assert [node.path for node in access.nodes] == ["/dev/dri/renderD{index}", "/dev/dri/by-path/pci-{id}-render"]


def test_recorded_outputs_of_the_tool() -> None:
    (card,) = xpu_cards(LISTED, {0: '{"device_id": 0, "memory_physical_size_byte": "25669140480"}'})
    assert (card.number, card.bus_id, card.name, card.memory_mib) == (0, "0000:03:00.0", B60, 24480)
    assert xpu_links(OLD_MATRIX) == {(0, 1): "XL*", (1, 0): "XL*"}
    assert xpu_links("") == {}


@pytest.mark.parametrize(
    "text", ["", "[]", '{"device_list": 3}', '{"device_list": [{"device_id": "x"}]}', '{"error": "No device"}']
)
def test_garbage_of_the_tool_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(InputError, match="xpu-smi"):
        xpu_cards(text)


def refusals(name: str, config: Architecture, **keys: Any) -> list[tuple[str, str]]:
    spec = Spec({"name": "m", "weights": "/m/x", "tensor_parallel_size": 1, **keys})
    host = Host(cards=(Card(0, name=name),))
    found = [*xpu.PLATFORM.problems(spec), *xpu.PLATFORM.capability_problems(spec, config, host, host.cards)]
    return [(key, text) for key, _, text in found]


@pytest.mark.parametrize(
    ("name", "keys", "config", "key", "says"),
    [
        ("Intel(R) Arc(TM) A770 Graphics", {}, {}, "dtype", "set dtype: float16"),
        ("Intel(R) Arc(TM) A770 Graphics", {"dtype": "bfloat16"}, {"torch_dtype": "float16"}, "dtype", "A770"),
        (B60, {"quantization": "bitsandbytes"}, {}, "quantization", "is not loaded on XPU, where awq, gptq"),
        (B60, {}, {"quantization_config": {"quant_method": "quark"}}, "weights", "'quark'"),
        (B60, {"distributed_executor_backend": "ray"}, {}, "distributed_executor_backend", "must be mp"),
        (B60, {"nnodes": 2}, {}, "nnodes", "must be 1"),
    ],
)
def test_what_a_card_cannot_do_is_refused(
    name: str, keys: dict[str, Any], config: dict[str, Any], key: str, says: str
) -> None:
    ((about, text),) = refusals(name, model(**config), **keys)
    assert about == key and says in text


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        (B60, {"dtype": "bfloat16", "quantization": "fp8", "distributed_executor_backend": "mp"}),
        ("Intel(R) Arc(TM) A770 Graphics", {"dtype": "float16", "quantization": "awq"}),
        (B60, {"quantization": "moe_wna16", "kv_cache_dtype": "fp8", "nnodes": 1}),
    ],
)
def test_what_a_card_can_do_is_not_refused(name: str, keys: dict[str, Any]) -> None:
    assert refusals(name, model(), **keys) == []


def test_what_is_beta_is_a_note() -> None:
    spec = Spec({"name": "m", "pipeline_parallel_size": 2, "enable_sleep_mode": True})
    assert xpu.PLATFORM.notes(spec, "") == [
        "pipeline_parallel_size is beta on XPU, and works on one host alone",
        "enable_sleep_mode turns graphs off on XPU",
    ]


@pytest.mark.parametrize(
    ("said", "name"),
    [
        (B60, B60),
        ("Intel(R) Graphics [0xe211]", B60),
        ("Intel(R) Graphics", B60),
        ("Intel\u00ae Arc\u2122 B580 Graphics", "Intel(R) Arc B580 Graphics"),
        ("", B60),
    ],
)
def test_names_of_devices_are_such_as_facts_may_have(two: GpuHost, said: str, name: str) -> None:
    for card in two.state["cards"]:
        card["name"] = said
    two.save()
    assert observed(two)["device_name"] == name
    assert xpu.PLATFORM.is_device_name(name)
    assert not xpu.PLATFORM.is_device_name("Intel(R) Xeon(R) Platinum 8480+")


def test_an_a770_is_known_without_a_name_of_the_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM refuses bfloat16 on it by its name."""
    host = intel_host(tmp_path, [])
    host.answers(monkeypatch, xpu_smi)
    host.installed = False
    pci_device(tmp_path, BUSES[0], "0x8086", "56a0", "0x030000", 0, "i915")
    name = observed(host)["device_name"]
    assert [key for key, _ in refusals(name, model())] == ["dtype"]


def test_lines_around_the_json_are_left_out() -> None:
    assert xpu_cards(f"[warn] no permission\n{LISTED}\nDone.\n") == xpu_cards(LISTED)
