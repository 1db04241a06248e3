"""AMD GPUs: Instinct, and Radeon with enough memory, by the kernel's driver amdgpu and its node /dev/kfd."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import Problem
from ..model.architecture import Architecture
from ..model.host import Card, Host
from ..model.spec import Spec
from ..model.vllm_options import vllm_options
from .abilities import MX, cache_problems, is_fp8, method_of, method_problems
from .amd_smi import AmdCard, AmdSmi, ask_amd_smi
from .amd_smi_metrics import METRICS
from .amdgpu_log import PATTERN, gpu_errors
from .base import Platform
from .between import over_nccl
from .cards import (
    LEAST_KIB,
    WATCHERS,
    about,
    filled,
    host_memory,
    lost,
    mixed,
    node_notes,
    node_problem,
    plain_name,
    reasons,
)
from .device_access import DeviceAccess, Node
from .device_holders import device_holders
from .driver import Driver
from .kernel_log import kernel_log
from .kfd import XGMI, Gpu, kfd_gpus, kfd_holders, kfd_processes, kfd_used
from .links import Links, Threshold
from .pci import (
    ACCELERATOR,
    DEVICES,
    DISPLAY,
    RENDER_NODE,
    RENDER_NODES,
    SCREEN,
    PciDevice,
    bus_text,
    number_of,
    pci_devices,
    text_of,
)
from .releases import made_for, official_image

VENDOR = "0x1002"
# Names by PCI device id, for hosts on which amd-smi does not show them.
NAMES = {
    **{"738c": "AMD Instinct MI100", "7408": "AMD Instinct MI250X", "740c": "AMD Instinct MI250"},
    **{"740f": "AMD Instinct MI210", "74a0": "AMD Instinct MI300A", "74a1": "AMD Instinct MI300X"},
    **{"74b5": "AMD Instinct MI300X VF", "74a2": "AMD Instinct MI308X", "74a5": "AMD Instinct MI325X"},
    **{"74b9": "AMD Instinct MI325X VF", "74a9": "AMD Instinct MI300X HF", "74bd": "AMD Instinct MI300X HF"},
    **{"75a0": "AMD Instinct MI350X", "75a3": "AMD Instinct MI355X", "744c": "AMD Radeon RX 7900 XTX"},
    "1586": "AMD Radeon 8060S Graphics",
}
# Graphics in a processor that serve nothing, regardless of the memory that the firmware reserves for them.
INTEGRATED = (
    *("gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1037", "gfx1103"),
    *("gfx1150", "gfx1152", "gfx1153"),
)
SHARING = "gfx1151"  # Strix Halo: graphics in a processor that serve where no other GPU does.
RADEON_LEAST = 7 << 30  # bytes: a card sold with 8 GiB shows slightly less
# Architectures in the images of vllm/vllm-openai-rocm.
BUILT = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1101", "gfx1150", "gfx1151", "gfx1200", "gfx1201")
OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
# The FP8 format that an architecture computes with; the others have none.
FP8 = {"gfx942": "fnuz", "gfx950": "ocp", "gfx1200": "ocp", "gfx1201": "ocp"}
NO_FP8_WEIGHTS = ("gfx11",)  # vLLM treats gfx90a as supported
AITER_ON = ("gfx942", "gfx950")
MX_ON = ("gfx950",)
AITER = "VLLM_ROCM_USE_AITER"
NO_P2P = "NCCL_P2P_DISABLE"
# Methods that the platform refuses; Marlin's kernels need CUDA.
REFUSED = ("bitsandbytes", "moe_wna16", "experts_int8")
TRUE = ("1", "true")
PART_BITS = 0x0FFFFFFF  # of a location: without the number of the part
NODE = re.compile(r"/dev/dri/renderD(\d{3})")
NOT_LOADED = "kernel module amdgpu is not loaded"


def _on_bus(root: str) -> dict[str, PciDevice]:
    """Return the GPUs on the bus that can serve models.

    Those of class accelerator always, others if the driver shows enough memory; integrated graphics only if they are a
    Strix Halo alone. A card whose memory is unknown counts if another of its model does.
    """
    bus = pci_devices(root, VENDOR, (ACCELERATOR, DISPLAY, SCREEN))
    gpus = kfd_gpus(root) if bus else []
    integrated = {gpu.bus_id for gpu in gpus if gpu.gfx in INTEGRATED}
    found = {bus_id: device for bus_id, device in bus.items() if bus_id not in integrated}
    # ROCm may use more of the host's memory for them than the firmware reserves.
    sharing = {gpu.bus_id: gpu.memory for gpu in gpus if gpu.gfx == SHARING}
    memory = {
        bus_id: sharing.get(bus_id) or number_of(Path(root, DEVICES, bus_id, "mem_info_vram_total")) for bus_id in found
    }
    able = {bus_id for bus_id, size in memory.items() if size is not None and size >= RADEON_LEAST}
    models = {*NAMES, *(found[bus_id].device for bus_id in able)}
    serving = {
        bus_id: device
        for bus_id, device in found.items()
        if bus_id in able or device.kind.startswith(ACCELERATOR) or (memory[bus_id] is None and device.device in models)
    }
    return {bus_id: device for bus_id, device in serving.items() if bus_id not in sharing} or serving


def pci(root: str = "/") -> dict[str, str]:
    """Return ``{bus_id: PCI device id}`` of the GPUs on the bus that can serve models."""
    return {bus_id: device.device for bus_id, device in _on_bus(root).items()}


def observe(root: str = "/") -> dict[str, Any]:
    """Return the state of the GPUs from the kernel's driver, amd-smi, the PCI bus and the processes.

    ``module_id`` is the number of amd-smi, also for the parts of a divided GPU; without the tool they are numbered in
    the order of the bus, as it does.
    """
    on_bus = _on_bus(root)
    gpus = [gpu for gpu in kfd_gpus(root) if gpu.bus_id in on_bus]
    nothing: dict[str, Any] = {"device_name": None, "driver_version": None, "memory_mib": 0, "modules": []}
    problem = _silent(root, gpus)
    tool = AmdSmi() if problem else ask_amd_smi()
    if problem or tool.hangs:
        names = bus_text(VENDOR, {one.device: _name(one, {}) for one in on_bus.values()})
        return {**nothing, "problem": [f"{problem or tool.hangs}{names}"], "pci_cards": len(on_bus)}
    numbers, unseen = _numbered(gpus, tool)
    modules = _modules(gpus, numbers, on_bus, tool, root)
    records, unread = kernel_log(PATTERN)
    logged = gpu_errors(records)
    modules = [{**module, "sick": logged.get(str(module["bus_id"]), "")} for module in modules]
    kinds = [str(module["name"]) for module in modules]
    notes = [*tool.notes, *unseen, *mixed(kinds), *node_notes([gpu.minor for gpu in gpus], root), *unread]
    return {
        "device_name": kinds[0],
        "driver_version": text_of(Path(root, "sys/module/amdgpu/version")) or None,
        "memory_mib": modules[0]["memory_mib"],
        "modules": modules,
        "unusable_cards": lost(on_bus, [gpu.bus_id for gpu in gpus], "/dev/kfd"),
        "pci_cards": len(on_bus),
        "notes": notes,
    }


def _silent(root: str, gpus: Sequence[Gpu]) -> str:
    """Return why the driver shows no GPU; empty if it shows one."""
    if not Path(root, "sys/module/amdgpu").exists():
        return NOT_LOADED
    if not Path(root, "dev/kfd").exists():
        return "its node /dev/kfd is missing: the kernel's amdgpu is without KFD, or has not found a GPU that computes"
    return "" if gpus else "/dev/kfd shows no GPU"


def _numbered(gpus: Sequence[Gpu], tool: AmdSmi) -> tuple[dict[int, int], list[str]]:
    """Return amd-smi's numbers of the GPUs by their node in the topology, and a sentence for each missing one."""
    if not tool.cards:
        return {gpu.node: number for number, gpu in enumerate(gpus)}, []
    by_id = {card.kfd_id: card.gpu for card in tool.cards if card.kfd_id}
    by_bus = {card.bus_id: card.gpu for card in tool.cards if card.bus_id and not card.kfd_id}
    found = {gpu.node: number for gpu in gpus if (number := by_id.get(gpu.gpu_id, by_bus.get(gpu.bus_id))) is not None}
    unseen = [gpu for gpu in gpus if gpu.node not in found]
    after = max((card.gpu for card in tool.cards), default=-1) + 1
    notes = [f"GPU {gpu.bus_id}: /dev/kfd shows it, and amd-smi does not" for gpu in unseen]
    return {**found, **{gpu.node: after + place for place, gpu in enumerate(unseen)}}, notes


