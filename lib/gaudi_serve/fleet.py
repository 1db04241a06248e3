"""The plan of a whole fleet in one call, from live facts or from saved ones, and how it is shown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .changes import vllm_plan_changes
from .errors import InputError
from .image import vllm_images
from .plan import vllm_plan
from .refusal import host_errors
from .table import table

Known = Mapping[str, Any]
FACTS = ("gaudi_system", "gaudi_host", "gaudi_services")


def vllm_fleet_plan(
    hostvars: Mapping[str, Known], hosts: Sequence[str], catalog: Mapping[str, Any], facts_dir: str = ""
) -> dict[str, Any]:
    """Plan all hosts.

    Args:
        hostvars: variables by host; read are vllm_models, vllm_images, vllm_model_defaults,
            vllm_secrets (for their form), gaudi_accelerator, gaudi_cards, gaudi_release,
            gaudi_host_nics, preflight_catalog, and the facts of gaudi_facts.
        hosts: the hosts to plan.
        catalog: known models.
        facts_dir: folder with one ``<host>.json`` each, as gaudi_facts_saved returns them, or holding
            only a ``gaudi_host``; empty takes the facts in ``hostvars``.

    Returns:
        ``hosts``: by name ``{facts, models, changes}``, ``facts`` being a line about the host;
        ``errors`` and ``warnings`` of all hosts. A user's mistake never raises.
    """
    fleet: dict[str, Any] = {"hosts": {}, "errors": [], "warnings": []}
    for name in hosts:
        known = hostvars[name]
        facts, problem = _saved(facts_dir, name) if facts_dir else _live(known, name)
        if problem:
            fleet["errors"].append(_error(name, "facts", problem))
            continue
        one = _host_plan(name, known, facts, catalog)
        fleet["hosts"][name] = {key: one[key] for key in ("facts", "models", "changes")}
        fleet["errors"] += one["errors"]
        fleet["warnings"] += one["warnings"]
    return fleet


def gaudi_facts_saved(known: Known) -> dict[str, Any]:
    """Return what of a host's facts planning needs, to be saved as ``<host>.json``. No secret is in it."""
    return {name: known[name] for name in FACTS if name in known}


def _host_plan(name: str, known: Known, facts: Known, catalog: Mapping[str, Any]) -> dict[str, Any]:
    host, release = facts["gaudi_host"], str(known.get("gaudi_release") or "1.21.3")
    models, services = known.get("vllm_models"), host.get("services") or {}
    wanted, problems = _images(name, known, release)
    plan = vllm_plan(
        [] if models is None else models,
        host,
        known.get("preflight_catalog") or catalog,
        host_name=name,
        defaults=known.get("vllm_model_defaults") or {},
        release=release,
        host_nics=_true(known.get("gaudi_host_nics")),
        images=wanted,
    )
    images = None
    if "gaudi_services" in facts:
        images = [*wanted, *facts["gaudi_services"]["images"]]
    errors = problems + host_errors(
        plan,
        facts.get("gaudi_system"),
        host,
        host_name=name,
        wanted=known.get("gaudi_accelerator") or "auto",
        cards=int(known.get("gaudi_cards") or 0),
        release=release,
        images=images,
        daemon=known.get("gaudi_runtime", {}).get("daemon_json"),
        secrets=known.get("vllm_secrets"),
    )
    if models is None and services:
        errors.append(_error(name, "vllm_models", unset_models(name, services)))
    changes = vllm_plan_changes(plan["models"], services) if models is not None else []
    about = {"facts": _about(host, facts), "models": plan["models"], "changes": changes}
    return {**about, "errors": errors, "warnings": plan["warnings"]}


