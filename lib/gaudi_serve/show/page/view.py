"""A fleet as one document: what the page shows, and the JSON beside it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.redact import without_credentials
from ...core.version import toolkit_version
from ...core.words import counted
from . import measured
from .advice import attention
from .hosts import changes, host_rows
from .timeline import timeline
from .verdict import verdict

Known = Mapping[str, Any]
FORMAT = 1  # of the document; a reader may refuse another one
PARTS = ("plan", "status", "rollout", "tune", "benchmark")
MODEL = ("name", "dtype", "context", "sequences", "graphs_text", "warmup_s", "warmup_cached_s", "image", "memory")


def fleet_page(
    parts: Mapping[str, Any], playbook: str, date: str, inventory: Any, kept: Known | None = None
) -> dict[str, Any]:
    """Return the document of a page. What is secret is not in it: it takes known keys alone, and hides logins.

    Args:
        parts: what the playbooks leave: ``plan`` (vllm_fleet_plan), ``status`` (fleet_status), ``rollout`` (artifact
            gaudi_rollout), ``tune`` (tune_report), ``benchmark`` (figures by host and model). Any may be missing.
        playbook, date, inventory: what has made it, when, and of which inventory (a path, or several).
        kept: benchmarks as filter benchmark_kept returns them; None where nobody has looked.
    """
    given: dict[str, Known] = {name: parts.get(name) or {} for name in PARTS}
    plan, status, rollout = carried_out(given["plan"], given["rollout"]), given["status"], given["rollout"]
    given["plan"] = plan
    hosts, times = host_rows(plan, status, rollout), timeline(plan, rollout)
    rows, figures = measured.runs((kept or {}).get("records") or ()), measured.measured(given["benchmark"])
    document = {
        "format": FORMAT,
        "about": {
            **{"playbook": playbook, "date": date, "toolkit": toolkit_version()},
            "inventory": ", ".join(_short(one) for one in ([inventory] if isinstance(inventory, str) else inventory)),
        },
        "verdict": verdict(given, hosts, times, figures),
        "attention": attention(plan, status, rollout),
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
    return without_credentials(document)  # type: ignore[no-any-return]  # a mapping stays one


def carried_out(plan: Known, rollout: Known) -> Known:
    """Return what is left of a plan in a rollout: nothing of hosts that serve with the change; at its end, of none."""
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
    """Return what of the kept benchmarks is not on the page."""
    notes = list(kept["problems"])
    if left := sum(bool(one.get("not_comparable")) for one in kept["records"]):
        notes.append(f"{counted(left, 'kept repetition')} cannot be compared with others, and benchmark.yml shows why.")
    return notes if kept["records"] else [*notes, "No benchmark is kept yet; benchmark.yml keeps them."]


def _short(inventory: Any) -> str:
    """Return the last two parts of a path, which do not say where people keep their files."""
    return "/".join(str(inventory).rstrip("/").split("/")[-2:])


def _changes(plan: Known) -> list[dict[str, Any]]:
    """Return what a run would do, by hosts that have the same lines."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, host in (plan.get("hosts") or {}).items():
        if lines := changes(host):
            groups.setdefault(tuple(lines), []).append(name)
    return [{"hosts": hosts, "lines": list(lines)} for lines, hosts in groups.items()]


def _models(hosts: Sequence[Known]) -> list[dict[str, Any]]:
    """Return the models of a fleet, those that are planned alike on several hosts once."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for host in hosts:
        for model in host["models"]:
            key = tuple(str(model[name]) for name in MODEL)
            shown = {name: model[name] for name in (*MODEL, "title", "tone")}
            one = groups.setdefault(key, shown | {"hosts": [], "cards": len(model["module_ids"])})
            one["hosts"].append(host["name"])
    return sorted(groups.values(), key=lambda one: str(one["name"]))


def _tune(tune: Known) -> dict[str, Any] | None:
    """Return what tune.yml has planned, with its picture as an address of its data."""
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
    if plan and any("due" not in host for host in plan["hosts"].values()):
        found.append("The plan is made from saved facts: what else a run would change is seen on the live hosts only.")
    return found
