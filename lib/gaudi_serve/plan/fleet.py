"""The plan of a fleet in one call, from live or saved facts, and its output."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..catalog.files import sound_entries
from ..core.errors import Finding, one_line, plain
from ..core.table import model_cell, table
from ..core.words import counted, some_names
from ..gateway.fleet import fleet_gateways, gateway_left, removes_gateway
from ..inventory.facts import FACTS, INSTEAD, checked_facts, checked_variables, rendered_of
from ..inventory.variables import (
    input_problems,
    of_gateways,
    problem_text,
    strange_secrets,
    unknown_variables,
    written_problems,
)
from ..model.distributed import answers, entry_problems, host_models, hosts_of
from ..model.host import Host, LiveModel, live_models
from ..monitoring.fleet import is_monitor
from ..platforms import platform_of
from ..show.page.machine import card_rows, link_rows
from ..stages.accelerator_network import network_problems
from ..stages.changes import StageChanges
from ..stages.monitoring import monitoring_problems
from ..stages.registry import LEFT_ALONE, REPORTED, STAGES, awaits_driver, expected_host, still_serves, task_hosts
from ..stages.service import runs_as_planned
from .assembly import assemble
from .changes import vllm_plan_changes
from .downtime import Down, downtimes
from .peers import DISTRIBUTED, Fleet, catalogs_of, tied_models
from .refusal import without_driver_twice
from .together import tried_together
from .tried import parted, tried_name, unknown_entry, with_tried

Known = Mapping[str, Any]
Findings = list[Finding]
SERVES = ("vllm_models", DISTRIBUTED)
GATEWAY = {"fleet_gateway", "fleet_gateway_secret"}


def vllm_fleet_plan(
    hostvars: Mapping[str, Known], hosts: Sequence[str], catalog_dirs: Collection[str], facts_dir: str = ""
) -> dict[str, Any]:
    """Plan all hosts.

    Args:
        hostvars: Variables by host. It reads vllm_models, vllm_images, vllm_model_defaults, vllm_catalog_dirs,
            vllm_secrets (only their form), accelerator, accelerator_cards, accelerator_release, gaudi_host_nics,
            gaudi_device_family, fleet_move_allowed, preflight_catalog (instead of all folders of the catalog),
            plan_facts_dir (only whether it is set), plan_try (a catalog entry that is planned in addition; if it does
            not fit, that is a warning), and the facts of gaudi_facts.
        hosts: The hosts to plan.
        catalog_dirs: Folders of the catalog for all hosts. A host's own folders follow them.
        facts_dir: Folder with one ``<host>.json`` each, as gaudi_facts_saved returns them, or with only a
            ``gaudi_host``. Empty: use the facts in ``hostvars``.

    Returns:
        ``hosts``: by name ``{facts, cards, models, changes}``. ``facts`` is a line about the host, ``cards`` are the
        rows of card_rows. A live host also has ``links`` (link_rows), ``due`` (differences by stage, as lines),
        ``reboot`` (the reasons for a reboot that is not allowed) and ``down`` (``{model, stage, reason, minutes}`` of
        every serving model that a run takes down; minutes is null if it does not start again).
        ``errors`` and ``warnings`` of all hosts. A user's mistake never raises. A host has only errors if its facts
        or its variables are wrong or unreadable.
    """
    fleet: dict[str, Any] = {"hosts": {}, "errors": [], "warnings": []}
    known = Fleet(hostvars, fleet_gateways(hostvars, hostvars), hosts, facts_dir, catalogs_of(catalog_dirs))
    tasks = task_hosts(hostvars, list(hostvars))
    for name in hosts:
        host, findings = _host_plan(name, known, tasks)
        # A user's name with unprintable characters must not break the lines of other messages.
        fleet["errors"] += [{**one.as_dict(), "message": one_line(one.message)} for one in findings]
        if host:
            fleet["warnings"] += host.pop("warnings")
            fleet["hosts"][name] = host
    fleet["warnings"] += [*_together(hosts, known, fleet), *_too_few(hosts, known, fleet)]
    return fleet


def _too_few(hosts: Sequence[str], known: Fleet, fleet: Known) -> list[str]:
    """Return the models with fewer servers in the fleet than min_available. No rollout could take one of them down.

    Empty if a host that may serve is not planned, because its servers are unknown.
    """
    away = [name for name in known.hostvars if name not in hosts or name not in fleet["hosts"]]
    if any(rendered_of(known.hostvars[name], SERVES)[0].get(key) for name in away for key in SERVES):
        return []
    servers: dict[str, list[tuple[str, Known]]] = {}
    for name, host in fleet["hosts"].items():
        for model in host["models"]:
            for one in model["served"] if model["state"] == "started" and answers(model) else ():
                servers.setdefault(str(one["served_model_name"]), []).append((name, model))
    return [
        f"{name}: model {model['name']}: min_available {model['min_available']} is more than the fleet's "
        f"{counted(len(one), 'server')} of {served}: a rollout refuses to take any of them down"
        for served, one in servers.items()
        for name, model in one
        if (model["min_available"] or 0) > len(one)
    ]


def _together(hosts: Sequence[str], known: Fleet, fleet: Known) -> list[str]:
    """Return on which hosts together the tried entry fits, if each host alone is too small."""
    entries = {str(known.hostvars[name].get("plan_try") or "") for name in hosts}
    entry = entries.pop() if len(entries) == 1 else ""
    planned = [model["name"] for host in fleet["hosts"].values() for model in host["models"]]
    if not entry or tried_name(entry) in planned or len(hosts) < 2:
        return []
    tied = {name: tied_models(name, known) for name in hosts if name in fleet["hosts"]}
    peers = {name: known.peer(name, one.chosen, one.left) for name, one in tied.items()}
    read = {name: one for name, one in peers.items() if one and entry in one.wanted.catalog}
    found = tried_together(read, entry)
    return [f"{next(iter(read))}: {found}"] if found else []


def gaudi_facts_saved(known: Known) -> dict[str, Any]:
    """Return the facts of a host that planning needs, to save as ``<host>.json``. They contain no secret."""
    return {name: known[name] for name in FACTS if name in known}


def _host_plan(name: str, fleet: Fleet, tasks: Sequence[str]) -> tuple[dict[str, Any] | None, Findings]:
    """Return the plan of a host, or None if it cannot be made, and all findings.

    tasks: the hosts that have a task for others.
    """
    hostvars, gateways = fleet.hostvars, fleet.gateways
    variables, saved = hostvars[name], fleet.is_saved(name)
    known, unread = fleet.given(name)
    errors = [Finding(name, one.key, f"{name}: {one.text}", one.model) for found in unread.values() for one in found]
    errors += _of_inventory(name, hostvars, known, () if GATEWAY & set(unread) else gateways)
    given, problem = fleet.facts(name, known)
    models = host_models(known.get("vllm_models"), known.get(DISTRIBUTED), name, groups=fleet.groups(name))
    unknown = bool(problem) and not _serves_nothing(variables, saved and models is None)
    idle = not (unknown or name in tasks or "vllm_models" in unread or _has_models(models, known, given))
    if problem and not idle:
        return None, [*errors, _error(name, "facts", problem.removeprefix(f"{name}: "))]
    facts, wrong = ({}, []) if idle else checked_facts(given)
    values, unfit, unsound = checked_variables(known, unread)
    errors += [_problem(name, "facts: ", *problem) for problem in wrong]
    errors += [_problem(name, "", *problem) for problem in (*unfit, *input_problems(known))]
    # An inventory can contain the complete catalog as a variable.
    whole = values["preflight_catalog"]
    catalog, lost = sound_entries(whole) if whole else fleet.catalogs(values["vllm_catalog_dirs"])
    errors += [_error(name, "preflight_catalog" if whole else "vllm_catalog_dirs", text) for text in lost]
    told = {} if saved else {key: variables[key] for key in REPORTED if key in variables}
    if wrong or not unsound <= set(INSTEAD):
        return None, errors
    if idle:
        kind = _kind(name in gateways or removes_gateway(known.get("fleet_gateway")), is_monitor(variables))
        return _without_models(name, given, told, kind, saved), errors + _refused_by_roles(name, told, errors)
    host, more = _planned(name, {**known, **told}, facts, values, catalog, fleet)
    if not saved:
        host |= _told(host, facts, told, known.get("gaudi_runtime")) | {"links": link_rows(variables.get("gaudi_hccl"))}
        more += _refused_by_roles(name, told, errors + more)
    host.pop("plan")
    host["changes"] = host["changes"] or []
    if lost or "vllm_catalog_dirs" in unsound:
        # Models may use entries that could not be read.
        more = [one for one in more if one.key != "model" or not isinstance(one.value, str)]
    return host, errors + without_driver_twice(more, told)


def _kind(gateway: bool, monitor: bool) -> str:
    """Return the task of a host without models."""
    return "a gateway" if gateway else "watches the fleet" if monitor else LEFT_ALONE


def _of_inventory(name: str, hostvars: Mapping[str, Known], known: Known, gateways: Sequence[str]) -> Findings:
    """Return the findings about variables that need neither the models nor the facts of a host."""
    return [
        _error(name, key, text.removeprefix(f"{name}: "))
        for key, found in (
            ("inventory", unknown_variables(hostvars[name], name)),
            ("vllm_models", written_problems(known, name, hostvars[name].get("inventory_dir"))),
            ("vllm_secrets", strange_secrets(known, name, hostvars)),
            ("fleet_gateway", of_gateways(known, gateways, name, hostvars)),
            ("accelerator_network_ports", network_problems(known, name, hostvars)),
            ("fleet_monitoring", monitoring_problems(known.get("fleet_monitoring"), hostvars, name)),
            ("hosts", entry_problems(known.get(DISTRIBUTED), name, list(hostvars), hostvars[name].get("groups"))),
        )
        for text in found
    ]


def _expected(name: str, known: Known, facts: Known) -> Known:
    """Return the facts that the stages before the models will change."""
    # For a live host, gaudi_plan has computed them with the roles' defaults and the driver.
    expected: Known | None = known.get("preflight_expected")
    return expected_host(name, {**known, **facts}, (), plans_again=True) if expected is None else expected


def _planned(
    name: str,
    known: Known,
    facts: Known,
    values: Known,
    catalog: Mapping[str, Any],
    fleet: Fleet,
) -> tuple[dict[str, Any], Findings]:
    host, expected = facts["gaudi_host"], _expected(name, known, facts)
    tied = tied_models(name, fleet, waits=bool(expected.get("awaits_driver")))
    wanted, entry = fleet.wanted(name, known, facts, values, catalog, tied), known.get("plan_try") or ""
    strange = unknown_entry(entry, catalog, name) if entry else None
    tried = "" if strange else str(entry)
    if tried:
        given = {**values, "vllm_models": wanted.models, "vllm_model_defaults": wanted.defaults}
        wanted = dataclasses.replace(wanted, models=with_tried(given, tried, host))
    runtime = known.get("gaudi_runtime")
    facts = {**facts, "gaudi_host": {**host, **expected}}
    found = assemble(name, wanted, facts, runtime if isinstance(runtime, Mapping) else None, fleet.gateways, tied.peers)
    errors, answer = parted([*tied.findings, *found.findings, *([strange] if strange else [])], tried)
    named = {*(str(one.model) for one in errors), *wanted.left}
    plan = found.models
    # If no models are set, or cannot be planned yet, no changes are shown for the models that run.
    unknown = wanted.models is None or awaits_driver(known)
    changes = None if unknown else vllm_plan_changes(plan["models"], host["services"], named)
    about = {"facts": _about(host, facts), "cards": card_rows(host), "models": plan["models"], "changes": changes}
    return {**about, "plan": plan, "warnings": [*found.warnings, *answer]}, errors


def _without_models(name: str, facts: Known, told: Known, kind: str, saved: bool) -> dict[str, Any]:
    """Return the plan of a host without models. Its kind describes its purpose."""
    known: dict[str, Any] = {"due": StageChanges.of(told).pending, "reboot": [], "down": [], "links": None}
    live = {} if saved and kind != LEFT_ALONE else known
    gateways = [name] if kind == "a gateway" else []
    warnings = gateway_left(facts.get("gaudi_services"), gateways, name)
    return {"facts": kind, "cards": [], "models": [], "changes": [], **live, "warnings": warnings}


def _serves_nothing(variables: Known, unsaved: bool) -> bool:
    """Return whether a host without facts serves nothing: none are saved, or its Python is too old."""
    return unsaved or bool((variables.get("preflight_unread") or {}).get("old_python"))


def _has_models(models: Any, known: Known, facts: Known) -> bool:
    """Return whether a host has or will have models, or one is tried there. The facts are not checked yet."""
    if models or known.get("plan_try"):
        return True
    host, services = facts.get("gaudi_host"), facts.get("gaudi_services")
    live = host.get("services") if isinstance(host, Mapping) else None
    return bool(live) or (isinstance(services, Mapping) and still_serves(services))


def _told(host: Known, facts: Known, told: Known, runtime: Any) -> dict[str, Any]:
    """Return the roles' facts of a live host: pending changes, reasons for a reboot that is not allowed, downtimes."""
    # Include the stage of the models only if they have no lines of their own, as for a changed unit file.
    shown = [stage for stage in STAGES if stage != "vllm_service" or host["changes"] == []]
    return {
        "due": StageChanges.of(told, shown).pending,
        "reboot": [] if told.get("host_tuning_reboots") or told.get("bios_reboots") else _reboot_reasons(told),
        "down": [
            dataclasses.asdict(one) for one in downtimes({**told, **_going_down(host, facts), "gaudi_runtime": runtime})
        ],
    }