def _images(name: str, known: Known, release: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    try:
        return vllm_images(known.get("vllm_images") or [], release), []
    except InputError as problem:
        return [], [_error(name, "vllm_images", f"{name}: {problem}")]


def unset_models(name: str, services: Mapping[str, Any]) -> str:
    """Return the sentence for a host that serves models while its inventory names none."""
    return (
        f"{name}: vllm_models is not set, but this host serves {', '.join(services)}; "
        "say vllm_models: [] to remove them all"
    )


def _live(known: Known, name: str) -> tuple[Known, str | None]:
    if "gaudi_host" in known:
        return known, None
    return {}, f"{name}: could not be read; see above, or plan it from saved facts (plan_facts_dir)"


def _saved(folder: str, name: str) -> tuple[Known, str | None]:
    path = Path(folder) / f"{name}.json"
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        facts = facts if "gaudi_host" in facts else {"gaudi_host": facts}
        if facts["gaudi_host"]["accelerator"] not in ("gaudi", "cpu"):
            raise ValueError("accelerator is neither gaudi nor cpu")
        return facts, None
    except FileNotFoundError:
        return {}, f"{name}: no saved facts {path}; save them with playbooks/plan.yml -e plan_save_facts_dir={folder}"
    except (OSError, ValueError, KeyError, TypeError) as problem:
        return {}, f"{name}: {path}: not saved facts: {problem!r}"


def _error(host: str, key: str, message: str) -> dict[str, Any]:
    return {"host": host, "model": None, "key": key, "value": None, "allowed": None, "message": message}


def _true(value: Any) -> bool:
    return str(value).lower() in ("true", "yes", "on", "1")


def _about(host: Known, facts: Known) -> str:
    system = (facts.get("gaudi_system") or {}).get("pretty_name")
    if host["accelerator"] == "cpu":
        parts = ["CPU host"]
    else:
        nodes = len({module["numa_node"] for module in host["modules"]})
        parts = [f"{len(host['modules'])} cards {host.get('device_name')} on {nodes} NUMA nodes"]
        parts.append(f"driver {host.get('driver_version') or 'unknown'}")
    return ", ".join([*parts, *([system] if system else []), str(host.get("ip", ""))])


HEAD = (
    "MODEL",
    "CARDS",
    "CORES",
    "PORT",
    "PRECISION",
    "CONTEXT",
    "GRAPHS",
    "WARM-UP",
    "CACHED",
    "GIB/CARD",
    "LEFT",
    "FIT",
)


def vllm_fleet_lines(fleet: Mapping[str, Any]) -> list[str]:
    """Return a fleet's plan as lines to read: a table a host, what would change, warnings, errors."""
    lines: list[str] = []
    for name, host in fleet["hosts"].items():
        lines += ["", f"{name}: {host['facts']}"]
        rows = [_row(model) for model in host["models"]]
        lines += [f"  {line}" for line in table([list(HEAD), *rows])] if rows else ["  no models"]
        lines += ["  would change:", *[f"    {line}" for line in host["changes"]]] if host["changes"] else []
    for key, title in (("warnings", "WARNINGS"), ("errors", "ERRORS")):
        found = [item["message"] if isinstance(item, Mapping) else item for item in fleet[key]]
        lines += ["", f"{title} ({len(found)})", *[f"  {text}" for text in _grouped(found)]] if found else []
    hosts, models = len(fleet["hosts"]), sum(len(host["models"]) for host in fleet["hosts"].values())
    changing = sum(bool(host["changes"]) for host in fleet["hosts"].values())
    summary = f"{hosts} hosts, {models} models, {changing} hosts would change, {len(fleet['errors'])} errors"
    return [*lines[1:], "", summary]


def _grouped(sentences: Sequence[str]) -> list[str]:
    """Return sentences that begin with a host's name, those that are the same for several hosts as one."""
    hosts: dict[str, list[str]] = {}
    for sentence in sentences:
        host, _, rest = sentence.partition(": ")
        hosts.setdefault(rest, []).append(host)
    return [
        f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}: {rest}"
        for rest, names in hosts.items()
    ]


def _row(model: Mapping[str, Any]) -> list[str]:
    memory = model["memory"]
    used = f"{memory['device_gib'] - memory['left_gib']:.0f}/{memory['device_gib']}" if memory else "-"
    return [
        model["name"] + (" (stopped)" if model["state"] == "stopped" else ""),
        ",".join(map(str, model["module_ids"])) or "cpu",
        ",".join(model["cpus"] or []) or "-",
        str(model["port"]),
        str(model["dtype"] or "auto"),
        str(model["max_model_len"] or "auto"),
        ("~" if model["buckets"]["approximate"] else "") + ("?" if model["graphs"] is None else str(model["graphs"])),
        "?" if model["warmup_s"] is None else _duration(model["warmup_s"]),
        "-" if model["warmup_cached_s"] is None else _duration(model["warmup_cached_s"]),
        used,
        f"{memory['left_gib']:.0f}" if memory else "-",
        f"{memory['sequences']} of {model['max_num_seqs'] or '-'}" if memory else "-",
    ]


def _duration(seconds: int) -> str:
    return f"{seconds} s" if seconds < 120 else f"{seconds / 60:.0f} min"
