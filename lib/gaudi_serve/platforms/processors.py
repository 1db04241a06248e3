"""The processors of a host: from lscpu, or from the kernel's files if it fails."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core.errors import InputError, shown
from ..core.run import read_text, run

# The instructions that affect vLLM's features; a hundred others are ignored.
FEATURES = (
    *("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "asimddp", "i8mm", "bf16", "sve", "vx", "vxe", "vxe2", "altivec", "v"),
)
SAME = {"arm64": "aarch64", "amd64": "x86_64"}
# The parts of a node's memory that vLLM counts as available.
AVAILABLE = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
# Names of the lines in /proc/cpuinfo that have them, by architecture.
FLAGS = ("flags", "Features", "features", "isa")
MODELS = ("model name", "cpu", "uarch")


def processors(root: str = "/") -> dict[str, Any]:
    """Return ``{architecture, name, features, numa_nodes, threads_per_core}`` of a host; 0 is an unknown number."""
    result = run(["lscpu", "-J"])
    try:
        return of_lscpu(result.out)
    except InputError:
        return of_files(root)


def of_lscpu(text: str) -> dict[str, Any]:
    """Parse ``lscpu -J``: a flat list of fields, or since util-linux 2.38 one with children.

    Raises:
        InputError: if it is neither, or has no architecture.
    """
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    rows = found.get("lscpu") if isinstance(found, Mapping) else None
    fields: dict[str, str] = {}
    for field, data in _fields(rows if isinstance(rows, list) else ()):
        fields.setdefault(field, data)
    if not fields.get("Architecture"):
        raise InputError(f"lscpu -J: {shown(text.strip())} has no field Architecture")
    flags = " ".join(fields.get(key, "") for key in ("Flags", "Features", "ISA"))
    name = fields.get("Model name", "")
    return _processors(
        fields["Architecture"], name, flags, fields.get("NUMA node(s)"), fields.get("Thread(s) per core")
    )


def _fields(rows: Iterable[Any]) -> Iterable[tuple[str, str]]:
    for row in rows:
        if isinstance(row, Mapping):
            yield str(row.get("field", "")).rstrip(":"), str(row.get("data") or "")
            children = row.get("children")
            yield from _fields(children if isinstance(children, list) else ())


def of_files(root: str = "/") -> dict[str, Any]:
    """Return the same from /proc/cpuinfo and /sys."""
    lines = [line.partition(":") for line in (read_text(Path(root, "proc/cpuinfo")) or "").splitlines()]
    values: dict[str, str] = {}
    for name, _, value in lines:
        values.setdefault(name.strip(), value.strip())
    flags = " ".join(values.get(key, "") for key in (*FLAGS, "cpu"))
    name = next((values[key] for key in MODELS if values.get(key)), "")
    system = Path(root, "sys/devices/system")
    nodes = len(list(system.glob("node/node[0-9]*"))) or None
    siblings = read_text(system / "cpu/cpu0/topology/thread_siblings_list")
    return _processors(os.uname().machine, name, flags, nodes, _count(siblings) if siblings else None)


def _count(ranges: str) -> int:
    """Return the number of elements in a list such as ``0,64`` or ``0-1``."""
    bounds = [part.partition("-") for part in ranges.strip().split(",")]
    return sum(int(high or low) - int(low) + 1 for low, _, high in bounds if low.isdigit())


def memory_nodes(root: str = "/") -> list[dict[str, int]]:
    """Return ``{node, memory_mib, hugepages_mib, available_mib}`` of each NUMA node with memory, as vLLM reads them.

    Hugepages are part of a node's memory, and no server gets them.
    """
    found = []
    for folder in sorted(Path(root, "sys/devices/system/node").glob("node[0-9]*"), key=lambda one: int(one.name[4:])):
        values = _kib(read_text(folder / "meminfo"))
        if values.get("MemTotal"):
            pages = sum(map(_pages_kib, folder.glob("hugepages/hugepages-*kB")))
            available = sum(values.get(name, 0) for name in AVAILABLE)
            found.append(_memory(int(folder.name[4:]), values["MemTotal"], pages, available))
    values = _kib(read_text(Path(root, "proc/meminfo")))
    if found or not values.get("MemTotal"):
        return found
    return [_memory(0, values["MemTotal"], values.get("Hugetlb", 0), values.get("MemAvailable", 0))]


def _memory(node: int, total: int, hugepages: int, available: int) -> dict[str, int]:
    sizes = {"memory_mib": total, "hugepages_mib": hugepages, "available_mib": available}
    return {"node": node, **{name: kib // 1024 for name, kib in sizes.items()}}


def _kib(text: str | None) -> dict[str, int]:
    """Return the sizes of a meminfo in KiB by name. The lines of a node begin with its number."""
    found = re.findall(r"^(?:Node \d+ )?([\w()]+): +(\d+) kB", text or "", re.MULTILINE)
    return {name: int(size) for name, size in found}


def _pages_kib(folder: Path) -> int:
    """Return the KiB of a node's hugepages of one size."""
    size, count = re.search(r"(\d+)kB$", folder.name), read_text(folder / "nr_hugepages")
    return int(size[1]) * _number(count.strip()) if size and count else 0


def _processors(architecture: str, name: str, flags: str, nodes: Any, threads: Any) -> dict[str, Any]:
    words = set(flags.lower().replace(",", " ").split())
    # RISC-V has one word for all: single letters, then names after underscores.
    for word in [one for one in words if re.match(r"rv\d+", one)]:
        words |= {*re.sub(r"^rv\d+", "", word).partition("_")[0], *word.split("_")[1:]}
    if "altivec" in name.lower():
        words.add("altivec")
    return {
        "architecture": SAME.get(architecture.lower(), architecture.lower()),
        "name": " ".join(name.split()),
        "features": [one for one in FEATURES if one in words],
        "numa_nodes": _number(nodes),
        "threads_per_core": _number(threads),
    }


def _number(value: Any) -> int:
    return int(value) if re.fullmatch(r"\d{1,9}", str(value)) else 0