def _modules(
    gpus: Sequence[Gpu], numbers: Mapping[int, int], on_bus: Mapping[str, PciDevice], tool: AmdSmi, root: str
) -> list[dict[str, Any]]:
    """Return the facts of each GPU, or of each part of one, by its number."""
    shown = {card.gpu: card for card in tool.cards}
    # All cards of a kind have one name, also if the tool does not show it for each.
    rows = [(on_bus[gpu.bus_id].device, shown.get(numbers[gpu.node])) for gpu in gpus]
    named = {device: card.name for device, card in rows if card and card.name}
    divided = any(gpu.part for gpu in gpus)
    held, computing = kfd_holders(root), kfd_used(root)
    opened = device_holders(NODE, WATCHERS, root, kfd_processes(root), LEAST_KIB)
    modules = []
    for gpu in sorted(gpus, key=lambda one: numbers[one.node]):
        device, card = on_bus[gpu.bus_id], shown.get(numbers[gpu.node])
        total, used = _memory(gpu, gpus, card, Path(root, DEVICES, gpu.bus_id))
        holder = held.get(gpu.gpu_id) or opened.get(gpu.minor) or filled(used, total)
        modules.append(
            {
                "module_id": numbers[gpu.node],
                "index": gpu.minor if gpu.minor >= 0 else None,
                "device_id": _part_id(gpu) if divided else gpu.bus_id,
                "name": _name(device, named),
                **{"bus_id": gpu.bus_id, "memory_mib": total, "memory_used_mib": used, "capability": gpu.gfx},
                "memory_others_mib": None if divided else _others(gpu, total, used, computing, root),
                **{"numa_node": device.numa_node, "cpus": list(device.cpus), "pcie_gb_s": device.gb_s},
                **{"in_use": holder is not None, "held_by": holder},
                "problem": node_problem(gpu.minor, root) or _unread(gpu, total, gpus, divided=divided),
                "links": {str(numbers[other.node]): _link(gpu, other, on_bus) for other in gpus if other != gpu},
                "no_peer": _no_peer(gpu, gpus, numbers),
                "ecc_uncorrectable": card.uncorrectable if card else None,
                "bad_pages": card.pending if card else None,
                "serial": card.serial or None if card else None,
            }
        )
    return modules


