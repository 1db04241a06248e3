"""NVIDIA GPUs: cards and parts of divided ones, which containers get by CDI or the nvidia runtime, by their UUIDs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import Problem
from ..core.run import Result, read_text
from ..core.versions import comparable
from ..model.architecture import Architecture
from ..model.host import Card, Host
from ..model.spec import Spec
from ..model.vllm_options import vllm_options
from . import nvidia_smi as smi
from .abilities import cache_problems, is_bfloat16, method_of
from .base import Platform, Runtime
from .between import over_nccl
from .cards import about, filled, host_memory, lost, mixed, reasons
from .dcgm import ACCEPTANCE
from .device_access import DeviceAccess, Node
from .device_holders import device_holders
from .driver import Companion, Driver
from .kernel_log import kernel_log
from .links import Links, Threshold
from .nvidia_fabric import BOARD_IDS, waits
from .nvidia_log import PATTERN, CardErrors, card_errors, judge
from .nvidia_smi_metrics import METRICS
from .pci import DISPLAY, SCREEN, PciDevice, bus_text, pci_devices
from .releases import VLLM_DEFAULT, made_for, official_image, vllm_of

VENDOR, TEGRA = "0x10de", "etc/nv_tegra_release"
CONTROLLER = "0x0302"  # class of a card without a screen
SWITCH = ("0x0680",)
INFORMATION = "proc/driver/nvidia/gpus/*/information"
NODE = re.compile(r"/dev/nvidia(\d{1,3})")
WATCHERS = ("nvidia-smi", "nvidia-persiste", "nv-hostengine", "dcgm", "Xorg", "Xwayland", "gnome-", "kwin", "nvtop")
VISIBLE, MASK = "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
COMPATIBILITY = "VLLM_ENABLE_CUDA_COMPATIBILITY"
# Images of vLLM since this one contain CUDA 13, which needs a driver at least as new as this; older ones CUDA 12. A tag
# may end with another CUDA, such as -cu129.
CUDA_13_SINCE, CUDA_13_DRIVER, CUDA_12_DRIVER, COMPATIBLE_DRIVER = "0.20.0", 580, 525, 535
CUDA_12_LAST, CUDA_ENDING = "0.19.1", re.compile(r":v[^:]*-cu(\d\d)\d")
CAPABILITY = r"\d{1,2}\.\d"
OLDEST, OLDEST_OF_13 = (7, 0), (7, 5)  # the oldest generations in images with CUDA 12 and 13
# The newest generation in vLLM's images, by the first of them.
NEWEST = (("0.9.2", 12), ("0.9.0", 10), ("0", 9))
LEAST_SWITCHED = 4  # others to which switches link a card; a bridge links it to three at most
CONSUMER = re.compile(r"GeForce|TITAN")
# Minimum capability of quantisation methods and attention backends.
METHODS = {
    **{"awq": (7, 5), "awq_marlin": (7, 5), "fp8": (7, 5)},
    **{"experts_int8": (8, 0), "fbgemm_fp8": (8, 0), "modelopt": (8, 0), "mxfp4": (8, 0), "gpt_oss_mxfp4": (8, 0)},
    **{"fp_quant": (10, 0), "nvfp4_per_token": (10, 0)},
}
BACKENDS = {
    **{"FLASH_ATTN": (8, 0), "FLASHINFER": (7, 5), "FLASH_ATTN_MLA": (9, 0), "FLASHMLA": (9, 0)},
    **{"FLASHINFER_MLA": (10, 0), "CUTLASS_MLA": (10, 0)},
}
TENS_ALONE = ("FLASHINFER_MLA", "CUTLASS_MLA")  # these have no kernels for newer generations
BFLOAT16 = FP8_CACHE = (8, 0)
NATIVE_FP8, NATIVE_FP4 = (8, 9), (10, 0)
INT8_LACKS = 10  # the generation without kernels for eight-bit integers


def _on_bus(root: str) -> dict[str, PciDevice]:
    return pci_devices(root, VENDOR, (CONTROLLER, DISPLAY, SCREEN))


def pci(root: str = "/") -> dict[str, str]:
    """Return ``{bus_id: PCI device id}`` of the cards on the bus."""
    return {found: device.device for found, device in _on_bus(root).items()}


def observe(root: str = "/") -> dict[str, Any]:
    """Return the state of the cards from nvidia-smi, the driver's files, the PCI bus and the processes.

    ``module_id`` is nvidia-smi's number of a card. If cards are divided, their parts are numbered instead, in the order
    of ``nvidia-smi -L``.
    """
    on_bus = _on_bus(root)
    told, problem = smi.asked(smi.QUERY)
    rows = [] if problem else smi.rows(told.out)
    records, unread = kernel_log(PATTERN)
    logged = card_errors(records)
    if not rows:
        return _silent(on_bus, problem or "nvidia-smi shows no card", told, logged)
    wrong, warned = _wrong(rows, logged)
    notes = [*_persistence(rows), *smi.warnings(told)]
    waiting, unknown = waits(rows, pci_devices(root, VENDOR, SWITCH))
    modules = _modules(rows, on_bus, {**waiting, **wrong}, warned, root)
    return {
        "device_name": rows[0].fields["name"],
        "driver_version": rows[0].fields["driver_version"],
        "memory_mib": max(module["memory_mib"] for module in modules) if modules else 0,
        "modules": modules,
        "unusable_cards": _lost(on_bus, rows, f"{told.out}\n{told.err}", logged),
        "pci_cards": len(on_bus),
        "notes": [*mixed([str(module["name"]) for module in modules]), *_unlinked(modules), *notes, *unknown, *unread],
    }


def _modules(
    rows: Sequence[smi.Row],
    on_bus: Mapping[str, PciDevice],
    wrong: Mapping[int, str],
    warned: Mapping[int, str],
    root: str,
) -> list[dict[str, Any]]:
    """Return the facts of the cards, or of the parts of divided ones; ``wrong`` and ``warned`` are their problems."""
    minors, serials = _minors(root), smi.serials()
    links, peers = _topology(rows)
    programs = smi.asked(smi.PROGRAMS)[0].out
    holders, computing = _holders(rows, minors, programs, root), smi.program_mib(programs)
    modules = []
    for row in rows:
        module = _module(row, on_bus.get(row.bus_id), minors.get(row.uuid), holders.get(row.uuid), root)
        module["memory_others_mib"] = _others_mib(module, computing.get(row.uuid, 0))
        module["problem"] = module["problem"] or wrong.get(row.index)
        module |= {"sick": warned.get(row.index, ""), **serials.get(row.uuid, {})}
        module["links"] = {str(other): kind for (one, other), kind in links.items() if one == row.index}
        module["no_peer"] = sorted(other for (one, other), word in peers.items() if one == row.index and word != "OK")
        modules.append(module)
    return _divided(rows, modules, programs) if any(row.divided for row in rows) else modules


def _silent(
    on_bus: Mapping[str, PciDevice], problem: str, told: Result, logged: Mapping[str, CardErrors]
) -> dict[str, Any]:
    """Return the facts if nvidia-smi shows no card."""
    names = bus_text(VENDOR, {one.device: "NVIDIA card" for one in on_bus.values()})
    handles = smi.lost_handles(f"{told.out}\n{told.err}")
    fatal = {place: errors.fatal for place, errors in logged.items() if errors.fatal}
    texts = {place: [one.get(place, "") for one in (handles, fatal)] for place in sorted(on_bus)}
    cards = "".join(f"; card {place}: {'; '.join(filter(None, both))}" for place, both in texts.items() if any(both))
    old = smi.old_driver(told)
    if old:
        problem = f"the driver {old} is too old: images of vLLM need {CUDA_12_DRIVER} or newer ({problem})"
    nothing: dict[str, Any] = {"device_name": None, "driver_version": None, "memory_mib": 0, "modules": []}
    return {**nothing, "problem": [f"{problem}{names}{cards}"], "pci_cards": len(on_bus)}


def _module(row: smi.Row, device: PciDevice | None, minor: int | None, holder: str | None, root: str) -> dict[str, Any]:
    """Return the facts of a card, except its links."""
    total, used = row.number("memory.total"), row.number("memory.used")
    capability = row.fields["compute_cap"]
    unified = row.fields["memory.total"] == "[N/A]"
    if unified:  # CUDA reports all of the host's memory, and vLLM counts what is available as free.
        total, available = host_memory(root)
        used = None if available is None else total - available
    memory = total or 0
    held = holder or (None if unified else filled(used or 0, memory))
    return {
        **{"module_id": row.index, "index": minor, "device_id": row.uuid, "bus_id": row.bus_id},
        **{"name": row.fields["name"], "memory_mib": memory, "memory_used_mib": used},
        "capability": capability if re.fullmatch(CAPABILITY, capability) else "",
        "numa_node": device.numa_node if device else -1,
        "cpus": list(device.cpus) if device else [],
        "pcie_gb_s": device.gb_s if device else 0.0,
        "in_use": held is not None,
        "held_by": held,
        "problem": _unread(row, memory, minor),
    }


def _unread(row: smi.Row, memory: int, minor: int | None) -> str | None:
    """Return why a card that nvidia-smi shows cannot be used."""
    strange = next((text for text in row.fields.values() if text.startswith("[") and text != "[N/A]"), None)
    if strange and strange != "[Not Supported]":
        return f"nvidia-smi shows {strange} for it"
    if not memory:
        return "nvidia-smi cannot read its memory"
    if not row.uuid.startswith("GPU-"):
        return "nvidia-smi cannot read its UUID"
    if minor is None:
        return "the driver has no node /dev/nvidia* for it"
    capability = row.fields["compute_cap"]
    if re.fullmatch(CAPABILITY, capability) and _version(capability) < OLDEST:
        return f"its compute capability {capability} is below {_text(OLDEST)}, the least of all images of vLLM"
    return None


def _lost(
    on_bus: Mapping[str, PciDevice], rows: Sequence[smi.Row], answer: str, logged: Mapping[str, CardErrors]
) -> list[dict[str, Any]]:
    """Return ``unusable_cards`` of those that nvidia-smi does not show, with everything known about them."""
    handles = smi.lost_handles(answer)
    found = []
    for one in lost(on_bus, [row.bus_id for row in rows], "nvidia-smi"):
        place = one["bus_id"]
        texts = (handles.get(place, one["problem"]), logged.get(place, CardErrors()).fatal)
        found.append({**one, "problem": "; ".join(text for text in texts if text)})
    return found


def _wrong(rows: Sequence[smi.Row], logged: Mapping[str, CardErrors]) -> tuple[dict[int, str], dict[int, str]]:
    """Return ``{index: why}`` of the cards with permanent errors, and of those that work but are sick."""
    errors = {one.index: one for one in smi.errors()}
    judged = {row.index: judge(errors.get(row.index), logged.get(row.bus_id, CardErrors())) for row in rows}
    found = {index: problem for index, (problem, _) in judged.items() if problem}
    warned = {index: sick for index, (_, sick) in judged.items() if sick}
    return found, warned


def _topology(rows: Sequence[smi.Row]) -> tuple[dict[tuple[int, int], str], dict[tuple[int, int], str]]:
    if len(rows) < 2:
        return {}, {}
    return smi.matrix(smi.asked(smi.LINKS)[0].out), smi.matrix(smi.asked(smi.PEERS)[0].out)


def _others_mib(module: Mapping[str, Any], computing: int | None) -> int | None:
    """Return the MiB of a card that programs use which do not compute on it, such as a desktop; None if unknown."""
    used = module["memory_used_mib"]
    return None if computing is None or used is None else max(0, used - computing)


def _holders(rows: Sequence[smi.Row], minors: Mapping[str, int], programs: str, root: str) -> dict[str, str]:
    """Return ``{uuid: who}`` of the cards and parts that programs use, including programs in containers."""
    found = smi.programs(programs)
    if {row.uuid for row in rows} <= found.keys():
        return found
    opened = device_holders(NODE, WATCHERS, root)
    by_node = {uuid: opened[minor] for uuid, minor in minors.items() if minor in opened}
    return {**by_node, **found}


def _divided(rows: Sequence[smi.Row], modules: Sequence[dict[str, Any]], programs: str) -> list[dict[str, Any]]:
    """Return the modules with the parts of divided cards in place of these."""
    listed, table, profiles = (smi.asked(argv)[0].out for argv in (smi.LIST, smi.TABLE, smi.PROFILES))
    parts = smi.parts(listed, table, profiles)
    holders, computing = smi.programs(programs), smi.program_mib(programs)
    found: list[dict[str, Any]] = []
    numbers: dict[int, int] = {}  # nvidia-smi's numbers of the cards without parts
    for row, module in zip(rows, modules, strict=True):
        mine = [part for part in parts if part.card == row.uuid]
        if not row.divided:
            numbers[row.index] = len(found)
            found.append({**module, "module_id": len(found)})
        elif not mine:
            text = "its MIG mode is on, and it has no parts; make some with nvidia-smi mig -cgi, or turn the mode off"
            found.append({**module, "module_id": len(found), "problem": module["problem"] or text})
        for part in mine:
            held = holders.get(part.uuid)
            own = {"device_id": part.uuid, "name": f"{module['name']} MIG {part.profile}", "alone": True}
            own |= {"memory_mib": part.memory_mib, "memory_used_mib": part.used_mib, "links": {}, "no_peer": []}
            own |= {"memory_others_mib": _others_mib(own, computing.get(part.uuid, 0))}
            found.append({**module, **own, "in_use": bool(held), "held_by": held, "module_id": len(found)})
    return [{**one, **_renumbered(one, numbers)} for one in found]


def _renumbered(module: Mapping[str, Any], numbers: Mapping[int, int]) -> dict[str, Any]:
    """Return a card's present and missing links by the new numbers; parts have no links."""
    links = {str(numbers[int(other)]): kind for other, kind in module["links"].items() if int(other) in numbers}
    return {"links": links, "no_peer": [numbers[other] for other in module["no_peer"] if other in numbers]}


