"""The changes that a run would make on a host: the plan compared with the launches of the running units."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..core.run import sha256_file
from ..core.served import served_names
from ..core.words import some_names
from ..model.distributed import answers, hosts_of
from ..model.host import LiveModel
from ..stages.launch_view import View, cards_text, differences, launch_view
from ..stages.service import MISSING, runs_as_planned, same_env, setting_changes, vllm_container


def vllm_plan_changes(
    models: Sequence[Mapping[str, Any]],
    services: Mapping[str, Any],
    but: Collection[str | None] = (),
    supervisor: str | None = None,
) -> list[str]:
    """Return the differences between the planned and the live models, as lines of text.

    Args:
        models: The models of a plan.
        services: ``gaudi_host.services`` of the host.
        but: Models that are requested but not planned, such as those with findings. They are not removed.
        supervisor: SHA-256 of the supervisor that a run would install; None for the toolkit's own.

    Returns:
        One line per model that would be started, restarted, stopped or removed, followed by one line per difference:
        ``~`` from live to planned, ``+`` new, ``-`` removed. Empty if nothing differs.
    """
    lines: list[str] = []
    live = {name: LiveModel.of(one) for name, one in services.items()}
    planned = {str(model["name"]): model for model in models}
    for name in sorted(set() if "?" in but else set(live) - set(planned) - set(but)):
        cards = cards_text(live[name].module_ids)
        lines.append(f"- {_named(name, live[name])}: stop and remove (it used cards {cards})")
    for name, model in planned.items():
        lines += _of_model(_named(name, live.get(name), model), model, live.get(name), supervisor or _own())
    return lines


def _named(name: str, live: LiveModel | None, planned: Mapping[str, Any] | None = None) -> str:
    """Return the name of a server, with the other models that it serves now or will serve."""
    now = served_names(name, live.command if live else ())[1:]
    then = [one["served_model_name"] for one in (planned or {}).get("served", [])[1:]]
    others = list(dict.fromkeys([*now, *then]))
    return f"{name} (with {', '.join(others)})" if others else name


def _of_model(name: str, model: Mapping[str, Any], live: LiveModel | None, supervisor: str | None) -> list[str]:
    if model["state"] == "stopped":
        return [f"~ {name}: stop"] if live and live.active else []
    if not live:
        return [f"+ {name}: start {_start(model)}"]
    restart = f"~ {name}: restart{' (secret changed)' * live.secret_changed}"
    if not runs_as_planned(live, model):
        stale = [f"~ {path}: as it was at its start -> as it is now" for path in live.stale]
        stale += [f"- {limit} that was set with docker update" for limit in live.limits]
        changed = [*_changed(live, model), *stale] or [_elsewhere(live, model)]
        return [restart, *[f"    {text}" for text in changed]]
    if not live.runs:
        return [f"~ {name}: start {_start(model)}"]
    if live.secret_changed:
        return [restart]
    return [f"~ {name}: {text} (its server keeps running)" for text in _beside(live, model, supervisor)]


def _elsewhere(live: LiveModel, model: Mapping[str, Any]) -> str:
    """Return why a model restarts although its own launch is unchanged."""
    if not same_env(live.env_sha256, model):
        return "its environment is not the planned one: its file was edited before its start"
    now, then = live.launch.get("group") or {}, model.get("group") or {}
    if now.get("id") == then.get("id"):
        return "its files are newer than its server: an earlier run was interrupted"
    before, after = hosts_of(live.launch), hosts_of(model)
    if before != after:
        return f"~ hosts: {some_names(before) or 'this host'} -> {some_names(after) or 'this host'}"
    return "all its parts restart: another part changes, or a setting that its hosts share"


def _beside(live: LiveModel, model: Mapping[str, Any], supervisor: str | None) -> list[str]:
    """Return the changes around a server that keeps running."""
    missing = [MISSING[kind] for kind in live.missing if kind in MISSING]
    lines = [f"write its {' and its '.join(missing)} again"] if missing else []
    lines += setting_changes(live.launch, model)
    return lines + ["replace its supervisor"] * (live.supervisor not in (None, supervisor))


@cache
def _own() -> str | None:
    return sha256_file(Path(__file__).resolve().parents[3] / "roles/vllm_service/files/vllm-supervisor")


def _changed(live: LiveModel, model: Mapping[str, Any]) -> list[str]:
    planned = _planned_view(model)
    if "read_only" not in live.launch:
        # Older facts do not have this key.
        del planned["root"]
    return differences(launch_view(live.launch, live.env), planned)


def _start(model: Mapping[str, Any]) -> str:
    """Return where a model starts, and on which port it answers."""
    if not answers(model):
        return f"a part of it on {_place(model)}; {hosts_of(model)[0]} answers"
    others = hosts_of(model)[1:]
    return f"on {_place(model)}{f', with parts on {some_names(others)}' if others else ''}, port {model['port']}"


def _place(model: Mapping[str, Any]) -> str:
    return "cards " + cards_text(model["module_ids"]) if model["module_ids"] else "the CPU"


def _planned_view(model: Mapping[str, Any]) -> View:
    return launch_view(vllm_container(model), model["env"])
