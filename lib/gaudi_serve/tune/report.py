"""The output and the files of playbooks/tune.yml."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..buckets.compared import Compared
from ..buckets.traffic import Request
from ..core.errors import InputError, readable
from ..core.table import table
from ..core.words import counted
from .learned import Learned, learned
from .picture import picture
from .proposal import Proposal, proposed, read_goal
from .target import Target, refused, target
from .trace_file import Columns, read_trace_file

HEAD = ("BUCKETS", "GRAPHS", "WARM-UP", "PROMPT TOKENS", "SEQUENCES", "BLOCKS", "COMPILED")
SHOWN_SPEEDS = (0.25, 0.5, 1, 2, 4)
LIMITS = ("max_num_seqs", "max_model_len", "max_num_batched_tokens", "num_hpu_blocks")


def tune_refusal(fleet: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Return why buckets cannot be planned, one sentence per reason, before any server is read.

    Args:
        fleet: The result of vllm_fleet_plan.
        asked: The user's values: model, trace, trace_columns, trace_time_unit, tune_like, tune_max_graphs,
            tune_max_padding. Empty values are not set. inventory_dir: the folder next to which proposed files may be.
    """
    found = refused(fleet, asked.get("model"))
    for ask in (lambda: read_goal(asked), lambda: _trace(asked) if asked.get("trace") else None):
        try:
            ask()
        except InputError as problem:
            found.append(str(problem))
    return found


def _trace(asked: Mapping[str, Any]) -> list[Request]:
    columns = Columns.of(asked.get("trace_columns"), asked.get("trace_time_unit"))
    return read_trace_file(asked["trace"], columns)