def _memory(gpu: Gpu, gpus: Sequence[Gpu], card: AmdCard | None, folder: Path) -> tuple[int, int]:
    """Return the MiB that a GPU has, and those in use; for a divided one it is unknown which part uses them."""
    total = gpu.memory or number_of(folder / "mem_info_vram_total") or 0
    alone = sum(other.bus_id == gpu.bus_id for other in gpus) == 1
    kind = "gtt" if _shares_memory(gpu, folder) else "vram"
    used = number_of(folder / f"mem_info_{kind}_used") if alone else 0
    return total >> 20 or (card.memory_mib if card else 0), (used or 0) >> 20


def _others(gpu: Gpu, total: int, used: int, computing: Mapping[int, int], root: str) -> int:
    """Return the MiB of a GPU that programs use which do not compute on it.

    If it has the host's memory, other programs may leave less of that than the GPU may use.
    """
    available = host_memory(root)[1] if _shares_memory(gpu, Path(root, DEVICES, gpu.bus_id)) else None
    gone = used if available is None else max(used, total - available)
    return max(0, gone - (computing.get(gpu.gpu_id, 0) >> 20))


def _shares_memory(gpu: Gpu, folder: Path) -> bool:
    """Return whether graphics in a processor have the host's memory (GTT), and not what the firmware reserves."""
    return gpu.gfx == SHARING and gpu.memory > (number_of(folder / "mem_info_vram_total") or 0)