def _reboot_reasons(told: Known) -> list[str]:
    return [text for role in ("bios", "host_tuning") for text in told.get(f"{role}_reboot_reasons") or []]


def _going_down(host: Known, facts: Known) -> dict[str, Any]:
    """Return the input of downtimes from a plan: the models that restart, stop or are removed."""
    live = live_models(facts["gaudi_host"])
    planned = {model["name"]: model for model in host["models"]}
    stops = {
        "remove": [name for name in live if name not in (*planned, *host["plan"]["left"])],
        "stop": [name for name, model in planned.items() if model["state"] == "stopped"],
        "restart": [
            name
            for name, model in planned.items()
            if model["state"] == "started" and name in live and _restarts(live[name], model)
        ],
    }
    # A mistake in a model's entry does not remove the model.
    if host["plan"]["errors"] or host["changes"] is None:
        stops["remove"] = []
    due = {"vllm_service_due": ["models"] if any(stops.values()) else []}
    return {"gaudi_host": facts["gaudi_host"], "preflight_plan": host["plan"], "vllm_service_stops": stops, **due}


def _restarts(live: LiveModel, model: Known) -> bool:
    return not runs_as_planned(live, model) or live.secret_changed


def _refused_by_roles(name: str, told: Known, errors: Findings) -> Findings:
    """Return the roles' refusals. Without any other error, return why the roles could not check."""
    found = [
        Finding(name, stage, text)
        for stage in STAGES
        for text in told.get(f"{stage}_refusal") or []
        if text not in [one.message for one in errors]
    ]
    if "preflight_unclear" in told and not found and not errors:
        found.append(_error(name, "host", str(told["preflight_unclear"])))
    return found


