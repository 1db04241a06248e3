"""The state of a host: its system, its cards, the weights on it, the ports on which programs listen."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.run import read_text, run
from ..model.config_json import ADAPTER, CONFIGS, DEEPEST, of_params, sound
from ..model.vocabulary import facts
from ..platforms import platform_among, platforms_here
from .weights_names import MANIFEST


def system(root: str = "/", wanted: str = "auto") -> dict[str, Any]:
    """Return the operating system, kernel, memory (KiB) and accelerator of this host.

    Args:
        root: root of its file system.
        wanted: the platform in its inventory; ``auto`` for the first one found.
    """
    release = {}
    for line in (read_text(Path(root, "etc/os-release")) or "").splitlines():
        key, _, value = line.partition("=")
        release[key] = value.strip().strip('"')
    here = platforms_here(root)
    memory = re.search(r"^MemTotal:\s+(\d+)", read_text(Path(root, "proc/meminfo")) or "", re.MULTILINE)
    return {
        "id": release.get("ID", "unknown"),
        "version_id": release.get("VERSION_ID", ""),
        "codename": release.get("VERSION_CODENAME", ""),
        "pretty_name": release.get("PRETTY_NAME", "unknown"),
        "kernel": os.uname().release,
        "architecture": os.uname().machine,
        "mem_total_kib": int(memory[1]) if memory else 0,
        "cpus": os.cpu_count() or 1,
        "accelerator": platform_among(here, wanted).name,
        "accelerators": [one.name for one in here],
    }


def network() -> dict[str, Any]:
    """Return the address and interface of the default route, determined as the vendor's script does."""
    route = run(["ip", "-j", "route", "get", "1.1.1.1"])
    try:
        found = json.loads(route.out)[0]
        return {"ip": found["prefsrc"], "interface": found["dev"]}
    except (ValueError, LookupError):
        # A host without a default route can still serve on its loopback interface.
        return {"ip": "127.0.0.1", "interface": "lo"}


def addresses() -> list[str] | None:
    """Return the host's own addresses; None if unknown, or if programs may listen on other addresses too."""
    if (read_text("/proc/sys/net/ipv4/ip_nonlocal_bind") or "").strip() == "1":
        return None
    found = _of_links()
    return None if found is None else sorted({one["local"] for _, one in found})


def ephemeral_ports() -> list[list[int]]:
    """Return the ranges of ports that the kernel gives to any connection; empty if unknown."""
    given = (read_text("/proc/sys/net/ipv4/ip_local_port_range") or "").split()
    if len(given) != 2:
        return []
    first, last = map(int, given)
    found = []
    reserved = (read_text("/proc/sys/net/ipv4/ip_local_reserved_ports") or "").strip().split(",")
    for low, _, high in sorted((one.partition("-") for one in reserved if one), key=lambda one: int(one[0])):
        found += [[first, min(last, int(low) - 1)]] if first < int(low) else []
        first = max(first, int(high or low) + 1)
    return [*found, [first, last]] if first <= last else found


def clock(controller: float | None) -> dict[str, Any]:
    """Return the seconds by which the host's clock is ahead of the controller's, and whether the kernel calls it set.

    Args:
        controller: Unix time on the controller when it sent the request; the transfer time counts as ahead. None if
            unknown; then the difference is unknown too.
    """
    ahead = None if controller is None else round(time.time() - controller, 1)
    # With a first number (modes) of 0, the kernel changes nothing. Programs that set the clock report it to the kernel.
    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(256))
    return {"offset_s": ahead, "synchronized": None if state < 0 else state != UNSYNCHRONIZED}


USED_SCOPES = {("global", "inet"), ("global", "inet6"), ("link", "inet")}


def networks() -> list[dict[str, Any]]:
    """Return every IPv4 or IPv6 address of the host with its interface, the length of its prefix, and its MTU.

    Link-local ones of IPv4 too: by them, two hosts on one cable reach each other.
    """
    return [
        {"interface": link["ifname"], "address": one["local"], "prefix": one["prefixlen"], "mtu": link["mtu"]}
        for link, one in _of_links() or ()
        if (one.get("scope"), one.get("family")) in USED_SCOPES
        and {"ifname", "mtu"} <= link.keys()
        and "prefixlen" in one
    ]


def _of_links() -> list[tuple[dict[str, Any], dict[str, Any]]] | None:
    """Return each link of the host with each of its addresses, in the form of ``ip``; None if ``ip`` fails."""
    try:
        links = json.loads(run(["ip", "-j", "address"]).out)
        return [(link, one) for link in links for one in link.get("addr_info", []) if "local" in one]
    except (ValueError, TypeError, AttributeError):
        return None


def resolved(names: list[str]) -> dict[str, list[str]]:
    """Return the addresses to which this host resolves names; empty for an unknown name."""
    found: dict[str, list[str]] = {}
    for name in names:
        try:
            answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            answers = []
        found[name] = sorted({str(answer[4][0]) for answer in answers})
    return found


def existing(paths: list[str]) -> dict[str, bool]:
    """Return whether each path exists; a path that this user cannot look at does not, as for Docker."""
    # Path.exists raises if a network share does not let root in.
    return {path: os.path.exists(path) for path in paths}  # noqa: PTH110


def weights(paths: list[str]) -> dict[str, Any]:
    """Return ``{path: {config, bytes} | None}``; None without a readable config.json, params.json or adapter."""
    return weights_read(paths)[0]


