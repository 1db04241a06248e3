"""What a reset undoes in the settings of the container engine and the kernel."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..core.errors import InputError
from ..host.baseline import BACKUP, DROPIN, SYSCTL
from ..host.observe_runtime import PROXIES_DROPIN
from ..platforms import Runtime, runtimes
from .reset import Known, brought_of, found_of, made_for, new_packages, record_of, touched_by

# Kernel arguments that every host gets, and those for devices behind an IOMMU.
TUNED = ("cpufreq.default_governor=performance", "intel_idle.max_cstate=0")
IOMMU = ("intel_iommu=on", "iommu=pt")

DAEMON = "/etc/docker/daemon.json"
PROXY = (PROXIES_DROPIN, "/etc/gaudi-serve/docker-proxy.env")
VENDOR = (
    *("/etc/apt/sources.list.d/docker.sources", "/etc/apt/keyrings/docker.asc"),
    "/etc/apt/auth.conf.d/gaudi-serve-docker.conf",
)


def container_runtime_reset(
    runtime: Known, left: Known, packages: Sequence[str] = (), remove: bool = False
) -> dict[str, Any]:
    """Return how the engine's settings are restored; settings that a user has changed since are kept.

    Args:
        runtime: ``gaudi_runtime`` of the host.
        left: ``gaudi_left`` of the host.
        packages: the packages that the role may install.
        remove: packages that were not installed before are removed later in this run, and their source now.

    Returns:
        The keys of all ``*_reset`` filters, and ``write`` ({path, content, mode}: the final files), ``reload`` (text of
        a daemon.json that restores the running engine by a reload: an engine keeps the value of a key that is merely
        missing), ``told`` (the expected output of docker info after that), ``restart``, ``moves`` (the final files are
        written before the restart), ``disable``, ``paths``, ``first`` (those of them that are removed before the
        restart), ``empty``.
    """
    known = _Engine(runtime, left)
    folders, paths, kept = _runtime_paths(left, remove)
    paths += [DAEMON] if known.daemon_differs and known.daemon is None else []
    running = runtime["info"] is not None
    plan: dict[str, Any] = {
        "write": known.files(),
        "reload": known.interim if running and known.reload_due else "",
        "told": known.told,
        "restart": known.restart_reasons() if running else [],
        "first": [path for path in paths if path in PROXY],
        "paths": paths,
        "empty": [*folders, *made_for(folders)],
        "disable": runtime["enabled"] and known.was_disabled,
    }
    plan["moves"] = any(reason.startswith("data-root") for reason in plan["restart"])
    plan["due"] = any(plan[key] for key in ("write", "paths", "reload", "restart", "disable"))
    plan["did"] = _engine_did(plan, known)
    plan["left"] = [*known.left, *(f"package source {path}: goes with its packages (reset_packages)" for path in kept)]
    plan["packages"] = new_packages(left, "container_runtime", packages)
    return plan


def _runtime_paths(left: Known, remove: bool) -> tuple[dict[str, str], list[str], list[str]]:
    """Return folders that were created for files, the files to remove, and those to remove with their packages only."""
    brought = brought_of(left, "container_runtime", "paths")
    paths = [path for path in (BACKUP, *PROXY) if path in (*left["traces"], *left["files"])]
    sources = [f"/gaudi-serve-{one.name}." for one in runtimes()]
    paths += [path for path in (*left["traces"], *left["files"]) if any(name in path for name in sources)]
    vendor = [path for path in VENDOR if path in left["files"] and path in brought]
    folders = {path: made for path, made in brought.items() if path not in VENDOR}
    return folders, paths + (vendor if remove else []), [] if remove else vendor


def _engine_did(plan: Known, known: _Engine) -> list[str]:
    said = "as it was" if known.wholly else "without the toolkit's keys; what you have changed since stays"
    did = [f"{one['path']}: {said if one['path'] == DAEMON else 'as it was'}" for one in plan["write"]]
    did += [f"{DAEMON}: removed" for path in plan["paths"] if path == DAEMON]
    did += ["the engine's proxies"] if plan["first"] else []
    did += [f"package source {path}" for path in plan["paths"] if path.endswith(".sources") or "/auth.conf.d/" in path]
    here = (known.runtime["info"] or {}).get("runtimes", [])
    gone = [name for name in _names(here) if name not in _names(known.wanted.get("runtimes") or {})]
    did += [f"{name} runtime of the engine" for name in gone if plan["reload"]]
    return did + (["docker.service starts at boot"] if plan["disable"] else [])


class _Engine:
    """The live settings of the engine, and the settings to restore."""

    def __init__(self, runtime: Known, left: Known) -> None:
        self.runtime, self.live = runtime, runtime["daemon_json"]
        self.found = found_of(left, "container_runtime")
        self.brought = brought_of(left, "container_runtime", "engine")
        self.keys = brought_of(left, "container_runtime", "keys")
        self.left: list[str] = []
        self.wholly = True
        self.daemon, self.mode = self.live, runtime["daemon_json_mode"] or "0644"
        if known := self._before(left):
            self._go_back(known[0])
        elif touched_by(left, "container_runtime"):
            self.left.append(f"{DAEMON}: its content before the toolkit is not known; it stays")
        self.settings = {one: text for one in runtimes() if (text := self._settings(one)) is not None}
        before = record_of(left, "container_runtime").get("installed", [])
        self.was_disabled = self.found.get("enabled") is False and not {"docker.io", "docker-ce"}.isdisjoint(before)

    def _before(self, left: Known) -> list[str | None]:
        """Return a list with the original daemon.json (None if there was none); an empty list if it is unknown."""
        if "daemon_json" in self.found:
            return [self.found["daemon_json"]]
        if left["daemon_backup"] is not None:
            return [left["daemon_backup"]]
        # Without a backup, the toolkit has either changed nothing or written the whole file.
        own = _object(self.live)
        ours = (
            own
            and set(own) <= {"live-restore", "runtimes"}
            and ("runtimes" not in own or own["runtimes"] in [{one.name: one.entry} for one in runtimes()])
        )
        if left["traces"] and ours and self.live == json.dumps(own, indent=2) + "\n":
            return [None]
        return []

    def _go_back(self, before: str | None) -> None:
        now, then = _object(self.live), _object(before)
        if then is None or now is None:
            if self.live is not None:
                self.left.append(f"{DAEMON}: is not a JSON object; it stays")
            return
        result = {key: value for key, value in now.items() if key != "live-restore" or "live-restore" in then}
        if "live-restore" in then:
            result["live-restore"] = then["live-restore"]
        result = _without_runtimes(result, then)
        if "cdi" in self.keys:
            result = _without_cdi(result, then)
        if result.get("default-runtime") != now.get("default-runtime"):
            name = now["default-runtime"]
            self.left.append(f"{DAEMON}: your default-runtime {name} is removed with the runtime of that name")
        if "data-root" in self.keys and now.get("data-root") != then.get("data-root"):
            result = self._moved_back(result, then)
        self.wholly = result == then
        if self.wholly:
            self.daemon = before
        elif result != now:
            indent = re.search(r'^([ \t]+)"', self.live or "", re.MULTILINE)
            self.daemon = json.dumps(result, indent=indent[1] if indent else 2, ensure_ascii=False) + "\n"
        if result != now or self.daemon != self.live:
            self.mode = self.found.get("daemon_json_mode") or self.mode

    def _moved_back(self, result: dict[str, Any], then: Known) -> dict[str, Any]:
        running = (self.runtime["info"] or {}).get("containers_running")
        if running:
            self.left.append(f"{DAEMON}: data-root: {running} containers run from there; stop them and run again")
            return result
        rest = {key: value for key, value in result.items() if key != "data-root"}
        return {**rest, "data-root": then["data-root"]} if "data-root" in then else rest

    def _settings(self, runtime: Runtime) -> str | None:
        """Return the original text of a runtime's settings; None if they stay or are missing."""
        key, settings = f"{runtime.name}_config", runtime.settings
        live, before = self.runtime.get(key), self.found.get(key) or self.brought.get(key)
        if settings is None or live is None or before is None or not self.found:
            return None
        try:
            edited = settings.configured(before, "this host")
        except InputError:
            return None  # a file that cannot be edited was never edited
        if live == edited:
            return str(before)
        # Other changes of a user stay: only the edited lines are restored.
        old = [line for line in before.splitlines() if line not in edited.splitlines()]
        new = [line for line in edited.splitlines() if line not in before.splitlines() and line.endswith(settings.edit)]
        lines = [old[:1] if line in new else [line] for line in live.splitlines()]
        return "".join(f"{line}\n" for parts in lines for line in parts)

    def files(self) -> list[dict[str, Any]]:
        """Return the files to restore, for module gaudi_files."""
        found = []
        if self.daemon_differs and self.daemon is not None:
            found.append({"path": DAEMON, "content": self.daemon, "mode": self.mode, "hide": True})
        for one, text in self.settings.items():
            if one.settings and text != self.runtime[f"{one.name}_config"]:
                found.append({"path": one.settings.path, "content": text, "mode": "0644"})
        return found

    @property
    def daemon_differs(self) -> bool:
        """Return whether the live file differs from the one to restore."""
        return bool(self.daemon != self.live)

    @property
    def wanted(self) -> dict[str, Any]:
        """Return the final content of the file."""
        return _object(self.daemon) or {}

    @property
    def told(self) -> str:
        """Return the expected output of docker info after the reload."""
        names = "".join(f" {name}" for name in _names(self.wanted.get("runtimes") or {}))
        return f"{str(bool(self.wanted.get('live-restore', False))).lower()}{names}"

    @property
    def reload_due(self) -> bool:
        """Return whether the running engine has settings that the final file lacks."""
        info = self.runtime["info"]
        if not self.daemon_differs and not self.found:
            return False
        return bool(
            info["live_restore"] is not bool(self.wanted.get("live-restore", False))
            or set(_names(info["runtimes"])) - set(_names(self.wanted.get("runtimes") or {}))
        )

    @property
    def interim(self) -> str:
        """Return a file that states defaults for keys that the final file omits."""
        wanted = self.wanted
        said = {"live-restore": bool(wanted.get("live-restore", False)), "runtimes": wanted.get("runtimes", {})}
        if (_object(self.live) or {}).get("default-runtime") in _names():
            said["default-runtime"] = wanted.get("default-runtime", "runc")
        return json.dumps({**wanted, **said}, indent=2, ensure_ascii=False) + "\n"

    def restart_reasons(self) -> list[str]:
        """Return the reasons for a restart of the engine."""
        reasons = []
        if self.runtime["proxies_running"]:
            reasons.append("the running engine was started with the toolkit's proxies")
        now = (_object(self.live) or {}).get("data-root")
        if self.daemon_differs and now != self.wanted.get("data-root"):
            reasons.append("data-root: restored")
        return reasons


