"""Intel Gaudi: a model gets some of a host's cards, by the habana container runtime."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import InputError, Problem
from ..core.run import read_text, run
from ..model.architecture import Architecture
from ..model.host import Card, Host
from ..model.spec import Spec
from ..model.vllm_options import BLOCK, FORK_1_21, OPTION_NAMES
from .base import Platform, Runtime
from .between import over_hccl
from .cards import about
from .device_access import DeviceAccess, Node
from .device_holders import device_holders
from .driver import Driver
from .habana_config import PATH, SETTINGS
from .hl_qual import ACCEPTANCE
from .hl_smi import GAUDI1, GENERATION, PREFIXES, BadRow, family_of, hl_smi_cards, hl_smi_places, hl_smi_processes
from .hl_smi_health import cards_health
from .hl_smi_metrics import METRICS
from .links import Links, Threshold
from .pci import ACCELERATOR, pci_devices
from .releases import RELEASES, UPSTREAM_TORCH, release_of, together

FIELDS = "index,module_id,bus_id,name,driver_version,memory.total,memory.used"
VENDOR = "0x1da3"
# Generations by PCI device id, for hosts on which no tool shows the name.
BY_PCI = {"1020": "Gaudi2", "1021": "Gaudi2", "1030": "Gaudi2", **{f"106{digit:x}": "Gaudi3" for digit in range(16)}}
HUGEPAGES = 15000  # of 2 MiB, from the vendor's manual
FULL_MIB = 4096  # an idle card shows 768; driver and firmware never use more than half of this


PCI_ADDR = "sys/class/accel/accel[0-9]*/device/pci_addr"
# The nodes of a card, and programs that open its control node only to read its state.
NODE = re.compile(r"/dev/accel/accel(?:_controlD)?(\d{1,3})")
WATCHERS = ("hl-smi", "hl_smi", "metric-exporter", "gaudi-metric")
MISSING = "it is on the PCI bus, and hl-smi does not show it"
QUAD = 4
LAZY = "PT_HPU_LAZY_MODE"
# Repositories of the vendor's images have the release in their path; other images may have it as their tag.
VENDOR_IMAGE = re.compile(r"/gaudi-docker/(\d+\.\d+\.\d+)/")
TAG = re.compile(r":(\d+\.\d+\.\d+)(?![\d.])[^/:@]*(?:@|$)")
ONE_RELEASE, RELEASE_KEY = "both must be of one release", "accelerator_release"


def _image(_: Host, release: str, _live: str) -> str | None:
    """Return the vendor's ready image of a release; most releases have none."""
    row = release_of(release)
    return row.ready(release) if row else None


def _options(release: str) -> frozenset[str]:
    # The exact options of 1.22 and 1.23 are unknown.
    return FORK_1_21 if release.startswith("1.21.") else OPTION_NAMES


def _problems(spec: Spec) -> list[Problem]:
    problems: list[Problem] = []
    # Over hosts, the engine decides on stages.
    stages = () if spec.members else ("pipeline_parallel_size",)
    for key in (*stages, "data_parallel_size", "data_parallel_size_local"):
        if spec.get(key) not in (None, 1):
            allowed = "must be 1: the plan gives a model as many cards as tensor_parallel_size"
            problems.append((key, spec[key], allowed))
    if spec.get("block_size") not in (None, BLOCK):
        problems.append(("block_size", spec["block_size"], f"must be {BLOCK}, the block of Gaudi's KV cache"))
    if spec.get("kv_cache_memory_bytes") is not None:
        # No version of the plugin from 0.10.1 to 0.27 reads it in its own worker, and the fork is older than it.
        allowed = (
            "is read by no server on Gaudi: the plugin's KV cache is what gpu_memory_utilization leaves, silently; "
            f"set num_gpu_blocks_override, in blocks of {BLOCK} tokens, or gpu_memory_utilization"
        )
        problems.append(("kv_cache_memory_bytes", spec["kv_cache_memory_bytes"], allowed))
    if _lazy(spec) and UPSTREAM_TORCH in str(spec.get("image")):
        allowed = "needs Gaudi's own PyTorch, and the image has upstream's, which knows no lazy mode; leave it out"
        problems.append((f"env: {LAZY}", spec["env"][LAZY], allowed))
    return problems


