"""Intel's graphics cards, Arc, Flex and Max, by the kernel's drivers xe and i915, except graphics in processors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import Problem
from ..model.architecture import Architecture
from ..model.host import Card, Host
from ..model.spec import Spec
from ..model.vllm_options import vllm_options
from .abilities import is_bfloat16, method_problems, unknown_executor
from .base import Platform
from .cards import LEAST_KIB, WATCHERS, about, lost, mixed, node_notes, node_problem, plain_name, reasons
from .device_access import DeviceAccess, Node
from .device_holders import device_holders
from .links import Links
from .pci import DEVICES, DISPLAY, RENDER_NODE, RENDER_NODES, SCREEN, PciDevice, bus_text, number_of, pci_devices
from .releases import official_image
from .xpu_smi import XpuCard, XpuSmi, ask_xpu_smi
from .xpu_smi_metrics import METRICS

VENDOR = "0x8086"
DRIVERS = ("xe", "i915")
FIRST_BUS = re.compile(r"[0-9a-f]{4}:00:")  # bus of a processor's own graphics, and in guests also of a card
# By PCI device id: cards of Arc, Flex and Max; and graphics of processors, of which guests get functions on any bus.
DISCRETE = re.compile(r"490[5-9]|56[9a-c].|0b6[9e]|0bd.|e2[0-2].")
INTEGRATED = re.compile(r"46..|4c[89].|64.0|7d..|9a..|a7..|b0[89ab].")
# Names by PCI device id, for hosts on which xpu-smi does not show them, or shows no name.
NAMELESS = re.compile(r"(Intel\(R\) Graphics)?( \[0x[0-9a-f]{4}\])?", re.IGNORECASE)
SURVIVAL = "survivability"
NAMES = {
    "56a0": "Intel(R) Arc(TM) A770 Graphics",
    **{"e20b": "Intel(R) Arc(TM) B580 Graphics", "e211": "Intel(R) Arc(TM) Pro B60 Graphics"},
    **{"0bd5": "Intel(R) Data Center GPU Max 1550", "0bd6": "Intel(R) Data Center GPU Max 1100"},
}
METHODS = (
    *("awq", "auto_awq", "gptq", "auto_gptq", "moe_wna16", "inc", "auto-round", "fp8", "deepseek_v4_fp8"),
    *("fp8_per_tensor", "fp8_per_block", "mxfp4", "gpt_oss_mxfp4", "mxfp8", "online", "modelopt", "compressed-tensors"),
)
METHODS_SHORT = "awq, gptq, moe_wna16, inc, fp8, mxfp4, mxfp8, modelopt and compressed-tensors"
NO_BFLOAT16 = "A770"
ONE_HOST = ("mp", "uni")
NODE = re.compile(r"/dev/dri/renderD(\d{3})")
MASKS = ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "SYCL_DEVICE_FILTER")


def _on_bus(root: str) -> dict[str, PciDevice]:
    """Return the cards on the bus, except a processor's own and those with another driver, such as vfio-pci."""
    found = pci_devices(root, VENDOR, (DISPLAY, SCREEN))
    return {
        bus_id: device
        for bus_id, device in found.items()
        if not _is_integrated(bus_id, device.device) and device.driver in ("", *DRIVERS)
    }


def _is_integrated(bus_id: str, device: str) -> bool:
    """Return whether a device is the graphics of a processor, or a function of it that a guest has."""
    return bool(INTEGRATED.fullmatch(device) or (FIRST_BUS.match(bus_id) and not DISCRETE.fullmatch(device)))


def pci(root: str = "/") -> dict[str, str]:
    """Return ``{bus_id: PCI device id}`` of the cards on the bus."""
    return {bus_id: device.device for bus_id, device in _on_bus(root).items()}