def _unread(gpu: Gpu, mib: int, gpus: Sequence[Gpu], *, divided: bool) -> str | None:
    """Return why a GPU cannot be used although it has a node."""
    if not mib:
        return "its memory cannot be read"
    if divided and sum(_part_id(gpu) == _part_id(other) for other in gpus) > 1:
        return "its part cannot be distinguished from one of another GPU after a boot: both have one location_id"
    return None


def _part_id(gpu: Gpu) -> str:
    """Return the id of a part: its place, which cards of another domain of the bus may have too."""
    return f"{gpu.location} domain {gpu.domain}" if gpu.domain else str(gpu.location)


def _name(device: PciDevice, named: Mapping[str, str]) -> str:
    return plain_name(named.get(device.device) or NAMES.get(device.device, f"GPU {device.device}"), "AMD")


def _link(gpu: Gpu, other: Gpu, on_bus: Mapping[str, PciDevice]) -> str:
    """Return the kind of link between two GPUs: PACKAGE for parts of one, XGMI, SYS over sockets, or PCIE."""
    if gpu.bus_id == other.bus_id:
        return "PACKAGE"
    if (gpu.hive_id and gpu.hive_id == other.hive_id) or (gpu.links or {}).get(other.node) == XGMI:
        return "XGMI"
    nodes = {on_bus[gpu.bus_id].numa_node, on_bus[other.bus_id].numa_node}
    return "SYS" if len(nodes) > 1 and min(nodes) >= 0 else "PCIE"


def _no_peer(gpu: Gpu, gpus: Sequence[Gpu], numbers: Mapping[int, int]) -> list[int]:
    """Return the numbers of the GPUs to which the driver shows no direct link."""
    if gpu.links is None:
        return []
    others = [other for other in gpus if other.bus_id != gpu.bus_id and other.node not in gpu.links]
    return sorted(numbers[other.node] for other in others if not gpu.hive_id or gpu.hive_id != other.hive_id)


def _access(host: Host) -> DeviceAccess:
    """Return how a container gets the render nodes of some GPUs.

    On a host with divided GPUs the driver identifies them by the place of each part, since no other file shows these
    parts.
    """
    found = [PART_ID.fullmatch(card.device_id or "") for card in host.cards]
    part = PART_OF_DOMAIN if any(one and one["domain"] for one in found) else PART
    return DeviceAccess(
        options=("--device", "/dev/kfd", "--security-opt", "seccomp=unconfined"),
        each=("--device", "/dev/dri/renderD{index}"),
        forbidden=MASKS,
        groups=("/dev/kfd", "/dev/dri/renderD{index}"),
        files=PARTS if any(found) else RENDER_NODES,
        device=part if any(found) else RENDER_NODE,
        nodes=(Node("/dev/kfd"), Node("/dev/dri/renderD{index}")),
        without="without it ROCm does not see that GPU",
        inside="dev/dri/renderD*",
        expected=("renderD{index}",),
    )