def _object(text: str | None) -> dict[str, Any] | None:
    """Return a JSON object; an empty one for a missing text."""
    try:
        found = json.loads(text) if text and text.strip() else {}
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("runtimes", {}), dict) else None


def _names(among: Collection[str] | None = None) -> list[str]:
    """Return the names of all runtimes for devices, or of those that are among others."""
    return [one.name for one in runtimes() if among is None or one.name in among]


def _without_runtimes(result: dict[str, Any], then: Known) -> dict[str, Any]:
    """Return a daemon.json with the original runtimes for devices: none, or the user's own."""
    before = then.get("runtimes", {})
    others = {name: one for name, one in result.get("runtimes", {}).items() if name not in _names()}
    others |= {name: before[name] for name in _names(before)}
    # An engine does not start if its default runtime is missing.
    default = result.get("default-runtime")
    if default in _names() and default not in others:
        result = {key: value for key, value in result.items() if key != "default-runtime"}
        result |= {key: then[key] for key in ("default-runtime",) if then.get(key, default) != default}
    if others or "runtimes" in then:
        return {**result, "runtimes": others}
    return {key: value for key, value in result.items() if key != "runtimes"}


def _without_cdi(result: dict[str, Any], then: Known) -> dict[str, Any]:
    """Return a daemon.json with the original feature of CDI; a running engine changes it at its next start."""
    before = then.get("features", {})
    features = {key: value for key, value in result.get("features", {}).items() if key != "cdi"}
    features |= {key: before[key] for key in ("cdi",) if key in before}
    if features or "features" in then:
        return {**result, "features": features}
    return {key: value for key, value in result.items() if key != "features"}