def _lazy(spec: Spec) -> bool:
    """Return whether a model's own environment enables lazy mode."""
    return str((spec.get("env") or {}).get(LAZY)) == "1"


def _capability_notes(spec: Spec, model: Architecture, host: Host, cards: Sequence[Card]) -> list[str]:
    """Return a warning about adapters of a mixture of experts.

    The layers for adapters in the vendor's fork and in the plugin are linear layers and embeddings. In the fork, only
    some classes of such models take adapters (Mixtral, PhiMoE and Granite do, those of Qwen and DeepSeek do not).
    """
    if not model.experts or not spec.get("enable_lora"):
        return []
    return [
        "is a mixture of experts with adapters (enable_lora): vLLM for Gaudi has adapters of linear layers only, not "
        "of experts, and not every such model takes them; the server ends at its start if this one does not"
    ]


def _notes(spec: Spec, release: str) -> list[str]:
    row, notes = release_of(release), []
    if row and row.upstream_torch and _lazy(spec):
        ready = f"the vendor's ready images of {row.name} have upstream's"
        notes.append(f"env: {LAZY} 1 works where the image has Gaudi's own PyTorch; {ready}")
    image = str(spec.get("image") or "")
    tag = TAG.search(image)
    if tag and release_of(tag[1]) and not VENDOR_IMAGE.search(image) and not together(tag[1], release):
        notes.append(f"image {image}: its tag is release {tag[1]}, and accelerator_release is {release}; {ONE_RELEASE}")
    return notes


def _image_problems(spec: Spec, release: str) -> list[Problem]:
    """Return an error if an image of the vendor is of another release, according to the path of its name."""
    vendor = VENDOR_IMAGE.search(str(spec.get("image") or ""))
    if not vendor or together(vendor[1], release):
        return []
    return [("image", spec["image"], f"is of release {vendor[1]}, but accelerator_release is {release}; {ONE_RELEASE}")]


def _here(root: str) -> bool:
    """Return whether Gaudi cards exist: by PCI vendor 1da3, or by the driver's device class."""
    if any(Path(root, "sys/class/accel").glob("accel*")):
        return True
    return bool(pci_cards(root))


def pci_cards(root: str = "/") -> dict[str, str]:
    """Return ``{bus_id: device id}`` of Gaudi's cards on the PCI bus, which are there without a driver too."""
    return {bus_id: card.device for bus_id, card in pci_devices(root, VENDOR, (ACCELERATOR,)).items()}


def _observe(root: str = "/") -> dict[str, Any]:
    """Return the state of the cards from hl-smi, the PCI bus and the processes; ``problem`` if hl-smi fails.

    ``modules``: every card of a known module_id, with ``problem`` if it cannot be used; ``unusable_cards``: the other
    unusable ones; ``pci_cards``: how many are on the bus.
    """
    on_bus = pci_cards(root)
    nothing: dict[str, Any] = {"device_name": None, "driver_version": None, "memory_mib": 0, "modules": []}
    query = run(["hl-smi", "-Q", FIELDS, "-f", "csv"])
    if query.status != 0:
        failed = (query.err or query.out).strip().splitlines()[-1:] or ["hl-smi failed"]
        return {**nothing, "problem": [*failed, *_bus_lines(on_bus)], "pci_cards": len(on_bus)}
    topology_text = run(["hl-smi", "topo", "-c", "-N"])
    try:
        listed, bad = hl_smi_cards(query.out)
        places, bad_places = hl_smi_places(topology_text.out)
    except InputError as problem:
        return {**nothing, "problem": [str(problem)], "pci_cards": len(on_bus)}
    bad, listed = [*bad, *_unread_rows(listed)], [card for card in listed if not _unread(card)]
    if not listed:
        return {**nothing, "problem": [row.problem for row in bad], "pci_cards": len(on_bus)}
    holders = hl_smi_processes(run(["hl-smi"]).out)
    # This reads the open files of every program, so skip it if hl-smi shows a process on every card.
    opened = {} if {card["index"] for card in listed} <= holders.keys() else device_holders(NODE, WATCHERS, root)
    modules, (health, notes) = [], cards_health(run, listed)
    for card in listed:
        number, index = card["module_id"], card["index"]
        own = _module(card, holders.get(index) or opened.get(index) or _filled(card))
        place = places.get(number, {"cpus": [], "numa_node": -1})
        modules.append({**own, **health[_bus_id(card)].facts, "problem": bad_places.get(number), **place})
    sick, unknown = _sick(_slots(root), on_bus, listed, bad)
    return {
        "device_name": listed[0].get("name"),
        "driver_version": next((text for card in listed if re.match(r"\d", text := card["driver_version"])), None),
        "memory_mib": modules[0]["memory_mib"],
        "modules": sorted([*modules, *sick], key=lambda module: int(module["module_id"])),
        "unusable_cards": unknown,
        "pci_cards": len(on_bus),
        "notes": [*notes, *_without_verbs(root, len(listed))],
    }