PARTS = "/sys/class/kfd/kfd/topology/nodes/*/properties"
PART = r"\nlocation_id (?P<id>\d+)\n(?:[a-z_]+ \d+\n)*?drm_render_minor (?P<index>\d+)\n"
PART_OF_DOMAIN = PART.replace(r"(?P<id>\d+)", r"(?P<id>\d+(?:\ndomain [1-9]\d*)?)")
PART_ID = re.compile(r"(?P<location>\d+)(?: domain (?P<domain>\d+))?")
MASKS = (
    *("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    *("AMD_VISIBLE_DEVICES", "DOCKER_RESOURCE_GPU"),
)


def _gfx(cards: Sequence[Card]) -> list[str]:
    return sorted({card.capability for card in cards if card.capability})


def _cannot(spec: Spec, model: Architecture, host: Host, cards: Sequence[Card]) -> list[Problem]:
    """Return the features of a model that these GPUs cannot handle."""
    kinds = _gfx(cards)
    named, env = " and ".join(kinds), spec.get("env") or {}
    problems = [*_unbuilt(spec, kinds), *_apart(spec, host, cards)]
    problems += method_problems(
        spec,
        model,
        lambda method: "marlin" not in method and method not in REFUSED,
        "is not loaded on ROCm, which has neither Marlin's kernels nor bitsandbytes, moe_wna16 and experts_int8; awq, "
        "gptq, fp8, compressed-tensors, quark and mxfp4 are",
    )
    method = method_of(spec, model)[0]
    if is_fp8(method, model) and any(kind.startswith(NO_FP8_WEIGHTS) for kind in kinds):
        able = "gfx942, gfx950, gfx1200 and gfx1201 do; here weights of awq, gptq or 16 bits work"
        allowed = f"{named} does not compute with FP8; {able}"
        problems += method_problems(spec, model, lambda _: False, allowed)
    if [kind for kind in kinds if kind not in FP8]:
        allowed = f"is not served on {named}; {', '.join(FP8)} have it; auto works here"
        problems += cache_problems(spec, allowed)
    if str(env.get(AITER, "")).lower() in TRUE and [kind for kind in kinds if kind not in AITER_ON]:
        allowed = f"is for {' and '.join(AITER_ON)} alone; on {named} AITER ends servers, so leave it out"
        problems.append((f"env: {AITER}", env[AITER], allowed))
    return problems


def _unbuilt(spec: Spec, kinds: Sequence[str]) -> list[Problem]:
    """Return why the official image has no kernels for a GPU; a user's own may have some."""
    missing = [kind for kind in kinds if kind not in BUILT]
    if not missing or made_for(str(spec.get("image") or "")) != "rocm" or OVERRIDE in (spec.get("env") or {}):
        return []
    allowed = (
        f"is not built for {' and '.join(missing)}; it is for {', '.join(BUILT)}. An image of your own may be, or "
        "accelerator: cpu serves on the processors"
    )
    return [("image", spec["image"], allowed)]


def _apart(spec: Spec, host: Host, cards: Sequence[Card]) -> list[Problem]:
    """Return why a model cannot have parts of several divided GPUs."""
    divided = Counter(_package(card) for card in host.cards)
    packages = {_package(card) for card in cards} - {None}
    if len(packages) < 2 or all(divided[package] < 2 for package in packages):
        return []
    allowed = "its cards are parts of several divided GPUs, and only parts of one GPU work together; use fewer cards"
    return [spec.size_problem(allowed)]


def _package(card: Card) -> tuple[int, str | None] | None:
    """Return the GPU of which a card is a part, on a host with divided ones."""
    found = PART_ID.fullmatch(card.device_id or "")
    return (int(found["location"]) & PART_BITS, found["domain"]) if found else None


def _pitfalls(spec: Spec, model: Architecture, host: Host, cards: Sequence[Card]) -> list[str]:
    """Return the features of a model that are slow on these GPUs or may stop it."""
    kinds, notes, env = _gfx(cards), [], spec.get("env") or {}
    method = method_of(spec, model)[0]
    emulated = [kind for kind in kinds if kind not in MX_ON]
    if method in MX and emulated:
        others = " and ".join(emulated)
        notes.append(f"{method} is native on {MX_ON[0]} alone; on {others} it is emulated, which is slow")
    wanted = {card.module_id for card in cards}
    plain = all(kind in ("PCIE", "SYS") for card in cards for other, kind in card.links.items() if other in wanted)
    radeon = any(kind.startswith(("gfx10", "gfx11", "gfx12")) for kind in kinds)
    silent = str(env.get(NO_P2P)) == "1" and spec.get("disable_custom_all_reduce")
    if len(cards) > 1 and plain and radeon and not silent:
        notes.append(
            f"several Radeon cards over PCIe hang at their start; set env: {{{NO_P2P}: '1'}} and "
            "disable_custom_all_reduce: true"
        )
    if OVERRIDE in env:
        notes.append(
            f"env: {OVERRIDE} runs kernels of another architecture: it is not tested that they compute correctly"
        )
    return notes


def health(module: Mapping[str, Any]) -> str | None:
    """Return the health problem of a GPU, by its facts; None for none."""
    texts = [str(module["sick"])] if module.get("sick") else []
    if errors := module.get("ecc_uncorrectable") or 0:
        texts.insert(0, f"its memory had {errors} uncorrectable errors since the driver was loaded")
    elif pages := module.get("bad_pages") or 0:
        texts.insert(0, f"{pages} bad pages of its memory wait for a reset of the GPU, which takes them out of use")
    return "; ".join(texts) or None


# The kernel's own amdgpu is enough; AMD's packages have a newer one.
DRIVER = Driver(
    listed=("amdgpu*", "amd-smi-lib"),
    belongs=r"amdgpu-(dkms|dkms-firmware|core|lib)|amdgpu|amd-smi-lib",
    module="amdgpu",
    modules=("amdgpu",),
    unload=("amdgpu",),
    sources=("amdgpu-dkms",),
    repository="AMD's repository repo.radeon.com/amdgpu",
)

# all_reduce of 256 MiB: about half of the results of rccl-tests on healthy machines. The vendor's cluster tests
# (ROCm/cvs) have 330 as a limit for eight MI300X, at 8 GiB; later models have links at least as fast. MI210 and MI250
# by theory, since no figure is published: a ring has at least one link of 50 GB/s in each direction (AMD's CDNA 2 white
# paper). Eight GPUs, four MI250, have several such rings, and must reach a half of one; fewer have one alone, and must
# reach a quarter. A pair of Radeon cards must reach an eighth of the rate of its slots: nothing is published, and most
# of them need NCCL_P2P_DISABLE, with which all data passes through the host's memory.
LINKS = Links(
    library="RCCL",
    thresholds=(
        *(
            Threshold(f"AMD Instinct {name}", 150.0, cards=8, link="XGMI")
            for name in ("MI300X", "MI325X", "MI350X", "MI355X")
        ),
        *(
            Threshold(f"AMD Instinct {name}", gb_s, cards=cards, link="XGMI")
            for name in ("MI210", "MI250")
            for cards, gb_s in ((8, 25.0), (4, 12.5), (2, 12.5))
        ),
    ),
    backend="nccl",
    devices="cuda",
    tests="rccl-tests",
    pcie_part=1 / 8,
)

PLATFORM = Platform(
    name="rocm",
    title="ROCm",
    devices="AMD GPUs",
    engine="vllm",
    socket_variables=("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
    ray_resource="GPU",
    over_nics=over_nccl,
    options=vllm_options,
    image=lambda host, release, live: official_image("rocm", release, live),
    software=lambda release: "vLLM for ROCm",
    here=lambda root: bool(pci(root)),
    pci=pci,
    observe=observe,
    about=about,
    reasons=reasons("amd-smi", "Is the driver amdgpu installed and loaded, and is the GPU one that computes?"),
    access=_access,
    driver=DRIVER,
    needs=("driver",),
    # Parts of ROCm and RCCL attach to their own process as a debugger.
    capabilities=("SYS_PTRACE",),
    env_between={"VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
    ulimits=("memlock=-1:-1", "stack=67108864:67108864"),
    cache_variable="VLLM_CACHE_ROOT",
    # An estimate without measurements: kernels are compiled at the first start, as on CUDA.
    warmup_s=180,
    hang_least_s=120,
    warmup_cached_s=60,
    card_variables=MASKS,
    prefixes=("AMD",),
    names=r"AMD [\w .,()/+&\[\]-]*",
    near=(("PACKAGE",), ("XGMI",)),
    metrics=METRICS,
    links=LINKS,
    memory="vllm",
    binds=True,
    capability_problems=_cannot,
    capability_notes=_pitfalls,
    health=health,
    lacks={"numa_bind": "is CUDA's alone; the plan keeps a server on the processors that are near its cards"},
)
