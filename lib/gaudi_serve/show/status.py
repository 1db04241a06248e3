"""The status of a fleet: the live state of every host compared with its plan, and how it is shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from ..core.table import model_cell, table
from ..core.words import counted
from ..gateway.fleet import gateway_left
from ..model.distributed import answers, hosts_of, left_models
from ..model.host import Host
from ..monitoring.metrics import BY_NAME
from ..platforms import card_warnings, serial_notes, sick_cards, with_health
from ..stages.accelerator_network import port_warnings
from ..stages.registry import LEFT_ALONE, OBJECTS
from .notes import open_notes, shared_lines
from .page.machine import card_rows, link_rows
from .report import endpoint, gateway_of, monitor_of

Known = Mapping[str, Any]
# The fact that lists the drift of each part of a host.
PARTS = {"plan": "preflight_status", **{one.tag: f"{one.role}_status" for one in OBJECTS}}
# Facts with notes that are no drift.
NOTES = tuple(f"{one.role}_notes" for one in OBJECTS if "status" in one.noted)
# The error when a host without facts reads the first one.
UNREAD = re.compile(r"'gaudi_\w+' is undefined")


def fleet_status(hostvars: Mapping[str, Known], hosts: Sequence[str]) -> dict[str, Any]:
    """Return the live state of all hosts that playbooks/status.yml has read.

    Args:
        hostvars: variables by host; uses the facts that the roles' status tasks set.
        hosts: the hosts to show.

    Returns:
        ``hosts``: by name ``{read, problem, drift: {part: [line]}, models: [...], notes: [...], gateway,
        monitoring, cards, links}``, the last two as card_rows and link_rows return them;
        ``drifted`` and ``unread``: names of the hosts with drift, and of those that could not be read.
    """
    found = {
        name: {
            **_host(hostvars[name], name),
            "monitoring": monitor_of(hostvars[name]),
            "cards": card_rows(hostvars[name].get("gaudi_host") or {}),
            "links": link_rows(hostvars[name].get("gaudi_hccl")),
        }
        for name in hosts
    }
    models = [(name, model) for name, host in found.items() for model in host["models"]]
    silent = {f"{name}.{model['name']}" for name, model in models if model["answers"] is False}
    for name, host in found.items():
        host["gateway"] = gateway_of(name, hostvars[name], silent)
        for model in host["models"]:
            _count_at_head(name, model, found)
    return {
        "hosts": found,
        "drifted": [name for name, host in found.items() if host["read"] and host["drift"]],
        "unread": [name for name, host in found.items() if not host["read"]],
    }


def _count_at_head(name: str, model: dict[str, Any], hosts: Mapping[str, Any]) -> None:
    """Count the restarts of a model over several hosts once, at its head, and add a note if there are any."""
    head = (model.get("hosts") or [name])[0]
    if name != head:
        there = [one for one in hosts.get(head, {}).get("models", []) if one["name"] == model["name"]]
        model |= {key: there[0][key] for key in ("restarts", "ended")} if there else {}
    elif model["restarts"]:
        last = model["ended"] or {}
        when = f"{datetime.fromtimestamp(last['at'], timezone.utc):%Y-%m-%d %H:%M} UTC" if last.get("at") else ""
        why = f"; last at {when}: {last.get('text', '')}" if when else ""
        count = counted(model["restarts"], "restart")
        hosts[name]["notes"].append(f"model {model['name']}: {count} since its unit was started{why}")


def _host(known: Known, name: str) -> dict[str, Any]:
    problem = str(known["status_problem"]) if "status_problem" in known else ""
    if known.get("preflight_left_alone") and not problem:
        return {"read": True, "problem": "", "drift": _left_gateway(known, name), "models": [], "notes": [LEFT_ALONE]}
    serves = "vllm_service_status" in known
    if not serves and problem and {"gaudi_host", "gaudi_services"} <= known.keys():
        # The host could be read, and not planned.
        drift = {"plan": [" ".join(problem.split())]}
        return {"read": True, "problem": "", "drift": drift, "models": _unplanned(known, ()), "notes": []}
    if not serves and (problem or not {"gateway_status", "monitoring_status"} & known.keys()):
        unreached = not {"gaudi_host", "gaudi_haproxy", "gaudi_metrics"} & known.keys() and (
            not problem or bool(UNREAD.search(problem))
        )
        text = "cannot be reached" if unreached else " ".join(problem.split())
        return {"read": False, "problem": text, "drift": {}, "models": [], "notes": []}
    drift = {part: list(known[fact]) for part, fact in PARTS.items() if known.get(fact)}
    drift |= {} if "gateway_status" in known else _left_gateway(known, name)
    plan = known["preflight_plan"] if serves else {"models": []}
    going_on = left_models(plan, known["gaudi_services"].get("units") or {}) if serves else []
    shown = [*plan["models"], *going_on]
    models = [_model(model, known) for model in shown]
    models += _unplanned(known, [model["name"] for model in shown]) if serves else []
    silent = [f"{model['name']} does not answer: {model['problem']}" for model in models if model["problem"]]
    if silent:
        drift["answers"] = silent
    cards = _cards(known) if serves else []
    stay = [f"model {model}: {why}" for model, why in (plan.get("left") or {}).items() if why]
    told = [*stay, *cards, *(note for fact in NOTES for note in known.get(fact) or [])]
    notes = open_notes(told, known.get("fleet_acknowledged"))
    return {"read": True, "problem": "", "drift": drift, "models": models, "notes": notes}


def _unplanned(known: Known, planned: Sequence[str]) -> list[dict[str, Any]]:
    """Return the models that run on a host without being planned, also because of a mistake. Nobody asks them."""
    units = known["gaudi_services"].get("units") or {}
    there = {"left": [name for name in units if name not in planned]}
    facts = {**known, "preflight_plan": there, "vllm_service_health": {}}
    return [_model(model, facts) for model in left_models(there, units)]


def _left_gateway(known: Known, name: str) -> dict[str, list[str]]:
    """Return the drift of a host whose gateway runs although the inventory has none there."""
    left = [text.removeprefix(f"{name}: gateway: ") for text in gateway_left(known.get("gaudi_services"), [], name)]
    return {"gateway": left} if left else {}


def _cards(known: Known) -> list[str]:
    """Return the notes on the cards of a host."""
    host, excluded = known["gaudi_host"], list(known.get("accelerator_cards_excluded") or [])
    unknown = serial_notes(host, {"accelerator_cards_excluded": excluded})
    health = [*sick_cards(host), *card_warnings(host), *port_warnings(known)]
    return [*Host.of(with_health(host, excluded)).unused_cards, *health, *unknown]


def _model(model: Known, known: Known) -> dict[str, Any]:
    name = model["name"]
    services = known["gaudi_services"]
    unit = services["units"].get(name) or services.get("without_unit", {}).get(name) or {}
    problem = known["vllm_service_health"].get(name)
    asked = answers(model) and name not in (known["preflight_plan"].get("left") or ())
    return {
        "name": name,
        **({"served": model["served"]} if len(model.get("served") or ()) > 1 else {}),
        **({"adapters": model["adapters"]} if model.get("adapters") else {}),
        "wanted": model["state"],
        "state": unit.get("state", "not there"),
        "status": unit.get("status", ""),
        # systemd's count since the unit was last started on purpose. ended: the last end of its server.
        "restarts": unit.get("restarts", 0),
        "ended": unit.get("ended"),
        # None if the model is not probed: a worker has no endpoint.
        "answers": problem == "" if asked else None,
        **({"hosts": hosts} if (hosts := hosts_of(model)) else {}),
        "problem": problem or "",
        "module_ids": model["module_ids"],
        "url": endpoint(model, unit, str(known["gaudi_host"]["ip"])),
    }


def fleet_status_lines(status: Known) -> list[str]:
    """Return a fleet's status as text: a table of models, the drift, and a last line with counts."""
    rows = [["HOST", "MODEL", "CARDS", "STATE", "ANSWERS", "URL"]]
    lines: list[str] = []
    for name, host in status["hosts"].items():
        rows += [[name, *_cells(model)] for model in host["models"]]
        if gateway := host["gateway"]:
            rows.append([name, "(gateway)", "-", gateway["state"], f"{gateway['up']} of {gateway['servers']} up"])
            rows[-1].append(gateway["url"])
            rows += [[name, "(chat)", "-", gateway["state"], "-", gateway["chat"]]] if gateway["chat"] else []
        if monitor := host["monitoring"]:
            rows.append([name, "(prometheus)", "-", monitor["state"], "-", monitor["url"]])
        if not host["read"]:
            lines.append(f"{name}: {host['problem'].removeprefix(f'{name}: ')}")
        for part, drift in host["drift"].items():
            # Refusals begin with the host's name.
            lines += [f"{name}: {part}: {text.removeprefix(f'{name}: ')}" for text in drift]
    lines += shared_lines({name: host["notes"] for name, host in status["hosts"].items()})
    good = len(status["hosts"]) - len(status["drifted"]) - len(status["unread"])
    counts = f"{counted(len(status['hosts']), 'host')}: {good} as planned, {len(status['drifted'])} drifted"
    tail = f"{counts}, {len(status['unread'])} could not be read"
    return [*(table(rows) if len(rows) > 1 else []), *lines, tail]


def status_metrics(status: Known, host: str, now: float) -> str:
    """Return the status of a host as metrics for node exporter: the number of pending changes of each stage.

    Args:
        status: the result of fleet_status.
        host: the host's name; a host that could not be read has no metrics.
        now: Unix time of the status.
    """
    found = status["hosts"][host]
    if not found["read"]:
        return ""
    values = {
        "gaudi_serve_fleet_pending_changes": [
            (f'{{stage="{part}"}}', float(len(found["drift"].get(part) or []))) for part in (*PARTS, "answers")
        ],
        "gaudi_serve_fleet_status_timestamp_seconds": [("", now)],
    }
    lines = []
    for name, samples in values.items():
        metric = BY_NAME[name]
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
        lines += [f"{name}{labels} {value:.15g}" for labels, value in samples]
    return "".join(f"{line}\n" for line in lines)


def _cells(model: Known) -> list[str]:
    silent = model["wanted"] == "stopped" or model["answers"] is None
    well = "-" if silent else "yes" if model["answers"] else "no"
    state = model["state"] + (" (wanted: stopped)" if model["wanted"] == "stopped" else "")
    return [model_cell(model), ",".join(map(str, model["module_ids"])) or "cpu", state, well, model["url"]]