def tune_report(
    fleet: Mapping[str, Any], asked: Mapping[str, Any], folder: str, traffic: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Plan the buckets of a model for its traffic.

    Args:
        fleet: The result of vllm_fleet_plan. tune_refusal has found no problem with it.
        asked: See tune_refusal.
        folder: The folder for the files.
        traffic: Without a trace, the result of module vllm_traffic by host, or any result without ``traffic`` if the
            host was not read.

    Returns:
        ``lines`` to show, ``errors`` (sentences; then the rest is empty), ``files`` with ``{path, content}`` each, and
        ``plan``: graphs, padding and the rest as data.
    """
    try:
        plan, notes = _proposed(fleet, asked, traffic or {})
    except InputError as problem:
        return {"lines": [], "errors": [str(problem)], "files": [], "plan": {}}
    aim = plan.target
    path = f"{folder}/{aim.name}.{'env.yml' if aim.ranges else 'buckets'}"
    lines = [*_head(plan), *notes, *_left_out(fleet, aim), "", *_table(plan), "", *_speeds(plan), "", plan.note, ""]
    files = [{"path": path, "content": plan.text}, {"path": f"{folder}/{aim.name}.svg", "content": picture(plan)}]
    return {
        "lines": [*lines, *_next(plan, path, str(asked.get("inventory_dir") or ""))],
        "errors": [],
        "files": files,
        "plan": _data(plan),
    }


def _data(plan: Proposal) -> dict[str, Any]:
    more = {"file": plan.text, "speeds": plan.speeds, "held_out": plan.held_out}
    return {"model": plan.target.name, "hosts": plan.target.hosts, **more, **plan.planned.as_dict()}


def _proposed(
    fleet: Mapping[str, Any], asked: Mapping[str, Any], traffic: Mapping[str, Any]
) -> tuple[Proposal, list[str]]:
    """Return the plan, and sentences about single hosts."""
    name, goal = str(asked["model"]), read_goal(asked)
    if asked.get("trace"):
        source = f"trace {readable(Path(asked['trace']).name)}"
        return proposed(target(fleet, name, {}), _trace(asked), goal, source), []
    hosts = [host for host, plan in fleet["hosts"].items() if name in [one["name"] for one in plan["models"]]]
    found = learned(name, hosts, traffic)
    aim = target(fleet, name, found.blocks)
    plan = proposed(aim, found.requests(aim.limits.max_model_len), goal, found.source, found.token_s)
    return plan, found.notes + _other_blocks(aim, found)


def _head(plan: Proposal) -> list[str]:
    more = f"; the server refuses {plan.uncovered} more, which do not fit" if plan.uncovered else ""
    limits = plan.target.limits
    return [
        f"{plan.target.name} on {', '.join(plan.target.hosts)}: {counted(plan.taken, 'request')} ({plan.source}){more}",
        "within " + ", ".join(f"{key} {getattr(limits, key)}" for key in LIMITS),
        f"prefix caching {_on(limits.prefix_caching)}, contiguous PA {_on(limits.use_contiguous_pa)}",
        plan.speed,
    ]


def _on(switch: bool) -> str:
    return "on" if switch else "off"


def _other_blocks(aim: Target, found: Learned) -> list[str]:
    notes = []
    for host, blocks in found.blocks.items():
        memory = aim.planned[host]["memory"] if host in aim.planned else None
        if memory and memory["num_hpu_blocks"] != blocks:
            notes.append(
                f"{host}: its server has {blocks} KV-cache blocks, but the plan estimates "
                f"{memory['num_hpu_blocks']}: the server's count is used"
            )
    return notes


def _left_out(fleet: Mapping[str, Any], aim: Target) -> list[str]:
    """Return why other hosts, which may also have the model, are not in the plan."""
    return [
        error["message"]
        for error in fleet["errors"]
        if error["host"] not in aim.planned and (error["key"] == "facts" or error["model"] == aim.name)
    ]


def _table(plan: Proposal) -> list[str]:
    rows = [[*HEAD], _row(plan, f"today ({plan.today.strategy})", plan.today.compared)]
    rows.append(_row(plan, "planned", plan.planned))
    others = {} if plan.target.ranges else plan.strategies
    rows += [_row(plan, name, found) for name, found in others.items() if name != plan.today.strategy]
    refused_ones = [
        f"{name}: {found}"
        for name, found in {plan.today.strategy: plan.today.compared, **others}.items()
        if isinstance(found, InputError)
    ]
    return [*table(rows), *refused_ones]


def _row(plan: Proposal, name: str, found: Compared | InputError) -> list[str]:
    if isinstance(found, InputError):
        return [name, *["-"] * (len(HEAD) - 1)]
    minutes, padding = plan.target.minutes(found.graphs), found.padding
    shares = (padding.prompt_tokens, padding.decode_batch, padding.decode_blocks)
    return [
        name,
        str(found.graphs),
        "-" if minutes is None else f"{minutes:.1f} min",
        *(f"{100 * share:.1f} %" for share in shares),
        str(found.compiled),
    ]


def _speeds(plan: Proposal) -> list[str]:
    """Return the padding of the plan at other speeds, and for requests that another plan has not seen."""
    rows = [["TIMES AS FAST", *HEAD[3:6]]]
    rows += [_speed(plan, one, f"{one['speed']:g}") for one in plan.speeds if one["speed"] in SHOWN_SPEEDS]
    if plan.held_out is None:
        return [f"Padding at other speeds of the server, and in brackets that of {plan.beside}:", *table(rows)]
    rows += [
        _speed(plan, one, f"{one['speed']:g}, last third")
        for one in plan.held_out["speeds"]
        if one["speed"] in SHOWN_SPEEDS[1:-1]
    ]
    return [
        f"Padding at other speeds of the server, and in brackets that of {plan.beside}. The last third of the requests",
        f"is padded with a plan of {counted(plan.held_out['graphs'], 'graph')} that was made without it:",
        *table(rows),
    ]


def _speed(plan: Proposal, row: Mapping[str, Any], name: str) -> list[str]:
    padding, other = row["padding"], row["compared"][plan.beside] or {}
    return [
        name,
        *(
            f"{100 * share:.1f} % ({100 * other[key]:.1f} %)" if other else f"{100 * share:.1f} %"
            for key, share in padding.items()
        ),
    ]


def _next(plan: Proposal, path: str, inventory_dir: str) -> list[str]:
    """Return the next steps for the files. A file next to the inventory is named relative to the inventory's folder."""
    name = plan.target.name
    if plan.text.strip() == (plan.target.model["bucket_file"] or "").strip():
        return [f"{name} already has this list"]
    beside = inventory_dir and path.startswith(f"{inventory_dir.rstrip('/')}/")
    where = f"inventory_dir ~ '{path.removeprefix(inventory_dir.rstrip('/'))}'" if beside else f"'{path}'"
    look = f"Nothing restarts now. Review {path}. To use it, write into the model's entry:"
    if plan.target.ranges:
        return [
            look.replace("entry", "entry, with the rest of its env"),
            f"  env: \"{{{{ lookup('file', {where}) | from_yaml }}}}\"",
        ]
    return [look, f"  bucketing: {{strategy: file, file: \"{{{{ lookup('file', {where}) }}}}\"}}"]


__all__ = ["tune_refusal", "tune_report"]