def _without_verbs(root: str, cards: int) -> list[str]:
    """Return a sentence if the module is missing by which the cards of one server find each other."""
    modules = Path(root, "sys/module")
    if cards < 2 or not (modules / "habanalabs").exists() or (modules / "habanalabs_ib").exists():
        return []
    return [
        "kernel module habanalabs_ib is not loaded, so servers with several cards end at their start: "
        "modprobe ib_uverbs, then habanalabs_ib; dmesg shows why it does not load"
    ]


def _unread_rows(listed: Sequence[Mapping[str, Any]]) -> list[BadRow]:
    return [BadRow(text, card["module_id"], card["index"], _bus_id(card)) for card in listed if (text := _unread(card))]


def _module(card: Mapping[str, Any], held_by: str | None) -> dict[str, Any]:
    """Return the facts of a card that hl-smi shows."""
    return {
        **{key: card.get(key) for key in ("module_id", "index", "bus_id")},
        "in_use": held_by is not None,
        "held_by": held_by,
        "memory_mib": _mib(card.get("memory.total")),
        "memory_used_mib": _mib(card.get("memory.used")),
    }


def _filled(card: Mapping[str, Any]) -> str | None:
    """Return that a hidden program uses a card if too little memory is free for a model."""
    used, total = _mib(card.get("memory.used")), _mib(card.get("memory.total"))
    if used <= FULL_MIB:
        return None
    return f"a program that hl-smi does not show ({used} of its {total} MiB are used)"


def _unread(card: Mapping[str, Any]) -> str:
    """Return why a card in hl-smi's table cannot be read; empty if it can."""
    unread = [name for name in ("name", "memory.total", "memory.used") if not re.search(r"\d", card[name])]
    return f"hl-smi cannot read its {' and '.join(unread)}" if unread else ""


def _bus_id(card: Mapping[str, Any]) -> str:
    return str(card.get("bus_id")).lower()


def _slots(root: str) -> list[BadRow]:
    """Return index, bus_id and module_id of the driver's cards, as BadRows without a problem."""
    found = []
    for path in Path(root).glob(PCI_ADDR):
        index, slot = (
            path.parent.parent.name.removeprefix("accel"),
            (read_text(path.parent / "module_id") or "").strip(),
        )
        bus_id = (read_text(path) or "").strip().lower()
        if index.isdigit():
            found.append(BadRow("", int(slot) if slot.isdigit() else None, int(index), bus_id))
    return found


