"""The live kernel arguments, GRUB settings, CPU governor and sysctl values of a host."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ..core.run import read_text, sha256_file
from . import baseline

# Below the root of a host.
DROPIN, SYSCTL, RECORDS = baseline.DROPIN[1:], baseline.SYSCTL[1:], str(baseline.RECORDS)[1:]
KEYS = ("kernel.numa_balancing", "vm.nr_hugepages")
OFFERED = "scaling_available_governors"
GRUB_SETTING = re.compile(r"\s*(?:export\s+)?(GRUB_CMDLINE_LINUX(?:_DEFAULT)?)(\+?)=(.*)")
SETTING = re.compile(r"^\s*-?\s*([\w./]+)\s*=\s*(.*?)\s*$")


def observe(root: str = "/") -> dict[str, Any]:
    """Return all values that role host_tuning compares; ``root`` is another tree in tests."""
    memory = dict(re.findall(r"^(\w+):\s+(\d+)", read_text(Path(root, "proc/meminfo")) or "", re.MULTILINE))
    return {
        "cmdline": (read_text(Path(root, "proc/cmdline")) or "").split(),
        "grub": grub(root),
        "governor": governor(root),
        "sysctl": {key: sysctl_value(key, root) for key in KEYS},
        "sysctl_file_sha256": sha256_file(Path(root, SYSCTL)),
        "sysctl_own": sysctl_own(root),
        "sysctl_before": sysctl_before(root),
        "sysctl_others": sysctl_others(root),
        "hugepage_kib": int(memory.get("Hugepagesize", 2048)),
        "mem_total_kib": int(memory.get("MemTotal", 0)),
        "cpuidle_driver": (read_text(Path(root, "sys/devices/system/cpu/cpuidle/current_driver")) or "").strip(),
    }


def grub(root: str = "/") -> dict[str, Any]:
    """Return GRUB's generated menu and the toolkit's drop-in."""
    config, dropin = Path(root, "boot/grub/grub.cfg"), Path(root, DROPIN)
    text = read_text(config)
    return {
        "present": Path(root, "etc/default/grub").exists() and text is not None,
        "entries": kernel_arguments(text or ""),
        "settings": grub_settings(root),
        "cfg_mtime": config.stat().st_mtime if config.exists() else None,
        "dropin_sha256": sha256_file(dropin),
        "dropin_mtime": dropin.stat().st_mtime if dropin.exists() else None,
        "dropin_folder_mtime": dropin.parent.stat().st_mtime if dropin.parent.is_dir() else None,
    }


def grub_settings(root: str = "/") -> list[dict[str, Any]]:
    """Return every line of the user that sets kernel arguments for GRUB, in the order in which GRUB reads them.

    ``late`` is whether a line is read after the toolkit's own drop-in.
    """
    own = Path(root, DROPIN)
    found = []
    for path in [Path(root, "etc/default/grub"), *sorted(own.parent.glob("*.cfg"))]:
        for number, line in enumerate((read_text(path) or "").splitlines() if path != own else [], 1):
            if match := GRUB_SETTING.match(line):
                late = path.parent == own.parent and path.name > own.name
                setting = {"variable": match[1], "adds": bool(match[2]), "value": match[3], "late": late}
                found.append({"path": str(path), "line": number, **setting})
    return found


def kernel_arguments(text: str) -> list[list[str]]:
    """Return the kernel arguments of every menu entry of a grub.cfg, except recovery entries."""
    entries = []
    for line in text.splitlines():
        words = line.split()
        if words and words[0] in ("linux", "linux16", "linuxefi") and "single" not in words and "recovery" not in words:
            entries.append(words[2:])
    return entries


def governor(root: str = "/") -> dict[str, Any]:
    """Return the governor of every CPU with cpufreq, those that its driver offers, and whether cpupower works."""
    files = sorted(Path(root, "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"))
    values = {path.parents[1].name: (read_text(path) or "").strip() for path in files}
    offers = {word for path in files for word in (read_text(path.with_name(OFFERED)) or "").split()}
    return {"values": values, "available": sorted(offers), "cpupower": has_cpupower(root)}


def has_cpupower(root: str = "/", release: str | None = None) -> bool:
    """Return whether there is a working cpupower for the running kernel.

    Ubuntu's cpupower is a script that runs the program for the current kernel: after a kernel upgrade the script still
    exists but fails.
    """
    if Path(root, "usr/lib/linux-tools", release or os.uname().release, "cpupower").exists():
        return True
    for folder in ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin"):
        try:
            with Path(root, folder, "cpupower").open("rb") as program:
                return program.read(2) != b"#!"
        except OSError:
            continue
    return False


def sysctl_value(key: str, root: str = "/") -> str | None:
    """Return a live value, or None if this kernel does not have the key."""
    text = read_text(Path(root, "proc/sys", key.replace(".", "/")))
    return text.strip() if text is not None else None


def sysctl_own(root: str = "/") -> dict[str, str]:
    """Return the values that the toolkit's own file sets."""
    lines = map(SETTING.match, (read_text(Path(root, SYSCTL)) or "").splitlines())
    return {line[1]: line[2] for line in lines if line}


def sysctl_before(root: str = "/") -> dict[str, str | None]:
    """Return the live values from before the toolkit's first change; empty if they are not known."""
    record = baseline.records(Path(root, RECORDS)).get("host_tuning", {})
    found = record.get("found")
    return dict((found if isinstance(found, dict) else {}).get("sysctl") or {})


def sysctl_others(root: str = "/") -> list[dict[str, Any]]:
    """Return every line under /etc, except in the toolkit's own file, that sets one of its keys."""
    files = [Path(root, "etc/sysctl.conf"), *sorted(Path(root, "etc/sysctl.d").glob("*.conf"))]
    found = []
    seen = {Path(root, SYSCTL).resolve()}
    for path in files:
        # 99-sysctl.conf is a link to /etc/sysctl.conf: one line, not two. Other links count.
        if path.resolve() in seen:
            continue
        seen.add(path.resolve())
        for number, line in enumerate((read_text(path) or "").split("\n"), 1):
            match = SETTING.match(line)
            if match and match[1].replace("/", ".") in KEYS:
                key = match[1].replace("/", ".")
                found.append({"path": str(path), "line": number, "text": line, "key": key, "value": match[2]})
    return found