def weights_read(paths: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the result of ``weights``, and by path the errors of files that exist but cannot be read."""
    found: dict[str, Any] = {}
    unread: dict[str, str] = {}
    for path in paths:
        present = [file for name in (*CONFIGS, ADAPTER) if (file := Path(path, name)).exists()]
        found[path] = None
        if not present:
            continue
        file = present[0]
        try:
            # A hub's folder of an adapter may also have the config.json of its base.
            config = _config(file) if file.name in CONFIGS else {}
            adapter = {"adapter": _config(file)} if (file := present[-1]).name == ADAPTER else {}
            files = [*Path(path).glob("*.safetensors"), *(Path(path).glob("adapter_model.bin") if not config else ())]
            size = sum(part.stat().st_size for part in files if part.exists())
            # A folder that this toolkit has fetched has its record.
            recorded = Path(path, MANIFEST).is_file()
            content = recorded_content(Path(path, MANIFEST))
            # The record has the sizes of its files, which stage model_weights compares.
            damaged = [] if recorded else damaged_files(Path(path))
            known = {"recorded": recorded, "content": content, "damaged": damaged}
            found[path] = {"config": config, "bytes": size, **known, **adapter, **facts(path, config)}
        except json.JSONDecodeError as problem:
            unread[path] = f"{file.name}: line {problem.lineno}, column {problem.colno}: {problem.msg}"
        except RecursionError:
            unread[path] = f"{file.name}: {NESTED}"
        except (OSError, ValueError) as problem:
            unread[path] = f"{file.name}: {getattr(problem, 'strerror', None) or problem}"
    return found, unread


def damaged_files(folder: Path) -> list[str]:
    """Return the weight files that cannot be complete, with the reason.

    A safetensors file begins with the length of its header (8 bytes, little-endian) and the header: JSON with the
    offsets of each tensor after the header (huggingface/safetensors, README). Its size is known thereby.
    """
    names, listed = {path.name for path in folder.glob("*.safetensors")}, shards(folder)
    # The index of other files may be here without its own, such as beside Mistral's consolidated ones.
    missing = listed - names if listed & names else ()
    found = dict.fromkeys(missing, "is missing") | {name: _damage(folder / name) for name in names}
    return [f"{name} {why}" for name, why in sorted(found.items()) if why]


def _damage(path: Path) -> str:
    """Return why a safetensors file cannot be complete; empty for a complete, unreadable or unknown file."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            begin = file.read(8)
            length = int.from_bytes(begin, "little")
            header = file.read(length) if 2 <= length <= LONGEST_HEADER else b""
    except FileNotFoundError:
        return "is a link to a file that does not exist"
    except OSError:
        return ""
    if not any(begin):
        return f"has {size} bytes, and begins with zeros" if size else "is empty"
    if begin == LFS_POINTER[:8]:
        return "is a pointer of git-lfs, not the file itself"
    needs = 8 + length + _tensor_bytes(header) if header else 0
    return f"has {size} bytes, and its header needs {needs}" if needs > size else ""


def shards(folder: Path) -> set[str]:
    """Return the files that an index of shards lists."""
    try:
        weight_map = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        return {str(name) for name in weight_map.values()}
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return set()


def _tensor_bytes(header: bytes) -> int:
    """Return the bytes of the tensors that a header describes; 0 if it cannot be read."""
    try:
        ends = [int(one["data_offsets"][1]) for name, one in json.loads(header).items() if name != "__metadata__"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return 0
    return max(ends, default=0)


def recorded_content(manifest: Path) -> str | None:
    """Return a digest of the names and checksums in the record of a folder of weights.

    None without a record, for a file without a checksum, and for converted weights: each host converts its own.
    """
    try:
        record = json.loads(manifest.read_text(encoding="utf-8"))
        files = {str(name): str(known["sha256"] or "") for name, known in record["files"].items()}
        converted = "convert" in (record.get("source") or {})
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None
    if converted or not files or not all(files.values()):
        return None
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]


INDEX = "model.safetensors.index.json"
LONGEST_HEADER = 100_000_000  # bytes, the limit of safetensors itself
LFS_POINTER = b"version https://git-lfs"
UNSYNCHRONIZED = 5  # TIME_ERROR of <sys/timex.h>
NESTED = f"must be nested at most {DEEPEST} levels deep, with numbers below 10^15"


def _config(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError("must be a JSON object")
    if not sound(found):
        raise ValueError(NESTED)
    return of_params(found) if path.name == CONFIGS[1] else found


@dataclass(frozen=True)
class Listener:
    """One listening TCP socket in the host's network namespace.

    address: in the form of ``ss``, without brackets and interface; ``*`` is every address. pid: 0 if unknown.
    """

    address: str
    port: int
    program: str
    pid: int


def listeners() -> list[Listener] | None:
    """Return all listening TCP sockets in the host's network namespace; None if ``ss`` fails."""
    found = []
    listed = run(["ss", "-Hltnp"])
    if listed.status != 0:
        return None
    for line in listed.out.splitlines():
        cells = line.split()
        address, _, port = cells[3].rpartition(":") if len(cells) > 3 else ("", "", "")
        if not port.isdigit():
            continue
        program = re.search(r'users:\(\("([^"]+)",pid=(\d+)', line)
        name, pid = (program[1], int(program[2])) if program else ("", 0)
        found.append(Listener(address.partition("%")[0].strip("[]"), int(port), name, pid))
    return found


def ports() -> dict[str, str]:
    """Return ``{port: program}`` of all listening TCP sockets in the host's network namespace."""
    return {
        str(one.port): f"{one.program} (pid {one.pid})" if one.pid else "another program" for one in listeners() or ()
    }


def hostname() -> str:
    """Return the host's own name."""
    return socket.gethostname()