def _problem(host: str, where: str, key: str, value: Any, allowed: str) -> Finding:
    text = where + problem_text(key, value, allowed)
    return Finding(host, key, f"{host}: {text}", None, plain(value), allowed)


def _error(host: str, key: str, text: str) -> Finding:
    return Finding(host, key, f"{host}: {text}")


def _about(host: Known, facts: Known) -> str:
    system = (facts.get("gaudi_system") or {}).get("pretty_name")
    return ", ".join(
        [*platform_of(host["accelerator"]).about(Host.of(host)), *([system] if system else []), str(host["ip"])]
    )


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


def _frozen(models: Sequence[Known]) -> list[str]:
    """Return after which time the models of a host restart if they freeze; models with the same limit share a line."""
    limits: dict[str, list[str]] = {}
    for model in models:
        if model["state"] == "started":
            limit, least = model["hang_timeout_s"], model.get("hang_least_s")
            after = f"after {least} to {limit} s (10 times its longest step)" if least else f"after {limit} s"
            limits.setdefault(after if limit else "never (hang_timeout_s 0)", []).append(str(model["name"]))
    return [text + (f": {', '.join(names)}" if len(limits) > 1 else "") for text, names in limits.items()]


def vllm_fleet_lines(fleet: Mapping[str, Any]) -> list[str]:
    """Return a fleet's plan as lines of text: a table per host, changes, warnings, errors."""
    lines: list[str] = []
    for name, host in fleet["hosts"].items():
        lines += ["", f"{name}: {host['facts']}"]
        rows = [_row(model) for model in host["models"]]
        shown_rows = [f"  {line}" for line in table(_narrowed([_head(host), *rows]))] if rows else ["  no models"]
        lines += [] if host["facts"] == LEFT_ALONE else shown_rows
        lines += [f"  a frozen server restarts {text}" for text in _frozen(host["models"])]
        changes = _changes(host)
        lines += ["  would change:", *[f"    {line}" for line in changes]] if changes else []
        if host.get("reboot"):
            lines.append("  a reboot is pending, which is not allowed yet (host_tuning_reboot_allowed: true):")
            lines += [f"    {text}" for text in host["reboot"]]
        if "due" not in host:
            lines.append("  from saved facts: only a live host shows the other changes of a run")
    for key, title in (("warnings", "WARNINGS"), ("errors", "ERRORS")):
        found = [item["message"] if isinstance(item, Mapping) else item for item in fleet[key]]
        lines += ["", f"{title} ({len(found)})", *[f"  {text}" for text in _grouped(found)]] if found else []
    hosts, models = len(fleet["hosts"]), sum(len(host["models"]) for host in fleet["hosts"].values())
    changing = sum(bool(_changes(host)) for host in fleet["hosts"].values())
    counts = (counted(hosts, "host"), counted(models, "model"), f"{counted(changing, 'host')} would change")
    summary = f"{', '.join(counts)}, {counted(len(fleet['errors']), 'error')}"
    return [*lines[1:], "", summary]


