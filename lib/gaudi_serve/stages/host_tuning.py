"""The desired kernel settings of stage host_tuning, and the pending changes."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from ..core.checks import is_true
from ..core.errors import InputError
from ..core.templates import rendered
from ..core.versions import comparable
from ..platforms import platform_of
from .base import Given, Pending, Stage, drift_lines, system_refusal
from .reset_host import IOMMU, TUNED, host_tuning_reset

ARGUMENT = re.compile(r"[\w.,:+@/-]+(=[\w.,:+@/=-]*)?", re.ASCII)
# Without the IOMMU arguments, this kernel (Ubuntu 22.04.5 and 24.04.2) can corrupt results on Gaudi.
IOMMU_KERNEL = "6.8"
HUGEPAGE_KIB = 2048
PAGES = "vm.nr_hugepages"
# In the order in which they appear in the kernel's command line.
CMDLINE = ("GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT")
SHELL_VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)(?::?-)?\}")
COMPUTED = re.compile(r"[`$]")
DROPIN = "/etc/default/grub.d/zz-gaudi-serve.cfg"
IOMMU_CHOICES = ("auto", "on", "off")


def kernel_arguments_wanted(
    system: Mapping[str, Any], iommu: str, given: Any = None, tuning: Mapping[str, Any] | None = None
) -> list[str]:
    """Return the kernel arguments that a host must have.

    A user's own IOMMU value with more options (``intel_iommu=on,sm_on``) is kept.

    Args:
        system: ``gaudi_system`` of the host.
        iommu: auto (on Gaudi hosts with kernel 6.8 or newer), on or off.
        given: the user's own list, which replaces the default list.
        tuning: ``gaudi_tuning`` of the host, for the user's own GRUB arguments; None for none.

    Raises:
        InputError: for an argument that is not a text such as ``iommu=pt`` or occurs twice, and for an invalid iommu.
    """
    # Ansible's check accepts YAML's bare on and off for the choices of that name, and passes booleans.
    if not isinstance(iommu, str) or iommu not in IOMMU_CHOICES:
        raise InputError(
            f"host_tuning_iommu: {iommu!r}: must be 'auto', 'on' or 'off', in quotes; YAML reads on and off "
            "without quotes as booleans"
        )
    if given is not None:
        return _given_arguments(given)
    kernel = re.match(r"\d+\.\d+", system["kernel"])
    new = kernel is not None and comparable(kernel[0]) >= comparable(IOMMU_KERNEL)
    needed = iommu == "on" or (iommu == "auto" and platform_of(system.get("accelerator")).iommu and new)
    own = _words(_read_by_grub(_settings(tuning))) if tuning else []
    manual = TUNED if platform_of(system.get("accelerator")).tuned else ()
    return [*manual, *([_with_options(argument, own) for argument in IOMMU] if needed else ())]


def _with_options(argument: str, own: Sequence[str]) -> str:
    """Return an argument with the user's options for its key, if these include the required one."""
    key, _, needed = argument.partition("=")
    options = [option for word in _of_key(own, argument) for option in word.partition("=")[2].split(",") if option]
    return f"{key}={','.join(dict.fromkeys(options))}" if needed in options else argument


def _settings(tuning: Mapping[str, Any], late: bool | None = None) -> list[Mapping[str, Any]]:
    return [one for one in tuning["grub"].get("settings", []) if late in (None, one["late"])]


