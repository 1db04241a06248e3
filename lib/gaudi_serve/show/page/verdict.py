"""The summary at the top of a page: one sentence and the key figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.words import counted, some_names

Known = Mapping[str, Any]
# States of hosts whose downtimes are not known.
UNSURE = ("refused", "unread")


def verdict(
    parts: Mapping[str, Known], hosts: Sequence[Known], times: Known, measured: Sequence[Known]
) -> dict[str, Any]:
    """Return ``kind`` (refused, attention, changes or good), ``sentence`` and ``figures``.

    Args:
        parts: the parts of the page: ``plan``, ``status``, ``rollout``, ``tune``, ``benchmark``; each may be empty.
        hosts: the result of host_rows.
        times: the result of timeline.
        measured: the measurements of this run.
    """
    plan, status, rollout = parts["plan"], parts["status"], parts["rollout"]
    refusals = [error for error in plan.get("errors") or () if error["key"] != "facts"]
    count = len(refusals) + len(rollout.get("refusal") or ())
    kind, sentence = _sentence(parts, hosts, times, count) if hosts or not measured else _of_measured(measured)
    figures = [_figure("Hosts", len(hosts)), _figure("Models", sum(len(host["models"]) for host in hosts))]
    if measured:
        figures = [_figure("Hosts", len({one["host"] for one in measured})), _figure("Models", len(measured))]
    if plan:
        changing = sum(bool(host["changes"]) for host in hosts)
        reboots = sum(bool(host.get("reboot")) for host in plan["hosts"].values())
        down = _downtime(times, unknown=from_saved_facts(plan) or any(host["state"] in UNSURE for host in hosts))
        every = f"{times['total']} min over {counted(len(times['rows']), 'model')}" if times["rows"] else ""
        figures += [_figure("Hosts that change", changing), _figure("Refusals", count, bad=count)]
        figures += [_figure("Longest downtime", down, every), _figure("Reboots due", reboots, bad=reboots)]
    if status:
        figures.append(_figure("Differ from the plan", len(status["drifted"]), bad=len(status["drifted"])))
    unread = sum(host["state"] == "unread" for host in hosts)
    if status or unread:
        figures.append(_figure("Not read", unread, bad=unread))
    if rollout.get("waves"):
        figures.append(_figure("Waves", len(rollout["waves"])))
    return {"kind": kind, "sentence": sentence, "figures": figures}


def from_saved_facts(plan: Known) -> bool:
    """Return whether a plan was made without its hosts, so that it does not have what their stages would change."""
    return any("due" not in host for host in (plan.get("hosts") or {}).values())


def _downtime(times: Known, *, unknown: bool) -> str:
    """Return the longest downtime of a model; ``unknown``: some hosts may have others."""
    if any(row["minutes"] is None for row in times["rows"]):
        return "for good"
    if not times["longest"]:
        return "unknown" if unknown else "none"
    return f"{'at least ' * unknown}{times['longest']} min"


def _figure(label: str, value: Any, note: str = "", bad: int = 0) -> dict[str, Any]:
    return {"label": label, "value": str(value), "note": note, "bad": bool(bad)}


def _sentence(parts: Mapping[str, Known], hosts: Sequence[Known], times: Known, refusals: int) -> tuple[str, str]:
    status, rollout = parts["status"], parts["rollout"]
    stopped = [name for name, one in (rollout.get("hosts") or {}).items() if one.get("why")]
    if stopped:
        return "refused", f"The rollout stopped at {some_names(stopped)}."
    if refusals:
        return "refused", f"{counted(refusals, 'refusal')}: fix {'it' if refusals == 1 else 'them'} before a run."
    unread = [host["name"] for host in hosts if host["state"] == "unread"]
    if unread:
        others = [host for host in hosts if host["name"] not in unread]
        changing = parts["plan"] and sum(bool(host["changes"]) for host in others)
        more = f"; a run would change {counted(changing, 'other host')}" if changing else ""
        return "attention", f"{some_names(unread)} could not be read{more}."
    if rollout.get("hosts"):
        left = sum(name not in rollout["hosts"] for wave in rollout.get("waves") or () for name in wave)
        kind, more = ("changes", f"; {counted(left, 'host')} left") if left else ("good", "")
        return kind, f"{counted(len(rollout['hosts']), 'host')} changed and verified{more}."
    if status.get("drifted"):
        drifted = status["drifted"]
        return (
            "attention",
            f"{len(drifted)} of {counted(len(hosts), 'host')} differ{'s' * (len(drifted) == 1)} from the plan.",
        )
    return _calm(parts, hosts, times)


def _calm(parts: Mapping[str, Known], hosts: Sequence[Known], times: Known) -> tuple[str, str]:
    """Return the verdict when nothing is wrong."""
    if parts["tune"]:
        plan = parts["tune"]["plan"]
        return "good", f"{plan['model']}: {counted(int(plan['graphs']), 'graph')} cover its traffic."
    changing = sum(bool(host["changes"]) for host in hosts)
    if from_saved_facts(parts["plan"]):
        more = f": a run would change at least {changing} of {counted(len(hosts), 'host')}" if changing else ""
        return "changes", f"Planned from saved facts, without the live hosts{more}."
    if parts["plan"] and changing:
        down = f" and take {counted(len(times['rows']), 'model')} down" if times["rows"] else ", with no model down"
        return "changes", f"A run would change {changing} of {counted(len(hosts), 'host')}{down}."
    if parts["plan"] or parts["status"]:
        reboots = sum(bool(host.get("reboot")) for host in (parts["plan"].get("hosts") or {}).values())
        if reboots:
            return "attention", f"{counted(reboots, 'host')} must reboot."
        return "good", f"All {counted(len(hosts), 'host')} are as planned." if len(hosts) > 1 else "All is as planned."
    return "good", "Nothing was measured."


def _of_measured(measured: Sequence[Known]) -> tuple[str, str]:
    """Return the verdict of a benchmark."""
    worse = [f"{one['model']} on {one['host']}" for one in measured if one["verdict"] == "worse"]
    if worse:
        return "attention", f"Slower than before: {some_names(worse)}."
    if len(measured) == 1 and measured[0]["answer"]:
        return "good", f"{measured[0]['model']}: {measured[0]['answer']}."
    hosts = len({one["host"] for one in measured})
    return "good", f"{counted(len(measured), 'model')} measured on {counted(hosts, 'host')}."