def observe(root: str = "/") -> dict[str, Any]:
    """Return the state of the cards from the kernel's drivers, xpu-smi, the PCI bus and the processes.

    ``module_id`` is the number of xpu-smi; without the tool they are numbered in the order of the bus, as it does.
    """
    on_bus = _on_bus(root)
    nothing: dict[str, Any] = {"device_name": None, "driver_version": None, "memory_mib": 0, "modules": []}
    problem = "" if any(one.driver for one in on_bus.values()) else "no kernel module drives them: neither xe nor i915"
    tool = XpuSmi() if problem else ask_xpu_smi()
    shown = {card.bus_id: card for card in tool.cards if card.bus_id in on_bus}
    if tool.answers and not shown:  # Some of its releases do not know every card, such as a B580.
        note = "xpu-smi shows none of the cards, so their health is unknown; they are numbered in the order of the bus"
        tool = XpuSmi(notes=(*tool.notes, note))
    if problem or tool.hangs:
        names = bus_text(VENDOR, {one.device: _name(one, {}) for one in on_bus.values()})
        return {**nothing, "problem": [f"{problem or tool.hangs}{names}"], "pci_cards": len(on_bus)}
    seen = [bus_id for bus_id in on_bus if bus_id in shown or (not tool.answers and on_bus[bus_id].driver)]
    numbers = {bus_id: shown[bus_id].number if tool.answers else place for place, bus_id in enumerate(seen)}
    modules = _modules(on_bus, shown, numbers, tool, root)
    renders = [module["index"] for module in modules if module["index"] is not None]
    notes = [*tool.notes, *mixed([str(module["name"]) for module in modules]), *node_notes(renders, root)]
    notes += [text for card in shown.values() for text in _warned(card, root)]
    by = "xpu-smi" if tool.answers else "neither xe nor i915"
    return {
        "device_name": modules[0]["name"],
        "driver_version": next((card.driver for card in shown.values() if card.driver), None),
        "memory_mib": modules[0]["memory_mib"],
        "modules": modules,
        "unusable_cards": lost(on_bus, seen, by),
        "pci_cards": len(on_bus),
        "notes": notes,
    }


def _modules(
    on_bus: Mapping[str, PciDevice],
    shown: Mapping[str, XpuCard],
    numbers: Mapping[str, int],
    tool: XpuSmi,
    root: str,
) -> list[dict[str, Any]]:
    """Return the facts of each card, by its number."""
    opened = device_holders(NODE, WATCHERS, root, least_kib=LEAST_KIB)
    # All cards of a kind have one name, also if the tool does not show it for each.
    named = {
        on_bus[bus_id].device: card.name
        for bus_id, card in shown.items()
        if not NAMELESS.fullmatch(card.name) or (card.name and on_bus[bus_id].device not in NAMES)
    }
    modules = []
    for bus_id, number in sorted(numbers.items(), key=lambda one: one[1]):
        device, card = on_bus[bus_id], shown.get(bus_id)
        index = device.renders[0] if device.renders else None
        mib = card.memory_mib if card and card.memory_mib else _memory(Path(root, DEVICES, bus_id))
        holder = opened.get(-1 if index is None else index)
        modules.append(
            {
                "module_id": number,
                "index": index,
                "device_id": bus_id,
                "name": _name(device, named),
                **{"bus_id": bus_id, "memory_mib": mib, "memory_used_mib": 0, "capability": ""},
                **{"numa_node": device.numa_node, "cpus": list(device.cpus), "pcie_gb_s": device.gb_s},
                **{"in_use": holder is not None, "held_by": holder},
                "problem": _survives(Path(root, DEVICES, bus_id)) or node_problem(index, root) or _problem(card, mib),
                "links": {str(other): kind for (one, other), kind in tool.links.items() if one == number},
                "no_peer": [],
                "sick": card.sick if card else "",
            }
        )
    return modules


def _problem(card: XpuCard | None, mib: int) -> str | None:
    """Return why a card that the tool shows cannot be used."""
    if card and card.state and not card.state.lower().startswith(SURVIVAL):
        return f"xpu-smi shows that its state is {card.state}"
    return "xpu-smi cannot read its memory" if card and not mib else None


def _warned(card: XpuCard, root: str) -> list[str]:
    found = [card.warned] if card.warned else []
    if card.state.lower().startswith(SURVIVAL) and not _survives(Path(root, DEVICES, card.bus_id)):
        found.append(f"xpu-smi shows that its state is {card.state}, and its driver does not")
    return [f"card {card.number}: {text}" for text in found]


def _survives(folder: Path) -> str | None:
    """Return why a card does not compute, by its driver: some releases of xpu-smi show this mode of sound cards."""
    if not (folder / f"{SURVIVAL}_mode").exists():
        return None
    return "it is in survivability mode, in which it does not compute: update its firmware, then power the host off"


def _memory(folder: Path) -> int:
    """Return the MiB of a card's memory according to its driver; 0 if unknown."""
    sizes = [number_of(path) or 0 for path in folder.glob("tile*/physical_vram_size_bytes")]
    return sum(sizes) >> 20


