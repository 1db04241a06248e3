"""A fleet as one document: the content of the page and of its JSON file."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.hide import without_credentials
from ...core.version import toolkit_version
from ...core.words import counted
from . import measured
from .advice import attention
from .hosts import changes, host_rows
from .timeline import timeline
from .verdict import from_saved_facts, verdict

Known = Mapping[str, Any]
FORMAT = 1  # version of the document's format; readers may refuse others
PARTS = ("plan", "status", "rollout", "tune", "benchmark")
MODEL = ("name", "dtype", "context", "sequences", "graphs_text", "warmup_s", "warmup_cached_s", "image", "memory")


def fleet_page(
    parts: Mapping[str, Any], playbook: str, date: str, inventory: Any, kept: Known | None = None
) -> dict[str, Any]:
    """Return the document of a page. It copies only known keys and hides credentials.

    Args:
        parts: results of the playbooks: ``plan`` (vllm_fleet_plan), ``status`` (fleet_status), ``rollout`` (artifact
            gaudi_rollout), ``tune`` (tune_report), ``benchmark`` (figures by host and model). Each is optional.
        playbook, date, inventory: the source of the page; ``inventory`` is a path or a list of paths.
        kept: the result of the filter benchmark_kept; None if benchmarks were not read.
    """
    given: dict[str, Known] = {name: parts.get(name) or {} for name in PARTS}
    plan, status, rollout = carried_out(given["plan"], given["rollout"]), given["status"], given["rollout"]
    given["plan"] = plan
    hosts, times = host_rows(plan, status, rollout), timeline(plan, rollout)
    rows, figures = measured.runs((kept or {}).get("records") or ()), measured.measured(given["benchmark"])
    told = attention(plan, status, rollout)
    document = {
        "format": FORMAT,
        "about": {
            **{"playbook": playbook, "date": date, "toolkit": toolkit_version()},
            "inventory": ", ".join(_short(one) for one in ([inventory] if isinstance(inventory, str) else inventory)),
        },
        "verdict": verdict(given, hosts, times, figures),
        "attention": [one for one in told if one["kind"] != "note"],
        "notes": [one for one in told if one["kind"] == "note"],
        "changes": _changes(plan),
        "timeline": times,
        "rollout": {"steps": list(map(str, rollout.get("steps") or ())), "compared": measured.compared(rollout)},
        "hosts": hosts,
        "models": _models(hosts),
        "links": measured.links(hosts),
        "benchmarks": measured.newest(rows),
        "charts": measured.charts(rows),
        "measured": figures,
        "tune": _tune(given["tune"]),
        "missing": [*_missing(plan, hosts), *(_notes(kept) if kept is not None else ())],
    }
    return without_credentials(document)  # type: ignore[no-any-return]  # a mapping stays a mapping


def carried_out(plan: Known, rollout: Known) -> Known:
    """Return a plan without the changes of hosts that a rollout has finished; after its last wave, without any."""
    found: Known = rollout.get("hosts") or {}
    done = {name for name, host in found.items() if host["outcome"] == "verified"}
    if not done:
        return plan
    nothing_left = all(name in done for wave in rollout.get("waves") or () for name in wave)
    after: dict[str, Any] = {"due": {}, "changes": [], "down": [], "reboot": []}
    hosts = {
        name: {**host, **after} if nothing_left or name in done else host
        for name, host in plan.get("hosts", {}).items()
    }
    return {**plan, "hosts": hosts}


def _notes(kept: Known) -> list[str]:
    """Return notes on saved benchmarks that the page does not show."""
    notes = list(kept["problems"])
    if left := sum(bool(one.get("not_comparable")) for one in kept["records"]):
        notes.append(
            f"{counted(left, 'stored repetition')} cannot be compared with others, and benchmark.yml shows why."
        )
    return notes if kept["records"] else [*notes, "No benchmark result is stored yet; benchmark.yml stores them."]


def _short(inventory: Any) -> str:
    """Return the last two parts of a path, to hide where users store their files."""
    return "/".join(str(inventory).rstrip("/").split("/")[-2:])


def _changes(plan: Known) -> list[dict[str, Any]]:
    """Return the changes that a run would make; hosts with the same lines share an entry."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, host in (plan.get("hosts") or {}).items():
        if lines := changes(host):
            groups.setdefault(tuple(lines), []).append(name)
    return [{"hosts": hosts, "lines": list(lines)} for lines, hosts in groups.items()]


def _models(hosts: Sequence[Known]) -> list[dict[str, Any]]:
    """Return the models of a fleet; models with the same plan on several hosts share an entry."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for host in hosts:
        for model in host["models"]:
            key = tuple(str(model[name]) for name in MODEL)
            shown = {name: model[name] for name in (*MODEL, "title", "tone")}
            one = groups.setdefault(key, shown | {"hosts": [], "cards": len(model["module_ids"])})
            one["hosts"].append(host["name"])
    return sorted(groups.values(), key=lambda one: str(one["name"]))


def _tune(tune: Known) -> dict[str, Any] | None:
    """Return the plan of tune.yml, with its picture as a data URL."""
    if not tune.get("plan"):
        return None
    plan = tune["plan"]
    pictures = [one["content"] for one in tune["files"] if one["path"].endswith(".svg")]
    keys = ("model", "hosts", "graphs", "padding", "compiled_while_serving", "speeds")
    return {
        **{key: plan.get(key) for key in keys},
        "lines": list(tune["lines"]),
        "picture": "".join(f"data:image/svg+xml;base64,{base64.b64encode(one.encode()).decode()}" for one in pictures),
    }


def _missing(plan: Known, hosts: Sequence[Known]) -> list[str]:
    found = []
    if hosts and not any(host["links"] for host in hosts):
        found.append("No measurement of the links between cards is known. validate.yml makes one.")
    if from_saved_facts(plan):
        found.append("This plan uses saved facts. Only the live hosts show what else a run would change.")
    return found