def _sick(
    slots: Sequence[BadRow], on_bus: Mapping[str, str], listed: Sequence[Mapping[str, Any]], bad: Sequence[BadRow]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the unusable cards: those of a known module_id as modules, and the others.

    Args:
        slots: the cards of the driver.
        on_bus: the cards on the PCI bus.
        listed: the cards that hl-smi shows.
        bad: its unusable rows.
    """
    rows = [_identified(row, slots) for row in bad]
    left = sorted(set(on_bus) - {_bus_id(card) for card in listed} - {row.bus_id for row in rows})
    # Rows of an unknown card belong to some of these.
    if len(left) > sum(row.bus_id is None for row in rows):
        rows += [_identified(BadRow(MISSING, bus_id=bus_id), slots) for bus_id in left]
    modules: dict[int, dict[str, Any]] = {}
    others = []
    taken = {card["module_id"] for card in listed}
    for row in rows:
        about = {"index": row.index, "bus_id": row.bus_id, "problem": row.problem}
        if row.module_id is None or row.module_id in taken or row.module_id in modules:
            others.append(about)
        else:
            held: dict[str, Any] = {"in_use": False, "held_by": None, "cpus": [], "numa_node": -1}
            modules[row.module_id] = {"module_id": row.module_id, **about, **held}
    return list(modules.values()), others


def _identified(row: BadRow, slots: Sequence[BadRow]) -> BadRow:
    """Return a row with the driver's data of its card."""
    same = [slot for slot in slots if row.bus_id == slot.bus_id or (row.bus_id is None and row.index == slot.index)]
    if not same:
        return row
    known = {key: getattr(same[0], key) for key in ("module_id", "index", "bus_id") if getattr(row, key) is None}
    return replace(row, **known)


def _bus_lines(on_bus: Mapping[str, str]) -> list[str]:
    """Return the PCI bus's data of cards that do not answer."""
    kinds = Counter(f"{BY_PCI.get(device, 'of an unknown kind')} (1da3:{device})" for device in on_bus.values())
    return [f"; on the PCI bus: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}"] if kinds else []


def _mib(text: str | None) -> int:
    """Return the number of a cell such as ``768 MiB``; 0 if it cannot be read."""
    digits = re.match(r"\s*(\d+)", text or "")
    return int(digits[1]) if digits else 0


def _reasons(host: Host, host_name: str, cards: int, release: str) -> list[tuple[str, str]]:
    if host.problem:
        text = f"{host_name}: the cards do not answer: {' '.join(host.problem)}. Is the driver of release {release} "
        return [("cards", text + "loaded? playbooks/driver.yml installs it")]
    reasons = []
    row, name = release_of(release), host.device_name
    family = family_of(name, host.device_family)
    served = ", ".join(PREFIXES)
    if name and name.startswith(GAUDI1):
        return [("device_name", f"{host_name}: {name} is a Gaudi1 card, which is not served here; served are {served}")]
    if name and not family:
        text = f"{host_name}: device {name} is not known; set gaudi_device_family to its family: {served}"
        return [("device_name", text)]
    if row and name and family not in row.cards:
        text = f"{host_name}: {RELEASE_KEY} {release} serves {', '.join(row.cards)}, and this host has {name}"
        reasons.append((RELEASE_KEY, text))
    here = sorted(card.module_id for card in host.cards if not card.problem)
    if cards and len(here) != cards:
        text = f"{host_name}: accelerator_cards is {cards}, but hl-smi shows {len(here)}: module_ids {here}"
        reasons.append(("accelerator_cards", "; ".join([text, *host.bad_cards])))
    if not re.fullmatch(r"\d+\.\d+\.\d+.*", str(release)):
        return [
            *reasons,
            (RELEASE_KEY, f"{host_name}: {RELEASE_KEY} {release}: must be a quoted release such as '1.24.1'"),
        ]
    if not row:
        known = ", ".join(one.about for one in RELEASES)
        reasons.append((RELEASE_KEY, f"{host_name}: {RELEASE_KEY} {release} is not known; known are {known}"))
    # Handwritten facts may omit the driver: it is yet to be installed.
    driver = host.driver_version
    if driver is not None and not together(driver, release):
        text = (
            f"{host_name}: driver {driver} and image release {release} differ; both must be of one release: "
            "playbooks/driver.yml -e driver_upgrade_allowed=true replaces a driver that apt installed; any other "
            "must be removed first, as docs/guides/migrating.md shows"
        )
        reasons.append(("driver_version", text))
    return reasons


def _group(host: Host) -> int | None:
    # The four cards of a Gaudi2E board are linked among themselves; the boards by the NICs of the host, if it has any.
    return QUAD if family_of(host.device_name, host.device_family) == "HL-288" and not host.nics else None


def _generation(host: Host) -> str | None:
    return GENERATION.get(family_of(host.device_name, host.device_family) or "")


DRIVER = Driver(
    listed=("habanalabs-*",),
    belongs=r"habanalabs-.*",
    module="habanalabs",
    modules=("habanalabs_cn", "habanalabs_en", "habanalabs_ib", "habanalabs"),
    packages=(
        *("habanalabs-dkms", "habanalabs-firmware", "habanalabs-firmware-tools", "habanalabs-graph"),
        *("habanalabs-thunk", "habanalabs-rdma-core"),
    ),
)
VISIBLE = "HABANA_VISIBLE_DEVICES"
RUNTIME = Runtime(
    name="habana",
    path="/usr/bin/habana-container-runtime",
    package="habanalabs-container-runtime",
    programs=("habana-container-hook", "habana-container-cli"),
    settings=SETTINGS,
)
# The runtime silently drops unknown indices and missing nodes, and adds cards with the same last digit. Without a node
# it creates no container, or since 1.16 one without the device. It uses the first of two variables, and its hook the
# last.
ACCESS = DeviceAccess(
    given_by="the habana runtime",
    runtime=RUNTIME.name,
    variables={VISIBLE: "{indices}"},
    files="/sys/class/accel/accel*/device/module_id",
    device=r"/accel(?P<index>\d+)/device/module_id\n\s*(?P<id>\d+)\s*$",
    nodes=(
        Node("/dev/accel/accel{index}"),
        Node("/dev/accel/accel_controlD{index}"),
        Node("/dev/infiniband/{name}", named_by="/sys/class/infiniband/hbl_{index}/device/infiniband_verbs/*"),
        Node("/dev/infiniband/{name}", named_by="/sys/class/infiniband/hlib_{index}/device/infiniband_verbs/*"),
        Node("/sys/class/accel/accel{index}/device/pci_addr"),
    ),
    without="without it the habana runtime makes no container, or one that lacks it",
    inside="dev/accel/accel*",
    expected=("accel{index}", "accel_controlD{index}"),
    error="HABANA_RUNTIME_ERROR",
    # The runtime writes the reason to a standard error that no program reads.
    hint=(
        'the habana runtime writes its reason only to its log: set debug = "/var/log/habana-container-runtime.log" in '
        f"section habana-container-runtime of {PATH}, and look there after the next try"
    ),
)

# all_reduce of 32 MB: about half of the result of a healthy machine, to find gross faults. HL-225: the vendor measures
# 258 on one host and 206 on two; another tool for fleets raises an alarm below 127. HL-325: links of twice the speed;
# the vendor's page of collectives measures 513 on one host, at 256 MB. HL-288: 18 to 20 across the two groups without
# host NICs. HL-338: nothing is published; its slowest path, over PCI Express, is no slower than that of HL-288.
LINKS = Links(
    library="HCCL",
    thresholds=(
        Threshold("HL-225", 127.0, cards=8),
        Threshold("HL-225", 103.0, cards=8, hosts=2),
        Threshold("HL-325", 250.0, cards=8),
        Threshold("HL-325", 206.0, cards=8, hosts=2),
        Threshold("HL-288", 15.0, cards=8),
        Threshold("HL-338", 15.0, cards=8),
    ),
)


def _scales_out(host: Host) -> bool:
    """Return whether cards have ports to those of other hosts: the PCIe card HL-288 has none."""
    return not str(host.device_name or "").startswith("HL-288")


PLATFORM = Platform(
    name="gaudi",
    title="Gaudi",
    devices="Gaudi cards",
    engine="aice_1_21",
    socket_variables=("GLOO_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"),
    ray_resource="HPU",
    # A graph that is missing in the warm-up compiles for minutes.
    hang_least_s=300,
    scales_out=_scales_out,
    over_nics=over_hccl,
    release=release_of,
    options=_options,
    image=_image,
    software=lambda release: f"the vLLM of release {release}",
    env={LAZY: "1"},
    # A forked worker cannot initialise its card again, and collectives need their lazy form.
    env_between={"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "PT_HPU_ENABLE_LAZY_COLLECTIVES": "true"},
    env_stages={"PT_HPUGRAPH_DISABLE_TENSOR_CACHE": "0"},
    access=lambda host: ACCESS,
    driver=DRIVER,
    runtime=RUNTIME,
    card_variables=("HABANA_VISIBLE_MODULES", VISIBLE, "HLS_MODULE_ID"),
    needs=("driver", "habana_runtime"),
    prefixes=PREFIXES,
    names=r"HL-[\w-]*",
    group=_group,
    metrics=METRICS,
    acceptance=ACCEPTANCE,
    links=LINKS,
    generation=_generation,
    problems=_problems,
    notes=_notes,
    capability_notes=_capability_notes,
    image_problems=_image_problems,
    tuned=True,
    hugepages=HUGEPAGES,
    even_heads=True,
    iommu=True,
    here=_here,
    pci=pci_cards,
    observe=_observe,
    about=about,
    reasons=_reasons,
    lacks=dict.fromkeys(
        ("fully_sharded_loras", "enable_lora_bias"), "is not implemented on Gaudi, and the server stops; leave it out"
    ),
)