def _minors(root: str) -> dict[str, int]:
    """Return ``{uuid: minor}`` of the driver's cards; after a card fails, its minor may differ from its index."""
    found = {}
    for path in sorted(Path(root).glob(INFORMATION)):
        text = read_text(path) or ""
        uuid, minor = re.search(r"GPU UUID:\s*(\S+)", text), re.search(r"Device Minor:\s*(\d+)", text)
        if uuid and minor:
            found[uuid[1]] = int(minor[1])
    return found


def _persistence(rows: Sequence[smi.Row]) -> list[str]:
    off = [row.index for row in rows if row.fields["persistence_mode"] == "Disabled"]
    if not off:
        return []
    return [
        f"persistence mode of cards {off} is off: each start sets the cards up again; nvidia-persistenced keeps it on"
    ]


def _unlinked(modules: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence on cards without NVLink on a board whose switches link all others."""
    linked = {
        module["module_id"]: sum(kind.startswith("NV") for kind in module["links"].values()) for module in modules
    }
    alone = [number for number, count in linked.items() if not count]
    if max(linked.values(), default=0) < LEAST_SWITCHED or len({str(one["name"]) for one in modules}) > 1 or not alone:
        return []
    return [f"cards {alone} have no NVLink, and the others have: NCCL may fail on them; reset them or reboot the host"]


def _here(root: str) -> bool:
    return not Path(root, TEGRA).exists() and bool(_on_bus(root))


def _switched(root: str) -> bool:
    """Return whether the cards of a machine are linked by NVSwitches that it manages itself."""
    boards = any(device.device in BOARD_IDS for device in _on_bus(root).values())
    return boards or bool(pci_devices(root, VENDOR, SWITCH))


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


def _text(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def _least(cards: Sequence[Card]) -> tuple[tuple[int, int], str] | None:
    """Return the lowest capability of some cards, and that card's name in messages; None if none is known."""
    known = [(_version(card.capability), card) for card in cards if re.fullmatch(CAPABILITY, card.capability)]
    if not known:
        return None
    capability, card = min(known, key=lambda one: one[0])
    return capability, f"card {card.module_id} ({card.name}) has {_text(capability)}"


def _capability_problems(spec: Spec, model: Architecture, host: Host, cards: Sequence[Card]) -> list[Problem]:
    found = _least(cards)
    problems = _driver_problems(spec, host)
    if not found:
        return problems
    capability, here = found
    problems += _unbuilt(spec, cards)
    if spec.get("dtype") == "bfloat16" and capability < BFLOAT16:
        other = "float16" if model.takes_float16 else "float32"
        text = f"needs compute capability {_text(BFLOAT16)} or more, and {here}; set dtype: {other}"
        problems.append(("dtype", "bfloat16", text))
    if spec.get("dtype") == "float16" and not model.takes_float16:
        other = "float32" if capability < BFLOAT16 else "bfloat16"
        text = f"overflows in a model of kind {model.kind}, so that vLLM refuses it; set dtype: {other}"
        problems.append(("dtype", "float16", text))
    if capability < FP8_CACHE:
        text = f"needs compute capability {_text(FP8_CACHE)} or more, and {here}; set kv_cache_dtype: auto"
        problems += cache_problems(spec, text)
    method, key, said = method_of(spec, model)
    if method == "modelopt" and model.quantisation.get("quant_algo") == "NVFP4":
        method = "nvfp4"
    least = METHODS.get(method, (0, 0))
    if capability < least:
        others = "awq, gptq or fp8" if capability >= OLDEST_OF_13 else "gptq, or of 16 bits"
        text = f"needs compute capability {_text(least)} or more, and {here}; take weights by {others}"
        problems.append(_of_weights(spec, key, said, text))
    if method == "compressed-tensors" and model.precision == "int8" and capability[0] == INT8_LACKS:
        text = f"with integers of eight bits has no kernels for {here}; take weights of FP8 or NVFP4"
        problems.append(_of_weights(spec, key, said, text))
    return problems + _backend_problems(spec, capability, here)


def _of_weights(spec: Spec, key: str, said: str, text: str) -> Problem:
    if key == "quantization":
        return key, said, text
    return key, spec.get("weights"), f"{said} of its config.json {text}"


def _backend_problems(spec: Spec, capability: tuple[int, int], here: str) -> list[Problem]:
    own = (spec.get("env") or {}).get("VLLM_ATTENTION_BACKEND")
    asked = (("attention_backend", spec.get("attention_backend")), ("env: VLLM_ATTENTION_BACKEND", own))
    named = [(key, name) for key, name in asked if isinstance(name, str) and name in BACKENDS]
    return [
        (key, name, f"needs compute capability {_text(BACKENDS[name])} or more, and {here}; leave it out")
        for key, name in named
        if capability < BACKENDS[name]
    ] + [
        (key, name, f"needs compute capability {BACKENDS[name][0]}.x, and {here}; leave it out")
        for key, name in named
        if name in TENS_ALONE and capability[0] > BACKENDS[name][0]
    ]


def _cuda_of(image: str, version: str) -> int:
    """Return the generation of CUDA in an image."""
    ending = CUDA_ENDING.search(image)
    return int(ending[1]) if ending else 13 if comparable(version) >= comparable(CUDA_13_SINCE) else 12


def _unbuilt(spec: Spec, cards: Sequence[Card]) -> list[Problem]:
    """Return why vLLM's own image has no kernels for a card; a user's own may have some."""
    image = str(spec.get("image") or "")
    version = vllm_of(image) or VLLM_DEFAULT
    # What a newer release is built for is unknown.
    if made_for(image) != "cuda" or comparable(version) > comparable(VLLM_DEFAULT):
        return []
    least = OLDEST_OF_13 if _cuda_of(image, version) >= 13 else OLDEST
    newest = next(most for since, most in NEWEST if comparable(version) >= comparable(since))
    for card in cards:
        capability = _version(card.capability) if re.fullmatch(CAPABILITY, card.capability) else least
        if least <= capability < (newest + 1, 0):
            continue
        other = f"v{CUDA_12_LAST} or older" if capability < least else f"v{NEWEST[0][0]} or newer"
        named = f"card {card.module_id} ({card.name})"
        text = f"is built for compute capabilities {_text(least)} to {newest}.x, and {named} has"
        return [("image", image, f"{text} {_text(capability)}; take an image of vLLM {other}")]
    return []


def _driver_problems(spec: Spec, host: Host) -> list[Problem]:
    """Return an error if the host's driver is too old for the CUDA of a model's image; CDI does not check this."""
    major = re.match(r"\d+", host.driver_version or "")
    image = str(spec.get("image") or "")
    version = vllm_of(image)
    if not major or not version:
        return []
    new = _cuda_of(image, version) >= 13
    least = CUDA_13_DRIVER if new else CUDA_12_DRIVER
    if int(major[0]) >= least:
        return []
    asked = str((spec.get("env") or {}).get(COMPATIBILITY)) == "1"
    consumer = bool(CONSUMER.search(host.device_name or ""))
    if new and asked and not consumer and int(major[0]) >= COMPATIBLE_DRIVER:
        return []
    options = f"-e driver_version={least} -e driver_upgrade_allowed=true"
    ways = [
        f"install driver {least} or newer (playbooks/driver.yml {options})",
        *([f"take an image of vLLM v{CUDA_12_LAST} or older"] if new else []),
    ]
    if new and not consumer and int(major[0]) >= COMPATIBLE_DRIVER:
        ways.append(f"set env: {{{COMPATIBILITY}: '1'}}")
    text = f"is made with CUDA {13 if new else 12}, which needs driver {least} or newer, and this host has "
    return [("image", image, f"{text}{host.driver_version}; {' or '.join(ways)}")]


def _capability_notes(spec: Spec, model: Architecture, host: Host, cards: Sequence[Card]) -> list[str]:
    """Return the features of a model that these cards handle in another way."""
    found = _least(cards)
    if not found:
        return []
    capability, here = found
    method, notes = method_of(spec, model)[0], []
    if spec.get("dtype") in (None, "auto") and is_bfloat16(spec, model) and capability < BFLOAT16:
        other = "float16" if model.takes_float16 else "float32, which takes twice the memory"
        notes.append(f"its weights of bfloat16 are served in {other}, since {here}")
    # compressed-tensors calls it a float of four bits.
    stored = model.precision == "fp4" or model.quantisation.get("quant_algo") == "NVFP4"
    nvfp4 = method == "modelopt_fp4" or stored
    if nvfp4 and capability < NATIVE_FP4:
        notes.append(f"NVFP4 saves memory and no time: {here}, and computing with it needs {_text(NATIVE_FP4)}")
    elif (method in ("fp8", "fbgemm_fp8") or model.precision == "fp8") and capability < NATIVE_FP8:
        notes.append(f"FP8 saves memory and no time: {here}, and computing with it needs {_text(NATIVE_FP8)}")
    return notes


RUNTIME = Runtime(
    name="nvidia",
    path="/usr/bin/nvidia-container-runtime",
    package="nvidia-container-toolkit",
    parts=("nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1"),
    programs=("nvidia-ctk",),
    cdi_since=(1, 18),
)
CONTROL = (Node("/dev/nvidiactl"), Node("/dev/nvidia-uvm"))
SHOWN = r"\(UUID: (?P<id>{kind}-[\w/-]+)\)"


def _access(host: Host) -> DeviceAccess:
    """Return how containers get cards: by CDI if the engine accepts its names, otherwise by the runtime's variable.

    Parts of cards have no nodes to verify. An image's own variable with the value ``all`` is overridden: with ``void``
    the runtime gives no card, if it is the engine's default. The engine must know the nodes that the runtime gives:
    otherwise a daemon-reload of systemd takes them.
    """
    parts = any(card.alone for card in host.cards)
    card = () if parts else ("/dev/nvidia{index}",)
    options = [("--device", node.path) for node in CONTROL] if not host.cdi else []
    return DeviceAccess(
        given_by="CDI" if host.cdi else "the nvidia runtime",
        runtime=None if host.cdi else RUNTIME.name,
        options=tuple(word for pair in options for word in pair),
        each=("--device", "nvidia.com/gpu={id}") if host.cdi else tuple(f"--device={path}" for path in card),
        variables={VISIBLE: "void" if host.cdi else "{ids}"},
        files="" if parts else f"/{INFORMATION}",
        device="" if parts else DEVICE,
        forbidden=(MASK,),
        nodes=(*CONTROL, *map(Node, card)),
        without="without it CUDA finds no card in the container",
        shows=("nvidia-smi", "-L"),
        shown=SHOWN.format(kind="MIG" if parts else "GPU"),
    )


DEVICE = r"GPU UUID:\s*(?P<id>GPU-[\w-]+)[\s\S]*Device Minor:\s*(?P<index>\d+)"

# Names of Ubuntu, of NVIDIA's repository (guide of driver installation; since branch 590 without the branch), and of
# Debian. The server packages of Ubuntu, and the open modules, which Blackwell cards need, come first.
DRIVER = Driver(
    listed=("*nvidia*", "cuda-drivers*", "libnvsdm*", "nvlsm"),
    # Excluded are the container toolkit, CUDA, and modules for one kernel, which follow that kernel.
    belongs=(
        r"(?!.*container|nvidia-(cuda|cudnn|docker|hpc|nsight|openjdk|profiler|visual-profiler))"
        r"(nvidia-.*|libnvidia-.*|libnvsdm.*|cuda-drivers.*|nvlsm|xserver-xorg-video-nvidia.*)"
    ),
    module="nvidia",
    modules=("nvidia", "nvidia_uvm"),
    unload=("nvidia_peermem", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia"),
    sources=(
        *("nvidia-driver-{branch}-server-open", "nvidia-open-{branch}", "nvidia-open", "nvidia-driver-{branch}-server"),
        *("nvidia-driver-{branch}-open", "cuda-drivers-{branch}", "cuda-drivers", "nvidia-driver-{branch}"),
        *("nvidia-open-kernel-dkms", "nvidia-driver"),
    ),
    # Servers may have only the modules and the libraries for computing: Ubuntu's headless packages, and NVIDIA's
    # without X.
    parts=r"nvidia-(headless|dkms|kernel-common|kernel-dkms|kernel-open-dkms|tesla).*|nvidia-driver-cuda",
    usual=str(CUDA_13_DRIVER),
    repository="NVIDIA's CUDA repository for this distribution, or Ubuntu's restricted component",
    service="nvidia-persistenced",
    companion=Companion(
        names=("nvidia-fabricmanager-{branch}", "nvidia-fabricmanager"),
        service="nvidia-fabricmanager",
        wanted=_switched,
        without="without it CUDA fails on a machine with NVSwitch",
    ),
    rivals=("nouveau",),
    users=("nvidia-dcgm", "nvidia-imex"),
)

# all_reduce of 256 MiB: about half of the results of nccl-tests on healthy machines. Sums that NVSwitches compute are
# not assumed. H100: NCCL's author reports 480, and 370 by rings (NVIDIA/nccl-tests#212); H200: 475, and rings as H100
# (#272). B200: 830 (NVIDIA/nccl#1807), of which rings reach about 670. A100 SXM: 232 (NVIDIA/nccl-tests#175). Pairs
# with NVLink bridges: A100 208 (#178), H100 PCIe 115 (NVIDIA/nccl#1161). The rate of more than two cards over PCI
# Express depends on boards and processors, so their first figure passes. A pair must reach a quarter of the rate of its
# slots: without access to each other's memory two RTX 4090 copy 13 of 31.5 GB/s each way, with it 21
# (tinygrad/open-gpu-kernel-modules#6), and pairs on two sockets are slower still.
LINKS = Links(
    library="NCCL",
    thresholds=(
        Threshold("NVIDIA B200", 330.0, cards=8, link="NV"),
        Threshold("NVIDIA H200", 185.0, cards=8, link="NV"),
        Threshold("NVIDIA H100", 185.0, cards=8, link="NV"),
        Threshold("NVIDIA A100", 115.0, cards=8, link="NV"),
        Threshold("NVIDIA A100", 100.0, cards=2, link="NV"),
        Threshold("NVIDIA H100 PCIe", 57.0, cards=2, link="NV"),
    ),
    backend="nccl",
    devices="cuda",
    tests="nccl-tests",
    pcie_part=1 / 4,
)

PLATFORM = Platform(
    name="cuda",
    title="NVIDIA",
    devices="NVIDIA cards",
    engine="vllm",
    socket_variables=("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
    ray_resource="GPU",
    over_nics=over_nccl,
    options=vllm_options,
    image=lambda host, release, live: official_image("cuda", release, live),
    software=lambda release: "vLLM for CUDA",
    # nvidia-smi numbers cards in the order of the bus, CUDA by their speed.
    env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    env_between={"VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
    ulimits=("memlock=-1:-1", "stack=67108864:67108864"),
    cache_variable="VLLM_CACHE_ROOT",
    warmup_s=120,
    hang_least_s=120,
    warmup_cached_s=60,
    access=_access,
    driver=DRIVER,
    runtime=RUNTIME,
    cdi=True,
    card_variables=(VISIBLE, MASK),
    needs=("driver", "nvidia_runtime"),
    prefixes=("NVIDIA",),
    names=r"(NVIDIA|Tesla|Quadro|GeForce|GRID) [\w .()/+-]{1,80}",
    near=(("NV",), ("PIX", "PXB")),
    metrics=METRICS,
    acceptance=ACCEPTANCE,
    links=LINKS,
    memory="vllm",
    capability_problems=_capability_problems,
    capability_notes=_capability_notes,
    binds=True,
    here=_here,
    pci=pci,
    observe=observe,
    about=about,
    reasons=reasons("nvidia-smi", "Is NVIDIA's driver loaded? playbooks/driver.yml installs it"),
)
