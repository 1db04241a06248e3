"""The desired container engine of stage container_runtime, and the pending changes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..core.checks import is_true
from ..core.errors import InputError
from ..core.run import sha256_text
from ..core.templates import rendered
from ..platforms import Runtime, accelerator_needs, platform_of, runtime_of, runtimes
from .base import Given, Pending, Stage, system_refusal
from .reset_host import container_runtime_found, container_runtime_reset

DAEMON_JSON = "/etc/docker/daemon.json"
# Keys of daemon.json that are objects, into which entries are merged.
OBJECTS = ("runtimes", "features")
# Packages of engines; any of them is enough.
ENGINES = {"docker.io", "docker-ce"}
# Since this version, Debian ships the engine's client in a package of its own, which the engine only recommends.
CLIENT, CLIENT_SINCE = "docker-cli", 13


def daemon_json(
    text: str | None, runtime: bool | str, live_restore: bool, data_root: str, host_name: str, *, cdi: bool = False
) -> str:
    """Merge the desired settings into a daemon.json and keep everything else in it, in its order.

    A user's own runtime of the same name, with a path of its own or arguments, stays as it is.

    Args:
        text: the text of the file, None if there is no file.
        runtime: the name of the required runtime for devices; true for that of Gaudi, false for none.
        live_restore: whether containers keep running while the engine restarts.
        data_root: folder of the engine's data; empty leaves it as it is.
        host_name: name of the host in messages.
        cdi: the engine must accept device names of CDI, a feature that may be turned off.

    Returns:
        The desired text: the given text unchanged if it has all settings already.

    Raises:
        InputError: with line and column, if the text is not a JSON object; for a data_root that is not a path.
    """
    if data_root and not data_root.startswith("/"):
        raise InputError(f"{host_name}: container_runtime_data_root: {data_root!r}: must be an absolute path")
    found = _read(text, f"{host_name}: {DAEMON_JSON}")
    merged = {**found, "live-restore": live_restore}
    if data_root:
        merged["data-root"] = _folder(data_root)
    if known := runtime_of(runtime):
        here = found.get("runtimes", {})
        entry = here[known.name] if _usable(here.get(known.name)) else known.entry
        merged["runtimes"] = {**here, known.name: entry}
    if cdi:
        merged["features"] = {**found.get("features", {}), "cdi": True}
    if text and merged == found:
        return text
    indent = re.search(r'^([ \t]+)"', text or "", re.MULTILINE)
    return json.dumps(merged, indent=indent[1] if indent else 2, ensure_ascii=False) + "\n"


def _read(text: str | None, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if text and text.strip() else {}
    except RecursionError:
        raise InputError(f"{where}: nested too deeply. The file is unchanged; fix it and run again.") from None
    except ValueError as problem:
        at = f"line {problem.lineno}, column {problem.colno}" if isinstance(problem, json.JSONDecodeError) else "?"
        detail = problem.msg if isinstance(problem, json.JSONDecodeError) else str(problem)
        raise InputError(f"{where}: {at}: {detail}. The file is unchanged; fix it and run again.") from None
    wrong = [key for key in OBJECTS if not isinstance(found.get(key, {}), dict)] if isinstance(found, dict) else [""]
    if wrong:
        what = wrong[0] or "the whole"
        raise InputError(f"{where}: {what} must be a JSON object. The file is unchanged; fix it and run again.")
    return found


def _planned(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the planned daemon.json; empty if the file on the host is broken, which another check refuses."""
    try:
        return _read(wanted["daemon_json"], DAEMON_JSON)
    except InputError:
        return {}


def _usable(runtime: Any) -> bool:
    """Return whether an entry of ``runtimes`` names a runtime that the engine can start."""
    return isinstance(runtime, dict) and bool(runtime.get("path") or runtime.get("runtimeType"))


