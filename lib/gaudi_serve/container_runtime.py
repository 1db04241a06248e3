"""What container_runtime wants of the engine, and what is left to do there."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from .errors import InputError

HABANA = {"path": "/usr/bin/habana-container-runtime", "runtimeArgs": []}
ENGINES = {"distribution": ["docker.io"], "vendor": ["docker-ce", "docker-ce-cli", "containerd.io"]}


def daemon_json(text: str | None, habana: bool, live_restore: bool, data_root: str, host_name: str) -> str:
    """Merge what is wanted into a daemon.json and keep everything else in it, in its order.

    Args:
        text: the file's text, None where there is none.
        habana: whether the habana runtime belongs in.
        live_restore: whether containers outlive the engine.
        data_root: folder of the engine's data; empty leaves it as it is.
        host_name: how messages call the host.

    Returns:
        The text wanted: the given one, to the letter, where it holds everything already.

    Raises:
        InputError: with line and column, where the text is no JSON object.
    """
    where = f"{host_name}: /etc/docker/daemon.json"
    try:
        found = json.loads(text) if text and text.strip() else {}
    except ValueError as problem:
        at = f"line {problem.lineno}, column {problem.colno}" if isinstance(problem, json.JSONDecodeError) else "?"
        detail = problem.msg if isinstance(problem, json.JSONDecodeError) else str(problem)
        raise InputError(f"{where}: {at}: {detail}. The file is as it was; mend it and run again.") from None
    if not isinstance(found, dict) or not isinstance(found.get("runtimes", {}), dict):
        what = "runtimes" if isinstance(found, dict) else "the whole"
        raise InputError(f"{where}: {what} must be a JSON object. The file is as it was; mend it and run again.")
    merged = {**found, "live-restore": live_restore}
    if data_root:
        merged["data-root"] = data_root
    if habana:
        merged["runtimes"] = {**found.get("runtimes", {}), "habana": HABANA}
    return text if text and merged == found else json.dumps(merged, indent=2) + "\n"


def habana_config(text: str | None) -> str:
    """Return the habana runtime's config.toml with ``visible_devices_all_as_default = false``.

    Without it, a container of this runtime that names no cards gets all of them. The runtime reads
    the key in its own section only.
    """
    wanted, section = "visible_devices_all_as_default = false", "[habana-container-runtime]"
    lines = (text or "").splitlines()
    if section not in map(str.strip, lines):
        lines += [section]
    begin = [line.strip() for line in lines].index(section) + 1
    end = next((i for i in range(begin, len(lines)) if lines[i].lstrip().startswith("[")), len(lines))
    for number in range(begin, end):
        if re.match(r"\s*#?\s*visible_devices_all_as_default\s*=", lines[number]):
            lines[number] = wanted
            break
    else:
        lines.insert(begin, wanted)
    return "\n".join(lines) + "\n"


def container_runtime_changes(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the wanted engine with the running one.

    Args:
        live: ``gaudi_runtime`` of the host.
        wanted: ``engine`` (distribution or vendor), ``habana`` (bool), ``habana_version`` (or empty),
            ``live_restore``, ``data_root`` (or empty), ``daemon_json``, ``habana_config``,
            ``proxies`` (texts; empty where nothing is wanted).

    Returns:
        ``install_engine``, ``install_habana``, ``write``, ``reload``, ``restart``: what differs, as
        sentences; ``due``. A restart is asked for only where the running daemon lacks what cannot be reloaded.
    """
    info = live["info"] or {}
    found: dict[str, Any] = {
        "install_engine": [] if _has_engine(live) else [f"install {', '.join(ENGINES[wanted['engine']])}"],
        "install_habana": _habana_package(live, wanted),
        "write": _files(live, wanted),
        "restart": _restart(live, info, wanted),
        "reload": [],
    }
    if wanted["habana"] and info.get("runtimes", {}).get("habana") != HABANA:
        found["reload"].append("the running engine lacks the habana runtime")
    if info.get("live_restore") is not wanted["live_restore"]:
        found["reload"].append(f"live-restore: {info.get('live_restore')} -> {wanted['live_restore']}")
    if not live["enabled"]:
        found["restart"].append("docker.service does not start at boot")
    found["due"] = any(found.values())
    return found


def _has_engine(live: Mapping[str, Any]) -> bool:
    # Either will do: an engine that a user has installed is not swapped for another.
    return bool({"docker.io", "docker-ce"} & set(live["packages"]))


def _habana_package(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    found, version = live["packages"].get("habanalabs-container-runtime"), wanted["habana_version"]
    if not wanted["habana"] or (found and version in ("", found)):
        return []
    return [f"habanalabs-container-runtime: {found} -> {version or 'newest'}"]


def _files(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    differing = [] if live["daemon_json"] == wanted["daemon_json"] else ["daemon.json"]
    if wanted["habana"] and live["habana_config"] != wanted["habana_config"]:
        differing.append("config.toml")
    text = wanted["proxies"]
    digest = hashlib.sha256(text.encode()).hexdigest() if text else None
    return differing + ([] if live["proxies_sha256"] == digest else ["proxy"])


def _restart(live: Mapping[str, Any], info: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    if not info:
        return [f"the engine does not answer: {live['reason']}"]
    reasons = []
    if wanted["data_root"] and info["data_root"] != wanted["data_root"]:
        reasons.append(f"data-root: {info['data_root']} -> {wanted['data_root']}")
    if "proxy" in _files(live, wanted) or live["proxies_newer"]:
        # Values may carry credentials: they are compared by digest and age, never read.
        reasons.append("proxies: the running engine has others")
    return reasons


def container_runtime_notes(live: Mapping[str, Any], host_name: str) -> list[str]:
    """Return what a user should know of a running engine."""
    if (live["info"] or {}).get("default_runtime") == "habana":
        return [f"{host_name}: habana is the engine's default runtime: containers that need no cards get them too"]
    return []