def vllm_fleet_summary(fleet: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a fleet's plan by which a person or the next node of a workflow decides.

    Returns:
        ``changing`` (names of hosts), ``changes`` (lines by host), ``down`` (by host, as in the plan),
        ``errors`` and ``warnings`` (sentences), ``failure`` (why plan.yml fails; empty if it does not), ``text``
        (the complete plan as text).
    """
    changes = {name: found for name, host in fleet["hosts"].items() if (found := _changes(host))}
    return {
        "changing": sorted(changes),
        "changes": changes,
        "down": {name: host["down"] for name, host in fleet["hosts"].items() if host.get("down")},
        "errors": [error["message"] for error in fleet["errors"]],
        "warnings": list(fleet["warnings"]),
        "failure": _failure(fleet["errors"]),
        "text": "\n".join(vllm_fleet_lines(fleet)),
    }


def _failure(errors: Sequence[Known]) -> str:
    """Return why plan.yml fails. Its task runs once, under the name of the first host, so the sentence names hosts."""
    hosts = list(dict.fromkeys(str(one["host"]) for one in errors))
    return f"{counted(len(errors), 'error')} in the plan of {some_names(hosts)}, listed above" if errors else ""


def _changes(host: Known) -> list[str]:
    """Return the changes of a run on a host: before the models, to the models, and the downtimes."""
    due = [f"{STAGES[stage]}: {text}" for stage, texts in host.get("due", {}).items() for text in texts]
    return [*due, *host["changes"], *[f"! {Down(**one).line}" for one in host.get("down", [])]]


def _grouped(sentences: Sequence[str]) -> list[str]:
    """Return sentences that begin with a host's name. Equal sentences of several hosts are merged."""
    hosts: dict[str, list[str]] = {}
    for sentence in sentences:
        host, _, rest = sentence.partition(": ")
        hosts.setdefault(rest, []).append(host)
    return [f"{some_names(names)}: {rest}" for rest, names in hosts.items()]


def _narrowed(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return rows without the columns that are empty for all models."""
    kept = [column for column in range(len(HEAD)) if any(row[column] != "-" for row in rows[1:])]
    return [[row[column] for column in kept] for row in rows]


def _runs(parts: Sequence[str]) -> str:
    """Return numbers and ranges, with adjacent ones merged: 0-9 and 10-19 become 0-19."""
    runs: list[tuple[int, int]] = []
    for part in parts:
        first, _, last = part.partition("-")
        joins = runs and runs[-1][1] + 1 == int(first)
        begin = runs.pop()[0] if joins else int(first)
        runs.append((begin, int(last or first)))
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def _head(host: Known) -> list[str]:
    """Return the head of a host's table. A model on processors uses memory of NUMA nodes, not of cards."""
    on_nodes = any("nodes" in (model["memory"] or {}) for model in host["models"])
    return ["GIB/NODE" if on_nodes and name == "GIB/CARD" else name for name in HEAD]


def _used(memory: Known) -> str:
    """Return the GiB that a model uses of a card, and what it may use."""
    if "nodes" in memory:
        return f"{memory['requested_gib']}/{memory['most_gib']}"
    return f"{memory['device_gib'] - memory['left_gib']:.0f}/{memory['device_gib']}"


def _row(model: Mapping[str, Any]) -> list[str]:
    memory = model["memory"]
    used = _used(memory) if memory else "-"
    return [
        model_cell(model) + (" (stopped)" if model["state"] == "stopped" else ""),
        _runs([str(number) for number in model["module_ids"]]) or "cpu",
        _runs(model["cpus"] or []) or "-",
        str(model["port"]) if answers(model) else hosts_of(model)[0],
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