def _read_by_grub(settings: Sequence[Mapping[str, Any]], before: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of kernel arguments after some lines; values that need a shell to compute stay unchanged."""
    found = dict(before or {})
    for one in settings:
        text = SHELL_VARIABLE.sub(lambda name: found.get(name[1] or name[2], ""), one["value"])
        try:
            value = " ".join(shlex.split(text, comments=True)[:1])
        except ValueError:
            continue
        if not COMPUTED.search(text):
            found[one["variable"]] = (found.get(one["variable"], "") if one["adds"] else "") + value
    return found


def _words(variables: Mapping[str, str]) -> list[str]:
    return [word for name in CMDLINE for word in variables.get(name, "").split()]


def _given_arguments(given: Any) -> list[str]:
    for argument in given if isinstance(given, list) else [given]:
        if not isinstance(argument, str) or not ARGUMENT.fullmatch(argument):
            raise InputError(
                f"host_tuning_kernel_args: {argument!r}: must be a quoted text such as 'iommu=pt', without blanks "
                "or quotes"
            )
    if not isinstance(given, list):
        raise InputError(f"host_tuning_kernel_args: {given!r}: must be a list of quoted texts such as ['iommu=pt']")
    twice = sorted({argument for argument in given if given.count(argument) > 1})
    if twice:
        raise InputError(f"host_tuning_kernel_args: {twice[0]!r}: must be there once; it is there more than once")
    return list(given)


def hugepages_wanted(tuning: Mapping[str, Any], requested: Any, fraction: Any) -> dict[str, Any]:
    """Return ``{pages, note}``: the requested size in pages of the host's default size, limited to part of its memory.

    Args:
        tuning: ``gaudi_tuning`` of the host.
        requested: pages of 2 MiB, whatever page size vm.nr_hugepages counts on the host; None leaves them unchanged.
        fraction: of the memory, 0 to 1.

    Both may be text, since ``-e key=value`` passes text only.

    Raises:
        InputError: unless the pages are an integer and the fraction is a number from 0 to 1.
    """
    if requested is None:
        return {"pages": None, "note": None}
    if isinstance(requested, bool) or not re.fullmatch(r"[0-9]+", str(requested)):
        raise InputError(f"host_tuning_hugepages: {requested!r}: must be an integer of pages, 0 or more")
    share, size = _share(fraction), tuning["hugepage_kib"]
    most = int(tuning["mem_total_kib"] * share) // size
    pages = -(-int(requested) * HUGEPAGE_KIB // size)
    other = size != HUGEPAGE_KIB and pages > 0
    named = f"{size // 2**20} GiB" if size % 2**20 == 0 else f"{size // 2**10} MiB"
    if pages <= most:
        note = f"hugepages: {pages} of the host's default size, {named}, in place of {requested} of 2 MiB"
        return {"pages": pages, "note": note if other else None}
    memory, of = tuning["mem_total_kib"] / 2**20, f" of {named}" if other else ""
    return {
        "pages": most,
        "note": f"hugepages: {most}{of} instead of {pages}, which is {share:g} of {memory:.1f} GiB memory",
    }


def _share(value: Any) -> float:
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = -1.0
    if isinstance(value, bool) or not 0 <= share <= 1:
        raise InputError(f"host_tuning_hugepages_max_fraction: {value!r}: must be a number from 0 to 1, such as 0.5")
    return share


def sysctl_wanted(tuning: Mapping[str, Any], pages: int | None) -> dict[str, str]:
    """Return the sysctl values to persist, without keys that the kernel lacks and without pages if none are wanted."""
    wanted = {"kernel.numa_balancing": "0"} | ({} if pages is None else {PAGES: str(pages)})
    return {key: value for key, value in wanted.items() if tuning["sysctl"].get(key) is not None}


def sysctl_conflicts(tuning: Mapping[str, Any], wanted: Mapping[str, str], host_name: str) -> list[str]:
    """Return one sentence for every other line that sets one of the keys."""
    return [
        f"{host_name}: {line['path']}:{line['line']}: {line['key']} = {line['value']} is set there already, wanted is "
        f"{wanted.get(line['key'])}; remove the line, or let host_tuning_take_over comment it out"
        for line in _elsewhere(tuning, wanted)
    ]


def _elsewhere(tuning: Mapping[str, Any], wanted: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the lines elsewhere under /etc that set one of the desired keys."""
    return [line for line in tuning["sysctl_others"] if line["key"] in wanted]


def host_tuning_changes(
    tuning: Mapping[str, Any],
    arguments: Sequence[str],
    dropin: str,
    sysctl_file: str,
    sysctl: Mapping[str, str],
    governor: str = "performance",
) -> dict[str, Any]:
    """Compare the desired settings with the live ones.

    Args:
        tuning: ``gaudi_tuning`` of the host.
        arguments: desired kernel arguments.
        dropin: text of the GRUB drop-in; empty removes it.
        sysctl_file: text of the sysctl.d file.
        sysctl: desired values, by key.
        governor: desired CPU governor; empty leaves it unchanged.

    Returns:
        The differences by item, as sentences; ``due`` is whether there is any, except ``reboot``, which the user
        decides.
    """
    found: dict[str, Any] = {
        "dropin": _file_difference("GRUB drop-in", tuning["grub"]["dropin_sha256"], dropin),
        "grub": _grub_differences(tuning["grub"], arguments, dropin),
        "sysctl_file": _file_difference("sysctl file", tuning["sysctl_file_sha256"], sysctl_file),
        "sysctl": [
            f"{key}: {tuning['sysctl'][key]} -> {value}"
            for key, value in sysctl.items()
            if tuning["sysctl"][key] != value
        ],
        "take_over": [f"{one['path']}:{one['line']}: {one['text']}" for one in _elsewhere(tuning, sysctl)],
        "governor": _governor_differences(tuning["governor"]["values"], governor),
    }
    found["due"] = any(found.values())
    found["reboot"] = _reboot_reasons(tuning, arguments)
    return found


def _governor_differences(values: Mapping[str, str], governor: str) -> list[str]:
    """Return a line for each range of processors with the same wrong governor: hosts have hundreds of processors."""
    numbered = sorted(values.items(), key=lambda one: (len(one[0]), one[0]))
    lines = []
    for value, row in groupby(numbered, key=lambda one: one[1]):
        names = [name for name, _ in row]
        told = names[0] if len(names) == 1 else f"{names[0]}-{names[-1].removeprefix('cpu')}"
        lines += [f"{told}: {value} -> {governor}"] if governor and value != governor else []
    return lines


def _file_difference(what: str, live: str | None, text: str) -> list[str]:
    wanted = hashlib.sha256(text.encode()).hexdigest() if text else None
    if live == wanted:
        return []
    return [f"{what}: {'is there, planned none' if not text else 'differs from the plan' if live else 'is not there'}"]


def _grub_differences(grub: Mapping[str, Any], arguments: Sequence[str], dropin: str) -> list[str]:
    if not grub["present"]:
        return []
    written = grub["cfg_mtime"] or 0
    # A run that was interrupted between changing the drop-in and update-grub leaves an older menu.
    changed = grub["dropin_mtime"] if dropin else grub["dropin_folder_mtime"]
    if _file_difference("", grub["dropin_sha256"], dropin):
        return ["grub.cfg: written " + ("without the planned drop-in" if dropin else "with a drop-in, planned none")]
    if (changed or 0) > written:
        return [f"grub.cfg: is older than {'' if dropin else 'the removal of '}the drop-in"]
    return sorted(
        {
            f"grub.cfg: {argument} is {'missing' if argument not in entry else 'not the only one of its key'}"
            for entry in grub["entries"]
            for argument in arguments
            if _of_key(entry, argument) != _of_key(arguments, argument)
        }
    )


def _reboot_reasons(tuning: Mapping[str, Any], arguments: Sequence[str]) -> list[str]:
    running = tuning["cmdline"]
    # The kernel uses the last value of a key; users may need several, such as console=.
    lacking = [
        argument
        for argument in arguments
        if argument not in _of_key(running, argument)[-len(_of_key(arguments, argument)) :]
    ]
    ours = {_key(argument) for argument in (*TUNED, *IOMMU)} - {_key(argument) for argument in arguments}
    # These arguments are still running, but the menu no longer has them.
    left = [
        word
        for word in running
        if _key(word) in ours and tuning["grub"]["entries"] and word not in tuning["grub"]["entries"][0]
    ]
    return [f"the running kernel lacks {argument}" for argument in lacking] + [
        f"the running kernel still has {word}" for word in left
    ]


def _key(argument: str) -> str:
    return argument.partition("=")[0]


def _of_key(words: Sequence[str], argument: str) -> list[str]:
    return [word for word in words if _key(word) == _key(argument)]


def host_tuning_refusal(
    system: Mapping[str, Any],
    tuning: Mapping[str, Any],
    arguments: Sequence[str],
    host_name: str,
    governor: Any = "performance",
) -> list[str]:
    """Return why this host cannot be tuned; empty if it can.

    Args:
        system: ``gaudi_system`` of the host.
        tuning: ``gaudi_tuning`` of the host.
        arguments: desired kernel arguments.
        host_name: name of the host in messages.
        governor: desired CPU governor; empty leaves it unchanged.
    """
    reasons = []
    if arguments and not tuning["grub"]["present"]:
        reasons.append(
            f"{host_name}: {system['pretty_name']}: no GRUB here (/etc/default/grub and /boot/grub/grub.cfg); "
            "set host_tuning_kernel_args: [] and give the arguments to your own boot loader"
        )
    reasons += _undone(tuning, arguments, host_name)
    offered = tuning["governor"].get("available") or []
    if not isinstance(governor, str):
        reasons.append(
            f"{host_name}: host_tuning_governor: {governor!r}: must be a quoted name, or '' to leave the governor "
            "as it is"
        )
    elif governor and offered and governor not in offered:
        reasons.append(
            f"{host_name}: host_tuning_governor: {governor!r}: must be one that the host has: {', '.join(offered)}"
        )
    return reasons


def _undone(tuning: Mapping[str, Any], arguments: Sequence[str], host_name: str) -> list[str]:
    """Return the user's lines that GRUB reads after the toolkit's drop-in and that undo it."""
    entries = tuning["grub"]["entries"]
    # A line in a shell branch that is not executed undoes nothing.
    if entries and all(_of_key(entry, one) == _of_key(arguments, one) for entry in entries for one in arguments):
        return []
    keys = {_key(argument) for argument in arguments}
    early = _read_by_grub(_settings(tuning, late=False))
    found = {name: " ".join(word for word in text.split() if _key(word) not in keys) for name, text in early.items()}
    found[CMDLINE[1]] = " ".join([found.get(CMDLINE[1], ""), *arguments])
    reasons, lost = [], set()
    for one in _settings(tuning, late=True):
        found = _read_by_grub([one], found)
        now = [
            argument
            for argument in arguments
            if argument not in lost and _of_key(_words(found), argument) != _of_key(arguments, argument)
        ]
        lost |= {*now}
        if now:
            reasons.append(
                f"{host_name}: {one['path']}:{one['line']}: {one['variable']} is set after {DROPIN}, and undoes "
                f"{', '.join(now)}; give the file a name that sorts before that one, or remove the line"
            )
    return reasons


def host_tuning_missing(tuning: Mapping[str, Any], sysctl: Mapping[str, str], host_name: str) -> list[str]:
    """Return the settings that the kernel did not accept."""
    got, planned = tuning["sysctl"].get(PAGES), sysctl.get(PAGES)
    if planned is not None and got is not None and int(got) < int(planned):
        return [
            f"{host_name}: {PAGES}: got {got} of {planned}: memory is fragmented or in use; "
            "reboot the host, stop programs that use its memory, or lower host_tuning_hugepages"
        ]
    return []


def _hugepages(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hugepages of a host, as hugepages_wanted returns them."""
    pages, live = known["host_tuning_hugepages"], known["gaudi_tuning"]
    if pages is None:
        pages = platform_of(known["gaudi_system"].get("accelerator")).hugepages
    found = hugepages_wanted(live, pages, known["host_tuning_hugepages_max_fraction"])
    if pages is not None or PAGES not in (live.get("sysctl_own") or {}):
        return found
    # An earlier run set pages that this host no longer gets.
    before = (live.get("sysctl_before") or {}).get(PAGES)
    if before is not None:
        return {"pages": int(before), "note": None}
    stay = f"hugepages: {live['sysctl'].get(PAGES)} stay until the next boot, because their number before the toolkit"
    return {**found, "note": f"{stay} is not known"}


def _expected(given: Given) -> dict[str, Any]:
    """Return the memory of the NUMA nodes after the run has allocated hugepages, or given them back."""
    known = given.known
    cpu = known["gaudi_host"].get("cpu") or {}
    if not cpu.get("nodes") or "gaudi_tuning" not in known or "host_tuning_hugepages" not in known:
        return {}
    live, wanted = known["gaudi_tuning"]["sysctl"].get(PAGES), _hugepages(known)["pages"]
    if live is None or wanted is None:
        return {}
    # The kernel allocates the same number on each node.
    more = (int(wanted) - int(live)) * known["gaudi_tuning"]["hugepage_kib"] // 1024 // len(cpu["nodes"])
    nodes = [
        {
            **node,
            "hugepages_mib": max(0, node.get("hugepages_mib", 0) + more),
            **({"available_mib": max(0, node["available_mib"] - more)} if "available_mib" in node else {}),
        }
        for node in cpu["nodes"]
    ]
    return {"cpu": {**cpu, "nodes": nodes}}


def _pending(given: Given) -> Pending:
    known = given.known
    system, live, governor = known["gaudi_system"], known["gaudi_tuning"], known["host_tuning_governor"]
    arguments = kernel_arguments_wanted(system, known["host_tuning_iommu"], known["host_tuning_kernel_args"], live)
    size = _hugepages(known)
    sysctl = sysctl_wanted(live, size["pages"])
    dropin = rendered("host_tuning", "grub.cfg.j2", arguments=arguments) if arguments else ""
    values = rendered("host_tuning", "sysctl.conf.j2", sysctl=sysctl)
    changes = host_tuning_changes(live, arguments, dropin, values, sysctl, governor)
    refusal = system_refusal(system, given.host)
    refusal += host_tuning_refusal(system, live, arguments, given.host, governor)
    refusal += [] if is_true(known["host_tuning_take_over"]) else sysctl_conflicts(live, sysctl, given.host)
    reboots = is_true(known["host_tuning_reboot_allowed"]) and bool(changes["reboot"])
    lines, raw = drift_lines(changes), [text for key, found in changes.items() if key != "due" for text in found]
    return Pending(
        changes={
            **changes,
            **{"lines": raw, "arguments": arguments, "reboots": reboots},
            **{"dropin_text": dropin, "sysctl_text": values},
            "elsewhere": _elsewhere(live, sysctl),
        },
        due=[] if refusal else lines if reboots else drift_lines(changes, ["reboot"]),
        left=[*host_tuning_missing(live, sysctl, given.host), *(given.left(lines) if changes["due"] else [])],
        refusal=refusal,
        drift=refusal or lines,
        notes=_notes(live, size, sysctl),
        facts={"reboots": reboots, "reboot_required": bool(changes["reboot"]), "reboot_reasons": changes["reboot"]},
    )


def _notes(live: Mapping[str, Any], size: Mapping[str, Any], sysctl: Mapping[str, str]) -> list[str]:
    lacking = ["this host has no cpufreq, so the governor stays as it is"] if not live["governor"]["values"] else []
    for key in (PAGES, "kernel.numa_balancing"):
        asked = key in sysctl or size["pages"] is not None
        lacking += [f"this kernel has no {key}"] if asked and live["sysctl"][key] is None else []
    return [*([size["note"]] if size["note"] else []), *lacking]


def _reset(given: Given) -> dict[str, Any]:
    # All packages that the role may install.
    packages = ["linux-cpupower", f"linux-tools-{given.known['gaudi_system']['kernel']}"]
    return host_tuning_reset(given.known["gaudi_tuning"], given.known["gaudi_left"], packages)


STAGE = Stage(
    role="host_tuning",
    tag="host",
    reads=("system", "tuning"),
    # A server with eight cards and much memory tests both for several minutes at boot.
    down=(10, "the host reboots"),
    ends_all="reboots",
    reports=("reboot_reasons", "reboot_required"),
    noted=("report",),
    pending=_pending,
    expected=_expected,
    reset=_reset,
)