def host_tuning_reset(tuning: Known, left: Known, packages: Sequence[str] = ()) -> dict[str, Any]:
    """Return how the kernel's settings are restored.

    Args:
        tuning: ``gaudi_tuning`` of the host.
        left: ``gaudi_left`` of the host.
        packages: the packages that the role may install.

    Returns:
        The keys of all ``*_reset`` filters, and ``paths``, ``empty``, ``grub`` (the menu must be written again),
        ``lines`` (files with lines to restore), ``sysctl`` ({key: value}), ``governors`` ({governor: cpus}),
        ``reboot``.
    """
    found, touched = found_of(left, "host_tuning"), touched_by(left, "host_tuning")
    paths = [path for path in (DROPIN, SYSCTL) if path in left["traces"]]
    grub = tuning["grub"]
    stale = touched and grub["present"] and (grub["dropin_folder_mtime"] or 0) > (grub["cfg_mtime"] or 0)
    folders = brought_of(left, "host_tuning", "paths")
    plan: dict[str, Any] = {
        "paths": paths,
        "grub": bool(grub["present"] and (DROPIN in paths or stale)),
        "lines": list(left["took_over"]),
        "sysctl": _differing(found.get("sysctl", {}), tuning["sysctl"]),
        "governors": _governors(found.get("governors", {}), tuning["governor"]["values"]),
        "empty": [*folders, *made_for(folders)],
        "reboot": _reboot(tuning, found) if touched else [],
        "packages": new_packages(left, "host_tuning", packages),
    }
    plan["due"] = any(plan[key] for key in ("paths", "grub", "lines", "sysctl", "governors"))
    plan["did"] = _tuning_did(plan, tuning)
    plan["left"] = list(plan["reboot"])
    if touched and not found and (plan["due"] or record_of(left, "host_tuning")):
        plan["left"].append(
            "live sysctl values and governor: what they were is not known; they stay until the next boot"
        )
    return plan


