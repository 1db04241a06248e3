"""Intel Gaudi: cards that a model is given some of, by the habana container runtime."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..buckets.linear import BLOCK
from ..core.errors import InputError, Problem
from ..core.host import Host
from ..host.run import read_text, run
from ..spec.model import Spec
from ..spec.vllm_options import FORK_1_21, OPTION_NAMES
from .base import Platform
from .hl_smi import PREFIXES, device_family, hl_smi_modules, hl_smi_processes, hl_smi_topology
from .releases import RELEASES, UPSTREAM_TORCH, release_of, together

FIELDS = "index,module_id,bus_id,name,driver_version,memory.total"


QUAD = 4
LAZY = "PT_HPU_LAZY_MODE"
GENERATION = {"HL-225": "GAUDI2", "HL-288": "GAUDI2", "HL-325": "GAUDI3", "HL-338": "GAUDI3"}


def _options(release: str) -> frozenset[str]:
    # Of 1.22 and 1.23 the options are not known exactly.
    return FORK_1_21 if release.startswith("1.21.") else OPTION_NAMES


def _problems(spec: Spec) -> list[Problem]:
    problems: list[Problem] = []
    for key in ("pipeline_parallel_size", "data_parallel_size", "data_parallel_size_local"):
        if spec.get(key) not in (None, 1):
            allowed = "must be 1: the plan gives a model as many cards as tensor_parallel_size says"
            problems.append((key, spec[key], allowed))
    if spec.get("block_size") not in (None, BLOCK):
        problems.append(("block_size", spec["block_size"], f"must be {BLOCK}, the block of Gaudi's KV cache"))
    if spec.get("kv_cache_memory_bytes") is not None:
        # Of the plugin no version from 0.10.1 to 0.27 reads it in its own worker, and the fork is older than it.
        allowed = (
            "is read by no server on Gaudi: the plugin's KV cache is what gpu_memory_utilization leaves, without a "
            f"word; say num_gpu_blocks_override, in blocks of {BLOCK} tokens, or gpu_memory_utilization"
        )
        problems.append(("kv_cache_memory_bytes", spec["kv_cache_memory_bytes"], allowed))
    if _lazy(spec) and UPSTREAM_TORCH in str(spec.get("image")):
        allowed = "needs Gaudi's own PyTorch, and the image has upstream's, which knows no lazy mode; leave it out"
        problems.append((f"env: {LAZY}", spec["env"][LAZY], allowed))
    return problems


def _lazy(spec: Spec) -> bool:
    """Tell whether a model's own environment asks for lazy mode."""
    return str((spec.get("env") or {}).get(LAZY)) == "1"


def _notes(spec: Spec, release: str) -> list[str]:
    row = release_of(release)
    if not (row and row.upstream_torch and _lazy(spec)):
        return []
    ready = f"the vendor's ready images of {row.name} have upstream's"
    return [f"env: {LAZY} 1 works where the image has Gaudi's own PyTorch; {ready}"]


def _here(root: str) -> bool:
    """Tell whether Gaudi cards are there: by PCI vendor 1da3, or by the driver's device class."""
    if any(Path(root, "sys/class/accel").glob("accel*")):
        return True
    vendors = Path(root, "sys/bus/pci/devices").glob("*/vendor")
    return any((read_text(vendor) or "").strip() == "0x1da3" for vendor in vendors)