def _name(device: PciDevice, named: Mapping[str, str]) -> str:
    return plain_name(named.get(device.device) or NAMES.get(device.device, f"GPU {device.device}"), "Intel(R)")


# The compute runtime finds cards by their links in by-path, and opens the render node that a link leads to.
BY_PATH = "/dev/dri/by-path"
ACCESS = DeviceAccess(
    options=("--volume", f"{BY_PATH}:{BY_PATH}:ro"),
    each=("--device", "/dev/dri/renderD{index}"),
    forbidden=MASKS,
    groups=("/dev/dri/renderD{index}",),
    files=RENDER_NODES,
    device=RENDER_NODE,
    nodes=(Node("/dev/dri/renderD{index}"), Node(f"{BY_PATH}/pci-{{id}}-render")),
    without="without it Level Zero does not see that card",
    inside="dev/dri/renderD*",
    expected=("renderD{index}",),
)


def _cannot(spec: Spec, model: Architecture, host: Host, cards: Sequence[Card]) -> list[Problem]:
    """Return the features of a model that these cards cannot handle."""
    problems = method_problems(
        spec, model, lambda method: method in METHODS, f"is not loaded on XPU, where {METHODS_SHORT} are"
    )
    if is_bfloat16(spec, model) and any(NO_BFLOAT16 in (card.name or "") for card in cards):
        allowed = f"is bfloat16, which vLLM refuses on an Arc {NO_BFLOAT16}: it computes wrongly; set dtype: float16"
        problems.append(("dtype", spec.get("dtype") or "auto", allowed))
    return problems


def _problems(spec: Spec) -> list[Problem]:
    allowed = "must be mp: on XPU, tensors and layers are spread over the cards of one host"
    problems = unknown_executor(spec, ONE_HOST, allowed)
    if spec.members:
        problems.append(("hosts", list(spec.members.names), "must be one host: on XPU, its cards alone serve"))
    elif spec.get("nnodes") not in (None, 1):
        problems.append(("nnodes", spec["nnodes"], "must be 1: on XPU, a model is served by the cards of one host"))
    return problems


def _notes(spec: Spec, release: str) -> list[str]:
    notes = []
    if spec.get("pipeline_parallel_size") not in (None, 1):
        notes.append("pipeline_parallel_size is beta on XPU, and works on one host alone")
    if spec.get("enable_sleep_mode"):
        notes.append("enable_sleep_mode turns graphs off on XPU")
    return notes


# No figures of whole machines are published, so a first figure passes. A pair over PCI Express must reach an eighth of
# the rate of its slots, like Radeon's: oneCCL may copy through the host's memory. Servers use this transport too.
LINKS = Links(
    library="oneCCL",
    backend="xccl",
    devices="xpu",
    env={"CCL_ATL_TRANSPORT": "ofi"},
    host_by_host=True,
    pcie_part=1 / 8,
)

PLATFORM = Platform(
    name="xpu",
    title="XPU",
    devices="Intel GPUs",
    engine="vllm",
    ray_resource="GPU",
    options=vllm_options,
    image=lambda host, release, live: official_image("xpu", release, live),
    software=lambda release: "vLLM for XPU",
    here=lambda root: bool(pci(root)),
    pci=pci,
    observe=observe,
    about=about,
    reasons=reasons("xpu-smi", "Is the kernel new enough for the cards, and its module xe or i915 loaded?"),
    access=lambda host: ACCESS,
    # A forked worker cannot use a card again.
    env={"VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
    ulimits=("memlock=-1:-1", "stack=67108864:67108864"),
    cache_variable="VLLM_CACHE_ROOT",
    # An estimate without measurements.
    warmup_s=180,
    hang_least_s=120,
    warmup_cached_s=60,
    card_variables=MASKS,
    prefixes=("Intel(R) Arc", "Intel(R) Data Center GPU"),
    names=r"Intel\(R\) (?!Xeon|Core|Atom|Pentium|Celeron)[\w .,()/+&\[\]-]*",
    near=(("MDF", "XL"), ("PIX", "PXB")),
    metrics=METRICS,
    links=LINKS,
    no_memory="memory is not checked: the toolkit has no memory rules for XPU",
    binds=True,
    problems=_problems,
    notes=_notes,
    capability_problems=_cannot,
    lacks={"numa_bind": "is CUDA's alone; the plan keeps a server on the processors that are near its cards"},
)