def _differing(before: Known, live: Known) -> dict[str, str]:
    return {key: value for key, value in before.items() if value is not None and live.get(key) not in (None, value)}


def _governors(before: Known, live: Known) -> dict[str, str]:
    """Return ``{governor: cpus}`` of the CPUs whose governor differs from the original one."""
    found: dict[str, list[str]] = {}
    for cpu, value in before.items():
        if live.get(cpu, value) != value:
            found.setdefault(value, []).append(cpu.removeprefix("cpu"))
    return {value: ",".join(cpus) for value, cpus in found.items()}


def _tuning_did(plan: Known, tuning: Known) -> list[str]:
    return [
        *(["kernel arguments: GRUB drop-in"] if DROPIN in plan["paths"] else []),
        *([f"sysctl file {SYSCTL}"] if SYSCTL in plan["paths"] else []),
        *(f"{path}: lines that were commented out" for path in plan["lines"]),
        *(f"{key}: {tuning['sysctl'][key]} -> {value}" for key, value in plan["sysctl"].items()),
        *(f"governor of CPUs {cpus}: {value}" for value, cpus in plan["governors"].items()),
    ]


def _reboot(tuning: Known, found: Known) -> list[str]:
    """Return the arguments that the running kernel still has, although the menu no longer has them."""
    entries, before = tuning["grub"]["entries"], found.get("cmdline", [])
    ours = {word.partition("=")[0] for word in (*TUNED, *IOMMU, *found.get("args", []))}
    return [
        f"reboot required: the running kernel still has {word}"
        for word in tuning["cmdline"]
        if word.partition("=")[0] in ours and word not in before and entries and word not in entries[0]
    ]


def container_runtime_found(runtime: Mapping[str, Any]) -> dict[str, Any]:
    """Return the baseline of an engine that a reset needs, taken before the first change."""
    settings = [f"{one.name}_config" for one in runtimes() if one.settings]
    return {key: runtime[key] for key in ("daemon_json", "daemon_json_mode", *settings, "enabled")}