def _wanted_runtimes(wanted: Mapping[str, Any]) -> Iterator[Runtime]:
    """Return the runtimes for devices that the engine should have."""
    return (one for one in runtimes() if wanted.get(one.name))


def _planned_runtime(wanted: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return path and arguments of a runtime in the planned daemon.json, in the form of docker info."""
    found = _planned(wanted).get("runtimes", {}).get(name) or {}
    return {"path": found.get("path"), "runtimeArgs": found.get("runtimeArgs") or []}


def daemon_json_problems(text: str | None, host_name: str) -> list[str]:
    """Return why nothing can be merged into a daemon.json; empty if merging is possible."""
    try:
        daemon_json(text, runtime=False, live_restore=True, data_root="", host_name=host_name)
    except InputError as problem:
        return [str(problem)]
    return []


def _folder(path: str) -> str:
    return path.rstrip("/") or "/"


def container_runtime_changes(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the desired engine with the running one.

    Args:
        live: ``gaudi_runtime`` of the host.
        wanted: ``packages`` (of the engine), ``live_restore``, ``data_root`` (or empty), ``daemon_json``, ``proxies``,
            ``proxies_dropin`` (texts) and ``proxies_marker`` (all empty if no proxy is wanted), ``cdi`` (bool); and by
            the name of each runtime of a platform, such as habana: ``habana`` (bool), ``habana_version`` (or empty),
            ``habana_config``.

    Returns:
        ``repair``, ``install_engine``, ``install_habana`` (one for each runtime), ``write``, ``enable``, ``reload``,
        ``restart``: the differences, as sentences; ``due``. A restart is included only if the running daemon lacks a
        setting that a reload cannot change.
    """
    info = live["info"] or {}
    found: dict[str, Any] = {
        "repair": [f"dpkg was interrupted in {', '.join(live['interrupted'])}"] if live["interrupted"] else [],
        "install_engine": [] if _has_engine(live, wanted) else [f"install {', '.join(wanted['packages'])}"],
        **{f"install_{one.name}": _package(one, live, wanted) for one in runtimes()},
        "write": _files(live, wanted),
        "enable": [] if live["enabled"] else ["docker.service does not start at boot"],
        "restart": _restart(live, info, wanted),
        "reload": [],
    }
    for one in _wanted_runtimes(wanted):
        if info.get("runtimes", {}).get(one.name) != _planned_runtime(wanted, one.name):
            found["reload"].append(f"the running engine lacks the {one.name} runtime")
    if info.get("live_restore") is not wanted["live_restore"]:
        here, planned = (json.dumps(value) for value in (info.get("live_restore"), wanted["live_restore"]))
        found["reload"].append(f"the running engine has live-restore {here}, planned {planned}")
    found["due"] = any(found.values())
    return found


def container_runtime_drift(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the differences between the live engine and the plan, as sentences.

    Args:
        live: ``gaudi_runtime`` of the host.
        wanted: as for container_runtime_changes.
    """
    changes = container_runtime_changes(live, wanted)
    lines: list[str] = list(changes["repair"])
    lines += [f"engine: is not installed, planned {', '.join(wanted['packages'])}"] * bool(changes["install_engine"])
    lines += [text for one in _wanted_runtimes(wanted) for text in _package_drift(one, live, wanted)]
    if "daemon.json" in changes["write"]:
        lines += [f"daemon.json: {text}" for text in _daemon_drift(live["daemon_json"], wanted["daemon_json"])]
    for one in _wanted_runtimes(wanted):
        if one.settings and _leaf(one.settings.path) in changes["write"]:
            lines.append(f"{_leaf(one.settings.path)}: {one.settings.lacks}")
        if live["packages"].get(one.package) and (problem := live.get(f"{one.name}_problem")):
            lines.append(f"{one.program} does not run: {problem}")
    # Values of proxies may hold credentials.
    lines += ["the engine's proxies differ from the planned ones"] * ("proxy" in changes["write"])
    # If the engine does not answer, its settings are unknown.
    return [*lines, *changes["enable"], *changes["restart"], *(changes["reload"] if live["info"] else [])]


def _daemon_drift(text: str | None, planned: str) -> list[str]:
    found, wanted = json.loads(text) if text and text.strip() else {}, json.loads(planned)
    lines = []
    for key, value in wanted.items():
        if found.get(key) == value:
            continue
        if key == "runtimes":
            missing = [one.name for one in runtimes() if one.name in value]
            lines.append(f"runtimes lack {' and '.join(missing)} as planned")
        else:
            here = f"is {json.dumps(found[key])}" if key in found else "is not set"
            lines.append(f"{key} {here}, planned {json.dumps(value)}")
    return lines


def _has_engine(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    # The half-installed package may be one that the engine needs.
    if "docker.io" in live["packages"] and set(wanted["packages"]) & set(live["interrupted"]):
        return False
    if CLIENT in wanted["packages"] and "docker.io" in live["packages"] and CLIENT not in live["packages"]:
        return False
    # Any engine is enough, also one from no package: an engine that a user has installed is not replaced.
    return bool(ENGINES & set(live["packages"]) or (live["info"] and not ENGINES & set(live["interrupted"])))


def engine_stopped(live: Any) -> bool:
    """Return whether an installed engine does not answer, so that its images and containers are unknown.

    Args:
        live: ``gaudi_runtime`` of the host, or None.
    """
    return isinstance(live, Mapping) and not live.get("info") and bool(ENGINES & set(live.get("packages") or ()))


def _package(runtime: Runtime, live: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the sentences on a runtime's package that must be installed."""
    if not wanted.get(runtime.name):
        return []
    found, version = live["packages"].get(runtime.package), wanted[f"{runtime.name}_version"]
    if found and version in ("", found):
        missing = _missing_programs(runtime, live)
        return [f"{runtime.package}: {' and '.join(missing)} missing, install it again"] if missing else []
    return [f"{runtime.package}: {found} -> {version or 'newest'}"]


def _package_drift(runtime: Runtime, live: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return how a runtime's package differs from the plan."""
    if not _package(runtime, live, wanted):
        return []
    found, missing = live["packages"].get(runtime.package), _missing_programs(runtime, live)
    if found and missing:
        return [f"{runtime.package}: its {' and '.join(missing)} is missing"]
    version = wanted[f"{runtime.name}_version"] or "any version"
    return [f"{runtime.package}: {found or 'is not installed'}, planned {version}"]


def _to_install(runtime: Runtime, changes: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the packages of a runtime that the role installs, also those that are installed but lack programs.

    If a package needs another one in a certain version, apt selects the newest version of the other one and refuses
    both. Therefore all packages are named with the version.
    """
    again = any("install it again" in line for line in changes[f"install_{runtime.name}"])
    version = wanted[f"{runtime.name}_version"]
    names = [f"{name}={version}" for name in runtime.packages] if version else [runtime.package]
    known = {"name": runtime.name, "package": runtime.package, "packages": runtime.packages, "names": names}
    return {**known, "version": version, "again": again}


def _missing_programs(runtime: Runtime, live: Mapping[str, Any]) -> list[str]:
    """Return the programs that a runtime needs and the host lacks; empty if the facts lack this."""
    here = live.get(f"{runtime.name}_programs")
    return [name for name in runtime.programs if not here.get(name)] if here is not None else []


def _leaf(path: str) -> str:
    return path.rpartition("/")[2]


def _files(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    differing = [] if live["daemon_json"] == wanted["daemon_json"] else ["daemon.json"]
    for one in _wanted_runtimes(wanted):
        if one.settings and live[f"{one.name}_config"] != wanted[f"{one.name}_config"]:
            differing.append(_leaf(one.settings.path))
    for text, digest in (("proxies", "proxies_sha256"), ("proxies_dropin", "proxies_dropin_sha256")):
        if live[digest] != (hashlib.sha256(wanted[text].encode()).hexdigest() if wanted[text] else None):
            return [*differing, "proxy"]
    return differing


def _restart(live: Mapping[str, Any], info: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    if not info:
        return [f"the engine does not answer: {live['reason']}"]
    reasons = []
    if _moves(info, wanted):
        reasons.append(f"data-root: {info['data_root']} -> {_folder(wanted['data_root'])}")
    if (live["proxies_running"] or "") != wanted["proxies_marker"]:
        reasons.append("the running engine was started with other proxies")
    if wanted.get("cdi") and not info.get("cdi"):
        reasons.append("features: the running engine accepts no CDI device names")
    return reasons


def _moves(info: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return bool(wanted["data_root"]) and _folder(info["data_root"]) != _folder(wanted["data_root"])


def container_runtime_refusal(live: Mapping[str, Any], wanted: Mapping[str, Any], host_name: str) -> list[str]:
    """Return why the engine cannot reach the desired state; empty if it can.

    Args:
        live: ``gaudi_runtime`` of the host.
        wanted: as for container_runtime_changes, and ``http_proxy``, ``https_proxy``, ``no_proxy`` and the repository
            of each runtime, such as ``habana_repository`` (or empty).
        host_name: name of the host in messages.
    """
    info, reasons = live["info"] or {}, []
    for one in runtimes():
        repository = wanted.get(f"{one.name}_repository") or {}
        lacking = [key for key in ("uris", "suites") if not repository.get(key)]
        if repository and lacking:
            key = f"container_runtime_{one.name}_repository"
            reasons.append(f"{host_name}: {key}: {' and '.join(lacking)} must be set")
    if masked := live.get("masked"):
        are = "is" if len(masked) == 1 else "are"
        reasons.append(
            f"{host_name}: {' and '.join(masked)} {are} masked, so that the engine cannot start; run systemctl unmask "
            f"{' '.join(masked)}"
        )
    if info and _moves(info, wanted) and info.get("containers_running"):
        reasons.append(
            f"{host_name}: container_runtime_data_root: {wanted['data_root']!r}: {info['containers_running']} "
            f"containers run from {info['data_root']}, and the engine loses them when its data root moves; "
            "stop them first, or leave the variable empty"
        )
    reasons += daemon_json_problems(live["daemon_json"], host_name)
    reasons += _no_next_start(live, wanted, host_name)
    for one in _wanted_runtimes(wanted):
        if one.settings:
            reasons += one.settings.problems(live[f"{one.name}_config"], host_name)
    for key in ("http_proxy", "https_proxy", "no_proxy"):
        if any(character in wanted[key] for character in "\n\r\0"):
            reasons.append(f"{host_name}: container_runtime_{key}: must be one line; it has several")
    return reasons


def _no_next_start(live: Mapping[str, Any], wanted: Mapping[str, Any], host_name: str) -> list[str]:
    """Return why an engine that accepts the planned daemon.json in a reload would fail at its next start."""
    reasons = []
    swarm = live.get("swarm")
    if wanted["live_restore"] and swarm not in (None, "", "inactive"):
        reasons.append(
            f"{host_name}: container_runtime_live_restore: true: the engine belongs to a swarm ({swarm}), and in "
            "a swarm it does not start with live-restore; set container_runtime_live_restore: false, or leave the swarm"
        )
    planned = {"live-restore": "live-restore"}
    planned |= {"data-root": "data-root"} if "data-root" in _planned(wanted) else {}
    names = [one.name for one in _wanted_runtimes(wanted)]
    planned |= {"add-runtime": f"runtime {' and '.join(names)}"} if names else {}
    for option in live.get("options", []):
        name, value = option["option"], option["value"]
        where = f"{host_name}: {option['file']}: the engine's command line has --{name}"
        if name == "config-file" and value != DAEMON_JSON:
            reasons.append(f"{where} {value}, so it does not read {DAEMON_JSON}; remove the option")
        # The engine merges other runtimes of the command line with those of the file.
        elif name in planned and (name != "add-runtime" or value.partition("=")[0] in names):
            twice = "two runtimes have one name" if name == "add-runtime" else "the engine does not start with both"
            reasons.append(
                f"{where} {value}, and {DAEMON_JSON} gets {planned[name]}: {twice}; remove the option, and run "
                "systemctl daemon-reload"
            )
    return reasons


def container_runtime_notes(live: Mapping[str, Any], engine: str = "distribution") -> list[str]:
    """Return notes for users on an engine; ``engine`` is the requested one."""
    notes = []
    for one in runtimes():
        if (live["info"] or {}).get("default_runtime") == one.name:
            notes.append(f"{one.name} is the engine's default runtime: containers that need no cards get them too")
        notes += one.settings.notes(live.get(f"{one.name}_config")) if one.settings else []
    if engine == "vendor" and "docker.io" in live["packages"]:
        notes.append("the existing engine stays: container_runtime_engine: vendor is only for hosts without an engine")
    return notes


# Environment= would be readable: any user of the host can query it from systemd.
DROPIN = "[Service]\nEnvironmentFile=/etc/gaudi-serve/docker-proxy.env\n"
PROXIES = ("http_proxy", "https_proxy", "no_proxy")


def _pending(given: Given) -> Pending:
    known = given.known
    live, wanted = known["gaudi_runtime"], _wanted(given)
    changes, drift = container_runtime_changes(live, wanted), container_runtime_drift(live, wanted)
    refusal = [*system_refusal(known["gaudi_system"], given.host)]
    refusal += container_runtime_refusal(live, wanted, given.host)
    steps = _steps(live, wanted, changes)
    return Pending(
        changes={
            **changes,
            "packages": wanted["packages"],
            # Installed packages of each runtime for devices, and the runtimes that docker info must list.
            "runtimes": [_to_install(one, changes, wanted) for one in runtimes() if changes.get(f"install_{one.name}")],
            "asked": [one.name for one in _wanted_runtimes(wanted)],
            "lines": [text for key, found in changes.items() if key != "due" for text in found],
            "files": _to_write(changes, live, {**wanted, **steps[0]} if steps else wanted),
            "steps": [
                {**step, "files": [_daemon_file(live, step["daemon_json"])] if step["daemon_json"] else []}
                for step in steps
            ],
            "found": container_runtime_found(live),
            # Keys of daemon.json that a reset removes, in addition to those that always belong to the toolkit.
            "own_keys": _own_keys(live, wanted),
            **{key: wanted[key] for key in ("proxies_marker", "proxies_dropin")},
        },
        due=[] if refusal else drift,
        left=given.left(drift) if changes["due"] else [],
        refusal=refusal,
        drift=refusal or drift,
        notes=container_runtime_notes(live, known["container_runtime_engine"]),
        facts={"restarts": not refusal and bool(changes["restart"]) and not _survive(live, wanted)},
    )


def _survive(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether containers survive a restart of the engine: it has live-restore before or after this run."""
    return live["info"] is None or bool(live["info"].get("live_restore") or wanted["live_restore"])


def _steps(live: Mapping[str, Any], wanted: Mapping[str, Any], changes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return how the running engine takes its changes, in order, so that its containers survive.

    Containers survive a restart only if the engine has live-restore when it stops and when it starts again. A reload
    changes the setting.

    Returns:
        For each step its ``state`` (reloaded or restarted), the ``live_restore`` that the engine has after it, and
        ``daemon_json``: the text that the file must have before it; the first one's is written with the other files.
    """
    now, then = bool((live["info"] or {}).get("live_restore")), wanted["live_restore"]
    if not changes["restart"]:
        order = [("reloaded", then)] if changes["reload"] else []
    elif then and live["info"] and not now:
        order = [("reloaded", then), ("restarted", then)]
    elif now and not then:
        order = [("restarted", now), ("reloaded", then)]
    else:
        order = [("restarted", then)]
    texts = {then: wanted["daemon_json"], **({now: wanted["daemon_json_until"]} if now and not then else {})}
    return [{"state": state, "live_restore": restores, "daemon_json": texts[restores]} for state, restores in order]


def _wanted(given: Given) -> dict[str, Any]:
    """Return the desired engine, as container_runtime_changes takes it."""
    known, own = given.known, "container_runtime_"
    live, accelerator = known["gaudi_runtime"], known["gaudi_system"]["accelerator"]
    cdi = platform_of(accelerator).cdi and cdi_expected(live, known, accelerator)
    devices = [one for one in runtimes() if is_asked(one, known, accelerator)]
    proxies = {key: known[own + key] or "" for key in PROXIES}
    marker = sha256_text(json.dumps([known[own + key] for key in PROXIES])) if any(proxies.values()) else ""
    restores, root = is_true(known[f"{own}live_restore"]), known[f"{own}data_root"] or ""
    daemon = until = live["daemon_json"]
    # A broken file stays as it is and is refused later, so that status can still report it.
    if not daemon_json_problems(daemon, given.host):
        for name in [one.name for one in devices] or [""]:
            lacks = cdi and not (live["info"] or {}).get("cdi")
            daemon = daemon_json(daemon, name, restores, root, given.host, cdi=lacks)
            until = daemon_json(until, name, live_restore=True, data_root=root, host_name=given.host, cdi=lacks)
    of_proxies = {key.upper(): value for key, value in proxies.items()}
    text = rendered("container_runtime", "docker-proxy.env.j2", marker=marker, proxies=of_proxies) if marker else ""
    packages = "vendor_packages" if known[f"{own}engine"] == "vendor" else "distribution_packages"
    return {
        "packages": with_client(known[own + packages], known["gaudi_system"]),
        **{"live_restore": restores, "data_root": root, "daemon_json": daemon, "cdi": cdi},
        # With live-restore, until the engine has restarted.
        "daemon_json_until": until,
        **{one.name: one in devices for one in runtimes()},
        **{key: known.get(own + key) or "" for key in _keys("_version")},
        **{key: known.get(own + key) or {} for key in _keys("_repository")},
        **{f"{one.name}_config": _settings(one, live, one in devices, given.host) for one in runtimes()},
        **proxies,
        **{"proxies_marker": marker, "proxies": text, "proxies_dropin": DROPIN if marker else ""},
    }


def is_asked(runtime: Runtime, known: Mapping[str, Any], accelerator: str) -> bool:
    """Return whether the engine of a host should have a runtime for devices."""
    said = known.get(f"container_runtime_{runtime.name}", "auto")
    return bool(said == "always" or (said == "auto" and runtime.need in accelerator_needs(accelerator)))


def cdi_expected(live: Mapping[str, Any], known: Mapping[str, Any], accelerator: str) -> bool:
    """Return whether models get their devices by CDI after this stage, which depends on the engine's version then.

    Args:
        live: ``gaudi_runtime``, or ``gaudi_host``: ``cdi`` is the live state, ``engine_cdi`` that of the engine only.
        known: the variables of the host.
        accelerator: its platform.
    """
    runtime = platform_of(accelerator).runtime
    if runtime is None or not is_asked(runtime, known, accelerator):
        return bool(live.get("cdi"))
    planned = str(known.get(f"container_runtime_{runtime.name}_version") or "")
    version = planned or live.get("packages", {}).get(runtime.package, "")
    takes = live.get("cdi") if live.get("engine_cdi") is None else live["engine_cdi"]
    if known.get("container_runtime_engine") == "vendor" and _lacks_engine(live):
        takes = True  # the vendor's engine is newer than that of the distribution
    elif not planned:
        return bool(live.get("cdi"))
    return bool(takes) and (not version or runtime.keeps_cdi_file(version))


def _lacks_engine(live: Mapping[str, Any]) -> bool:
    """Return whether a host is known to have no engine."""
    return "info" in live and not live["info"] and not ENGINES & set(live["packages"])


def _expected(given: Given) -> dict[str, Any]:
    host = given.known["gaudi_host"]
    if not platform_of(host.get("accelerator")).cdi:
        return {}
    live = given.known.get("gaudi_runtime")
    return {"cdi": cdi_expected(live if isinstance(live, Mapping) else host, given.known, host["accelerator"])}


def _own_keys(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, bool]:
    """Return the keys of daemon.json that this run sets, by their names."""
    known = {"data-root": bool(wanted["data_root"]), "cdi": _cdi(_planned(wanted)) and not _cdi(_planned(live))}
    return {key: True for key, sets in known.items() if sets}


def _cdi(daemon: Mapping[str, Any]) -> bool:
    """Return whether a daemon.json enables CDI."""
    return daemon.get("features", {}).get("cdi") is True


def with_client(packages: Sequence[str], system: Mapping[str, Any]) -> list[str]:
    """Return the packages of an engine, with the client's package if the distribution has one."""
    apart = system["id"] == "debian" and int(system["version_id"].partition(".")[0] or 0) >= CLIENT_SINCE
    return [*packages, *([CLIENT] if apart and "docker.io" in packages and CLIENT not in packages else [])]


def _keys(*ends: str) -> list[str]:
    """Return names that begin with the name of a runtime for devices."""
    return [one.name + end for one in runtimes() for end in ends]


def _settings(runtime: Runtime, live: Mapping[str, Any], wanted: bool, host_name: str) -> str | None:
    """Return the settings that a runtime should have; settings that cannot be edited stay as they are."""
    text: str | None = live.get(f"{runtime.name}_config")
    known = runtime.settings
    if not wanted or known is None or known.problems(text, host_name):
        return text
    return known.configured(text, host_name)


def _to_write(changes: Mapping[str, Any], live: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the files to write, for module gaudi_files, with a copy of the previous daemon.json."""
    files: list[dict[str, Any]] = []
    mode = live["daemon_json_mode"] or "0644"
    if "daemon.json" in changes["write"]:
        if live["daemon_json"] is not None:
            kept = {"path": f"{DAEMON_JSON}.before-gaudi-serve", "content": live["daemon_json"]}
            files.append({**kept, "mode": mode, "hide": True})
        files.append(_daemon_file(live, wanted["daemon_json"]))
    for one in _wanted_runtimes(wanted):
        if one.settings and _leaf(one.settings.path) in changes["write"]:
            files.append({"path": one.settings.path, "content": wanted[f"{one.name}_config"], "mode": "0644"})
    return files


def _daemon_file(live: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return daemon.json for module gaudi_files; Docker validates it."""
    validate = ["dockerd", "--validate", "--config-file", "%s"]
    own = {"path": DAEMON_JSON, "content": text, "mode": live["daemon_json_mode"] or "0644"}
    return {**own, "validate": validate, "hide": '"proxies"' in text}


def _reset(given: Given) -> dict[str, Any]:
    known = given.known
    packages = [
        *known["container_runtime_distribution_packages"],
        *known["container_runtime_vendor_packages"],
        *("python3-debian", CLIENT, *(name for one in runtimes() for name in one.packages)),
    ]
    remove = is_true(known["container_runtime_reset_packages"])
    return container_runtime_reset(known["gaudi_runtime"], known["gaudi_left"], packages, remove)


STAGE = Stage(
    role="container_runtime",
    tag="runtime",
    reads=("system", "runtime", "services"),
    down=(1, "the engine restarts, and its containers with it"),
    ends_all="restarts",
    noted=("report",),
    taken=("reset_packages",),
    pending=_pending,
    expected=_expected,
    reset=_reset,
)