def _observe() -> dict[str, Any]:
    """Return what hl-smi says of the cards: device, driver, memory (MiB), modules; ``problem`` if it fails."""
    nothing: dict[str, Any] = {"device_name": None, "driver_version": None, "memory_mib": 0, "modules": []}
    query = run(["hl-smi", "-Q", FIELDS, "-f", "csv"])
    if query.status != 0:
        return {**nothing, "problem": (query.err or query.out).strip().splitlines()[-1:] or ["hl-smi failed"]}
    topology_text = run(["hl-smi", "topo", "-c", "-N"])
    try:
        listed = hl_smi_modules(query.out)
        topology = hl_smi_topology(topology_text.out)
    except InputError as problem:
        return {**nothing, "problem": [str(problem)]}
    holders = hl_smi_processes(run(["hl-smi"]).out)
    modules = []
    for card in listed:
        place = topology.get(card["module_id"], {"cpus": [], "numa_node": 0})
        modules.append(
            {
                "module_id": card["module_id"],
                "index": card["index"],
                "bus_id": card.get("bus_id"),
                "in_use": card["index"] in holders,
                "held_by": holders.get(card["index"]),
                "memory_mib": _mib(card.get("memory.total")),
                **place,
            }
        )
    first = listed[0] if listed else {}
    return {
        "device_name": first.get("name"),
        "driver_version": first.get("driver_version"),
        "memory_mib": modules[0]["memory_mib"] if modules else 0,
        "modules": sorted(modules, key=lambda module: int(module["module_id"])),
    }


def _mib(text: str | None) -> int:
    digits = re.match(r"\s*(\d+)", text or "")
    return int(digits[1]) if digits else 0


def _about(host: Host) -> list[str]:
    nodes = len({card.numa_node for card in host.cards})
    cards = f"{len(host.cards)} cards {host.device_name} on {nodes} NUMA nodes"
    return [cards, f"driver {host.driver_version or 'unknown'}"]


def _reasons(host: Host, host_name: str, cards: int, release: str) -> list[tuple[str, str]]:
    if host.problem:
        text = f"{host_name}: the cards do not answer: {' '.join(host.problem)}. Is the driver of release {release} "
        return [("cards", text + "loaded? playbooks/driver.yml brings it")]
    reasons = []
    row = release_of(release)
    if row and host.device_name and not host.device_name.startswith(row.cards):
        text = (
            f"{host_name}: gaudi_release {release} serves {', '.join(row.cards)}, and this host has {host.device_name}"
        )
        reasons.append(("gaudi_release", text))
    here = sorted(card.module_id for card in host.cards)
    if cards and len(here) != cards:
        text = f"{host_name}: gaudi_cards is {cards}, but hl-smi shows {len(here)}: module_ids {here}"
        reasons.append(("gaudi_cards", text))
    if not re.fullmatch(r"\d+\.\d+\.\d+.*", str(release)):
        return [*reasons, ("gaudi_release", f"{host_name}: gaudi_release {release}: a quoted release such as '1.24.1'")]
    if not row:
        known = ", ".join(one.about for one in RELEASES)
        reasons.append(("gaudi_release", f"{host_name}: gaudi_release {release} is not known; known are {known}"))
    # Facts written by hand may leave the driver out: it is yet to be installed.
    driver = host.driver_version
    if driver is not None and not together(driver, release):
        text = (
            f"{host_name}: driver {driver} and image release {release} differ; both must be of one release: "
            "playbooks/driver.yml -e gaudi_driver_upgrade_allowed=true replaces a driver that apt installed; any other "
            "must be removed first, as docs/migrating.md shows"
        )
        reasons.append(("driver_version", text))
    return reasons


def _group(host: Host) -> int | None:
    # The four cards of a Gaudi2E board are linked among themselves; the boards by the NICs of the host, if it has any.
    return QUAD if (host.device_name or "").startswith("HL-288") and not host.nics else None


PLATFORM = Platform(
    name="gaudi",
    title="Gaudi",
    devices="Gaudi cards",
    engine="aice_1_21",
    release=release_of,
    options=_options,
    software=lambda release: f"the vLLM of release {release}",
    env={LAZY: "1"},
    # A forked worker cannot initialise its card again, and collectives need their lazy form.
    env_between={"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "PT_HPU_ENABLE_LAZY_COLLECTIVES": "true"},
    runtime="habana",
    needs=("gaudi_driver", "habana_runtime", "hccl_validation"),
    prefixes=PREFIXES,
    group=_group,
    generation=lambda host: GENERATION[device_family(str(host.device_name))],
    problems=_problems,
    notes=_notes,
    even_heads=True,
    iommu=True,
    here=_here,
    observe=_observe,
    about=_about,
    reasons=_reasons,
)
